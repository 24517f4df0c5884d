"""`toolkit proxy`: its command line (verb) and what that does."""
