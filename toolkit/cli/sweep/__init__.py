"""`toolkit sweep`: its command line (verb) and what that does."""
