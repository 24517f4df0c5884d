"""A run of the database, by the id that a command line names, else the newest; its hosts and their verdicts."""

from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.cli.places import command_on
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from toolkit.records import Run, Verdict
    from toolkit.store import Store

HINTED_RUNS = 5
MADE_BY = {
    "blast": "`toolkit blast hosts.txt --duration 15m`, or `toolkit demo` to see one",
    "bench": "`toolkit bench hosts.txt`",
    "capture": "`toolkit capture data/sample.pcap`, or live `toolkit capture --port 8000`",
    "sweep": "`toolkit sweep --list` names recipes to begin with",
}


def newest_runs(store: "Store", *verbs: str) -> "list[Run]":
    """The last begun of these verbs, for a hint; without any verb, of all."""
    found = [each for verb in verbs or (None,) for each in store.runs(verb=verb, limit=HINTED_RUNS)]
    return sorted(found, key=lambda each: -each.started_at)[:HINTED_RUNS]


def chosen_run(store: "Store", run_id: str | None, database: Path, *verbs: str) -> "Run":
    """The run that is named, else the newest; of these verbs, where any are named. Raises ToolkitError where there is none."""
    newest = newest_runs(store, *verbs)
    if run_id is None:
        if not newest:
            makes = MADE_BY.get(verbs[0]) if verbs else None
            raise ToolkitError(
                f"`{database}` holds no {' or '.join(verbs) or 'run'} yet",
                f"Make one: {makes}" if makes else "",
            )
        return newest[0]
    run = store.run(run_id)
    if run is not None and (not verbs or run.verb in verbs):
        return run
    known = ", ".join(each.id if len(verbs) == 1 else f"{each.id} ({each.verb})" for each in newest)
    only = ("--verb", verbs[0]) if len(verbs) == 1 else ()
    raise ToolkitError(
        f"`{database}` has no run `{run_id}`"
        if run is None
        else f"run `{run_id}` is of `toolkit {run.verb}`, not of `{'` or `'.join(verbs)}`",
        f"The newest: {known or 'none yet'}. `{command_on(database, 'runs', *only)}` lists all",
    )


def run_of(store: "Store", run_id: str, database: Path) -> "Run":
    """Look up a run by its id. Raises ToolkitError when there is none."""
    return chosen_run(store, run_id, database)


def blast_of(store: "Store", run_id: str | None, database: Path) -> "Run":
    """The run that is named, else the newest blast. Raises ToolkitError when there is none."""
    if run_id is None:
        return chosen_run(store, None, database, "blast")
    return chosen_run(store, run_id, database)


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
