"""The watchdog of one engine: notices that it has ended or hangs, and restarts it. It probes as the proxy does; what follows is decided here.

A restart: clients kept out -> all its processes ended, its memory free -> the backoff's wait -> started -> ready -> warmed up ->
clients let in again. An engine that does not come up counts as one more crash.

/health answers 200 while decoding hangs, so it is believed only where it says that the engine is dead. An engine hangs (StallDetector
of the proxy) when it has work, nothing that it counts has moved for `stuck_s`, and a token that it is then asked for does not come
within `answer_s`, while still nothing moves. A busy engine is left alone, however slow: its counters move, and through a long prefill,
which moves no counter of tokens, its KV blocks fill up. A page that comes too late is not a refused connection. An engine without
/metrics can't be told from a busy one: only its end and refused connections count.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self

from toolkit.errors import ToolkitError
from toolkit.proxy.config import UpstreamSetting
from toolkit.proxy.errors import Fault
from toolkit.proxy.upstream.connection import Upstream
from toolkit.proxy.upstream.health import Engine
from toolkit.proxy.upstream.routing import Signs, StallDetector
from toolkit.records import Event, EventKind, Host
from toolkit.serving.stack import GuardSetting
from toolkit.serving.warmup import Warmed

if TYPE_CHECKING:
    from toolkit.serving.launch import Process

PROBE_LIMIT_S: Final = 10.0
"""A vLLM on a loaded machine answers late, and a late page still tells more than one that was given up after 2 s."""
EXIT_LOOK_S = 0.1
"""How often a process that we started is checked for its end."""


# --- probing an engine -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What one probe of an engine saw."""

    answer: Literal["came", "late", "refused", "ill"]
    """`came`: the pages. `late`: a connection, but no page in time. `refused`: nobody listens. `ill`: /health says 5xx."""
    signs: Signs = ()
    """Its counters: prompt tokens, output tokens, steps, share of KV blocks; None for one that it does not report."""
    under_way: float | None = None
    """Requests running or waiting, as it reports."""


class LivenessProbe:
    """Reads one engine's pages and asks it for a token, each within a limit; use it as `async with`."""

    def __init__(
        self,
        host: Host,
        guard: GuardSetting,
        *,
        key: str | None = None,
        limit_s: float | None = None,
    ) -> None:
        """`limit_s`: for the pages of one probe."""
        setting = UpstreamSetting(name=host.name, url=host.url, model=host.model)
        self._upstream = Upstream(setting, key=key)
        self._engine = Engine(self._upstream, user_agent=b"llm-serving-toolkit-watchdog")
        self._answer_s = guard.answer_s
        self._limit_s = limit_s or min(PROBE_LIMIT_S, guard.stuck_s)
        self.last_read_s = time.monotonic()
        """When its pages were requested last."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._upstream.close()

    async def pages(self) -> ProbeResult:
        """Read /health and /metrics once. Raises nothing."""
        engine, self.last_read_s = self._engine, time.monotonic()
        try:
            async with asyncio.timeout(self._limit_s):
                if await engine.is_ill():
                    return ProbeResult(answer="ill")
                await engine.metrics()
        except TimeoutError:
            return ProbeResult(answer="late")
        except Fault as fault:
            # a page cut off, garbled or not sent in time proves no more than a late one
            return ProbeResult(answer="refused" if fault.kind == "connect" else "late")
        except Exception:  # noqa: BLE001 (the one boundary to a stranger's page: what nobody foresaw says nothing)
            return ProbeResult(answer="came")
        if engine.numbers is None:
            return ProbeResult(answer="came")
        engine.model = engine.model or next(iter(engine.numbers.models), None)
        loads = [n for n in (engine.load.running, engine.load.waiting) if n is not None]
        under_way = sum(loads) if loads else None
        return ProbeResult(answer="came", signs=engine.load.signs, under_way=under_way)

    async def token(self) -> bool | None:
        """Ask for one token. True: it came. False: not in time, or no token. None: it could not be asked for."""
        return await self._engine.token(self._answer_s)


# --- what its probes prove -------------------------------------------------------------------------------


class EngineProgress:
    """Judges one engine's probes and says what is wrong in a sentence, or None. It reads no clock: `now` is given."""

    def __init__(self, guard: GuardSetting) -> None:
        self._stalls = StallDetector(stuck_s=guard.stuck_s, probe_s=guard.answer_s)
        self._guard = guard
        self._down_s: float | None = None
        """Since when connections are refused, or /health says 5xx."""
        self._asked_s: float | None = None
        """When a token was asked for last, or anything moved."""
        self._last_pages = ProbeResult(answer="came")
        self._is_late = False
        """Whether the pages of the newest probe did not come in time."""

    def probed(self, now: float, seen: ProbeResult) -> str | None:
        """Take a probe's result; what is wrong by that alone."""
        if self._asked_s is None:
            self._asked_s = now
        if seen.answer in ("refused", "ill"):
            # one clock for both: vLLM's /health says 503 for half a second before its port closes
            if self._down_s is None:
                self._down_s = now
            down_s = now - self._down_s
            if down_s < self._guard.refused_s:
                return None
            what = "/health said 5xx" if seen.answer == "ill" else "connections were refused"
            return f"{what} for {down_s:.1f} s"
        self._down_s, self._is_late = None, seen.answer == "late"
        if self._is_late:
            self._stalls.missed_scrape(now)
            return None
        self._last_pages = seen
        if self._stalls.scraped(seen.signs, busy=bool(seen.under_way), now=now):
            self._asked_s = now
        return None

    def wants_token(self, now: float) -> bool:
        """Whether to ask for one token now. If so, `token` must be called with the outcome before this is True again."""
        stalls = self._stalls
        if self._down_s is not None or stalls.probe_began_s is not None:
            return False
        idle_s = now - (now if self._asked_s is None else self._asked_s)
        idle_too_long = not stalls.has_work and idle_s >= self._guard.ask_s
        if not (idle_too_long or stalls.wants_probe(now)):
            return False
        if idle_too_long:
            # our request is all the work that it has: silence counts from now
            stalls.alive_s, stalls.in_flight = now, 1
        stalls.probe_began_s = self._asked_s = now
        return True

    def token(self, now: float, made: bool | None) -> str | None:
        """Take the outcome: True, it came; False, it did not in time; None, it could not be asked for."""
        stalls, pages = self._stalls, self._last_pages
        silent_s = now - stalls.alive_s
        is_stuck = stalls.probed(made, now)
        stalls.in_flight = 0
        self._asked_s = now
        if not is_stuck:
            return None
        if self._is_late:
            return f"no page for {silent_s:.1f} s, and no token when it was asked for one"
        if all(sign is None for sign in pages.signs):
            return None  # without counters it may be busy
        what = f"{pages.under_way:.0f} requests under way" if pages.under_way else "idle, it says"
        return f"{what}, and no token for {silent_s:.1f} s, nor one when it was asked"


