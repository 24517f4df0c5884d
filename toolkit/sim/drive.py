"""Runs a simulated engine in real time: plans a step, waits as long as it takes, tells who listens.

The one file that waits for the engine; it knows nothing of HTTP.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from toolkit.sim.checks import Ask
from toolkit.sim.engine import Engine, EngineConfig, EngineRequest, Progress
from toolkit.sim.meter import Meter
from toolkit.sim.speech import Speech, load_ask, speech

MOST_BEHIND_S = 0.05
"""A sleep ends up to a millisecond late; steps catch up on that, but a stalled process does not race."""

Hear = Callable[[Progress | None], None]
"""Called with each token of a request; with None when the engine dies."""


class Core:
    """One engine core with its meter and those who wait for its tokens."""

    def __init__(
        self, config: EngineConfig, edges: Mapping[str, tuple[float, ...]], created_s: float
    ) -> None:
        self.engine = Engine(config)
        self.meter = Meter(edges, created_s)
        self._hear: dict[str, Hear] = {}
        self._arrived: dict[str, float] = {}
        self._wake = asyncio.Event()

    @property
    def load(self) -> int:
        """How busy it is, by vLLM's rule for choosing among data-parallel engines."""
        return 4 * self.engine.waiting + self.engine.running

    def submit(self, request_id: str, ask: Ask, said: Speech, hear: Hear) -> None:
        """Queue a request; `hear` is called with everything that becomes of it."""
        now = time.monotonic()
        self._hear[request_id] = hear
        self._arrived[request_id] = now
        self.engine.submit(
            EngineRequest(
                id=request_id,
                prompt_ids=ask.prompt_ids,
                max_tokens=ask.max_tokens,
                output_ids=said.ids,
                arrived_at=now,
            )
        )
        self._wake.set()

    def abort(self, request_id: str) -> None:
        """Drop a request, if it is still there, and free its KV blocks."""
        self._hear.pop(request_id, None)
        self._arrived.pop(request_id, None)
        self.meter.forget(request_id)
        self.engine.abort(request_id, time.monotonic())

    def die(self) -> None:
        """Tell everybody who waits that nothing more will come."""
        listeners = list(self._hear.values())
        self._hear.clear()
        for hear in listeners:
            hear(None)

    async def run(self) -> None:
        """Step until cancelled; sleep without a tick while there is nothing to do."""
        due = time.monotonic()
        while True:
            now = time.monotonic()
            step = self.engine.plan(now)
            if step is None:
                self._wake.clear()
                await self._wake.wait()
                due = time.monotonic()
                continue
            # from when the last step should have ended, not from when it did: lateness does not add up
            due = max(due, now - MOST_BEHIND_S) + step.duration_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            now = time.monotonic()
            progress = self.engine.finish(step, now)
            self.meter.step(self.engine, progress, now, self._arrived)
            self._tell(progress)

    def _tell(self, progress: Sequence[Progress]) -> None:
        for each in progress:
            hear = self._hear.get(each.request_id)
            if each.finished:
                self._hear.pop(each.request_id, None)
                self._arrived.pop(each.request_id, None)
            if hear:
                hear(each)


class Clients:
    """Synthetic clients that ask the engines straight, one request after the other: foreign traffic."""

    def __init__(self, cores: Sequence[Core], seed: int) -> None:
        self._cores = cores
        self._seed = seed
        self._asked = 0

    def start(self, count: int) -> None:
        """Let so many clients begin; each asks anew when its answer is complete."""
        for _ in range(count):
            self._ask()

    def _ask(self) -> None:
        self._asked += 1
        core = min(self._cores, key=lambda each: each.load)
        ask = load_ask(self._asked, self._seed, core.engine.config.max_model_len)
        core.submit(
            f"load-{self._asked}", ask, speech(ask, seed=self._seed, salt=0), self._on_progress
        )

    def _on_progress(self, progress: Progress | None) -> None:
        # a request that can never fit ends at once: to ask again would spin
        if progress and progress.finished and progress.finished.reason != "error":
            self._ask()
