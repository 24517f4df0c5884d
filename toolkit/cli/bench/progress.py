"""What `toolkit bench` says while it measures: how far it is, how fast, what fails."""

import time
from typing import TYPE_CHECKING

from toolkit.bench.plan import BenchPlan, requests_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit.cli.waiting import Waiting
    from toolkit.records import RequestRecord


class BenchProgress:
    """What there is to say while requests are measured: how far, how fast, what fails."""

    def __init__(self, plan: BenchPlan, hosts: "Sequence[str]") -> None:
        self.waiting: Waiting | None = None
        """What shows it."""
        self._plan, self._hosts = plan, hosts
        self._began_s: float | None = None
        """When the first request that is over had begun."""
        self._warm = self._done = self._ok = self._tokens = 0

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

    def steps(self) -> list[str]:
        """What is done one after the other or side by side: each host, of a sweep each of its levels."""
        levels = range(len(self._plan.concurrencies))
        return [self._step(name, level) for level in levels for name in self._hosts]

    def _step(self, name: str, level: int) -> str:
        levels = self._plan.levels
        return f"{name} ({levels[level]} at once)" if levels else name

    def over(self, name: str, level: int, records: "Sequence[RequestRecord]") -> None:
        """A host has had all requests of a level; `level` counts from 0."""
        if self.waiting:
            ok = sum(record.ok for record in records)
            self.waiting.done(self._step(name, level), f"{ok:,} of {len(records):,} answered")

    def figures(self, under_way: int) -> str:
        """How far it is, and `line`; `under_way` counts the requests that wait for an answer."""
        elapsed_s = 0.0 if self._began_s is None else time.monotonic() - self._began_s
        share = f"{self.share(elapsed_s):.0%}, " if self._done else ""
        return share + self.line(elapsed_s, under_way)

    def share(self, elapsed_s: float) -> float:
        """How much of the plan is done: of its requests or of its time, whichever will end it."""
        plan, shares, levels = self._plan, [0.0], self._plan.concurrencies
        if plan.requests is not None:
            planned = len(self._hosts) * sum(requests_of(plan, level) or 0 for level in levels)
            shares.append(self._done / planned)
        if plan.duration_s is not None:
            turns = len(levels) * (len(self._hosts) if plan.sequential else 1)
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
        return f"no answer yet, {under_way:,} under way" if under_way else "scraping every host"
