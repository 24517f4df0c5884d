"""`toolkit sim`: its command line (verb) and what that does."""
