"""`toolkit scout`: its command line (verb) and what that does."""
