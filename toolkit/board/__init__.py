"""BOARD, a room of BLAST: who leads in a rolling window, and why."""
