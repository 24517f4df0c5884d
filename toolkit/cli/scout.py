"""`toolkit scout`: look at every host, say what is there, keep it."""

import logging
import sys
import time
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from toolkit.cli.exit_codes import FAILED, INTERRUPTED
from toolkit.cli.help_page import Command, advanced
from toolkit.cli.inputs import allow_open_files, hosts_from, keys_for, tls_for
from toolkit.cli.options import (
    DURATION,
    HOST,
    database_option,
    hosts_argument,
    json_option,
    tls_options,
)
from toolkit.errors import ToolkitError
from toolkit.records import Sighting
from toolkit.units import DASH

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from collections.abc import Sequence

    from rich.console import Console, RenderableType
    from rich.text import Text

WATCH_INTERVAL_S = 2.0
JSON_KEYS = [field.name for field in fields(Sighting) if field.name != "readings"]
NAMES_IN_A_NOTE = 4
"""Of more hosts with the same finding only the first few are named."""
WIDEST_NAME = 40
REDRAW_S = 0.2
REDRAW_SHARE = 0.1
"""Of the time, drawing may take this part: a table of 100 hosts takes 90 ms, in which nobody's answer is
read, and 100 hosts every 2 s would be 50 tables a second."""


@click.command(
    "scout", cls=Command, short_help="Inspect every host: engine, settings, load, changes."
)
@hosts_argument
@advanced("--timeout", type=DURATION, default="5s", help="Longest wait for all pages of a host.")
@click.option(
    "--interval", type=DURATION, help="Scrape twice, this far apart, and show the rates between."
)
@click.option(
    "--watch",
    is_flag=True,
    help="Scrape every interval (2s), show a live table, store each scrape.",
)
@advanced(
    "--count", type=click.IntRange(min=1), help="End --watch after this many scrapes of each host."
)
@click.option(
    "--history", type=HOST, help="Show from the database how a host changed; contacts no host."
)
@json_option("host")
@database_option
@click.option(
    "--no-store",
    is_flag=True,
    help="Do not store anything, nor report changes.",
)
@tls_options
@advanced("-v", "--verbose", is_flag=True, help="Log each request on stderr.")
def command(
    *,
    hosts: tuple[str, ...],
    listed_in: str | None,
    only: tuple[str, ...],
    timeout: float,
    interval: float | None,
    watch: bool,
    count: int | None,
    history: str | None,
    as_json: bool,
    database: Path,
    no_store: bool,
    insecure: bool,
    ca: str | None,
    verbose: bool,
) -> None:
    """Ask each host for /health, /version, /v1/models and /metrics, all hosts at once, and print what
    they are, how full they are and what a person should know. HOSTS are names of hosts.txt,
    files (`-`: standard input) or URLs; without any, all of hosts.txt.

    \b
      toolkit scout hosts.txt
      toolkit scout 127.0.0.1:8000 --json
      toolkit scout hosts.txt --interval 5s
          two scrapes, and the rates between them
      toolkit scout hosts.txt --watch   a live table; every scrape is stored
      toolkit scout --history alice     how a host changed

    \f
    Exits with 1 when no host is up; one that is down is a row with its reason. 130: interrupted.
    """
    if verbose:
        logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
        logging.getLogger("toolkit").setLevel(logging.DEBUG)
    if history:
        _show_history(history, database, as_json=as_json)
        return
    if count and not watch:
        raise click.UsageError("--count goes with --watch")

    import asyncio

    from toolkit.cli.output import print_json
    from toolkit.cli.waiting import waiting_for
    from toolkit.report.tables import screen
    from toolkit.scout.scrape import Pacing, Scout
    from toolkit.scout.watch import HostWatch
    from toolkit.store import Store

    found = hosts_from(hosts, listed_in, only)
    keys, tls = keys_for(found), tls_for(insecure=insecure, ca=ca)
    allow_open_files()
    interval_s = interval or WATCH_INTERVAL_S
    looks = count if watch else 2 if interval else 1
    table = LiveTable(interval_s) if watch and not as_json else None
    newest: dict[str, Sighting] = {}

    def in_order() -> list[Sighting]:
        return [newest[host.name] for host in found if host.name in newest]

    def show(sighting: Sighting) -> None:
        newest[sighting.name] = sighting
        if table:
            table.show(in_order())
        elif watch:
            print_json(as_object(sighting))
        else:
            waiting.done(sighting.name, sighting.error or sighting.status)

    is_stopped = False
    with (
        nullcontext() if no_store else Store.open(database) as store,
        table or nullcontext(),
        waiting_for("Looking", [host.name for host in found], shown=not watch) as waiting,
    ):
        pacing = Pacing()
        last = {host.name: store.last_telling(host.name, host.url) for host in found if store}
        following = HostWatch(
            [Scout(host, tls, keys.get(host.name), timeout, pacing) for host in found],
            before={name: sighting for name, sighting in last.items() if sighting},
            keep=lambda batch: store.add_sightings(batch, found) if store else None,
            show=show,
            show_first=watch or not interval,
        )
        try:
            asyncio.run(following.run(looks, interval_s))
        except (KeyboardInterrupt, asyncio.CancelledError):
            is_stopped = True

    if as_json and not watch:
        for sighting in in_order():
            print_json(as_object(sighting))
    elif not watch:
        console = screen()
        console.print(page(in_order(), console))
    if is_stopped and not watch:
        sys.exit(INTERRUPTED)
    if newest and all(sighting.status == "down" for sighting in newest.values()):
        sys.exit(FAILED)


