"""`toolkit preflight`: its command line (verb) and what that does."""
