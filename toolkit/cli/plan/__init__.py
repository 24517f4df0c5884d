"""`toolkit plan`: its command line (verb) and what that does."""
