"""`toolkit plan`: its command line and what it does (verb), what servers and runs tell (measured), how it looks (table)."""
