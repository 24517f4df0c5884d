"""`toolkit capture`: its command line (verb) and what that does."""
