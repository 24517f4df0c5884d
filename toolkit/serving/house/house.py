"""The whole stack from beginning to end: checked, engines up and warm, only then the proxy's door; orders; an orderly end.

    orphans of a killed serve ended -> preflight -> engines, those on one GPU in turn -> proxy -> watchdogs and orders -> stop

It owns the order. The proxy and the preflight come from outside as functions; engines, seats, orders and swaps are the room's.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.proxy.settings import Settings
from toolkit.records import Event
from toolkit.serving.fit import machine
from toolkit.serving.fit.cgroups import limits
from toolkit.serving.fit.gpus import gpus
from toolkit.serving.house import swap
from toolkit.serving.house.gate import Front, Gate
from toolkit.serving.house.orders import Asker, Order, heard
from toolkit.serving.house.seat import Seat
from toolkit.serving.house.standing import meaning
from toolkit.serving.stack import EngineSetting, Stack, turns
from toolkit.serving.start.engine import Engine, Outfit
from toolkit.serving.start.leftovers import answered, end_orphans, write_answered

DRAIN_S = 30.0
"""Where no proxy says how long answers under way are waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What comes from outside of the room."""

    outfit: Outfit
    open_proxy: Callable[[Settings, bool], Awaitable[Front]]
    """True: what is stored in the proxy's file was answered by others, and must not be shown."""
    preflight: Callable[[], Awaitable[None]]
    """Raises ToolkitError where the machine is not fit."""
    changed: Callable[[EngineSetting, Mapping[str, Any]], EngineSetting]
    """An engine's setting, and what a swap changes in it in a stack file's words."""
    blasting: Callable[[], str | None]
    """The run of a blast that is on at this moment."""
    tell: Callable[[Event], None]
    say: Callable[[str], None]


