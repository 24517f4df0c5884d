"""What a database holds beside blasts, and the command that comes next: for whoever asks for a ranking before there is one."""

from dataclasses import dataclass
from math import inf

from toolkit.store import Store
from toolkit.units import counted, spoken_list


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """How much there is to look at; the fields are keys of `toolkit board --json` while there is no blast."""

    blasts: int
    snapshots: int
    """What scout saw, each look at each host."""
    hosts: int
    """Of the snapshots, by name."""
    benches: int
    captures: int

    @property
    def words(self) -> str:
        """`38 snapshots of 19 hosts, 1 bench and 2 captures`; nothing of what is not there."""
        parts = []
        if self.snapshots:
            parts.append(f"{counted(self.snapshots, 'snapshot')} of {counted(self.hosts, 'host')}")
        if self.benches:
            parts.append("1 bench" if self.benches == 1 else f"{self.benches:,} benches")
        if self.captures:
            parts.append(counted(self.captures, "capture"))
        return spoken_list(parts)

    @property
    def next_step(self) -> tuple[str, ...]:
        """The next command's words, without `toolkit`: look at the hosts, measure each, then load all at once."""
        if not self.snapshots and not self.benches:
            return ("scout", "hosts.txt")
        if not self.benches:
            return ("bench", "hosts.txt")
        return ("blast", "hosts.txt", "--duration", "15m")


def inventory(store: Store, until: float = inf) -> Inventory:
    """Count what was stored up to a moment."""
    runs = [run for run in store.runs() if run.started_at <= until]
    return Inventory(
        blasts=sum(run.verb == "blast" for run in runs),
        snapshots=store.sightings_before(until),
        hosts=len({seen.name for seen in store.newest_sightings(until)}),
        benches=sum(run.verb == "bench" for run in runs),
        captures=sum(run.verb == "capture" for run in runs),
    )
