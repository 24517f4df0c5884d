"""`toolkit demo`: its command line (verb) and what that does."""
