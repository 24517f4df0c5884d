"""BENCH, a room of LOOK: time every host fairly, and say why it is fast."""
