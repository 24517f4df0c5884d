"""Was the measuring machine the limit? It watches the event loop and this process's CPU while a bench measures."""

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from toolkit.stats import Sketch

MOST_LOOP_LAG_MS = 20.0
MOST_SEND_LAG_MS = 50.0
MOST_CPU_SHARE = 0.85
"""Past any of these the client's own delay is in every figure (other tools warn at 85 to 90 % CPU and at
lags of 10 to 500 ms; ours are the strict ones that still let a busy laptop pass)."""
SAMPLE_EVERY_S = 0.01
TURN_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """How late this machine was and what it cost; what is unknown is no fault."""

    loop_lag_p99_ms: float | None
    """How late the event loop ran what was due, p99."""
    send_lag_p99_ms: float | None
    """Actual send - planned send, p99."""
    cpu_share: float | None
    """CPU time / wall time of this process: 1 is a whole core."""

    @property
    def why(self) -> str | None:
        """What was past its limit, in one sentence."""
        faults = []
        if (self.loop_lag_p99_ms or 0.0) > MOST_LOOP_LAG_MS:
            faults.append(f"its event loop was {self.loop_lag_p99_ms:.0f} ms late (p99)")
        if (self.send_lag_p99_ms or 0.0) > MOST_SEND_LAG_MS:
            faults.append(f"requests left {self.send_lag_p99_ms:.0f} ms late (p99)")
        if (self.cpu_share or 0.0) > MOST_CPU_SHARE:
            faults.append(f"it used {self.cpu_share:.0%} of a core")
        return ", ".join(faults) or None

    @property
    def ok(self) -> bool:
        """False: the figures describe this machine."""
        return self.why is None

    @property
    def warning(self) -> str | None:
        """Whose the figures are, where this machine was the limit."""
        if self.ok:
            return None
        return (
            f"Warning: this machine was the limit: {self.why}. The figures describe it as much as "
            "the hosts; use fewer hosts or requests at once, or a quieter machine"
        )


class Health:
    """Watches the running loop from each `start` to the next `stop`; all these stretches are judged together."""

    def __init__(self) -> None:
        self._lateness = Sketch()
        self._task: asyncio.Task[None] | None = None
        self._since: tuple[float, float] | None = None
        """Wall and CPU seconds at the start of this stretch."""
        self._wall_s = self._cpu_s = 0.0
        """Of the stretches before."""

    def start(self) -> None:
        """Begin to watch, or go on."""
        self.stop()
        self._since = _now_s()
        self._task = asyncio.create_task(self._watch())

    def stop(self) -> None:
        """End this stretch; `fitness` can still be asked."""
        self._wall_s, self._cpu_s = self._spent_s()
        self._since = None
        if self._task:
            self._task.cancel()
            self._task = None

    def fitness(self, send_lag_p99_ms: float | None) -> Fitness:
        """Judge what was seen up to now; the sending's own lateness is the caller's to count."""
        wall_s, cpu_s = self._spent_s()
        return Fitness(
            loop_lag_p99_ms=self._lateness.quantile(0.99),
            send_lag_p99_ms=send_lag_p99_ms,
            cpu_share=cpu_s / wall_s if wall_s > 0 else None,
        )

    def _spent_s(self) -> tuple[float, float]:
        """Wall and CPU seconds of all stretches."""
        if self._since is None:
            return self._wall_s, self._cpu_s
        (wall_s, cpu_s), (wall_began_s, cpu_began_s) = _now_s(), self._since
        return self._wall_s + wall_s - wall_began_s, self._cpu_s + cpu_s - cpu_began_s

    async def _watch(self) -> None:
        while True:
            due_s = time.monotonic() + SAMPLE_EVERY_S
            await asyncio.sleep(SAMPLE_EVERY_S)
            self._lateness.add(max(0.0, time.monotonic() - due_s) * 1000)


def _now_s() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep the garbage collector from walking through everything that was loaded before the run.

    A full collection stops all streams at once: 33 to 53 ms with pandas and altair loaded. Whoever froze something before has
    it frozen afterwards.
    """
    is_ours = gc.get_freeze_count() == 0
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if is_ours:
            gc.unfreeze()


@contextlib.contextmanager
def short_turns() -> Iterator[None]:
    """Let other threads (the store's) hold the interpreter for 0.5 ms at a time.

    With Python's 5 ms, a loop beside a busy thread ran what was due 6.6 to 8.9 ms late (median); so 0.7 ms.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