def as_object(sighting: Sighting) -> dict[str, Any]:
    """The JSON object of a sighting: the record's fields without the raw readings."""
    return {key: getattr(sighting, key) for key in JSON_KEYS}


def _show_history(name: str, database: Path, *, as_json: bool) -> None:
    """How one host changed: all its sightings as JSON, or a row for each stretch without a change."""
    from toolkit.cli.output import print_json
    from toolkit.report.tables import Column, screen
    from toolkit.scout.findings import chapters, clock_time
    from toolkit.store import Store
    from toolkit.units import whole

    with Store.open_readonly(database) as store:
        sightings = store.sightings(name)
        if not sightings:
            known = ", ".join(store.known_names()) or "none yet"
            raise ToolkitError(f"`{database}` has no sighting of `{name}`", f"Known hosts: {known}")
    if as_json:
        for sighting in sightings:
            print_json(as_object(sighting))
        return
    columns = [
        Column("from", lambda row: clock_time(row.first.at)),
        Column("to", lambda row: clock_time(row.last.at), spare=2),
        Column("scrapes", lambda row: f"{row.sightings:,}", right=True, spare=1),
        Column("status", lambda row: _status(row.first)),
        Column("engine", lambda row: _engine(row.first), spare=4, widest=WIDEST_NAME),
        Column("model", lambda row: _model(row.first), spare=3, widest=WIDEST_NAME),
        Column("requests", lambda row: whole(row.last.requests_total), right=True, spare=1),
        Column("what changed", lambda row: "; ".join(row.changes), narrowest=24),
    ]
    screen().records(columns, chapters(sightings))


# --- the table --------------------------------------------------------------------------------------


