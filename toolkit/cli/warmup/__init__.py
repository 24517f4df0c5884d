"""`toolkit warmup`: its command line (verb) and what that does."""
