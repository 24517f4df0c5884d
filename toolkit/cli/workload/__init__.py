"""`toolkit workload`: its command line and what it does (verb), where its requests come from (sources), how it looks (table)."""
