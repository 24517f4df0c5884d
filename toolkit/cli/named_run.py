"""A run of the database, by the id that a command line names, its hosts and their verdicts; a blast without one is the newest."""

from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.cli.places import command_on
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from toolkit.records import Run, Verdict
    from toolkit.store import Store

HINTED_RUNS = 5
FEED_IT = "Feed it: `toolkit blast hosts.txt --duration 15m`, or `toolkit demo` to see one"


def newest_runs(store: "Store", *verbs: str) -> "list[Run]":
    """The last begun of these verbs, for a hint; without any verb, of all."""
    found = [each for verb in verbs or (None,) for each in store.runs(verb=verb, limit=HINTED_RUNS)]
    return sorted(found, key=lambda each: -each.started_at)[:HINTED_RUNS]


def run_of(store: "Store", run_id: str, database: Path) -> "Run":
    """Look up a run by its id. Raises ToolkitError when there is none."""
    run = store.run(run_id)
    if run is None:
        newest = ", ".join(each.id for each in newest_runs(store)) or "none yet"
        raise ToolkitError(
            f"`{database}` has no run `{run_id}`",
            f"Newest runs: {newest}. `{command_on(database, 'runs')}` lists all",
        )
    return run


def blast_of(store: "Store", run_id: str | None, database: Path) -> "Run":
    """The run that is named, else the newest blast. Raises ToolkitError when there is none."""
    if run_id is None:
        newest = store.runs(verb="blast", limit=1)
        if not newest:
            raise ToolkitError(f"`{database}` holds no blast yet", FEED_IT)
        return newest[0]
    run = store.run(run_id)
    if run is None:
        known = ", ".join(f"`{each.id}`" for each in newest_runs(store, "blast"))
        raise ToolkitError(
            f"`{database}` has no run `{run_id}`", f"Its newest blasts: {known or 'none yet'}"
        )
    return run


def measured_hosts(store: "Store", run: "Run") -> list[str]:
    """Who was measured in a run, in the order of its plan."""
    planned = [host.name for host in store.hosts_of(run.id).values()]
    return planned or list(dict.fromkeys(shot.name for shot in store.shots(run.id)))


def verdicts_of(
    store: "Store", run: "Run", *, everything: bool = False
) -> "Mapping[tuple[str, str], Sequence[Verdict]]":
    """By a host's name and URL; `everything`: past a freeze of the board, too.

    A bench's stand in the store; a blast's the board judges whenever somebody looks, here over all of it.
    """
    if run.verb != "blast":
        return store.verdicts(run.id)
    from toolkit.board.feed import Feed

    feed = Feed(store, run, everything=everything)
    end_s = feed.end_s
    board = feed.board(window_s=1 if end_s is None else end_s - feed.start_s + 1)
    return {(one.name, one.url): one.verdicts for one in board.standings}
