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

Items = list["CompletionItem[Any]"]
Suggest = Callable[[click.Context, click.Parameter, str], Items]
NEWEST_RUNS = 20
BUSY_S = 0.2
"""For a database that is busy: somebody waits at the keyboard."""


def file(_context: click.Context, _parameter: click.Parameter, begun: str) -> Items:
    """Any file."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="file")]


def profile(context: click.Context, parameter: click.Parameter, begun: str) -> Items:
    """A profile of the catalog, or a file."""
    return _or_file(context, parameter, begun, _shelf("profiles"))


def recipe(context: click.Context, parameter: click.Parameter, begun: str) -> Items:
    """A sweep of the catalog, or a file."""
    return _or_file(context, parameter, begun, _shelf("sweeps"))


def preset(_context: click.Context, _parameter: click.Parameter, begun: str) -> Items:
    """A preset of the catalog."""
    from toolkit.cli.catalog import table

    return _begun([(name, row.get("why")) for name, row in table("presets").items()], begun)


def gpu(_context: click.Context, _parameter: click.Parameter, begun: str) -> Items:
    """A GPU of the catalog."""
    from toolkit.cli.catalog import table

    return _begun(
        [(name, f"{row['memory_gib']} GiB") for name, row in table("gpus").items()], begun
    )


def model(context: click.Context, parameter: click.Parameter, begun: str) -> Items:
    """A model of the catalog, or a file or folder."""
    from toolkit.cli.catalog import table

    known = table("models")
    names: list[tuple[str, str | None]] = [(name, None) for name in known]
    if not _begun(names, begun):
        names = [(alias, name) for name, row in known.items() for alias in row.get("aliases", ())]
    return _or_file(context, parameter, begun, names)


def quantization(_context: click.Context, _parameter: click.Parameter, begun: str) -> Items:
    """A quantization that the planner knows."""
    from toolkit.plan.quantization import QUANTIZATIONS

    return _begun([(name, None) for name in QUANTIZATIONS], begun)


def cache_dtype(_context: click.Context, _parameter: click.Parameter, begun: str) -> Items:
    """A data type of the KV cache."""
    from toolkit.plan.kv_cache import KV_DTYPES

    return _begun([(name, None) for name in KV_DTYPES], begun)


def personality(_context: click.Context, _parameter: click.Parameter, begun: str) -> Items:
    """A personality of the simulator; behind `alice=`, too."""
    from click.shell_completion import CompletionItem

    from toolkit.sim.presets import PRESETS

    name, equals, rest = begun.rpartition("=")
    before = name + equals
    known = [(each, settings["summary"]) for each, settings in PRESETS.items()]
    return [CompletionItem(before + one.value, help=one.help) for one in _begun(known, rest)]


def target(context: click.Context, parameter: click.Parameter, begun: str) -> Items:
    """What `toolkit serve` takes: an order, or a stack file."""
    parent = context.parent
    orders = parent.command if parent else None
    known = [
        (name, each.get_short_help_str())
        for name, each in (orders.commands if isinstance(orders, click.Group) else {}).items()
        if not each.hidden
    ]
    return _or_file(context, parameter, begun, known)


def verb(_context: click.Context, _parameter: click.Parameter, begun: str) -> Items:
    """A verb of the toolkit."""
    from toolkit.cli import VERBS

    return _begun([(name, None) for name in VERBS], begun)


def variable(_context: click.Context, _parameter: click.Parameter, begun: str) -> Items:
    """A variable of the environment: its name, never what it holds."""
    return _begun([(name, None) for name in sorted(os.environ)], begun)


def interface(_context: click.Context, _parameter: click.Parameter, begun: str) -> Items:
    """A network interface of this machine."""
    import socket

    return _begun([("any", None), *((name, None) for _, name in socket.if_nameindex())], begun)


def host(context: click.Context, _parameter: click.Parameter, begun: str) -> Items:
    """A host that scout saw."""
    return _begun(
        [(name, None) for name in _ask(context, lambda store: store.known_names())], begun
    )


def run(*verbs: str) -> Suggest:
    """Runs of these verbs, the newest first; without any, of all."""

    def suggest(context: click.Context, _parameter: click.Parameter, begun: str) -> Items:
        from toolkit.units import clock

        runs = _ask(context, lambda store: store.runs())
        known = [each for each in runs if not verbs or each.verb in verbs][:NEWEST_RUNS]
        told = [(each.id, f"{each.verb}, {clock(each.started_at)}") for each in known]
        return _begun(told, begun)

    return suggest


def _ask(context: click.Context, ask: "Callable[[Store], list[Any]]") -> list[Any]:
    """Ask the database that the line names so far; nothing where there is none."""
    from toolkit.cli.places import DATABASE
    from toolkit.store import Store

    told = context.params.get("database") or os.environ.get("TOOLKIT_DB") or DATABASE
    try:
        with Store.open_readonly(Path(told), BUSY_S) as store:
            return ask(store)
    except ToolkitError:
        return []


def _shelf(name: str) -> list[tuple[str, str | None]]:
    from importlib.resources import files

    shelf = files("toolkit") / "catalog" / name
    return [
        (word, None) for word in sorted(each.name.removesuffix(".toml") for each in shelf.iterdir())
    ]


def _or_file(
    context: click.Context,
    parameter: click.Parameter,
    begun: str,
    known: Iterable[tuple[str, str | None]],
) -> Items:
    # first: in bash it takes away what stands before it
    return [*file(context, parameter, begun), *_begun(known, begun)]


def _begun(known: Iterable[tuple[str, str | None]], begun: str) -> Items:
    """Those that begin so, in any case of letters."""
    from click.shell_completion import CompletionItem

    wanted = begun.lower()
    return [
        CompletionItem(name, help=told) for name, told in known if name.lower().startswith(wanted)
    ]
