"""`toolkit capture`: its command line and what it does (verb), where requests go (sinks), what moves meanwhile (progress), the page (table)."""
