"""A line that moves while `toolkit bench` runs: how far, how fast, what fails. On a terminal only."""

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Self

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from toolkit.bench.plan import BenchPlan
    from toolkit.records import RequestRecord

DRAW_EVERY_S = 0.25
"""A thread that draws would hold the interpreter in the middle of reading answers; this is called between them."""


class BenchProgress:
    """Counts the requests of a run and draws them; into a pipe it draws nothing."""

    def __init__(self, plan: "BenchPlan", hosts: int) -> None:
        self._plan, self._hosts = plan, hosts
        self._began_s: float | None = None
        """When the first request that is over had begun."""
        self._warm = self._done = self._ok = self._tokens = 0
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            from toolkit.report.tables import side_screen

            self._bar = Progress(
                BarColumn(bar_width=24),
                TaskProgressColumn(),
                TextColumn("{task.description}"),
                console=side_screen(),
                auto_refresh=False,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("looking at every host", total=None)
        return self

    def __exit__(self, *details: object) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def add(self, record: "RequestRecord") -> None:
        """Count a request that is over."""
        if record.kind == "warmup":
            self._warm += 1
            return
        if self._began_s is None:
            self._began_s = time.monotonic() - (record.took_ms or 0.0) / 1000
        self._done += 1
        self._ok += record.ok
        self._tokens += (record.output_tokens or 0) if record.ok else 0

    def say(self, sentence: str) -> None:
        """Print a line for the user, above the one that moves; any thread may call it."""
        if self._bar:
            self._bar.console.print(sentence, markup=False, highlight=False)
        else:
            click.echo(sentence, err=True)

    async def draw(self, under_way: "Callable[[], int]") -> None:
        """Draw until cancelled; `under_way` counts the requests that wait for an answer."""
        while self._bar and self._task is not None:
            await asyncio.sleep(DRAW_EVERY_S)
            elapsed_s = 0.0 if self._began_s is None else time.monotonic() - self._began_s
            self._bar.update(
                self._task,
                completed=self.share(elapsed_s),
                total=1.0,
                description=self.line(elapsed_s, under_way()),
            )
            self._bar.refresh()

    def share(self, elapsed_s: float) -> float:
        """How much of the plan is done: of its requests or of its time, whichever will end it."""
        from toolkit.bench.plan import requests_of

        plan, shares, levels = self._plan, [0.0], self._plan.concurrencies
        if plan.requests is not None:
            planned = self._hosts * sum(requests_of(plan, level) or 0 for level in levels)
            shares.append(self._done / planned)
        if plan.duration_s is not None:
            turns = len(levels) * (self._hosts if plan.sequential else 1)
            shares.append(elapsed_s / (plan.duration_s * turns))
        return min(1.0, max(shares))

    def line(self, elapsed_s: float, under_way: int) -> str:
        """What is going on, in words; the figures are means since the first request."""
        if self._done:
            elapsed_s = max(elapsed_s, 0.001)
            return (
                f"{self._ok / elapsed_s:,.1f} requests/s, {self._tokens / elapsed_s:,.0f} tokens/s, "
                f"{under_way:,} under way, {self._done - self._ok:,} failed"
            )
        if self._warm:
            return f"warm-up: {self._warm:,} over, {under_way:,} under way"
        return f"no answer yet, {under_way:,} under way" if under_way else "looking at every host"
