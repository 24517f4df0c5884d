"""What all who answer in one process work with: settings, layers, counters, clocks, and whom they tell. It does nothing itself."""

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.proxy.exchange import Served
from toolkit.proxy.settings import Settings
from toolkit.proxy.stored.layers import Layers
from toolkit.proxy.told.counters import Counters
from toolkit.proxy.told.explain import Memory
from toolkit.proxy.upstreams.generations import Generations
from toolkit.records import Asked

Event = Callable[[str, dict[str, object]], None]
"""An event's name and what is known of it: a line of the log that is no request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """Made once a process."""

    settings: Settings
    layers: Layers
    counters: Counters
    generations: Generations
    generation: Callable[[str | None], str]
    """A model's part of every key; with a Redis that several machines share it is no count of this one's."""
    memory: Memory
    """Requests that were no hits, for explanations."""
    tell: Callable[[Served, Asked | None], None]
    """Takes every request but the hits of very bytes, once, when all is over; Asked: what its body asks, where it was read."""
    event: Event
    clock: Callable[[], float]
    """Monotonic, for durations and deadlines."""
    wall: Callable[[], float]
    secret: bytes
    """Makes salts and tags; the same as long as the keys are."""
    name: bytes
    """Begins each request's id."""
