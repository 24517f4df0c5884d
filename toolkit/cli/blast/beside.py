"""Scout's looks beside a blast: what each host tells of itself while it is under load, kept as sightings."""

import ssl
from collections.abc import Callable, Mapping, Sequence

from toolkit.errors import ToolkitError
from toolkit.records import Host, Sighting
from toolkit.scout.look import QuietMoments, Scout
from toolkit.scout.watch import HostWatch
from toolkit.store import Store

LOOK_TIMEOUT_S = 5.0
"""For all pages of one host, as scout's own."""
MOST_WAITING = 10_000
"""Sightings that wait for a store that refuses; beyond it the oldest are given up."""


class SightingWriter:
    """Hands sightings to the store. What it refuses waits: a locked or full file ends neither look nor load."""

    def __init__(self, store: Store, hosts: Sequence[Host], warn: Callable[[str], None]) -> None:
        """`warn` is told once that the store refuses."""
        self._store, self._hosts, self._warn = store, hosts, warn
        self._waiting: list[Sighting] = []
        self._is_warned = False

    def add(self, batch: Sequence[Sighting]) -> None:
        """Keep them, and what waits."""
        self._waiting = [*self._waiting, *batch][-MOST_WAITING:]
        try:
            self._store.add_sightings(self._waiting, self._hosts)
        except ToolkitError as error:
            if not self._is_warned:
                self._warn(f"Warning: {error.message}; scout's looks go on and are kept later")
            self._is_warned = True
        else:
            self._waiting = []


async def look_beside(
    hosts: Sequence[Host],
    keys: Mapping[str, str],
    store: Store,
    *,
    tls: ssl.SSLContext,
    every_s: float,
    warn: Callable[[str], None],
) -> None:
    """Look at each host again and again until cancelled; every look is kept."""
    quiet = QuietMoments()
    last = {host.name: store.last_telling(host.name, host.url) for host in hosts}
    watch = HostWatch(
        [Scout(host, tls, keys.get(host.name), LOOK_TIMEOUT_S, quiet) for host in hosts],
        before={name: sighting for name, sighting in last.items() if sighting},
        keep=SightingWriter(store, hosts, warn).add,
        show=lambda _: None,
    )
    await watch.run(None, every_s)
