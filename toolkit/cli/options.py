"""What options of several verbs share: the values they take, the words that a shell completes, and options that are the same everywhere.

Durations like `90s 15m 2h`, moments like `14:32` or `5m ago`, sizes like `8GiB`, prices like `0.15/0.60`, levels like `1,2,4`.
A shell asks for words while somebody types: what lists them loads only what is light, contacts nobody, and never fails aloud.
"""

import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolkit.cli.help_page import advanced
from toolkit.cli.places import DATABASE
from toolkit.errors import ToolkitError
from toolkit.units import bytes_of, seconds_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from toolkit.records import Host
    from toolkit.store import Store

LONGEST_WINDOW_S = 86_400.0
"""Of the board: a cold one reads all its seconds, and `toolkit impact` lists them."""
HIGHEST_PRICE = 1e9
"""Of a million tokens: more is a slip, and infinity no price."""
NEWEST_RUNS = 20
"""Offered by a shell."""
BUSY_S = 0.2
"""For a database that is busy: somebody waits at the keyboard."""

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
_AGO = re.compile(r"(.+?)\s+ago")
T = TypeVar("T")


# --- values -------------------------------------------------------------------------------------------


class Written(click.ParamType[T]):
    """A value as people write it: `read` gives it, or None for what is none, and `wrong` says so with examples."""

    def __init__(self, name: str, read: Callable[[str], T | None], wrong: str) -> None:
        self.name, self._read, self._wrong = name, read, wrong

    def convert(
        self, value: str | T, param: click.Parameter | None, ctx: click.Context | None
    ) -> T:
        """Read a word; what is a value already stays."""
        if not isinstance(value, str):
            return value
        found = self._read(value.strip())
        if found is None:
            self.fail(f"`{value}` {self._wrong}", param, ctx)
        return found


def window_of(text: str) -> float | None:
    """Seconds, a day of them at most; None for what is more, or no duration."""
    seconds = seconds_of(text)
    return seconds if seconds and seconds <= LONGEST_WINDOW_S else None


def levels_of(text: str) -> tuple[int, ...] | None:
    """Whole numbers between commas; whether they rise is the plan's to say."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 9 for part in parts):
        return None
    return tuple(int(part) for part in parts)


def length_of(text: str) -> str | None:
    """Tokens: `512`, `256:1024` or `normal:512:64`, as they stand; None for what is none."""
    from toolkit.bench.random_prompts import read_lengths

    return text if read_lengths(text) else None


def price_of(text: str) -> tuple[float, float] | None:
    """What a million tokens of prompts and of answers cost; one price is for both."""
    try:
        words = [float(word) for word in text.split("/")]
    except ValueError:
        return None
    is_price = len(words) in (1, 2) and all(0 <= word <= HIGHEST_PRICE for word in words)
    return (words[0], words[-1]) if is_price else None


def moment_of(text: str, now: float) -> float | None:
    """Seconds since 1970, by this machine's time zone; `14:32` is the last time that a clock here showed it."""
    try:
        if text == "now":
            return now
        if ago := _AGO.fullmatch(text):
            seconds = seconds_of(ago[1])
            at = now - seconds if seconds else math.nan
        elif clock := _CLOCK.fullmatch(text):
            hour, minute, second = (int(part or 0) for part in clock.groups())
            # without a zone while the hand is set: an offset taken now would be wrong on the day the clocks change
            today = datetime.fromtimestamp(now, UTC).astimezone().replace(tzinfo=None)
            wanted = today.replace(hour=hour, minute=minute, second=second, microsecond=0)
            # yesterday's where today's is still to come
            at = (wanted - timedelta(days=wanted.timestamp() > now)).timestamp()
        else:
            at = datetime.fromisoformat(text).timestamp()  # without a zone it is this machine's
    except (ValueError, OverflowError):
        return None
    return at if 0 <= at < math.inf else None


