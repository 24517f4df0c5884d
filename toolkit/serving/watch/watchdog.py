"""Watches one engine, and brings it back when it is in trouble. It owns the order of that and the waiting; what is done is given to it.

Noticed -> told to those who send to it -> its whole family ended, its memory free -> the backoff's wait -> started -> ready -> warmed up ->
clients let in again. An engine that does not come up again counts as one more crash.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from toolkit.errors import ToolkitError
from toolkit.records import Event, EventKind, Host
from toolkit.serving.stack import GuardSetting
from toolkit.serving.warm.warm_rounds import Warmed, sentence
from toolkit.serving.watch.backoff import Backoff
from toolkit.serving.watch.progress import Look, Progress, Trouble

EXIT_LOOK_S = 0.1
"""How soon the end of a process of ours is noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Senses:
    """How the engine is looked at."""

    look: Callable[[], Awaitable[Look]]
    """One look with a deadline; it raises nothing."""
    token: Callable[[], Awaitable[bool | None]]
    """Ask it for one token, with a deadline: it came, it did not, it could not be asked for."""
    code: Callable[[], int | None] = lambda: None
    """The exit code of its process; None: it runs, or is not ours."""


async def _nothing() -> None:
    return


async def _no_words(_: str) -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class Deeds:
    """What is done to bring it back. What raises ToolkitError has failed."""

    start: Callable[[], Awaitable[None]]
    """Start it and wait until it is ready."""
    stop: Callable[[], Awaitable[None]]
    """End its whole family, be there any left or not, and see their memory free."""
    warm: Callable[[], Awaitable[Warmed | None]]
    fell: Callable[[str], Awaitable[None]] = _no_words
    """Send it nothing more; the word is the cause."""
    back: Callable[[], Awaitable[None]] = _nothing
    """Let clients in again."""
    gave_up: Callable[[str], Awaitable[None]] = _no_words
    """It stays down."""


class Watchdog:
    """Around one engine that runs and is warm."""

    def __init__(
        self,
        host: Host,
        setting: GuardSetting,
        senses: Senses,
        deeds: Deeds,
        tell: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tell` gets every event, for the store and the screen."""
        self._host, self._setting = host, setting
        self._senses, self._deeds, self._tell, self._clock = senses, deeds, tell, clock
        self._backoff = Backoff(
            first_s=setting.backoff_s,
            most_s=setting.backoff_most_s,
            restarts=setting.restarts,
            within_s=setting.restarts_s,
        )

    async def run(self) -> str:
        """Watch until cancelled, or until it is given up: then why."""
        while True:
            trouble = await noticed(self._senses, self._setting, self._clock)
            why = await self._bring_back(trouble)
            if why is not None:
                return why

    async def _bring_back(self, trouble: Trouble) -> str | None:
        """All that follows; why it was given up, or None: it serves again."""
        fell_s = self._clock()
        self._event("restart", trouble.text)
        await self._deeds.fell(trouble.text)
        while True:
            try:
                await self._deeds.stop()
            except ToolkitError as error:
                return await self._given_up(error.message)
            wait_s = self._backoff.next(self._clock())
            if wait_s is None:
                return await self._given_up(self._backoff.refusal())
            await asyncio.sleep(wait_s)
            try:
                await self._start_again()
                await self._deeds.back()
            except ToolkitError as error:
                self._event("mark", f"did not come back: {error.message}")
                continue
            self._backoff.came_back(self._clock())
            self._event("mark", f"back after {self._clock() - fell_s:.1f} s")
            return None

    async def _start_again(self) -> None:
        began_s = self._clock()
        await self._deeds.start()
        self._event("mark", f"ready after {self._clock() - began_s:.1f} s")
        warmed = await self._deeds.warm()
        if warmed is None:
            return
        if warmed.measure is None:
            raise ToolkitError(f"it answered nothing when it was warmed up: {warmed.error}")
        self._event("mark", sentence(warmed))

    async def _given_up(self, why: str) -> str:
        self._event("mark", f"stays down: {why}")
        await self._deeds.gave_up(why)
        return why

    def _event(self, kind: EventKind, text: str) -> None:
        self._tell(event(self._host, kind, text))


def event(host: Host, kind: EventKind, text: str) -> Event:
    """Something that happened to an engine now; of no run, so that whatever blast is on shows it."""
    return Event(name=host.name, url=host.url, at=time.time(), kind=kind, text=text)


async def noticed(
    senses: Senses, setting: GuardSetting, clock: Callable[[], float] = time.monotonic
) -> Trouble:
    """Look on until it is in trouble."""
    progress = Progress(
        stuck_s=setting.stuck_s,
        answer_s=setting.answer_s,
        refused_s=setting.refused_s,
        ask_s=setting.ask_s,
    )
    asking: asyncio.Task[bool | None] | None = None
    try:
        while True:
            seen = await _look(senses)
            trouble = progress.look(clock(), seen)
            if asking is not None and asking.done() and trouble is None:
                trouble, asking = progress.token(clock(), asking.result()), None
            if trouble is not None:
                return trouble
            if asking is None and progress.wants_token(clock()):
                asking = asyncio.create_task(_asked(senses))
            await _pause(senses, setting.look_s)
    finally:
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def well_again(senses: Senses, look_s: float) -> None:
    """Look on until it made a token again; of one that cannot be asked for any, until its pages come."""
    while True:
        seen = await _look(senses)
        if seen.code is None and seen.answer == "came" and await senses.token() is not False:
            return
        await asyncio.sleep(look_s)


async def _look(senses: Senses) -> Look:
    """A look, but no longer than the process lives: its end says it all."""
    code = senses.code()
    if code is not None:
        return Look(answer="refused", code=code)
    seen = await senses.look()
    return replace(seen, code=senses.code())


async def _asked(senses: Senses) -> bool | None:
    return await senses.token()


async def _pause(senses: Senses, seconds: float) -> None:
    """Until the next look, or the end of the process."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while senses.code() is None:  # noqa: ASYNC110 (an exit code is read, it tells nobody)
                await asyncio.sleep(min(EXIT_LOOK_S, seconds))
