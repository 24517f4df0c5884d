"""`toolkit completion`: its command line (verb) and what that does."""
