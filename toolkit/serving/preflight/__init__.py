"""Is this machine fit to serve? One file a subject: each check looks, judges, and says what mends it."""