DURATION = Written(
    "duration",
    # a bare number is refused, for nobody knows its unit
    lambda text: seconds_of(text) or None,
    "is no duration; write e.g. `500ms`, `90s`, `15m` or `2h`",
)
UP_TO_A_DAY = Written(
    "duration",
    window_of,
    "is no duration of a day at most; write e.g. `90s`, `15m` or `2h`",
)
SIZE = Written(
    "size", lambda text: bytes_of(text) or None, "is no size; write e.g. `512MiB` or `8GiB`"
)
LEVELS = Written("levels", levels_of, "is no list of numbers; write e.g. `1,2,4,8`")
LENGTH = Written(
    "tokens",
    length_of,
    "is no number of tokens; write e.g. `512`, `256:1024` (evenly between) or `normal:512:64` (mean, deviation)",
)
PRICE = Written(
    "price",
    price_of,
    "is no price; write what a million tokens cost, e.g. `0.60`, or `0.15/0.60` for prompt/answer",
)
MOMENT = Written(
    "time",
    lambda text: moment_of(text, time.time()),
    "is no time; write e.g. `14:32`, `14:32:10`, `5m ago` or `2026-11-21T14:32:10`",
)


# --- words that a shell completes -----------------------------------------------------------------------

Known = Mapping[str, str | None]
"""Names, each with what is said beside it where the shell shows such a thing."""


