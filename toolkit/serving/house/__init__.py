"""The whole stack of `toolkit serve`: engines, the proxy's gate, orders, and what is told of it."""
