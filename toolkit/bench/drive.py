"""Run a plan over all hosts at the same moment, or over one after the other. It owns the run's order and its end.

What it measures goes to two functions that it is given: `keep` (the store, once a second, in a thread) and `show`
(the screen, each shot); it knows neither.
"""

import asyncio
import secrets
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from toolkit.bench.client import HostClient
from toolkit.bench.fitness import Fitness
from toolkit.bench.health import Health, quiet_collector
from toolkit.bench.lane import Lane, Setting
from toolkit.bench.plan import Plan
from toolkit.errors import ToolkitError
from toolkit.profiles import Profile
from toolkit.records import Run, Shot
from toolkit.sketches import Sketch

KEEP_EVERY_S = 0.5
"""A kill costs at most this much, and the requests that are under way: the promise is one second."""
START_IN_S = 0.05
"""From all lanes being ready to the first send, so that every lane's tasks wait for the same moment."""


class Bench:
    """One run. After `run`, also a stopped one, `lanes` hold what was measured."""

    def __init__(
        self,
        clients: Sequence[HostClient],
        plan: Plan,
        profile: Profile,
        *,
        model: str | None = None,
        keep: Callable[[Sequence[Shot]], None] = lambda _: None,
        show: Callable[[Shot], None] = lambda _: None,
    ) -> None:
        self.id = secrets.token_hex(6)
        self.started_at = time.time()
        self._plan, self._keep, self._show = plan, keep, show
        self._waiting: deque[Shot] = deque()  # filled by the loop, emptied by a thread
        self._keeping = threading.Lock()
        self._health = Health()
        self._lag = Sketch()
        self._fitness: Fitness | None = None
        setting = Setting(
            run=self.id,
            plan=plan,
            profile=profile,
            model=model,
            wall_offset_s=self.started_at - time.monotonic(),
        )
        # nothing of the seed is in it: a prompt of an earlier run must not be found in any cache
        self.lanes = [Lane(each, setting, secrets.token_hex(4), self._take) for each in clients]

    def record(self, settings: str) -> Run:
        """The run as the store keeps it, before it begins."""
        return Run(id=self.id, verb="bench", started_at=self.started_at, settings=settings)

    @property
    def fitness(self) -> Fitness:
        """How this machine did during the measured part."""
        return self._fitness or self._health.told(self._lag.quantile(0.99))

    async def run(self) -> None:
        """Run the plan, then keep what is left. SIGTERM cancels like Ctrl-C.

        Raises ToolkitError when no host serves the model that the command line names, and what
        `keep` and `show` raise.
        """
        this = asyncio.current_task()
        if this:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        async with AsyncExitStack() as stack:
            for lane in self.lanes:
                await stack.enter_async_context(lane.client)
            measuring = asyncio.create_task(self._measure_all())
            keeping = asyncio.create_task(self._keep_often())
            try:
                await asyncio.wait((measuring, keeping), return_when=asyncio.FIRST_COMPLETED)
                for task in (keeping, measuring):
                    if task.done():
                        task.result()
            finally:
                await self._end(measuring, keeping)

    async def _end(self, *tasks: asyncio.Task[None]) -> None:
        """Stop asking, then keep what was measured; cancelled or not, nothing is lost."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fitness = self.fitness
        self._health.stop()
        self._keep_waiting()

    async def _measure_all(self) -> None:
        groups = [[lane] for lane in self.lanes] if self._plan.sequential else [self.lanes]
        with quiet_collector():
            for group in groups:
                await self._measure(group)

    async def _measure(self, lanes: Sequence[Lane]) -> None:
        """Take some hosts through the whole plan together."""
        await asyncio.gather(*(lane.prepare() for lane in lanes))
        _refuse_unknown_model(lanes)
        await asyncio.gather(*(lane.warm_up() for lane in lanes))
        self._health.start()
        for level in range(len(self._plan.levels) or 1):
            began_s = time.monotonic() + START_IN_S
            await asyncio.gather(*(lane.measure(level, began_s) for lane in lanes))
        self._fitness = self.fitness
        await asyncio.gather(*(lane.finish() for lane in lanes))

    def _take(self, shot: Shot) -> None:
        self._waiting.append(shot)
        if shot.kind != "warmup" and shot.send_lag_ms is not None:
            self._lag.add(max(0.0, shot.send_lag_ms))
        self._show(shot)

    async def _keep_often(self) -> None:
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            await asyncio.to_thread(self._keep_waiting)

    def _keep_waiting(self) -> None:
        with self._keeping:  # the last call waits for a thread that still writes
            batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if batch:
                self._keep(batch)


def _refuse_unknown_model(lanes: Sequence[Lane]) -> None:
    """A model that nobody serves is the user's slip, not a finding about the hosts."""
    if any(lane.error is None for lane in lanes):
        return
    for lane in lanes:
        if lane.not_served:
            raise ToolkitError(
                f"no host serves the model: `{lane.host.name}` says {lane.error}",
                "Name a served one with `--model`, or leave it out to take what each host serves",
            )
