"""Who leads in a rolling window of a blast, and why."""
