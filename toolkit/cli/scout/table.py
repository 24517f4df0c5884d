"""Sightings as tables: which column says what, once, live, and as a history."""

import time
from asyncio import TimerHandle, get_running_loop
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from toolkit.cli.scout.show import Show
from toolkit.cli.tables import UNKNOWN, Column, fit_table, milliseconds, screen
from toolkit.records import Host, Sighting
from toolkit.scout.findings import amount, clock_time
from toolkit.scout.history import Chapter, chapters
from toolkit.wording import printable

STATUS_STYLE = {"ok": "green", "degraded": "yellow", "down": "red", "not_an_engine": "magenta"}
NAMES_IN_A_NOTE = 4
"""Of more hosts with the same finding only the first few are named."""
WIDEST_NAME = 40
REDRAW_S = 0.2
REDRAW_SHARE = 0.1
"""Of the time, drawing may take this part: a table of 100 hosts takes 90 ms, in which nobody's answer is
read, and 100 hosts every 2 s would be 50 tables a second."""


def _status(sighting: Sighting) -> Text:
    return Text(sighting.status.replace("_", " "), style=STATUS_STYLE.get(sighting.status, ""))


def _engine(sighting: Sighting) -> str:
    return " ".join(part for part in (sighting.engine, sighting.version) if part) or UNKNOWN


def _model(sighting: Sighting) -> str:
    more = len(sighting.models) - 1
    return (sighting.model or UNKNOWN) + (f" +{more}" if more > 0 else "")


def _whole(value: float | None) -> str:
    return UNKNOWN if value is None else amount(value)


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.1f}"


def quantile(value: float | None, below: float | None, above: float | None) -> str:
    """A quantile, or the edge of the first or last bucket in which it sits."""
    if below is not None:
        return f"<{milliseconds(below)}"
    if above is not None:
        return f">{milliseconds(above)}"
    return milliseconds(value)


def _p50(sighting: Sighting) -> str:
    return quantile(sighting.ttft_p50_ms, sighting.ttft_p50_below_ms, sighting.ttft_p50_above_ms)


def _p95(sighting: Sighting) -> str:
    return quantile(sighting.ttft_p95_ms, sighting.ttft_p95_below_ms, sighting.ttft_p95_above_ms)


Cell = Callable[[Sighting], str | Text]

COLUMNS: Sequence[tuple[Column, Cell]] = (
    (Column(title="host", widest=WIDEST_NAME), lambda seen: seen.name),
    (Column(title="status"), _status),
    (Column(title="engine", spare=6, widest=WIDEST_NAME), _engine),
    (Column(title="model", spare=4, widest=WIDEST_NAME), _model),
    (Column(title="length", right=True, spare=8), lambda seen: _whole(seen.max_model_len)),
    (Column(title="KV tokens", right=True, spare=5), lambda seen: _whole(seen.kv_cache_tokens)),
    (Column(title="KV", right=True), lambda seen: _share(seen.kv_cache_usage)),
    (Column(title="run", right=True), lambda seen: _whole(seen.running)),
    (Column(title="wait", right=True), lambda seen: _whole(seen.waiting)),
    (Column(title="prefix hits", right=True, spare=7), lambda seen: _share(seen.prefix_hit_ratio)),
    (Column(title="TTFT p50", right=True), _p50),
    (Column(title="p95", right=True, spare=3), _p95),
    (Column(title="queue", right=True, spare=9), lambda seen: milliseconds(seen.queue_mean_ms)),
    (Column(title="requests", right=True, spare=1), lambda seen: _whole(seen.requests_total)),
    (Column(title="latency", right=True, spare=2), lambda seen: milliseconds(seen.latency_ms)),
)
RATES: Sequence[tuple[Column, Cell]] = (
    (Column(title="req/s", right=True), lambda seen: _rate(seen.requests_per_s)),
    (Column(title="tok/s", right=True), lambda seen: _rate(seen.output_tokens_per_s)),
)
"""Only there when two looks were taken."""


