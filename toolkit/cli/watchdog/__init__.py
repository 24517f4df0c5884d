"""`toolkit watchdog`: its command line (verb) and what that does."""
