"""What `toolkit compare` compares: the two sides, read from the database."""

from collections.abc import Sequence
from pathlib import Path

from toolkit.cli.named_run import run_of, settings_of
from toolkit.cli.places import command_on
from toolkit.errors import ToolkitError
from toolkit.records import Run
from toolkit.store import Store
from toolkit.tuning.compare import (
    Cell,
    Side,
    cells_of_shots,
    cells_of_tallies,
    seconds_of,
)

PLAN = {
    "bench": (
        *("profile", "concurrency", "rate", "arrival", "levels", "stream_share"),
        *("max_tokens", "temperature", "ignore_eos", "sameness", "nonce_place", "twin_share"),
        "sequential",
    ),
    "blast": (
        *("profile", "users_per_host", "spawn_rate", "canaries", "mix", "max_tokens", "rate"),
        *("request_timeout_s", "non_neutral"),
    ),
}
"""Settings that must be equal. Not the model's name, which is what many comparisons are about; not how long it took or how
many requests there were, as only what both have is compared."""


def pairs_of(store: Store, a: str, b: str, database: Path) -> list[tuple[Side, Side]]:
    """Whom to compare with whom. Raises ToolkitError where that is not told."""
    before, after = (_named(store, word, database) for word in (a, b))
    pairs = _matched(before, after, a, b, database)
    return [(side_of(store, *one), side_of(store, *other)) for one, other in pairs]


Named = tuple[Run, str]
"""A run, and a host of it."""


def _matched(
    before: Sequence[Named], after: Sequence[Named], a: str, b: str, database: Path
) -> list[tuple[Named, Named]]:
    if len(before) == len(after) == 1:
        if before[0] == after[0]:
            raise ToolkitError(
                f"`{a}` and `{b}` are the same", "Name two runs, or two hosts of one"
            )
        return [(before[0], after[0])]
    by_name = {name: (run, name) for run, name in after}
    if len(before) == 1 or len(after) == 1 or before == after:
        raise _which(before, after, a, b, database)
    pairs = [((run, name), by_name[name]) for run, name in before if name in by_name]
    if not pairs:
        raise _which(before, after, a, b, database)
    return pairs


def _which(
    before: Sequence[Named], after: Sequence[Named], a: str, b: str, database: Path
) -> ToolkitError:
    several = before if len(before) > 1 else after
    words = [f"{run.id}:{name}" for run, name in several[:5]]
    hint = f"Name one: {', '.join(f'`{word}`' for word in words)}"
    if before == after:
        hint = f"Name two of its hosts: `{command_on(database, 'compare', *words[:2])}`"
    return ToolkitError(f"which hosts of `{a}` and `{b}` to compare is not clear", hint)


def _named(store: Store, word: str, database: Path) -> list[Named]:
    """The run and host that a word means; all hosts of it where it names none."""
    run_id, _, name = word.partition(":")
    run = run_of(store, run_id, database)
    if run.verb not in PLAN:
        raise ToolkitError(
            f"`{run.id}` is a run of `{run.verb}`, and measured no servers",
            "Compare runs of `bench` or `blast`; `toolkit runs` lists them",
        )
    known = hosts_of(store, run)
    if not known:
        raise ToolkitError(f"run `{run.id}` has measured nothing", "`toolkit runs` lists all")
    if not name:
        return [(run, each) for each in known]
    if name not in known:
        raise ToolkitError(
            f"`{name}` is no host of run `{run.id}`", f"Its hosts: {', '.join(known)}"
        )
    return [(run, name)]


def hosts_of(store: Store, run: Run) -> list[str]:
    """Who was measured in a run, in the order of its plan."""
    planned = [host.name for host in store.hosts_of(run.id).values()]
    return planned or list(dict.fromkeys(shot.name for shot in store.shots(run.id)))


def side_of(store: Store, run: Run, name: str) -> Side:
    """One host's part of a stored run of `bench` or `blast`."""
    settings = settings_of(run)
    plan = {key: settings.get(key) for key in PLAN.get(run.verb, ())}
    cells = _waves(store, run, name) if run.verb == "bench" else _seconds(store, run, name)
    seed = settings.get("seed")
    return Side(
        run=run.id,
        name=name,
        cells=cells,
        plan=plan,
        verb=run.verb,
        seed=seed if isinstance(seed, int) else None,
        client_ok=run.client_ok,
    )


def _waves(store: Store, run: Run, name: str) -> dict[int, Cell]:
    return dict(enumerate(cells_of_shots(store.shots(run.id, name=name))))


def _seconds(store: Store, run: Run, name: str) -> dict[int, Cell]:
    """Seconds in which the load generator was at work, and was not the limit."""
    loader = [second for _, second in store.loader_seconds(run.id)]
    tallies = store.tallies(run.id, name=name, kind="ranked")
    known = {second.at_s for second in loader}
    if not known and tallies:
        known = set(range(tallies[0].at_s, tallies[-1].at_s + 1))
    places = seconds_of(known, {second.at_s for second in loader if second.limited})
    shots = store.shots(run.id, name=name)
    cells = cells_of_tallies(tallies, list(places.values()), shots)
    return dict(zip(places, cells, strict=True))