def page(sightings: Sequence[Sighting], console: Console) -> RenderableType:
    """The table and, below it, what a person should know."""
    rates = any(sighting.interval_s is not None for sighting in sightings)
    columns = [*COLUMNS, *RATES] if rates else COLUMNS
    rows = [[cell(sighting) for _, cell in columns] for sighting in sightings]
    return Group(fit_table([column for column, _ in columns], rows, console), *_notes(sightings))


def _notes(sightings: Sequence[Sighting]) -> Iterator[Text]:
    """One line for each reason and finding, with the hosts it stands for; reasons first."""
    errors = [(s.name, s.status, s.error) for s in sightings if s.error]
    found = [(s.name, finding.code, finding.text) for s in sightings for finding in s.findings]
    names: dict[tuple[str, str], list[str]] = {}
    for name, code, text in [*errors, *found]:
        names.setdefault((code, text), []).append(name)
    if names:
        yield Text()
    for (code, text), hosts in names.items():
        told = f"  {_listed(hosts)}: {printable(text)}"
        yield Text.assemble((code.replace("_", " "), "bold"), told)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_IN_A_NOTE
    return ", ".join(names[:NAMES_IN_A_NOTE]) + (f" and {more} more" if more > 0 else "")


def history_table(told: Sequence[Chapter], console: Console) -> RenderableType:
    """One row for each chapter of a host's history."""
    columns = [
        Column(title="from"),
        Column(title="to", spare=2),
        Column(title="looks", right=True, spare=1),
        Column(title="status"),
        Column(title="engine", spare=4, widest=WIDEST_NAME),
        Column(title="model", spare=3, widest=WIDEST_NAME),
        Column(title="requests", right=True, spare=1),
        Column(title="what changed"),
    ]
    return fit_table(columns, [_chapter_row(chapter) for chapter in told], console)


def _chapter_row(chapter: Chapter) -> list[str | Text]:
    return [
        clock_time(chapter.first.at),
        clock_time(chapter.last.at),
        f"{chapter.sightings:,}",
        _status(chapter.first),
        _engine(chapter.first),
        _model(chapter.first),
        _whole(chapter.last.requests_total),
        "; ".join(chapter.changes),
    ]


def print_chapters(sightings: Sequence[Sighting]) -> None:
    """Print how one host changed."""
    console = screen()
    console.print(history_table(chapters(sightings), console))


class TableShow(Show):
    """Prints one table at the end."""

    def close(self) -> None:
        """Print the newest sighting of each host."""
        console = screen()
        console.print(page(self.sightings, console))


class LiveShow(Show):
    """Keeps one table on a terminal up to date; into a pipe it prints a table each interval."""

    def __init__(self, hosts: Sequence[Host], interval_s: float) -> None:
        super().__init__(hosts)
        self._console = screen()
        self._interval_s = interval_s
        self._drawn_at = time.monotonic()
        self._rest_s = 0.0
        """How long the screen stays as it is after a drawing."""
        self._soon: TimerHandle | None = None
        console = self._console
        can_redraw = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False) if can_redraw else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def add(self, sighting: Sighting) -> None:
        """Take a new sighting; what comes while the screen rests is drawn together."""
        super().add(sighting)
        drawn_s = time.monotonic() - self._drawn_at
        if self._live and self._soon is None:
            rest_s = max(0.0, self._rest_s - drawn_s)
            self._soon = get_running_loop().call_later(rest_s, self._draw, self._live)
        elif not self._live and drawn_s >= self._interval_s:
            self._drawn_at = time.monotonic()
            self._console.print(self._picture())

    def _draw(self, live: Live) -> None:
        began = time.monotonic()
        live.update(self._picture(), refresh=True)
        self._soon, self._drawn_at = None, time.monotonic()
        self._rest_s = max(REDRAW_S, (self._drawn_at - began) / REDRAW_SHARE)

    def __exit__(self, *details: object) -> None:
        if self._soon:
            self._soon.cancel()
        if self._live:
            if self._newest:
                self._draw(self._live)
            self._live.stop()
        elif self._newest:
            self._console.print(self._picture())

    def _picture(self) -> RenderableType:
        newest = max(sighting.at for sighting in self._newest.values())
        title = Text(f"{clock_time(newest)}, Ctrl-C ends", style="dim")
        return Group(title, page(self.sightings, self._console))
