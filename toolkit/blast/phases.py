"""How many users does a host have at a moment of a blast with phases? Pure arithmetic over the time since its start."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.profiles import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStage:
    """What is wanted at one moment."""

    name: str
    users: int
    """Per host."""
    spawn_rate: float
    """Users started a second and host, at most."""


def at(phases: Sequence[Phase], t_s: float) -> LoadStage | None:
    """What is wanted `t_s` seconds after the start; None: it is over."""
    start_s = 0.0
    for phase in phases:
        if t_s < start_s + phase.length_s:
            return _stage(phase, max(0.0, t_s - start_s) / phase.length_s)
        start_s += phase.length_s
    return None


def length_s(phases: Sequence[Phase]) -> float:
    """How long all of them take."""
    return math.fsum(phase.length_s for phase in phases)


def most_users(phases: Sequence[Phase]) -> int:
    """The most users that a host ever has."""
    return max((max(phase.users_from, phase.users_to) for phase in phases), default=0)


def _stage(phase: Phase, share: float) -> LoadStage:
    """`share`: how much of the phase has passed, 0 to 1. A half user is a whole one."""
    change = phase.users_to - phase.users_from
    return LoadStage(
        name=phase.name,
        users=math.floor(phase.users_from + change * share + 0.5),
        spawn_rate=phase.spawn_rate or _rate(phase),
    )


def _rate(phase: Phase) -> float:
    """Fast enough: a second for all users of a level, twice its own slope for a ramp."""
    change = abs(phase.users_to - phase.users_from)
    if not change:
        return float(max(1, phase.users_to))
    # the first users of a ramp come at once, too
    return max(1.0, 2.0 * change / phase.length_s, float(phase.users_from))
