"""Sightings as tables: which column says what, once, live, and as a history."""

import time
from asyncio import TimerHandle, get_running_loop
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from toolkit.cli.scout.show import SightingShow
from toolkit.records import Host, Sighting
from toolkit.report.tables import Column, fit_table, notes, screen, table_of
from toolkit.safe_text import printable
from toolkit.scout.findings import clock_time
from toolkit.scout.history import Chapter, chapters
from toolkit.units import DASH, latency, per_second, percent, whole

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
    return " ".join(part for part in (sighting.engine, sighting.version) if part) or DASH


def _model(sighting: Sighting) -> str:
    more = len(sighting.models) - 1
    return (sighting.model or DASH) + (f" +{more}" if more > 0 else "")


def quantile(value: float | None, below: float | None, above: float | None) -> str:
    """A quantile, or the edge of the first or last bucket in which it sits."""
    if below is not None:
        return f"<{latency(below)}"
    if above is not None:
        return f">{latency(above)}"
    return latency(value)


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
    (Column(title="length", right=True, spare=8), lambda seen: whole(seen.max_model_len)),
    (Column(title="KV tokens", right=True, spare=5), lambda seen: whole(seen.kv_cache_tokens)),
    (Column(title="KV", right=True), lambda seen: percent(seen.kv_cache_usage)),
    (Column(title="run", right=True), lambda seen: whole(seen.running)),
    (Column(title="wait", right=True), lambda seen: whole(seen.waiting)),
    (Column(title="prefix hits", right=True, spare=7), lambda seen: percent(seen.prefix_hit_ratio)),
    (Column(title="TTFT p50", right=True), _p50),
    (Column(title="p95", right=True, spare=3), _p95),
    (Column(title="queue", right=True, spare=9), lambda seen: latency(seen.queue_mean_ms)),
    (Column(title="requests", right=True, spare=1), lambda seen: whole(seen.requests_total)),
    (Column(title="latency", right=True, spare=2), lambda seen: latency(seen.latency_ms)),
)
RATES: Sequence[tuple[Column, Cell]] = (
    (Column(title="req/s", right=True), lambda seen: per_second(seen.requests_per_s)),
    (Column(title="tok/s", right=True), lambda seen: per_second(seen.output_tokens_per_s)),
)
"""Only there when two looks were taken."""


def page(sightings: Sequence[Sighting], console: Console) -> RenderableType:
    """The table and, below it, what a person should know."""
    rates = any(sighting.interval_s is not None for sighting in sightings)
    columns = [*COLUMNS, *RATES] if rates else COLUMNS
    return Group(table_of(columns, sightings, console), *_notes(sightings))


def _notes(sightings: Sequence[Sighting]) -> Iterator[Text]:
    """One line for each reason and finding, with the hosts it stands for; reasons first."""
    errors = [(seen.name, seen.status, seen.error) for seen in sightings if seen.error]
    found = [(seen.name, each.code, each.text) for seen in sightings for each in seen.findings]
    if errors or found:
        yield Text()
    yield from notes(
        ((name, code.replace("_", " "), printable(text)) for name, code, text in [*errors, *found]),
        most_names=NAMES_IN_A_NOTE,
    )


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
        whole(chapter.last.requests_total),
        "; ".join(chapter.changes),
    ]


def print_chapters(sightings: Sequence[Sighting]) -> None:
    """Print how one host changed."""
    console = screen()
    console.print(history_table(chapters(sightings), console))


class SightingTable(SightingShow):
    """Prints one table at the end."""

    def close(self) -> None:
        """Print the newest sighting of each host."""
        console = screen()
        console.print(page(self.sightings, console))


class LiveSightings(SightingShow):
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
