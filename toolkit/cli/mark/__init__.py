"""`toolkit mark`: its command line (verb) and what that does."""
