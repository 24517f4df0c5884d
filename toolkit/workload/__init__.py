"""What the requests that arrived have in common, and what follows from it."""
