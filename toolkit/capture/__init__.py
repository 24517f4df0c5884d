"""See what clients really send: packets -> requests."""
