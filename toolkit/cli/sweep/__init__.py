"""`toolkit sweep`: its command line (verb), its tables, what the planner says before, and what is asked of the servers."""
