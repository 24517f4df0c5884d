"""`toolkit diagnose`: its command line (verb) and what that does."""
