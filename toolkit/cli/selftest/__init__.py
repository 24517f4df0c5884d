"""`toolkit selftest`: its command line (verb) and what that does."""
