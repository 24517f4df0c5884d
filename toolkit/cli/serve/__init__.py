"""`toolkit serve`: its command line (verb) and what that does."""
