"""`toolkit compare`: its command line (verb) and what that does."""
