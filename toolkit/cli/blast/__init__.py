"""`toolkit blast`: its command line (verb) and what that does."""
