"""One answer as it came and as it is kept, shown in either view, replayed and verified. No socket, no clock, no file."""