def ended(code: int) -> str:
    """What an exit code says."""
    if code < 0:
        return f"its process was ended by signal {-code}"
    return f"its process ended by itself with exit code {code}"


async def wait_for_trouble(
    probe: LivenessProbe,
    guard: GuardSetting,
    code: Callable[[], int | None] = lambda: None,
) -> str:
    """Probe until something is wrong, and return what. `code`: its process's exit code; None while it runs, or if it is not ours."""
    progress = EngineProgress(guard)
    asking: asyncio.Task[bool | None] | None = None
    try:
        while True:
            seen = await probe.pages() if code() is None else None
            found = code()
            if seen is None or found is not None:
                # whatever the probe saw, the end of its process explains it
                return ended(found or 0)
            trouble = progress.probed(time.monotonic(), seen)
            if asking is not None and asking.done() and trouble is None:
                trouble, asking = progress.token(time.monotonic(), asking.result()), None
            if trouble is not None:
                return trouble
            if asking is None and progress.wants_token(time.monotonic()):
                asking = asyncio.create_task(probe.token())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(guard.look_s):
                    while code() is None:  # noqa: ASYNC110 (nobody is woken by an exit code)
                        await asyncio.sleep(min(EXIT_LOOK_S, guard.look_s))
    finally:
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def wait_until_well(probe: LivenessProbe, look_s: float) -> None:
    """Probe until it makes a token again, or, where none can be asked for, until its pages come."""
    while True:
        if (await probe.pages()).answer == "came" and await probe.token() is not False:
            return
        await asyncio.sleep(look_s)


# --- bringing it back ------------------------------------------------------------------------------------


