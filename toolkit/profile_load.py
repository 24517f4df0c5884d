"""What a profile says of a blast's load: pauses, and phases of more or fewer users. It reads values, never a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit import profile_checks as checks
from toolkit.errors import ToolkitError
from toolkit.quantities import seconds_of

PHASE_KEYS = ("name", "for", "users", "spawn_rate")

MOST_THINK_S = 3_600.0
MOST_USERS = 100_000
"""Per host; more ports than any machine has."""

PHASE_EXAMPLE = (
    'A phase is, e.g., `[[phases]]` and below it `for = "2m"` and `users = 8` or `users = [1, 32]`'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of a blast."""

    name: str
    length_s: float
    users_from: int
    """Per host, at its start; a ramp goes on evenly to `users_to`, else the two are equal."""
    users_to: int
    spawn_rate: float | None = None
    """Users started a second and host; None: as fast as they are wanted."""


def phases(entries: object, where: str) -> tuple[Phase, ...]:
    """Read `[[phases]]`; none when there are none."""
    if not checks.are_tables(entries) or not isinstance(entries, list):
        raise ToolkitError(f"{where} is not a list of tables", PHASE_EXAMPLE)
    found = tuple(
        _phase(entry, number, f"{where}: phase {number}")
        for number, entry in enumerate(entries, start=1)
    )
    if found and not any(phase.users_from or phase.users_to for phase in found):
        raise ToolkitError(f"{where} never have a user", PHASE_EXAMPLE)
    return found


def _phase(entry: Mapping[str, Any], number: int, where: str) -> Phase:
    checks.refuse_unknown(entry, PHASE_KEYS, where)
    name = checks.word(entry.get("name", f"phase-{number}"), f"{where}: `name`")
    users_from, users_to = _users(entry.get("users"), f"{where}: `users`")
    return Phase(
        name=name or f"phase-{number}",
        length_s=_length_s(entry.get("for"), f"{where}: `for`"),
        users_from=users_from,
        users_to=users_to,
        spawn_rate=_spawn_rate(entry.get("spawn_rate"), f"{where}: `spawn_rate`"),
    )


def _users(value: object, where: str) -> tuple[int, int]:
    both: list[Any] = value if isinstance(value, list) else [value, value]
    if len(both) != 2 or not all(_is_users(one) for one in both):
        raise ToolkitError(
            f"{where} is neither a whole number nor a ramp from one to another, up to {MOST_USERS:,}",
            PHASE_EXAMPLE,
        )
    return both[0], both[1]


def _is_users(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_USERS


def _length_s(value: object, where: str) -> float:
    length_s = seconds_of(value) if isinstance(value, str) else None
    if length_s is None:
        raise ToolkitError(f"{where} is no duration", "Write, e.g., `90s`, `15m` or `2h`")
    return length_s


def _spawn_rate(value: object, where: str) -> float | None:
    if value is None:
        return None
    found = checks.number(value)
    if found is None or not found > 0:
        raise ToolkitError(
            f"{where} is not a number above 0", "Two users a second for each host is 2"
        )
    return found


def think_time(value: object, where: str) -> tuple[float, float] | None:
    """Read a number of seconds, or the least and the most of them."""
    if value is None:
        return None
    both = value if isinstance(value, list) else [value, value]
    found = [checks.number(one) for one in both]
    if len(found) == 2 and found[0] is not None and found[1] is not None:
        low, high = found[0], found[1]
        if 0 <= low <= high <= MOST_THINK_S:
            return low, high
    raise ToolkitError(
        f"{where} is neither seconds nor the least and the most of them, up to {MOST_THINK_S:,.0f}",
        "Write, e.g., `2.5` or `[1, 5]`",
    )
