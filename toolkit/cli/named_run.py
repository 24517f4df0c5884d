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
    "capture": "`toolkit capture data/sample.pcap`, or live `toolkit capture --port 8000`; a file is read by"
    " `toolkit workload --from`",
    "sweep": "`toolkit sweep --list` names recipes to begin with",
}


def chosen_run(store: "Store", run_id: str | None, database: Path, *verbs: str) -> "Run":
    """The run that is named, else the newest; of these verbs, where any are named. Raises ToolkitError where there is none."""
    found = [each for verb in verbs or (None,) for each in store.runs(verb=verb, limit=HINTED_RUNS)]
    newest = sorted(found, key=lambda each: -each.started_at)[:HINTED_RUNS]
    run = store.run(run_id) if run_id is not None else next(iter(newest), None)
    if run is not None and (not verbs or run.verb in verbs):
        return run
    if run_id is None:
        makes = MADE_BY.get(verbs[0]) if verbs else None
        raise ToolkitError(
            f"`{database}` holds no {' or '.join(verbs) or 'run'} yet",
            f"Make one: {makes}" if makes else "",
        )
    if run is None:
        problem = f"`{database}` has no run `{run_id}`"
    else:
        problem = f"run `{run_id}` is of `toolkit {run.verb}`, not of `{'` or `'.join(verbs)}`"
    known = ", ".join(each.id if len(verbs) == 1 else f"{each.id} ({each.verb})" for each in newest)
    only = ("--verb", verbs[0]) if len(verbs) == 1 else ()
    listing = command_on(database, "runs", *only)
    raise ToolkitError(problem, f"The newest: {known or 'none yet'}. `{listing}` lists all")


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
