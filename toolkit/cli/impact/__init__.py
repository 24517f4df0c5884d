"""`toolkit impact`: its command line (verb) and what that does."""
