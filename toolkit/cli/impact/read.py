"""What a blast's seconds tell of a host's outages, read from the database; nothing past a freeze unless asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.board.feed import Feed
from toolkit.board.outages import Outage, RunSeconds, course, outage_at, outages
from toolkit.errors import ToolkitError
from toolkit.records import Run
from toolkit.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """One outage of one host in one run, and the seconds around it."""

    run: str
    name: str
    outage: Outage
    course: RunSeconds
    others: Sequence[Outage]
    """All of the host's, this one among them."""


def fall_of(store: Store, run: Run, *, name: str, at: float | None, everything: bool) -> Fall:
    """Find the outage that the command line means. Raises ToolkitError when there is none."""
    feed = Feed(store, run, everything=everything)
    _refuse_unknown(name, feed)
    told = course_of(store, feed, name)
    found = outages_of(told, feed, name)
    outage = outage_at(found, at)
    if outage is None:
        raise ToolkitError(
            f"`{name}` was never down in run `{run.id}`",
            "`toolkit board` tells who has errors. An outage lacks 8 answers of the host's usual rate and has 3 errors, "
            "or lies at a known restart",
        )
    return Fall(run=run.id, name=name, outage=outage, course=told, others=found)


def course_of(store: Store, feed: Feed, name: str) -> RunSeconds:
    """A host's seconds, from the run's first to the last that may be seen."""
    end_s = feed.end_s
    if end_s is None:
        return RunSeconds(first_s=feed.start_s, ok=(), errors=())
    parts = store.tallies(feed.run.id, name=name, kind="ranked", to_s=end_s)
    return course(parts, from_s=feed.start_s, to_s=end_s + 1)


def outages_of(told: RunSeconds, feed: Feed, name: str) -> list[Outage]:
    """When a host was down, its known restarts considered."""
    restarts = [each.at for each in feed.events() if (each.kind, each.name) == ("restart", name)]
    return outages(told, restarts=restarts)


def _refuse_unknown(name: str, feed: Feed) -> None:
    known = [host.name for host in feed.hosts]
    if name not in known:
        raise ToolkitError(
            f"`{name}` is no host of run `{feed.run.id}`",
            f"Its hosts: {', '.join(known) or 'none'}",
        )
