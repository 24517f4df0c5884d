"""The one error a user may see. It imports nothing and prints nothing; only the CLI group prints it."""


class ToolkitError(Exception):
    """What went wrong, on which thing; `hint` is the command or edit that fixes it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def reason_of(error: Exception) -> str:
    """What the system says of a file or a socket that it refuses, to stand behind a colon."""
    return (getattr(error, "strerror", None) or str(error) or "no reason given").lower()