class House:
    """One stack that is served; `run` it once."""

    def __init__(self, stack: Stack, given: Given) -> None:
        self.stack, self._given = stack, given
        self.folder = Path(stack.folder)
        self.gate = Gate(stack.proxy.routing.look_s if stack.proxy else 0.0)
        self.seats = {each.name: self._seat(each) for each in stack.engines}
        self._stop = asyncio.Event()
        self._is_open = False
        self._began = time.time()

    @property
    def url(self) -> str:
        """Where clients ask."""
        return self.gate.front.url if self.gate.front else self.stack.engines[0].url

    def stop(self) -> None:
        """Have it end in order."""
        self._stop.set()

    async def wanted_to_stop(self) -> None:
        """Wait until somebody wants its end, by a signal or an order."""
        await self._stop.wait()

    async def is_well(self) -> bool:
        """Whether what it must do is done: each engine that serves is looked at, and the proxy answers its admin."""
        if not all(seat.is_looked_after for seat in self.seats.values()):
            return False
        if self.gate.front is not None:
            try:
                await self.gate.front.state()
            except ToolkitError:
                return False
        return True

    def in_a_line(self) -> str:
        """What it does, in one line."""
        engines = ", ".join(f"{seat.name} {seat.state}" for seat in self.seats.values())
        if self._stop.is_set():
            return f"Ending: {engines}"
        return f"Clients on {self.url}: {engines}" if self._is_open else f"Starting: {engines}"

    async def run(self, ready: Callable[[str], None]) -> None:
        """Serve until `stop`; the folder must be held. `ready` is told the clients' URL once.

        Raises ToolkitError where nothing can be served.
        """
        for told in await end_orphans(self.folder):
            self._given.say(told)
        try:
            # no order may start an engine while all are being ended
            async with heard(self.folder, self._carry):
                await self._unless_stopped(self._open())
                if not self._stop.is_set():
                    ready(self.url)
                    await self._stop.wait()
        finally:
            await self._close()

    # --- the beginning -----------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self.stack.preflight:
            await self._given.preflight()
        await self._open_engines()
        if self.stack.proxy is not None:
            await self._open_proxy(self.stack.proxy)
        self._is_open = True

    async def _open_engines(self) -> None:
        """Those that share a GPU in turn, others side by side."""
        failures: list[ToolkitError] = []
        async with asyncio.TaskGroup() as tasks:
            for engines in turns(self.stack.engines):
                seats = [self.seats[each.name] for each in engines]
                tasks.create_task(self._open_in_turn(seats, failures))
        if len(failures) == len(self.seats):
            raise failures[0]

    async def _open_in_turn(self, seats: list[Seat], failures: list[ToolkitError]) -> None:
        for seat in seats:
            try:
                await seat.open()
            except ToolkitError as error:
                failures.append(error)
                if len(self.seats) > 1:
                    self._given.say(f"{error.message}; the others go on without it")

    async def _open_proxy(self, settings: Settings) -> None:
        for seat in self.seats.values():
            if seat.setting.spare_port is not None:
                await self.gate.keep_out(seat.beside(seat.setting).upstream, "spare")
        now = self._meanings()
        before = answered(self.folder)
        is_others = before is not None and before != now
        if is_others:
            # killed before it is noted who answers now, the next serve must not show it either
            write_answered(self.folder, {})
        front = await self._given.open_proxy(settings, is_others)
        await self.gate.open(front)
        self._note_who_answers({})

    def _meanings(self) -> dict[str, str]:
        """Who answers."""
        return {seat.name: meaning(seat.setting) for seat in self.seats.values()}

    async def _unless_stopped(self, work: Awaitable[None]) -> None:
        """Do it, but leave it at once when the end is wanted."""
        working = asyncio.ensure_future(work)
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
            else:
                await working
        finally:
            stopped.cancel()

    # --- the end -------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        """The proxy first: what is under way wants its engine."""
        self._is_open = False
        for seat in self.seats.values():
            await seat.unwatch()
        try:
            if self.gate.front is not None:
                await self.gate.front.stop()
        finally:
            await self._close_seats()

    async def _close_seats(self) -> None:
        ends = [seat.close() for seat in self.seats.values()]
        for result in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(result, ToolkitError):
                self._given.say(result.message)
            elif isinstance(result, BaseException):
                raise result

    # --- orders --------------------------------------------------------------------------------------------

    async def _carry(self, asker: Asker, order: Order) -> Mapping[str, Any]:
        match order.get("order"):
            case "status":
                return await self.status()
            case "stop":
                self.stop()
                return {"pid": os.getpid()}
            case "restart":
                return await self._restart(asker, order)
            case "swap":
                return await self._swap(asker, order)
        raise ToolkitError(f"serve knows no order `{order.get('order')}`", "Is it of this version?")

    async def status(self) -> dict[str, Any]:
        """All engines, and the proxy."""
        front = self.gate.front
        return {
            "pid": os.getpid(),
            "since": self._began,
            "open": self._is_open,
            "url": self.url if self._is_open else None,
            "admin_url": front.admin_url if front else None,
            "hit_ratio": await self.gate.hit_ratio(),
            "requests_per_s": await self.gate.requests_per_s(),
            "engines": [asdict(seat.standing()) for seat in self.seats.values()],
        }

    async def _restart(self, asker: Asker, order: Order) -> Mapping[str, Any]:
        self._refuse_early()
        seat = self._meant(order.get("engine"))
        await self._refuse_in_blast(order)
        async with seat.alone("restarted"):
            asker.say(f"{seat.name}: finishes what is under way, and is started again")
            await seat.restart(self._drain_s)
        return asdict(seat.standing())

    async def _swap(self, asker: Asker, order: Order) -> Mapping[str, Any]:
        self._refuse_early()
        seat = self._meant(order.get("engine"))
        setting = self._successor(seat, order.get("changes") or {})
        async with seat.alone("swapped"):
            await self._refuse_in_blast(order)
            why = await asyncio.to_thread(self._why_in_place, seat, setting, order)
            if why is not None:
                await self._agreed(asker, seat, why, order)
            # killed in between, nobody could say whose answers are stored
            self._note_who_answers({seat.name: meaning(setting) + meaning(seat.setting)})
            try:
                await self._swap_to(asker, seat, setting, is_beside=why is None)
            finally:
                self._note_who_answers({})
        return asdict(seat.standing())

    async def _swap_to(
        self, asker: Asker, seat: Seat, setting: EngineSetting, *, is_beside: bool
    ) -> None:
        forget = partial(self._forget, seat)
        if is_beside:
            asker.say(f"{seat.name}: the new engine starts beside the old one, which serves on")
            await swap.beside(seat, setting, self._drain_s, forget)
        else:
            asker.say(f"{seat.name}: the old engine ends, and the new one starts in its place")
            await swap.in_place(seat, setting, self._drain_s, forget)

    def _note_who_answers(self, but: Mapping[str, str]) -> None:
        if self.gate.front is not None:
            write_answered(self.folder, self._meanings() | dict(but))

    def _successor(self, seat: Seat, changes: Mapping[str, Any]) -> EngineSetting:
        """The setting that is wanted. Another model bears the name that clients ask for, or their requests would all fail."""
        setting = self._given.changed(seat.setting, changes)
        if "served_name" not in changes and setting.model != seat.setting.model:
            setting = replace(setting, served_name=seat.engine.served_name)
        return setting

    def _why_in_place(self, seat: Seat, setting: EngineSetting, order: Order) -> str | None:
        if order.get("in_place"):
            return "--in-place asks for it"
        if seat.state != "up":
            return f"`{seat.name}` is {seat.state} anyway"
        memory = partial(machine.memory, limits())
        return swap.why_no_room(seat, setting, gpus, memory)

    async def _agreed(self, asker: Asker, seat: Seat, why: str, order: Order) -> None:
        if order.get("yes"):
            return
        question = {
            "why": why,
            "downtime_s": seat.engine.took_s,
            "rps": await self.gate.requests_per_s(),
        }
        if not await asker.agrees_to(question):
            raise ToolkitError(f"`{seat.name}` was not swapped", "Say --yes to do it in any case")

    async def _forget(self, seat: Seat) -> None:
        """What was stored of a seat's model; of all where only one is served."""
        front = self.gate.front
        if front is None:
            return
        several = len(self.seats) > 1
        try:
            await front.forget(seat.engine.served_name if several else None)
        except ToolkitError as error:
            raise ToolkitError(
                f"`{seat.name}` is swapped, but what the one before answered may be given still: {error.message}",
                f"""`curl -d '{{"all": true}}' {front.admin_url}/purge` lets it go""",
            ) from error

    def _meant(self, name: object) -> Seat:
        if name is None and len(self.seats) == 1:
            return next(iter(self.seats.values()))
        found = self.seats.get(str(name))
        if found is None:
            asked = "name the engine" if name is None else f"there is no engine `{name}`"
            raise ToolkitError(asked, f"There are: {', '.join(self.seats)}")
        return found

    def _refuse_early(self) -> None:
        if not self._is_open:
            raise ToolkitError(
                "the stack is not open yet", "Wait until `toolkit serve status` says so"
            )

    async def _refuse_in_blast(self, order: Order) -> None:
        # in a thread: a database that is locked must hold up no answer
        run = None if order.get("yes") else await asyncio.to_thread(self._given.blasting)
        if run is not None:
            raise ToolkitError(
                f"a blast is on (run `{run}`), and clients would notice",
                "Wait for its end, or say --yes; `toolkit impact` tells what a downtime costs",
            )

    @property
    def _drain_s(self) -> float:
        return self.stack.proxy.drain_s if self.stack.proxy is not None else DRAIN_S

    def _seat(self, setting: EngineSetting) -> Seat:
        def make(chosen: EngineSetting, upstream: str) -> Engine:
            return Engine(chosen, upstream, self._given.outfit, self._given.say)

        return Seat(
            setting, make=make, gate=self.gate, guard=self.stack.guard, tell=self._given.tell
        )
