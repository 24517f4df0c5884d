"""Values in logs that others wrote, taken for what they are meant to be; what is none is None. It opens nothing."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

MOST = 2**63 - 1
"""No count is larger; it is somebody's nonsense, and unknown."""

MOST_SPAN = 1e12
"""Milliseconds: 31 years."""

# A moment without a unit is told by its size: 1e11 s is the year 5138, 1e11 ms is March 1973.
_LEAST_MS, _LEAST_US, _LEAST_NS = 1e11, 1e14, 1e17


def first(fields: Mapping[str, Any], *names: str) -> Any:
    """The first of these fields that says anything."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def number(value: object) -> float | None:
    """A finite number, also one that stands in quotes."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def span(value: object) -> float | None:
    """A length of time from 0 up, in whatever unit; one that nobody can have waited is unknown."""
    found = number(value)
    return None if found is None or not 0 <= found <= MOST_SPAN else found


def count(value: object) -> int | None:
    """A whole number from 0."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value <= MOST else None
    found = number(value)
    if found is None or found != int(found) or not 0 <= found <= 2**53:
        return None  # past 2**53 a float is not sure of its last digit
    return int(found)


def integer(value: object) -> int | None:
    """A whole number, below 0 included."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) <= MOST else None
    return None


def flag(value: object) -> bool | None:
    """True or false."""
    return value if isinstance(value, bool) else None


def text(value: object) -> str | None:
    """A text that is not empty; nginx and others write `-` for none."""
    return value if isinstance(value, str) and value not in ("", "-") else None


def words(value: object) -> tuple[str, ...]:
    """A list of texts."""
    if not isinstance(value, list | tuple):
        return ()
    return tuple(one for one in value if isinstance(one, str))


def moment(value: object) -> float | None:
    """Seconds since 1970, of a number (its size tells the unit) or of a date and time; without a zone it is UTC."""
    found = number(value)
    if found is not None:
        return _in_seconds(found)
    try:
        read = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if read is None:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


def _in_seconds(found: float) -> float | None:
    if found < 0:
        return None
    if found < _LEAST_MS:
        return found
    return found / (1e3 if found < _LEAST_US else 1e6 if found < _LEAST_NS else 1e9)


def key_of(*parts: object) -> str:
    """32 hexadecimal digits, equal for equal parts."""
    digest = blake2b(digest_size=16)
    for part in parts:
        told = str(part).encode("utf-8", "surrogatepass")
        digest.update(len(told).to_bytes(8) + told)
    return digest.hexdigest()
