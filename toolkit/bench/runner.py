"""Run a plan over all hosts at the same moment, or over one after the other. It owns the run's order and its end.

What it measures goes to two functions that it is given: `keep` (the store, once a second, in a thread) and `show`
(the screen, each request); it knows neither.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import stat
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager

from toolkit.bench.client import HostClient
from toolkit.bench.health import Fitness, Health, quiet_collector, short_turns
from toolkit.bench.host_runner import HostRunner, task_group
from toolkit.bench.plan import BenchPlan
from toolkit.bench.random_prompts import INEXACT, Words
from toolkit.bench.request_record import RequestContext
from toolkit.errors import ToolkitError
from toolkit.profiles import Profile
from toolkit.records import RequestRecord
from toolkit.stats import Sketch

KEEP_EVERY_S = 0.5
"""A kill costs at most this much, and the requests that are under way: the promise is one second."""
MOST_AT_ONCE = 1_000
"""Records in a transaction: what waits for a full disk is tried again every half second, beside the measuring."""
START_IN_S = 0.05
"""From all hosts being ready to the first send, so that all tasks wait for the same moment."""


class Bench:
    """One run. After `run`, also a stopped one, `hosts` hold what was measured."""

    def __init__(
        self,
        clients: Sequence[HostClient],
        plan: BenchPlan,
        profile: Profile,
        *,
        model: str | None = None,
        words: Words | None = None,
        keep: Callable[[Sequence[RequestRecord]], None] = lambda _: None,
        show: Callable[[RequestRecord], None] = lambda _: None,
        over: Callable[[str, int, Sequence[RequestRecord]], None] = lambda *_: None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`words`: what all hosts' prompts of a wanted length are made of; None: each host is asked.

        `keep` may refuse by a ToolkitError: a file that is locked or full ends no measurement, `warn` hears of it once.

        `over` gets a host's name, a level, counted from 0, and its records, once that host has had all of it.
        """
        self.id = secrets.token_hex(6)
        self.started_at = time.time()
        self._plan, self._keep, self._show, self._warn = plan, keep, show, warn
        self._over = over
        self._is_refused = False
        self._waiting: deque[RequestRecord] = deque()  # filled by the loop, emptied by the keeper
        self._keeper = ThreadPoolExecutor(1, "keep")
        self._health = Health()
        wall_offset_s = self.started_at - time.monotonic()
        self.hosts = [
            HostRunner(
                client,
                plan,
                profile,
                RequestContext(
                    run=self.id,
                    name=client.host.name,
                    url=client.host.url,
                    concurrency=None,
                    wall_offset_s=wall_offset_s,
                ),
                # nothing of the seed is in it: a prompt of an earlier run must not be found in any cache
                nonce=secrets.token_hex(8),
                model=model,
                on_record=self._take,
                words=words,
            )
            for client in clients
        ]

    @property
    def fitness(self) -> Fitness:
        """How this machine did during the measured parts."""
        lag = Sketch()
        for host in self.hosts:
            lag.merge(host.lag)
        return self._health.fitness(lag.quantile(0.99))

    async def run(self) -> None:
        """Run the plan, then keep what is left: cancelled or not, nothing is lost. SIGTERM cancels like Ctrl-C.

        Raises ToolkitError when no host serves the model that the command line names, and what
        `keep` (but a ToolkitError) and `show` raise.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(_ended_by_signals())
            for host in self.hosts:
                await stack.enter_async_context(host.client)
            measuring = asyncio.create_task(self._measure())
            keeping = asyncio.create_task(self._keep_often())
            try:
                await asyncio.wait((measuring, keeping), return_when=asyncio.FIRST_COMPLETED)
                for task in (keeping, measuring):
                    if task.done():
                        task.result()
            finally:
                measuring.cancel()
                keeping.cancel()
                await asyncio.gather(measuring, keeping, return_exceptions=True)
                self._health.stop()
                with self._keeper:  # waits for a batch that is being kept
                    self._keeper.submit(self._try_to_keep).result()

    async def _measure(self) -> None:
        """Take all hosts through the whole plan together, or one after the other."""
        groups = [[host] for host in self.hosts] if self._plan.sequential else [self.hosts]
        with quiet_collector(), short_turns():
            await _each(host.choose_model() for host in self.hosts)
            if all(host.error is not None for host in self.hosts):
                for host in self.hosts:
                    if host.not_served:  # the user's slip, not a finding about the hosts
                        raise ToolkitError(
                            f"no host serves the model: `{host.host.name}` says {host.error}",
                            "Name a served one with `--model`, or leave it out to take what each host serves",
                        )
            for hosts in groups:
                await _each(host.prepare() for host in hosts)
                for host in hosts:
                    if host.words is not None and not host.words.is_exact:
                        self._warn(f"Warning: {host.host.name}: {INEXACT}")
                await _each(host.warm_up() for host in hosts)
                for level in range(len(self._plan.concurrencies)):
                    await _each(host.connect(level) for host in hosts)
                    self._health.start()
                    began_s = time.monotonic() + START_IN_S
                    await _each(self._measure_one(host, level, began_s) for host in hosts)
                    self._health.stop()
                await _each(host.finish() for host in hosts)

    async def _measure_one(self, host: HostRunner, level: int, began_s: float) -> None:
        first = len(host.records)
        await host.measure(level, began_s)
        self._over(host.host.name, level, host.records[first:])

    def _take(self, record: RequestRecord) -> None:
        self._waiting.append(record)
        self._show(record)

    async def _keep_often(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            await loop.run_in_executor(self._keeper, self._try_to_keep)

    def _try_to_keep(self) -> None:
        try:
            self.keep_waiting()
        except ToolkitError as error:
            if not self._is_refused:
                self._warn(f"Warning: {error.message}; the bench continues and tries again")
            self._is_refused = True

    def keep_waiting(self) -> None:
        """Keep all that waits; what cannot be kept waits on. Raises what `keep` raises."""
        while self._waiting:
            count = min(MOST_AT_ONCE, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(count)]
            try:
                self._keep(batch)
            except BaseException:
                self._waiting.extendleft(reversed(batch))
                raise


async def _each(works: Iterable[Coroutine[None, None, None]]) -> None:
    """Do all at once; the first failure ends the others."""
    async with task_group() as tasks:
        for work in works:
            tasks.create_task(work)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM, and a terminal that is closed, cancel the running task."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None, "a coroutine runs in a task"

    def hang_up() -> None:
        # a closed terminal's shell tells of it, and then the kernel: the second must not cut off what is still to be kept
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (1, 2):
            # to write to what is gone would fail in the middle of the end
            with contextlib.suppress(OSError):
                if stat.S_ISCHR(os.fstat(number).st_mode):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup's
        loop.add_signal_handler(signal.SIGHUP, hang_up)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
