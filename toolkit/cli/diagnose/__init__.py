"""`toolkit diagnose`: its command line (verb), and what is known of the hosts that it judges (hosts)."""
