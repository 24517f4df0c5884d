"""`toolkit board`: its command line (verb) and what that does."""
