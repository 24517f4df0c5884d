"""Is this machine fit to serve: what it has, what that means, and what mends it."""
