"""One engine of a stack and its watchdog: opened, restarted, given up, one thing at a time. It tells the gate who may be asked.

waiting, starting, warming, up         at the beginning
up, restarting, starting, warming, up  the watchdog's round; down at the end of a crash loop
up, draining, starting, warming, up    by order; down where the start fails
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import NoReturn

from toolkit.errors import ToolkitError
from toolkit.records import Event, EventKind
from toolkit.serving.house.gate import Gate
from toolkit.serving.house.standing import Standing, State
from toolkit.serving.stack import EngineSetting, GuardSetting
from toolkit.serving.stack_file import SLOTS, upstream_name
from toolkit.serving.start.engine import Engine
from toolkit.serving.warm.warm_rounds import Warmed, sentence
from toolkit.serving.watch.progress import Look
from toolkit.serving.watch.pulse import EnginePulse
from toolkit.serving.watch.watchdog import Deeds, Senses, Watchdog

UNSEEN_S = 60.0
"""Beyond two pauses between looks, each of which has 10 s: then the watchdog itself hangs."""
Make = Callable[[EngineSetting, str], Engine]
"""A setting, with its port, and the upstream's name."""


class Seat:
    """What stands in the stack file as one engine, whoever of its generations serves."""

    def __init__(
        self,
        setting: EngineSetting,
        *,
        make: Make,
        gate: Gate,
        guard: GuardSetting,
        tell: Callable[[Event], None],
    ) -> None:
        self.setting = setting
        """As it serves now, on the first port of its two."""
        self.gate = gate
        self._make, self._guard, self._tell = make, guard, tell
        self.slot = SLOTS[0]
        self.engine = make(setting, upstream_name(setting.name, self.slot))
        self.state: State = "waiting"
        self.why: str | None = None
        self.since = time.time()
        self._launches = 0
        self._watching: asyncio.Task[None] | None = None
        self._looked_s = 0.0
        self._doing: str | None = None
        self._took_s: float | None = None
        """From its last launch until it was warm."""

    @property
    def name(self) -> str:
        """As in the stack file."""
        return self.setting.name

    @property
    def restarts(self) -> int:
        """Launches after the first, whoever wanted them."""
        return max(0, self._launches - 1)

    @property
    def upstream(self) -> str:
        """What the proxy calls the place where it serves now."""
        return self.engine.upstream

    @property
    def is_looked_after(self) -> bool:
        """Whether its watchdog looks at it, where one has to: not one that ended by a fault of ours, or hangs."""
        if self._watching is None or self.state == "down":
            return True
        if self.state != "up":
            return not self._watching.done()
        unseen_s = time.monotonic() - self._looked_s
        return not self._watching.done() and unseen_s < 2 * self._guard.look_s + UNSEEN_S

    def standing(self) -> Standing:
        """Where it stands."""
        engine, setting = self.engine, self.engine.setting
        warmed = engine.warmed
        return Standing(
            name=self.name,
            state=self.state,
            why=self.why,
            kind=setting.kind,
            model=setting.model,
            served_name=engine.served_name,
            preset=setting.preset,
            team=setting.team,
            gpus=setting.gpus,
            url=setting.url,
            port=setting.port,
            pid=None if engine.process is None else engine.process.pid,
            since=self.since,
            restarts=self.restarts,
            ready_s=engine.ready_s,
            kv_cache_tokens=engine.kv_cache_tokens,
            cold_ttft_ms=warmed.cold_ttft_ms if warmed else None,
            warm_ttft_ms=warmed.warm_ttft_ms if warmed else None,
            log=str(engine.log),
        )

    # --- from beginning to end -------------------------------------------------------------------------

    async def open(self) -> None:
        """Start it, warm it, and let clients to it. Raises ToolkitError; then it is down."""
        await self.gate.keep_out(self.upstream, "restart", self._took_s)
        try:
            await self.begin()
        except ToolkitError as error:
            await self.end_engine()
            await self._fail(error)
        await self.go_on()

    async def go_on(self) -> None:
        """Let clients to it, and have it watched. Raises ToolkitError where the proxy cannot be told; then it is down."""
        try:
            await self.back()
        except ToolkitError as error:
            await self.end_engine()
            await self._fail(error)
        self.watch()

    async def begin(self) -> None:
        """Start it and warm it, and tell how long both took."""
        await self.start()
        self.tell("mark", f"ready after {self.engine.ready_s:.1f} s")
        self.tell("mark", sentence(await self.warm()))

    async def close(self) -> None:
        """End it, whatever it does."""
        await self.unwatch()
        await self.engine.stop()
        self.be("ended")

    async def restart(self, drain_s: float) -> None:
        """By order, `alone`: what is under way is finished first. Raises ToolkitError; then it is down, or not even begun."""
        await self.leave(drain_s)
        self.tell("restart", "restarted by order")
        await self.end_engine()
        await self.open()

    async def end_engine(self) -> None:
        """End the process, not the seat. Raises ToolkitError where the system does not let go of it; then it is down."""
        try:
            await self.engine.stop()
        except ToolkitError as error:
            await self._fail(error)

    async def leave(self, drain_s: float) -> None:
        """Call its watchdog off, let no new request to it, and wait for those under way.

        Raises ToolkitError where the proxy cannot be told; then all is as before.
        """
        was_watched = self._watching is not None and not self._watching.done()
        await self.unwatch()
        try:
            await self.gate.keep_out(self.upstream, "restart", self._took_s)
        except ToolkitError:
            if was_watched:
                self.watch()
            raise
        if self.state == "up":
            self.be("draining")
        if not await self.gate.until_idle(self.upstream, drain_s):
            self.engine.say(f"still has requests under way after {drain_s:g} s, which are lost")

    @contextlib.asynccontextmanager
    async def alone(self, deed: str) -> AsyncIterator[None]:
        """Refuse a second order while one is carried out; `deed` is a participle."""
        if self._doing is not None:
            raise ToolkitError(
                f"`{self.name}` is being {self._doing} at this moment", "Wait until that is done"
            )
        self._doing = deed
        try:
            yield
        finally:
            self._doing = None

    async def _fail(self, error: ToolkitError) -> NoReturn:
        with contextlib.suppress(
            ToolkitError
        ):  # that nobody answers there the proxy sees by itself
            await self.gate.keep_out(self.upstream, "order")
        self.be("down", error.message)
        self.tell("stop", f"down: {error.message}")
        raise error

    # --- its watchdog, and what that does ------------------------------------------------------------------

    def watch(self) -> None:
        """Have the watchdog look from now on."""
        self._looked_s = time.monotonic()
        self._watching = asyncio.create_task(self._watch())

    async def unwatch(self) -> None:
        """Call the watchdog off."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    async def _watch(self) -> None:
        engine, guard = self.engine, self._guard
        deeds = Deeds(
            start=self.start,
            stop=engine.stop,
            warm=self.warm,
            fell=self.fell,
            back=self.back,
            gave_up=self.gave_up,
        )
        try:
            async with EnginePulse(engine.host, answer_s=guard.answer_s, key=engine.key) as pulse:

                async def look() -> Look:
                    self._looked_s = time.monotonic()
                    return await pulse.look()

                senses = Senses(look=look, token=pulse.token, code=engine.code)
                await Watchdog(engine.host, guard, senses, deeds, self._tell).run()
        except Exception as error:
            engine.say(f"its watchdog ended by a fault of ours: {type(error).__name__}: {error}")
            raise

    async def fell(self, cause: str) -> None:
        """It does not serve any more: nobody is to be sent there, and it comes back cold."""
        self.be("restarting", cause)
        self.engine.say(f"{cause}; it is started again")
        try:
            pause_s = self._guard.backoff_s
            back_in_s = None if self._took_s is None else pause_s + self._took_s
            await self.gate.keep_out(self.upstream, "restart", back_in_s)
        except ToolkitError as error:
            # it must come back all the same; that nobody answers there the proxy sees by itself
            self.engine.say(f"clients may meet it cold: {error.message}")

    async def start(self) -> None:
        """Launch it and wait until it is healthy."""
        self.be("starting", self.why)
        self._launches += 1
        await self.engine.start()
        self.engine.say(f"ready after {self.engine.ready_s:.1f} s")

    async def warm(self) -> Warmed:
        """Warm it."""
        self.be("warming", self.why)
        warmed = await self.engine.warm()
        self._took_s = self.engine.took_s
        self.engine.say(sentence(warmed))
        return warmed

    async def back(self) -> None:
        """Let clients to it, once the proxy has seen that it answers: or it would be asked last, and only for want of others."""
        await self.gate.until_up(self.upstream)
        await self.gate.let_in(self.upstream, self._took_s)
        self.be("up")
        if self.restarts:
            self.engine.say("clients are let in again")

    async def gave_up(self, cause: str) -> None:
        """A crash loop: somebody has to look."""
        with contextlib.suppress(ToolkitError):  # as above
            await self.gate.keep_out(self.upstream, "order")
        self.be("down", cause)
        self.engine.say(
            f"stays down: {cause}. `toolkit serve restart {self.name}` tries again; its log: {self.engine.log}"
        )

    # --- what is told ----------------------------------------------------------------------------------

    def be(self, state: State, why: str | None = None) -> None:
        """Come into a state."""
        self.state, self.why, self.since = state, why, time.time()

    def tell(self, kind: EventKind, text: str) -> None:
        """Tell what happened."""
        host = self.engine.host
        self._tell(Event(name=host.name, url=host.url, at=time.time(), kind=kind, text=text))

    # --- a successor -------------------------------------------------------------------------------------

    def beside(self, setting: EngineSetting) -> Engine:
        """An engine for the other place; it is not started."""
        slot = SLOTS[1 - SLOTS.index(self.slot)]
        return self._at(setting, slot)

    def instead(self, setting: EngineSetting) -> Engine:
        """An engine for the same place; it is not started."""
        return self._at(setting, self.slot)

    def take(self, setting: EngineSetting, engine: Engine) -> None:
        """From now on this is the engine."""
        self.setting, self.engine = setting, engine
        self.slot = engine.upstream.rpartition(".")[2]

    def _at(self, setting: EngineSetting, slot: str) -> Engine:
        port = setting.port if slot == SLOTS[0] else setting.spare_port
        assert port is not None, "no place beside it"
        return self._make(replace(setting, port=port), upstream_name(setting.name, slot))
