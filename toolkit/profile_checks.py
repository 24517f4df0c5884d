"""Is one value of a profile what its key takes? Each check returns the value or raises a ToolkitError that names the key."""

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.wording import printable

MOST_WEIGHT = 1_000_000
"""Weights are taken in proportion; nobody needs more, and sums of them stay exact."""

EXAMPLE = 'A prompt is, e.g., `[[prompts]]` and below it `text = "Write a story about a robot."`'


def refuse_unknown(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Raise for the first key that is not known, with the one that may be meant."""
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean `{near[0]}`?" if near else f"Known keys: {', '.join(known)}"
            raise ToolkitError(f"{where}: unknown key `{shown(key)}`", hint)


def text(value: object, where: str) -> str:
    """A text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ToolkitError(f"{where} is not a text, or an empty one", EXAMPLE)
    return value


def word(value: object, where: str) -> str:
    """A text that is shown in tables: one line, nothing that moves a cursor."""
    if not isinstance(value, str) or not value.isprintable():
        raise ToolkitError(f"{where} is not one line of text", 'Write, e.g., `name = "robot"`')
    return value


def share(value: object, where: str) -> float | None:
    """A number from 0 to 1, or nothing."""
    if value is None:
        return None
    found = number(value)
    if found is None or not 0 <= found <= 1:
        raise ToolkitError(f"{where} is not a number from 0 to 1", "Half of the requests is 0.5")
    return found


def count(value: object, where: str) -> int | None:
    """A whole number of at least 1, or nothing."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ToolkitError(f"{where} is not a whole number of at least 1", "Write, e.g., 256")
    return value


def weight(value: object, where: str) -> float:
    """A number above 0 that sums exactly with others."""
    found = number(value)
    if found is None or not 0 < found <= MOST_WEIGHT:
        raise ToolkitError(
            f"{where} is not a number above 0 and up to {MOST_WEIGHT:,}", "Twice as often as 1 is 2"
        )
    return found


def number(value: object) -> float | None:
    """A finite number; None for anything else, `true` included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # TOML's whole numbers have no end
        return None
    return found if math.isfinite(found) else None


def are_tables(value: object) -> bool:
    """Whether it is a list of tables."""
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def shown(text: str) -> str:
    """A word of the file's, fit for a screen."""
    return printable(text)
