"""Tunes: one lever at a time, before and after, and what the figures say is in the way."""
