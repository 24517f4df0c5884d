"""Any engine's /metrics page, read into the same named numbers. No I/O."""
