"""One run on one worker: its handlers, a report to the master once a second, and an end that loses no request.

A process that loads hosts has one, be it a worker of a master's or alone. Nothing here knows the database.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gevent
from blast_connection import EndedError, HostAddress
from blast_handler import OVERDUE_S, HostHandler
from gevent.event import Event

from toolkit.bench.health import MOST_CPU_SHARE, MOST_SEND_LAG_MS
from toolkit.blast.plan import WorkerPlan
from toolkit.blast.tallying import Tallying
from toolkit.records import LoaderSecond

REPORT_AFTER_S = 0.05
"""After a second is over: all workers report in step, so that the master stores their parts together."""
LAG_EVERY_S = 0.02
"""How often the event loop's lateness is looked at: 50 times a second cost 0.1 % of a core."""
SILENT_AFTER_S = 5.0
"""A master that is silent for so long stores nothing either, and its hosts are to be left alone."""


class WorkerRun:
    """One process's users, handlers and seconds in one run."""

    def __init__(
        self,
        plan: WorkerPlan,
        addresses: Sequence[HostAddress],
        *,
        name: str,
        number: int,
        has_master: bool,
        users_per_host: Callable[[], int],
        send: Callable[[Mapping[str, Any]], None],
        fire: Callable[..., None],
        say: Callable[[str], None],
    ) -> None:
        """`number` is unlike any other worker's of this master; `users_per_host`: how many all workers together should have now.

        `send` brings a message to the master, `fire` is Locust's request event, `say` shows a person one sentence.
        """
        self.plan, self.name, self.number = plan, name, number
        self.users_per_host, self.fire, self.say = users_per_host, fire, say
        now_s = time.monotonic()
        self.wall_offset_s = time.time() - now_s
        """Wall clock - monotonic clock, read once a run."""
        self.tallying = Tallying(plan.run, name, send)
        self.handlers = {address.host.name: HostHandler(address, self) for address in addresses}
        self._master_at_s = now_s if has_master else None
        """When the master last showed that it lives."""
        self._in_flight: set[Any] = set()
        """Greenlets whose requests are under way."""
        self._idle = Event()
        self._is_open, self._is_hurried = True, False
        self._next_s = int(self.wall())
        self._looked_s, self._cpu_s, self._lag_s = now_s, time.process_time(), 0.0
        self._greenlets = [gevent.spawn(self._watch_lag), gevent.spawn(self._report_often)]

    def wall(self) -> float:
        """Now, by the wall clock as it stood at the run's start."""
        return time.monotonic() + self.wall_offset_s

    @property
    def may_send(self) -> bool:
        """Whether users may send now."""
        return self._is_open and not self._is_forgotten

    @property
    def _is_forgotten(self) -> bool:
        last_s = self._master_at_s
        return last_s is not None and time.monotonic() - last_s > SILENT_AFTER_S

    @property
    def under_way(self) -> int:
        """Requests whose answers are not over."""
        return len(self._in_flight)

    def track(self, work: Callable[[], None]) -> None:
        """Do a request's work in this greenlet, which counts as in flight meanwhile."""
        user = gevent.getcurrent()
        self._in_flight.add(user)
        try:
            work()
        except EndedError:
            return  # before anything was sent
        finally:
            self._in_flight.discard(user)
            if not self._in_flight:
                self._idle.set()

    def aside(self, work: Callable[[], None]) -> None:
        """Send a request beside the users'; a clean end waits for it as for theirs."""
        greenlet = gevent.spawn(self.track, work)
        # from now on: it runs only once the others rest, or is killed before
        self._in_flight.add(greenlet)
        greenlet.rawlink(self._in_flight.discard)

    def master_lives(self) -> None:
        """Note a sign of life of the master's."""
        if self._is_forgotten:
            for handler in self.handlers.values():
                handler.skip()
        if self._master_at_s is not None:
            self._master_at_s = time.monotonic()

    # --- the end -------------------------------------------------------------------------------------

    def drain(self, limit_s: float) -> None:
        """Begin no more requests, and wait for the answers under way; one that does not come is a failure."""
        if self._is_open:
            for handler in self.handlers.values():
                handler.charge(OVERDUE_S)
        self._is_open = self._is_hurried = False
        try:
            self._wait_until_idle(limit_s)
            if not self._is_hurried:
                for user in list(self._in_flight):
                    gevent.kill(user, EndedError)
                self._wait_until_idle(1.0)
        except KeyboardInterrupt:
            self.hurry()

    def hurry(self) -> None:
        """Wait for no answer any more, and blame nobody for it."""
        if self._in_flight:
            self.say("The answers that are under way are left")
        self._is_hurried = True
        self._idle.set()

    def _wait_until_idle(self, limit_s: float) -> None:
        with gevent.Timeout(limit_s, False):
            while self._in_flight and not self._is_hurried:
                self._idle.clear()
                self._idle.wait()

    def finish(self) -> None:
        """Send all that is left of the run."""
        self._is_open = False
        for greenlet in self._greenlets:
            greenlet.kill(block=False)
        self._note_seconds(int(self.wall()) + 1)
        try:
            self.tallying.report(self.wall(), before_s=None, final=True)
        except Exception as error:  # noqa: BLE001 (no later message will bring it)
            self.say(f"The last seconds could not be sent to the master: {error}")

    # --- each second ---------------------------------------------------------------------------------

    def _report_often(self) -> None:
        while True:
            due_s = int(self.wall() - REPORT_AFTER_S) + 1 + REPORT_AFTER_S
            gevent.sleep(max(0.0, due_s - self.wall()))
            now_s = int(self.wall())
            if self.may_send:
                for handler in self.handlers.values():
                    handler.charge()
            self._note_seconds(now_s)
            try:
                self.tallying.report(self.wall(), before_s=now_s)
            except Exception as error:  # noqa: BLE001 (whatever it was, the next message brings the content)
                self.say(f"The master cannot be reached ({error}); the next second brings it all")

    def _note_seconds(self, before_s: int) -> None:
        """How this process fared since the last time; equal for all seconds in which it could not even look."""
        now_s, cpu_s = time.monotonic(), time.process_time()
        cpu_share = (cpu_s - self._cpu_s) / max(1e-9, now_s - self._looked_s)
        lag_ms = self._lag_s * 1000
        self._looked_s, self._cpu_s, self._lag_s = now_s, cpu_s, 0.0
        for at_s in range(self._next_s, before_s):
            second = LoaderSecond(
                run=self.plan.run,
                at_s=at_s,
                worker=self.name,
                users=sum(handler.users for handler in self.handlers.values()),
                cpu_share=cpu_share,
                lag_ms=lag_ms,
                limited=cpu_share > MOST_CPU_SHARE or lag_ms > MOST_SEND_LAG_MS,
            )
            self.tallying.add_second(second)
        self._next_s = max(self._next_s, before_s)

    def _watch_lag(self) -> None:
        while True:
            due_s = time.monotonic() + LAG_EVERY_S
            gevent.sleep(LAG_EVERY_S)
            self._lag_s = max(self._lag_s, time.monotonic() - due_s)
