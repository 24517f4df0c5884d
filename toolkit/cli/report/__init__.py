"""`toolkit report`: its command line (verb) and what that does."""
