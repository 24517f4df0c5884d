"""What a shell offers at a press of TAB: files, the catalog's names, runs and hosts of the database.

It is asked while somebody types: it loads only what is light, contacts nobody, and never fails aloud.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from toolkit.store import Store

Names = Iterable[tuple[str, str | None]]
"""Each with what is said beside it, where the shell shows such a thing."""
Items = list["CompletionItem[Any]"]
Suggest = Callable[[click.Context, click.Parameter, str], Items]
NEWEST_RUNS = 20
BUSY_S = 0.2
"""For a database that is busy: somebody waits at the keyboard."""


def file(_context: click.Context, _parameter: click.Parameter, begun: str) -> Items:
    """Any file."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="file")]


def one_of(names: Callable[[click.Context, str], Names]) -> Suggest:
    """Offer those of the names that begin like the word, in any case of letters; `names` is told the line so far, and the word."""

    def suggest(context: click.Context, _parameter: click.Parameter, begun: str) -> Items:
        from click.shell_completion import CompletionItem

        wanted = begun.lower()
        return [
            CompletionItem(name, help=told)
            for name, told in names(context, begun)
            if name.lower().startswith(wanted)
        ]

    return suggest


def file_or_one_of(names: Callable[[click.Context, str], Names]) -> Suggest:
    """Offer files, too; they come first: in bash they take away what stands before them."""
    suggest = one_of(names)
    return lambda *asked: [*file(*asked), *suggest(*asked)]


# --- the catalog's, and the toolkit's own ---------------------------------------------------------------


def _tables() -> dict[str, Callable[[], dict[str, str | None]]]:
    """What the toolkit itself has by name."""
    from toolkit.cli import VERBS
    from toolkit.cli.catalog import shelf
    from toolkit.plan.catalog import table
    from toolkit.plan.kv_cache import KV_DTYPES
    from toolkit.plan.quantization import QUANTIZATIONS

    return {
        "profile": lambda: dict.fromkeys(shelf("profiles")),
        "recipe": lambda: dict.fromkeys(shelf("sweeps")),
        "preset": lambda: {name: row.get("why") for name, row in table("presets").items()},
        "gpu": lambda: {name: f"{row['memory_gib']} GiB" for name, row in table("gpus").items()},
        "quantization": lambda: dict.fromkeys(QUANTIZATIONS),
        "cache_dtype": lambda: dict.fromkeys(KV_DTYPES),
        "verb": lambda: dict.fromkeys(VERBS),
    }


def _all_of(kind: str) -> Callable[[click.Context, str], Names]:
    return lambda _context, _begun: _tables()[kind]().items()


profile = file_or_one_of(_all_of("profile"))
recipe = file_or_one_of(_all_of("recipe"))
preset = one_of(_all_of("preset"))
gpu = one_of(_all_of("gpu"))
quantization = one_of(_all_of("quantization"))
cache_dtype = one_of(_all_of("cache_dtype"))
verb = one_of(_all_of("verb"))


@file_or_one_of
def model(_context: click.Context, begun: str) -> Names:
    """A model of the catalog; by another name of it where none of the first ones fits."""
    from toolkit.plan.catalog import table

    known = table("models")
    if any(name.lower().startswith(begun.lower()) for name in known):
        return [(name, None) for name in known]
    return [(alias, name) for name, row in known.items() for alias in row.get("aliases", ())]


@one_of
def personality(_context: click.Context, begun: str) -> Names:
    """A personality of the simulator; behind `alice=`, too."""
    from toolkit.sim.presets import PRESETS

    name, equals, _ = begun.rpartition("=")
    return [(name + equals + each, setting["summary"]) for each, setting in PRESETS.items()]


@file_or_one_of
def target(context: click.Context, _begun: str) -> Names:
    """What `toolkit serve` takes beside a stack file: an order."""
    group = context.parent.command if context.parent else None
    orders = group.commands if isinstance(group, click.Group) else {}
    return [(name, one.get_short_help_str()) for name, one in orders.items() if not one.hidden]


# --- what the machine and the database know -------------------------------------------------------------


@one_of
def variable(_context: click.Context, _begun: str) -> Names:
    """A variable of the environment: its name, never what it holds."""
    return [(name, None) for name in sorted(os.environ)]


@one_of
def interface(_context: click.Context, _begun: str) -> Names:
    """A network interface of this machine."""
    import socket

    return [("any", None), *((name, None) for _, name in socket.if_nameindex())]


@one_of
def host(context: click.Context, _begun: str) -> Names:
    """A host that scout saw."""
    return [(name, None) for name in _stored(context, lambda store: store.known_names())]


def run(*verbs: str) -> Suggest:
    """Runs of these verbs, the newest first; without any, of all."""

    @one_of
    def suggest(context: click.Context, _begun: str) -> Names:
        from toolkit.units import clock

        runs = _stored(context, lambda store: store.runs())
        known = [one for one in runs if not verbs or one.verb in verbs][:NEWEST_RUNS]
        return [(one.id, f"{one.verb}, {clock(one.started_at)}") for one in known]

    return suggest


def _stored(context: click.Context, ask: "Callable[[Store], list[Any]]") -> list[Any]:
    """Ask the database that the line names so far; nothing where there is none."""
    from toolkit.cli.places import DATABASE
    from toolkit.store import Store

    told = context.params.get("database") or os.environ.get("TOOLKIT_DB") or DATABASE
    try:
        with Store.open_readonly(Path(told), BUSY_S) as store:
            return ask(store)
    except ToolkitError:
        return []
