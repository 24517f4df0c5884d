"""Who plays in the demo, how fast, and when the one that restarts does so. Plain values; nothing here acts."""

from dataclasses import dataclass

CAST = {
    "alice": "gptq-int4",
    "bob": "awq",
    "carol": "fp8",
    "dave": "cached",
    "erin": "first-token",
    "frank": "switcher",
    "grace": "flaky",
}
"""Host -> personality: the contest's. `cold`, which thinks for 89 s, and `drip`, which never ends, would fill the minute
with waiting."""
SWITCHER = "frank"
SPEED = 4
"""So many times as fast as the contest's servers: three seconds for an answer would leave a minute few of them."""
CACHE_HIT_S = 0.02
"""Of the simulator's time, so 5 ms as in the contest."""
USERS_PER_HOST = 4
CANARY_PERCENT = 10
"""A minute is short: of the usual 1 % there would be one pair at a host of five requests a second, and what cuts its
answers is known by what the others answer to the same canaries."""
BENCH_REQUESTS = 32
SCOUT_EVERY = "1s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenes:
    """When what happens in a blast, in seconds from its start."""

    seconds: int
    window: int
    """Of the board: it must still hold the whole downtime at the end."""
    fall_at: float
    down_for: float


def scenes(seconds: int) -> Scenes:
    """The window is half of the blast; the switcher falls when it has just begun, and is down for a third of it."""
    return Scenes(seconds=seconds, window=seconds // 2, fall_at=seconds * 0.6, down_for=seconds / 6)


def fleet_words(down_for_s: float) -> list[str]:
    """What follows `toolkit sim fleet`; the switcher waits for the signal."""
    settings = {
        "cache_hit_s": f"{CACHE_HIT_S:g}",
        "down_after_s": "none",
        "down_for_s": f"{down_for_s * SPEED:g}",
    }
    return [
        *(f"{name}={person}" for name, person in CAST.items()),
        "--time-scale",
        f"{1 / SPEED:g}",
        *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
    ]