def page(sightings: "Sequence[Sighting]", console: "Console") -> "RenderableType":
    """The table and, below it, what a person should know: a line for each reason and finding, with the hosts it stands for."""
    from rich.console import Group
    from rich.text import Text

    from toolkit.report.tables import Column, notes, table_of
    from toolkit.safe_text import printable
    from toolkit.units import latency, per_second, percent, whole

    def ttft(seen: Sighting, which: str) -> str:
        """A quantile, or the edge of the first or last bucket in which it sits."""
        for sign in ("below", "above"):
            edge = getattr(seen, f"ttft_{which}_{sign}_ms")
            if edge is not None:
                return f"{'<' if sign == 'below' else '>'}{latency(edge)}"
        return latency(getattr(seen, f"ttft_{which}_ms"))

    def kv_size(seen: Sighting) -> str:
        """In tokens, or in blocks where their size is unknown."""
        if seen.kv_cache_tokens is None and seen.num_gpu_blocks is not None:
            return f"{whole(seen.num_gpu_blocks)} blocks"
        return whole(seen.kv_cache_tokens)

    def memory(seen: Sighting) -> str:
        return DASH if seen.gpu_memory_utilization is None else f"{seen.gpu_memory_utilization:.2f}"

    def prefix_caching(seen: Sighting) -> str:
        return DASH if seen.prefix_caching is None else "on" if seen.prefix_caching else "off"

    # who looks once asks how a host is set up, who looks again how it does
    looks_again = any(sighting.interval_s is not None for sighting in sightings)
    late = 20 * looks_again
    columns = [
        Column("host", lambda seen: seen.name, widest=WIDEST_NAME, narrowest=16),
        Column("status", _status),
        Column("engine", _engine, spare=late + 4, widest=WIDEST_NAME, narrowest=7),
        Column("model", _model, spare=1, widest=WIDEST_NAME, narrowest=12),
        Column("max length", lambda seen: whole(seen.max_model_len), right=True, spare=late + 2),
        Column("KV tokens", kv_size, right=True, spare=late + 3),
        Column("GPU mem", memory, right=True, spare=late + 5),
        Column("cache dtype", lambda seen: seen.cache_dtype or DASH, spare=late + 6),
        Column("prefix cache", prefix_caching, spare=late + 7),
        Column("KV used", lambda seen: percent(seen.kv_cache_usage), right=True, spare=10),
        Column("running", lambda seen: whole(seen.running), right=True, spare=8),
        Column("waiting", lambda seen: whole(seen.waiting), right=True, spare=9),
        Column("prefix hits", lambda seen: percent(seen.prefix_hit_ratio), right=True, spare=13),
        Column("TTFT p50", lambda seen: ttft(seen, "p50"), right=True, spare=11),
        Column("TTFT p95", lambda seen: ttft(seen, "p95"), right=True, spare=14),
        Column("queue", lambda seen: latency(seen.queue_mean_ms), right=True, spare=15),
        Column("requests", lambda seen: whole(seen.requests_total), right=True, spare=12),
        Column("latency", lambda seen: latency(seen.latency_ms), right=True, spare=16),
    ]
    if looks_again:
        columns += [
            Column("req/s", lambda seen: per_second(seen.requests_per_s), right=True),
            Column("tok/s", lambda seen: per_second(seen.output_tokens_per_s), right=True),
        ]
    reasons = [(seen.name, seen.status, seen.error) for seen in sightings if seen.error]
    findings = [(seen.name, each.code, each.text) for seen in sightings for each in seen.findings]
    lines = notes(
        (
            (name, code.replace("_", " "), printable(text))
            for name, code, text in [*reasons, *findings]
        ),
        most_names=NAMES_IN_A_NOTE,
    )
    blank = [Text()] if reasons or findings else []
    return Group(table_of(columns, sightings, console), *blank, *lines)


def _status(sighting: Sighting) -> "Text":
    from rich.text import Text

    styles = {"ok": "green", "degraded": "yellow", "down": "red", "not_an_engine": "magenta"}
    return Text(sighting.status.replace("_", " "), style=styles.get(sighting.status, ""))


def _engine(sighting: Sighting) -> str:
    return " ".join(part for part in (sighting.engine, sighting.version) if part) or DASH


def _model(sighting: Sighting) -> str:
    more = len(sighting.models) - 1
    return (sighting.model or DASH) + (f" +{more}" if more > 0 else "")


class LiveTable:
    """Keeps one table on a terminal up to date; into a pipe it prints a table each interval. Use it as `with`."""

    def __init__(self, interval_s: float) -> None:
        from rich.live import Live

        from toolkit.report.tables import screen

        self._sightings: Sequence[Sighting] = ()
        self._console = console = screen()
        self._interval_s = interval_s
        self._drawn_at = time.monotonic()
        self._rest_s = 0.0
        """How long the screen stays as it is after a drawing."""
        self._soon: TimerHandle | None = None
        can_redraw = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False) if can_redraw else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *details: object) -> None:
        if self._soon:
            self._soon.cancel()
        if self._sightings:
            self._draw()
        if self._live:
            self._live.stop()

    def show(self, sightings: "Sequence[Sighting]") -> None:
        """Take what is known now; what comes while the screen rests is drawn together."""
        from asyncio import get_running_loop

        self._sightings = sightings
        drawn_s = time.monotonic() - self._drawn_at
        if self._live and self._soon is None:
            rest_s = max(0.0, self._rest_s - drawn_s)
            self._soon = get_running_loop().call_later(rest_s, self._draw)
        elif not self._live and drawn_s >= self._interval_s:
            self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        from toolkit.scout.findings import clock_time

        began = time.monotonic()
        at = clock_time(max(sighting.at for sighting in self._sightings))
        title = Text(f"{at}, Ctrl-C ends", style="dim")
        picture = Group(title, page(self._sightings, self._console))
        if self._live:
            self._live.update(picture, refresh=True)
        else:
            self._console.print(picture)
        self._soon, self._drawn_at = None, time.monotonic()
        self._rest_s = max(REDRAW_S, (self._drawn_at - began) / REDRAW_SHARE)
