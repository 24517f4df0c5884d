"""`toolkit bench`: its command line (verb) and what that does."""
