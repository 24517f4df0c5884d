"""What a command ends with; a wrong command line is click's, 2."""

WORKED = 0
FAILED = 1
"""The input or the world is at fault: no host answered, nothing was measured."""
INTERRUPTED = 130
"""What a shell calls an interrupted command."""
