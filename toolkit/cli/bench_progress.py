"""A line that moves while `toolkit bench` runs: how far, how fast, what fails. On a terminal only."""

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from toolkit.bench.plan import Plan
    from toolkit.records import Shot

DRAW_EVERY_S = 0.25
"""A thread that draws would hold the interpreter in the middle of reading answers; this is called between them."""


class Progress:
    """Counts the shots of a run and draws them; into a pipe it draws nothing."""

    def __init__(self, plan: "Plan", hosts: int) -> None:
        self._plan, self._hosts = plan, hosts
        self._began_s: float | None = None
        self._done = self._ok = self._tokens = 0
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if sys.stderr is not None and sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task("looking at every host", total=None)
        return self

    def __exit__(self, *details: object) -> None:
        if self._bar:
            self._bar.stop()

    def add(self, shot: "Shot") -> None:
        """Count a shot that is over."""
        if shot.kind == "warmup":
            return
        if self._began_s is None:
            self._began_s = time.monotonic()
        self._done += 1
        self._ok += shot.ok
        self._tokens += (shot.output_tokens or 0) if shot.ok else 0

    async def watch(self, under_way: "Callable[[], int]") -> None:
        """Draw until cancelled; `under_way` counts the requests that wait for an answer."""
        while self._bar and self._task is not None:
            await asyncio.sleep(DRAW_EVERY_S)
            done, total = self._reached()
            self._bar.update(
                self._task, completed=done, total=total, description=self._told(under_way())
            )
            self._bar.refresh()

    def _reached(self) -> tuple[float, float | None]:
        """Requests done of those planned, or seconds of the duration."""
        plan = self._plan
        if plan.requests is None:
            elapsed_s = 0.0 if self._began_s is None else time.monotonic() - self._began_s
            return elapsed_s, (plan.duration_s or 0.0) * (len(plan.levels) or 1)
        from toolkit.bench.schedule import requests_of

        levels = plan.levels or (plan.concurrency,)
        return self._done, self._hosts * sum(requests_of(plan, level) or 0 for level in levels)

    def _told(self, under_way: int) -> str:
        if self._began_s is None:
            return f"getting ready, {under_way} under way"
        elapsed_s = max(time.monotonic() - self._began_s, 0.001)
        return (
            f"{self._ok / elapsed_s:,.1f} requests/s, {self._tokens / elapsed_s:,.0f} tokens/s, "
            f"{under_way} under way, {self._done - self._ok} errors"
        )


def _bar() -> "Bar":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    return Progress(
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
