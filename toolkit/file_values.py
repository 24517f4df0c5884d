"""Is one value of a settings file what its key takes? What all such files ask alike; their own rules stand in their rooms.

Each check returns the value or raises a ToolkitError that names the key: `where` holds the file and the key. It reads no file.
"""

import difflib
import re
from collections.abc import Sequence

from toolkit.errors import ToolkitError
from toolkit.profile_checks import number
from toolkit.quantities import seconds_of

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Upper case, as all know them: most keys that are put here by mistake are not, and a later message names the variable."""


def one_line(told: object, where: str) -> str:
    """A text that is not blank and moves no cursor."""
    if not isinstance(told, str) or not told.strip() or not told.isprintable():
        raise ToolkitError(f"{where} is not one line of text", 'Texts stand in quotes: `"..."`')
    return told


def switch(told: object, where: str) -> bool:
    """True or false."""
    if not isinstance(told, bool):
        raise ToolkitError(f"{where} is neither true nor false", "Write `true`, without quotes")
    return told


def whole(told: object, where: str, low: int, high: int) -> int:
    """A whole number within bounds."""
    if isinstance(told, bool) or not isinstance(told, int) or not low <= told <= high:
        raise ToolkitError(
            f"{where} is not a whole number from {low:,} to {high:,}", f"Write, e.g., {max(low, 1)}"
        )
    return told


def duration(told: object, where: str, low: float, high: float) -> float:
    """Seconds within bounds, of `90s` or of a number of them."""
    seconds = seconds_of(told) if isinstance(told, str) else number(told)
    if seconds is None:
        raise ToolkitError(
            f"{where} is no duration", "Write, e.g., `90s`, `15m` or `2h`, or a number of seconds"
        )
    if not low <= seconds <= high:
        raise ToolkitError(f"{where} is not from {low:g} to {high:g} s", "Write, e.g., `5s`")
    return seconds


def choice(told: object, where: str, choices: Sequence[str]) -> str:
    """One of these words."""
    if isinstance(told, str) and told in choices:
        return told
    near = difflib.get_close_matches(told, choices, n=1) if isinstance(told, str) else []
    raise ToolkitError(
        f"{where} is none of {', '.join(f'`{one}`' for one in choices)}",
        f"Did you mean `{near[0]}`?" if near else f'Write, e.g., `"{choices[0]}"`',
    )


def variable(told: object, where: str) -> str:
    """The name of the environment variable that holds a secret."""
    if not isinstance(told, str) or not _VARIABLE.fullmatch(told):
        # never print the word: whoever mistakes this key writes the secret itself there
        raise ToolkitError(
            f"{where} is not the name of an environment variable",
            "Put the secret into a variable and its name here, in upper case",
        )
    return told
