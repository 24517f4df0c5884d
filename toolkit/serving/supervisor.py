"""The whole stack from beginning to end: checked, the proxy opened, engines up and warm, orders carried out, and an orderly end.

    orphans of a killed serve ended -> preflight -> proxy -> engines, those on one GPU in turn -> watchdogs and orders -> stop

The proxy runs in this process, and opens first: what is stored is answered while the engines load, and all else waits for them.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.serving import swap
from toolkit.serving.control import Order, heard
from toolkit.serving.engine import ManagedEngine
from toolkit.serving.engine_command import LaunchConfig
from toolkit.serving.gate import TrafficGate
from toolkit.serving.orphans import answered, end_orphans, write_answered
from toolkit.serving.stack import SLOTS, EngineSetting, Stack, turns, upstream_name

DRAIN_S = 30.0
"""Where no proxy says how long answers under way are waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What a stack needs of the command line."""

    launch: LaunchConfig
    gate: TrafficGate
    read: Callable[[], Stack]
    """The stack as its file has it now, with the ports of this one."""
    preflight: Callable[[], Awaitable[None]]
    """Raises ToolkitError where the machine is not fit."""
    changed: Callable[[EngineSetting, Mapping[str, Any]], EngineSetting]
    """An engine's setting, and what a swap changes in it in a stack file's words."""
    blasting: Callable[[], str | None]
    """The run of a blast that is on at this moment."""


class StackSupervisor:
    """One stack that is served; `run` it once."""

    def __init__(self, stack: Stack, outside: Outside) -> None:
        self.stack, self._outside = stack, outside
        self.folder = Path(stack.folder)
        self.gate = outside.gate
        self.engines = {
            each.name: ManagedEngine(each, SLOTS[0], outside.launch, self.gate)
            for each in stack.engines
        }
        """Who serves under each name."""
        self._under_order: dict[str, str] = {}
        """Engines that an order is carried out on, and how they are called then."""
        self.stopping = asyncio.Event()
        """Whoever sets it has all of it end in order."""
        self._is_open = False
        self._began = time.time()

    @property
    def url(self) -> str:
        """Where clients ask."""
        return self.gate.url or self.stack.engines[0].url

    async def is_well(self) -> bool:
        """Whether each engine that serves is watched."""
        return all(each.is_well_watched for each in self.engines.values())

    def states(self) -> str:
        """How each engine is, in one line."""
        return ", ".join(f"{name} {each.state}" for name, each in self.engines.items())

    def in_a_line(self) -> str:
        """What it does, in one line."""
        engines = self.states()
        if self.stopping.is_set():
            return f"Ending: {engines}"
        return f"Clients on {self.url}: {engines}" if self._is_open else f"Starting: {engines}"

    async def run(self, ready: Callable[[str], None]) -> None:
        """Serve until `stop`; the folder must be held. `ready` is called with the clients' URL once all engines are warm.

        Raises ToolkitError where nothing can be served.
        """
        for line in await end_orphans(self.folder):
            self._outside.launch.say(line)
        try:
            # no order may start an engine while all are being ended
            async with heard(self.folder, self._carry):
                opening = asyncio.create_task(self._open())
                stopping = asyncio.create_task(self.stopping.wait())
                try:
                    await asyncio.wait((opening, stopping), return_when=asyncio.FIRST_COMPLETED)
                    if opening.done():
                        opening.result()
                        self._is_open = True
                        ready(self.url)
                        await stopping
                finally:
                    opening.cancel()
                    stopping.cancel()
                    await asyncio.gather(opening, stopping, return_exceptions=True)
        finally:
            self._is_open = False
            for each in self.engines.values():
                await each.unwatch()
            try:
                # the proxy first: what is under way wants its engine
                await self.gate.stop()
            finally:
                ends = [each.close() for each in self.engines.values()]
                for result in await asyncio.gather(*ends, return_exceptions=True):
                    if isinstance(result, ToolkitError):
                        self._outside.launch.say(result.message)
                    elif isinstance(result, BaseException):
                        raise result

    async def _open(self) -> None:
        if self.stack.preflight:
            await self._outside.preflight()
        if self.stack.proxy is not None:
            before = answered(self.folder)
            is_others = before is not None and before != self._meanings()
            if is_others:
                # killed before it is noted who answers now, the next serve must not show it either
                write_answered(self.folder, {})
            await self.gate.open(self.stack.proxy, is_others=is_others)
            for each in self.engines.values():
                self.gate.keep_out(each.upstream, "restart")
                if each.stack_setting.spare_port is not None:
                    self.gate.keep_out(upstream_name(each.name, SLOTS[1]), "spare")
            self._note_who_answers({})

        failures: list[ToolkitError] = []

        async def in_turn(engines: list[EngineSetting]) -> None:
            for setting in engines:
                try:
                    await self.engines[setting.name].open()
                except ToolkitError as error:
                    failures.append(error)
                    if len(self.engines) > 1:
                        self._outside.launch.say(f"{error.message}; the others go on without it")

        async with asyncio.TaskGroup() as tasks:
            for engines in turns(self.stack.engines):
                tasks.create_task(in_turn(engines))
        if len(failures) == len(self.engines):
            raise failures[0]

    def _meanings(self) -> dict[str, str]:
        """Who answers."""
        return {name: swap.meaning(each.stack_setting) for name, each in self.engines.items()}

    def _note_who_answers(self, but: Mapping[str, str]) -> None:
        if self.gate.proxy is not None:
            write_answered(self.folder, self._meanings() | dict(but))

    # --- orders --------------------------------------------------------------------------------------

    async def _carry(self, order: Order, say: Callable[[str], None]) -> Mapping[str, Any]:
        word = order.get("order")
        if word == "status":
            return self.status()
        if word == "stop":
            self.stopping.set()
            return {"pid": os.getpid()}
        if word == "reload":
            await self._reload()
            return {}
        if word not in ("restart", "swap"):
            raise ToolkitError(f"serve knows no order `{word}`", "Is it of this version?")
        if not self._is_open:
            raise ToolkitError(
                "the stack is not open yet", "Wait until `toolkit serve status` says so"
            )
        name = order.get("engine")
        if name is None and len(self.engines) == 1:
            (name,) = self.engines
        if name not in self.engines:
            problem = "name the engine" if name is None else f"there is no engine `{name}`"
            raise ToolkitError(problem, f"There are: {', '.join(self.engines)}")
        engine = self.engines[str(name)]
        setting = engine.stack_setting
        if word == "swap":
            # refused before anything is touched; a model that bears another name than clients ask for would fail all of them
            changes = order.get("changes") or {}
            setting = self._outside.changed(setting, changes)
            if "served_name" not in changes and setting.model != engine.setting.model:
                setting = replace(setting, served_name=engine.served_name)
        if engine.name in self._under_order:
            raise ToolkitError(
                f"`{engine.name}` is being {self._under_order[engine.name]} at this moment",
                "Wait until that is done",
            )
        self._under_order[engine.name] = "swapped" if word == "swap" else "restarted"
        try:
            # in a thread: a database that is locked must hold up no answer
            run = None if order.get("yes") else await asyncio.to_thread(self._outside.blasting)
            if run is not None:
                raise ToolkitError(
                    f"a blast is on (run `{run}`), and clients would notice",
                    "Wait for its end, or say --yes; `toolkit impact` shows what a downtime costs",
                )
            if word == "swap":
                question = await self._swap(engine, setting, order, say)
                return question or self.engines[engine.name].status()
            say(f"{engine.name}: finishes what is under way, and is started again")
            await engine.restart(self._drain_s)
            return engine.status()
        finally:
            del self._under_order[engine.name]

    async def _reload(self) -> None:
        """Take over the file's settings of the proxy; what else differs there is refused, and then nothing has changed."""
        stack = await asyncio.to_thread(self._outside.read)
        if self.gate.proxy is None or stack.proxy is None:
            raise ToolkitError(
                "there is no proxy whose settings could be taken over", "Restart `toolkit serve`"
            )
        for name in ("engines", "warm", "guard", "folder", "database"):
            if getattr(stack, name) != getattr(self.stack, name):
                raise ToolkitError(
                    f"the file has another `{name.removesuffix('s')}`, and only `[proxy]` is taken over",
                    "`toolkit serve swap` changes an engine, a restart all of it",
                )
        await self.gate.reload(stack.proxy)
        self.stack = stack

    def status(self) -> dict[str, Any]:
        """All engines, and the proxy."""
        lately = self.gate.last_minute()
        return {
            "pid": os.getpid(),
            "since": self._began,
            "open": self._is_open,
            "url": self.url if self._is_open else None,
            "admin_url": self.gate.admin_url or None,
            "hit_ratio": lately.get("hit_ratio"),
            "requests_per_s": lately.get("requests_per_s"),
            "engines": [each.status() for each in self.engines.values()],
        }

    async def _swap(
        self, old: ManagedEngine, setting: EngineSetting, order: Order, say: Callable[[str], None]
    ) -> Mapping[str, Any] | None:
        """Swap; what is to be asked first where it would leave a gap that nobody agreed to."""
        why: str | None
        if order.get("in_place"):
            why = "--in-place asks for it"
        elif old.state != "up":
            why = f"`{old.name}` is {old.state} anyway"
        else:
            why = await asyncio.to_thread(swap.why_no_room, old, setting)
        if why is not None and not (order.get("yes") or order.get("agreed")):
            rps = self.gate.last_minute().get("requests_per_s")
            return {"ask": {"why": why, "downtime_s": old.took_s, "rps": rps}}

        place = old.slot if why is not None else SLOTS[1 - SLOTS.index(old.slot)]
        new = ManagedEngine(setting, place, self._outside.launch, self.gate)
        # one that starts beside it is no restart
        new.launches = old.launches - (why is None)

        # killed in between, nobody could say whose answers are stored
        both = swap.meaning(setting) + swap.meaning(old.stack_setting)
        self._note_who_answers({old.name: both})
        try:
            if why is None:
                say(f"{old.name}: the new engine starts beside the old one, which serves on")
                await self._swap_beside(old, new)
            else:
                say(f"{old.name}: the old engine ends, and the new one starts in its place")
                await self._swap_in_place(old, new)
        finally:
            self._note_who_answers({})
        return None

    async def _swap_beside(self, old: ManagedEngine, new: ManagedEngine) -> None:
        """New started and warmed, new let in, old kept out, its answers finished, what was stored forgotten, old ended."""
        self.gate.keep_out(new.upstream, "spare")
        try:
            new.say(f"the new engine starts at {new.setting.url}, beside the old one")
            await new.begin()
            if not await self.gate.until_up(new.upstream):
                raise ToolkitError(  # noqa: TRY301 (as if it had not started)
                    f"the proxy does not reach the new `{new.name}` at {new.setting.url}",
                    f"The old one serves on; see `{new.log}`",
                )
        except BaseException:
            await new.stop()
            raise
        try:
            await old.unwatch()
            self.engines[new.name] = new
            await new.serve()
            new.event("model", swap.words(old.setting, new.setting))
            await old.drain(self._drain_s, "spare")
            await self._forget(old, new)
        finally:
            await old.stop()

    async def _swap_in_place(self, old: ManagedEngine, new: ManagedEngine) -> None:
        """Old kept out, its answers finished, old ended, new started and warmed, what was stored forgotten, new let in.

        Where the new one does not come up, the old one is started again.
        """
        await old.drain(self._drain_s)
        await old.end()
        self.engines[new.name] = new
        new.event("restart", f"swapped: {swap.words(old.setting, new.setting)}")
        try:
            await new.begin()
        except ToolkitError as error:
            await new.end()
            old.launches = new.launches
            self.engines[old.name] = old
            old.say(f"{error.message}; the one before is started again")
            await old.open()
            message = f"{error.message}; the one before serves again"
            raise ToolkitError(message, error.hint) from error
        try:
            await self._forget(old, new)
        finally:
            # what is stored is given in any case; kept out, the new one would only be of no use
            await new.serve()
            new.event("model", swap.words(old.setting, new.setting))

    async def _forget(self, old: ManagedEngine, new: ManagedEngine) -> None:
        """After the last answer of the old one, which would be stored, too."""
        if swap.meaning(old.stack_setting) == swap.meaning(new.stack_setting):
            return
        try:
            # an engine that is alone has all of them
            await self.gate.forget(old.served_name if len(self.engines) > 1 else None)
        except ToolkitError as error:
            raise ToolkitError(
                f"`{new.name}` is swapped, but what the one before answered may be given still: {error.message}",
                """`curl -d '{"all": true}' ADMIN/purge` lets it go; `toolkit serve status` names ADMIN""",
            ) from error

    @property
    def _drain_s(self) -> float:
        return self.stack.proxy.drain_s if self.stack.proxy is not None else DRAIN_S
