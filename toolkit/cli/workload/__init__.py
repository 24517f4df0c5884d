"""`toolkit workload`: its command line (verb) and what that does."""
