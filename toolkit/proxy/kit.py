"""What all who answer in one process work with: settings, layers, counters, clocks, and whom they tell. It does nothing itself."""

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.proxy.counters import Counters
from toolkit.proxy.exchange import Served
from toolkit.proxy.explain import Memory
from toolkit.proxy.generations import Generations
from toolkit.proxy.layers import Layers
from toolkit.proxy.settings import Settings

Event = Callable[[str, dict[str, object]], None]
"""An event's name and what is known of it: a line of the log that is no request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """Made once a process."""

    settings: Settings
    layers: Layers
    counters: Counters
    generations: Generations
    memory: Memory
    """Requests that were no hits, for explanations."""
    tell: Callable[[Served], None]
    """Takes every request but the hits of very bytes, once, when all is over."""
    event: Event
    clock: Callable[[], float]
    """Monotonic, for durations and deadlines."""
    wall: Callable[[], float]
    secret: bytes
    """Makes salts and tags; the same as long as the keys are."""
    name: bytes
    """Begins each request's id."""
