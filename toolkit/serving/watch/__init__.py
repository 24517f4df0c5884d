"""Whether an engine makes progress, and when it is restarted."""
