"""A server is asked until it is warm: with what, until when, and what the first clients would have waited."""
