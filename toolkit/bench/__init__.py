"""Times every host fairly, and says why it is fast."""
