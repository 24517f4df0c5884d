"""Calls upstream: who leads and who joins, who gets a slot and who is turned away, and how an answer reaches each client."""
