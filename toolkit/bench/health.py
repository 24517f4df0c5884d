"""How is the measuring machine itself doing? It watches the event loop and this process's CPU. It judges nothing."""

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator

from toolkit.bench.fitness import Fitness, fitness
from toolkit.sketches import Sketch

LOOK_EVERY_S = 0.01


class Health:
    """Watches from `start` to `told`; one for a whole run."""

    def __init__(self) -> None:
        self._lateness = Sketch()
        self._task: asyncio.Task[None] | None = None
        self._began_s = self._cpu_began_s = 0.0

    def start(self) -> None:
        """Begin to watch the running loop; beginning again forgets what was seen."""
        self.stop()
        self._lateness = Sketch()
        self._began_s, self._cpu_began_s = time.monotonic(), time.process_time()
        self._task = asyncio.create_task(self._watch())

    def stop(self) -> None:
        """End watching; `told` can still be asked."""
        if self._task:
            self._task.cancel()
            self._task = None

    def told(self, send_lag_p99_ms: float | None) -> Fitness:
        """What was seen up to now; the sending's own lateness is the caller's to count."""
        wall_s = time.monotonic() - self._began_s
        cpu_s = time.process_time() - self._cpu_began_s
        return fitness(
            loop_lag_p99_ms=self._lateness.quantile(0.99),
            send_lag_p99_ms=send_lag_p99_ms,
            cpu_share=cpu_s / wall_s if wall_s > 0 else None,
        )

    async def _watch(self) -> None:
        while True:
            due_s = time.monotonic() + LOOK_EVERY_S
            await asyncio.sleep(LOOK_EVERY_S)
            self._lateness.add(max(0.0, time.monotonic() - due_s) * 1000)


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep the garbage collector from walking through everything that was loaded before the run.

    A full collection stops all streams at once: 33 to 53 ms with pandas and altair loaded.
    """
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
