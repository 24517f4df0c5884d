"""The whole stack of `toolkit serve`: engines, the serving's gate, orders, and what is told of it."""
