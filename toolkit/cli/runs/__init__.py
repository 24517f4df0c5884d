"""`toolkit runs`: its command line (verb) and what that does."""
