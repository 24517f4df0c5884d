"""`toolkit deploy`: its command line (verb) and what that does."""