class Backoff:
    """One engine's restarts: each wait is twice the one before, up to a cap; too many within a window are a crash loop.

    After it was well for as long as the cap, the waits begin anew; restarts stay counted until they leave the window.
    """

    def __init__(self, guard: GuardSetting) -> None:
        self._guard = guard
        self._most_s = max(guard.backoff_s, guard.backoff_most_s)
        self._at_s: deque[float] = deque()
        self._in_a_row = 0
        self.well_s: float | None = None
        """Since when it is well."""

    def next(self, now: float) -> float | None:
        """Count one restart and return how long to wait before it; None: a crash loop, no restart."""
        while self._at_s and now - self._at_s[0] >= self._guard.restarts_s:
            self._at_s.popleft()
        if len(self._at_s) >= self._guard.restarts:
            return None
        if self.well_s is not None and now - self.well_s >= self._most_s:
            self._in_a_row = 0
        self.well_s = None
        self._at_s.append(now)
        wait_s = min(self._most_s, self._guard.backoff_s * 2.0 ** min(self._in_a_row, 60))
        self._in_a_row += 1
        return wait_s

    def refusal(self) -> str:
        """Why it is not started again."""
        if not self._guard.restarts:
            return "no restart is allowed"
        return f"{len(self._at_s)} restarts within {self._guard.restarts_s:g} s: a crash loop"


class GuardedEngine:
    """One engine and its watchdog. Subclasses, of `serve` and of `toolkit watchdog`, say how it is started, warmed up and stopped."""

    def __init__(
        self, host: Host, key: str | None, guard: GuardSetting, tell: Callable[[Event], None]
    ) -> None:
        """`host`: the name and URL in its events; `tell` gets every event, for the store and the screen."""
        self.host, self.key, self.guard = host, key, guard
        self.process: Process | None = None
        self._tell, self._backoff = tell, Backoff(guard)

    async def start(self) -> float:
        """Start it and return after how many seconds it was ready. Raises ToolkitError with the cause."""
        raise NotImplementedError

    async def warm(self) -> Warmed | None:
        """Warm it up; None: no warm-up is wanted. Raises ToolkitError if it ends meanwhile."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End all its processes, if any are left. Raises ToolkitError if one of them can't be ended."""
        if self.process is not None:
            await self.process.stop(self.guard.stop_s)
            self.process = None

    def keep_clients_out(self, cause: str, *, again: bool) -> None:
        """Send it no more requests; `again`: it will be restarted."""

    async def let_clients_in(self) -> None:
        """Send it requests again. Raises ToolkitError."""

    def gave_up(self, cause: str) -> None:
        """Note that it is not restarted any more."""

    @property
    def code(self) -> int | None:
        """Its process's exit code; None while it runs, or if we started none."""
        return None if self.process is None else self.process.code

    def event(self, kind: EventKind, text: str) -> None:
        """Report what happened to it now. The event belongs to no run, so every blast under way shows it."""
        host = self.host
        self._tell(Event(name=host.name, url=host.url, at=time.time(), kind=kind, text=text))

    async def begin(self, *, must_answer: bool = True) -> None:
        """Start it and warm it up, with an event for each. Raises ToolkitError.

        `must_answer`: it has failed to start if it answers no request of the warm-up.
        """
        ready_s = await self.start()
        self.event("mark", f"ready after {ready_s:.1f} s")
        warmed = await self.warm()
        if warmed is None:
            return
        if warmed.measure is None and must_answer:
            raise ToolkitError(
                f"`{self.host.name}` answers nothing: {warmed.error or 'no reason given'}",
                "See its log",
            )
        self.event("mark", warmed.sentence())

    async def watch(self, probe: LivenessProbe) -> str:
        """Watch a running engine and restart it when it has to be, until cancelled, or until that is given up: returns why."""
        while True:
            trouble = await wait_for_trouble(probe, self.guard, lambda: self.code)
            why = await self._bring_back(trouble)
            if why is not None:
                self.event("mark", f"stays down: {why}")
                self.gave_up(why)
                return why

    async def _bring_back(self, trouble: str) -> str | None:
        """Restart it until it serves again (None), or is given up: then why."""
        down_at_s = time.monotonic()
        wait_s = self._backoff.next(down_at_s)
        self.event("restart", trouble)
        self.keep_clients_out(trouble, again=wait_s is not None)
        while True:
            try:
                await self.stop()
                if wait_s is None:
                    return self._backoff.refusal()
            except ToolkitError as error:
                return error.message
            await asyncio.sleep(wait_s)
            try:
                await self.begin()
                await self.let_clients_in()
            except ToolkitError as error:
                self.event("mark", f"did not come back: {error.message}")
                wait_s = self._backoff.next(time.monotonic())
                continue
            self._backoff.well_s = time.monotonic()
            self.event("mark", f"back after {self._backoff.well_s - down_at_s:.1f} s")
            return None
