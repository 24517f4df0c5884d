"""`toolkit diagnose`: its command line (verb), and what is known of hosts: seen now (look), or stored with a run (stored)."""
