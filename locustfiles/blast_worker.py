"""What one load process does in one run: requests in flight, a report to the master once a second, an end that loses no request.

The process is a Locust worker, or the only one of its run. Nothing here knows the database.
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
"""How long after a second's end it is reported: all workers do so at once, so that the master stores their parts together."""
LAG_EVERY_S = 0.02
"""How often the event loop's lag is measured: 50 times a second cost 0.1 % of a core."""
SILENT_AFTER_S = 5.0
"""A master that sent no heartbeat for so long stores nothing either: no more requests are sent until it is back."""


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
        """`number`: another for each worker of a master; `users_per_host`: how many all workers together should have now.

        `send` brings a message to the master, `fire` is Locust's request event, `say` prints one sentence.
        """
        self.plan, self.name, self.number = plan, name, number
        self.users_per_host, self.fire, self.say = users_per_host, fire, say
        now_s = time.monotonic()
        self.wall_offset_s = time.time() - now_s
        """Wall clock - monotonic clock, read once a run."""
        self.tallying = Tallying(plan.run, name, send)
        self.handlers = {address.host.name: HostHandler(address, self) for address in addresses}
        self._master_at_s = now_s if has_master else None
        """When its last heartbeat came; None: there is no master."""
        self._in_flight: set[Any] = set()
        """Greenlets whose requests are under way."""
        self._idle = Event()
        self._is_open, self._is_hurried = True, False
        self._next_second = int(self.wall())
        self._measured_s, self._cpu_s, self._lag_s = now_s, time.process_time(), 0.0
        self._greenlets = [gevent.spawn(self._watch_lag), gevent.spawn(self._report_often)]

    def wall(self) -> float:
        """Now, by the wall clock as it stood at the run's start."""
        return time.monotonic() + self.wall_offset_s

    @property
    def may_send(self) -> bool:
        """Whether users may send now."""
        return self._is_open and not self._is_master_silent

    @property
    def _is_master_silent(self) -> bool:
        last_s = self._master_at_s
        return last_s is not None and time.monotonic() - last_s > SILENT_AFTER_S

    @property
    def under_way(self) -> int:
        """Requests in flight."""
        return len(self._in_flight)

    def track(self, work: Callable[[], None]) -> None:
        """Send one request, as `work` does, in this greenlet; it counts as in flight until its answer is over."""
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

    def track_in_background(self, work: Callable[[], None]) -> None:
        """The same in a greenlet of its own; a clean end waits for it, too."""
        greenlet = gevent.spawn(self.track, work)
        # counted from now on, as it starts later; if it is killed before, `track` never discards it
        self._in_flight.add(greenlet)
        greenlet.rawlink(self._in_flight.discard)

    def master_lives(self) -> None:
        """Note a heartbeat of the master's. What could not be sent while it was silent is no host's failure."""
        if self._is_master_silent:
            for handler in self.handlers.values():
                handler.skip()
        if self._master_at_s is not None:
            self._master_at_s = time.monotonic()

    # --- the end -------------------------------------------------------------------------------------

    def drain(self, limit_s: float) -> None:
        """Begin no more requests, and wait for the answers in flight; one that does not come in time is a failure."""
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
        """Stop waiting for answers; those still in flight are nobody's failures."""
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
            this_second = int(self.wall())
            if self.may_send:
                for handler in self.handlers.values():
                    handler.charge()
            self._note_seconds(this_second)
            try:
                self.tallying.report(self.wall(), before_s=this_second)
            except Exception as error:  # noqa: BLE001 (whatever it was, the next message brings the content)
                self.say(f"The master cannot be reached ({error}); the next second brings it all")

    def _note_seconds(self, before_s: int) -> None:
        """Add this process's CPU and lag since the last call, the same for every second since: it may have been too busy to measure each."""
        now_s, cpu_s = time.monotonic(), time.process_time()
        cpu_share = (cpu_s - self._cpu_s) / max(1e-9, now_s - self._measured_s)
        lag_ms = self._lag_s * 1000
        self._measured_s, self._cpu_s, self._lag_s = now_s, cpu_s, 0.0
        for at_s in range(self._next_second, before_s):
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
        self._next_second = max(self._next_second, before_s)

    def _watch_lag(self) -> None:
        while True:
            due_s = time.monotonic() + LAG_EVERY_S
            gevent.sleep(LAG_EVERY_S)
            self._lag_s = max(self._lag_s, time.monotonic() - due_s)