class Word(click.ParamType[str]):
    """A word that stands for a thing: its placeholder on the help page, and what a shell offers for it.

    `known` is given the line so far, and the word; `is_file`: a file, too, may be meant.
    """

    def __init__(
        self,
        placeholder: str,
        known: Callable[[click.Context, str], Known] = lambda *_: {},
        *,
        is_file: bool = False,
    ) -> None:
        self.name, self._known, self._is_file = placeholder, known, is_file

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 (click's signature)
        """As it is: click would write it in capitals."""
        return self.name

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Any word: the verb knows what to say of a wrong one."""
        return value

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 (click's signature)
        incomplete: str,
    ) -> "list[CompletionItem[Any]]":
        """Files first, as in bash they take away what stands before them; then names, in any case of letters."""
        from click.shell_completion import CompletionItem

        begun = incomplete.lower()
        items = [CompletionItem(incomplete, type="file")] if self._is_file else []
        for name, note in self._known(ctx, incomplete).items():
            if name.lower().startswith(begun):
                items.append(CompletionItem(name, help=note))
        return items


def _shelf(name: str) -> Known:
    from toolkit.cli.catalog import shelf

    return dict.fromkeys(shelf(name))


def _table(name: str) -> dict[str, dict[str, Any]]:
    from toolkit.plan.catalog import table

    return table(name)


def _models(_context: click.Context, begun: str) -> Known:
    """Of the catalog; by another name of it where none of the first ones fits."""
    known = _table("models")
    if any(name.lower().startswith(begun.lower()) for name in known):
        return dict.fromkeys(known)
    return {alias: name for name, row in known.items() for alias in row.get("aliases", ())}


def _listed(module: str, name: str) -> Callable[..., Known]:
    """The names that a constant of the toolkit lists; loaded only then."""
    return lambda *_: dict.fromkeys(getattr(import_module(module), name))


def _personalities(_context: click.Context, begun: str) -> Known:
    """Of the simulator; behind `alice=`, too."""
    from toolkit.sim.presets import PRESETS

    name, equals, _ = begun.rpartition("=")
    return {name + equals + each: setting["summary"] for each, setting in PRESETS.items()}


def _interfaces(*_: object) -> Known:
    import socket

    return dict.fromkeys(["any", *(name for _, name in socket.if_nameindex())])


def _stored(context: click.Context, read: "Callable[[Store], Iterable[T]]") -> Iterable[T]:
    """From the database that the line names so far; nothing where there is none."""
    from toolkit.store import Store

    named = context.params.get("database") or os.environ.get("TOOLKIT_DB") or DATABASE
    try:
        with Store.open_readonly(Path(named), BUSY_S) as store:
            return read(store)
    except ToolkitError:
        return ()


def run_word(*verbs: str) -> Word:
    """A run of these verbs, the newest first; without any, of all."""

    def known(context: click.Context, _begun: str) -> Known:
        from toolkit.units import clock

        runs = [
            run
            for run in _stored(context, lambda store: store.runs())
            if not verbs or run.verb in verbs
        ]
        return {run.id: f"{run.verb}, {clock(run.started_at)}" for run in runs[:NEWEST_RUNS]}

    return Word("RUN", known)


def _hosts_listed(context: click.Context) -> "Sequence[Host]":
    """Of the hosts file; none where it cannot be read."""
    from toolkit.cli.inputs import hosts_from

    file = context.params.get("listed_in")
    try:
        return () if file == "-" else hosts_from((), file)
    except ToolkitError:
        return ()


def _picks(context: click.Context, _begun: str) -> Known:
    """What `--only` takes: names, and what hosts of the hosts file say of themselves."""
    from toolkit.hosts import KEYS

    known: dict[str, str | None] = {}
    for host in _hosts_listed(context):
        known[host.name] = host.url
        known |= {f"{key}={value}": None for key in KEYS if (value := getattr(host, key))}
    return known


FILE = Word("FILE", is_file=True)
HOSTS = Word(
    "HOSTS",
    lambda context, _: {host.name: host.url for host in _hosts_listed(context)},
    is_file=True,
)
"""A file of hosts, a URL, or a host's name."""
HOST = Word(
    "NAME", lambda context, _: dict.fromkeys(_stored(context, lambda store: store.known_names()))
)
"""Of a host that scout saw."""
ONLY = Word("NAME|KEY=VALUE", _picks)
VARIABLE = Word("VAR", lambda *_: dict.fromkeys(sorted(os.environ)))
"""The name of one, never what it holds."""
INTERFACE = Word("NAME", _interfaces)
PROFILE = Word("NAME|FILE", lambda *_: _shelf("profiles"), is_file=True)
SWEEP = Word("SWEEP", lambda *_: _shelf("sweeps"), is_file=True)
PRESET = Word("NAME", lambda *_: {name: row.get("why") for name, row in _table("presets").items()})
GPU = Word(
    "NAME", lambda *_: {name: f"{row['memory_gib']} GiB" for name, row in _table("gpus").items()}
)
MODEL = Word("MODEL", _models, is_file=True)
QUANTIZATION = Word("NAME", _listed("toolkit.plan.quantization", "QUANTIZATIONS"))
CACHE_DTYPE = Word("NAME", _listed("toolkit.plan.kv_cache", "KV_DTYPES"))
PERSONALITY = Word("PERSONALITY", _personalities)
VERB = Word("VERB", _listed("toolkit.cli", "VERBS"))


# --- options that are the same everywhere -----------------------------------------------------------------

database_option = advanced(
    "--db",
    "database",
    envvar="TOOLKIT_DB",
    default=DATABASE,
    show_default=True,
    show_envvar=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="SQLite database file, created on first use.",
)


def hosts_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its hosts, `--hosts` and `--only`: `inputs.hosts_from` takes all three."""
    words = click.argument("hosts", nargs=-1, metavar="[HOSTS]...", type=HOSTS)
    file = advanced(
        "--hosts",
        "listed_in",
        metavar="FILE",
        type=FILE,
        help="The file that lists the hosts.  [default: TOOLKIT_HOSTS, else hosts.txt]",
    )
    only = advanced(
        "--only",
        multiple=True,
        metavar="NAME|KEY=VALUE",
        type=ONLY,
        help="Only these hosts, e.g., `team=red`; may be repeated.",
    )
    return words(file(only(command)))


def hosts_words(hosts: Sequence[str], listed_in: str | None, only: Sequence[str]) -> list[str]:
    """The same again, for a command that is shown."""
    words = [*hosts, *(["--hosts", listed_in] if listed_in else [])]
    return words + [word for each in only for word in ("--only", each)]


def json_option(each: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command `--json`; `each`: what an object is of, e.g., `host`."""
    return click.option(
        "--json", "as_json", is_flag=True, help=f"Print one JSON object per {each}."
    )


def length_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--input-len`, `--tokenizer` and `--output-len`, by vLLM's names, too."""
    prompts = advanced(
        "--input-len",
        aliases=["--random-input-len"],
        type=LENGTH,
        metavar="TOKENS",
        help="Random prompts of this many tokens: `512`, `256:1024`, `normal:512:64`.",
    )
    counter = advanced(
        "--tokenizer",
        metavar="FILE",
        type=FILE,
        help="Count --input-len by this tokenizer.json (or a model's folder with one) for all hosts, "
        "without the chat template's own tokens.  [default: as each host counts]",
    )
    answers = advanced(
        "--output-len",
        aliases=["--random-output-len"],
        type=LENGTH,
        metavar="TOKENS",
        help="Answers of exactly this many tokens, likewise (vLLM, SGLang).",
    )
    return prompts(counter(answers(command)))


def tls_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--insecure` and `--ca`."""
    trust = advanced("--ca", type=FILE, help="Also trust the certificates in this file.")
    accept = advanced("--insecure", is_flag=True, help="Accept any TLS certificate.")
    return accept(trust(command))
