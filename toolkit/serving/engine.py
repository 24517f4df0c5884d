"""One engine of a served stack, from its launch to its end: its process, its warm-up, its watchdog, and whether clients are let to it.

    waiting ---> starting ---> warming ---> up
                  ^ ^ ^ |         |         | |
                  | | | +---------+         | |
                  | | |      |              | |
                  | | +---- down <--+       | |    it does not start, or falls too often; `toolkit serve restart`
                  | |               |       | |
                  | +-------- restarting <--+ |    it fell, or hangs
                  |                           |
                  +---------- draining <------+    by order: what is under way is finished first

Out of every state it can be `ended`. A swap is another `ManagedEngine`, in the other of the two places or in the same.
docs/engine-states.md has the log of a real vLLM that went through all of them.
"""

import asyncio
import contextlib
import os
import shutil
import time
from dataclasses import replace
from typing import Any, Literal, NoReturn

from toolkit.bench.client import HostClient, PageError
from toolkit.errors import ToolkitError
from toolkit.proxy.upstream.routing import Drained
from toolkit.records import Host
from toolkit.serving.engine_command import LaunchConfig, max_num_seqs
from toolkit.serving.gate import TrafficGate
from toolkit.serving.launch import Process, ready
from toolkit.serving.orphans import unwritten
from toolkit.serving.preflight.gpu import gpus
from toolkit.serving.preflight.port import probe
from toolkit.serving.stack import SLOTS, EngineSetting, upstream_name
from toolkit.serving.startup_log import Startup, cause
from toolkit.serving.warmup import Warmed, Warming
from toolkit.serving.watchdog import GuardedEngine, LivenessProbe

State = Literal["waiting", "starting", "warming", "up", "draining", "restarting", "down", "ended"]
"""waiting: for another engine on its GPU to be up. restarting: it fell, and is on its way back. down: nobody tries any more."""
UNSEEN_S = 60.0
"""Beyond two pauses between probes, each of which has 10 s: then the watchdog itself hangs."""
LEAST_STEP_SHARE = 0.25
"""A step's progress is said again when it has come so much further: a screen is no log."""
LAST_BREATH_S = 3.0
"""One that stops answering may be ending; its reaper knows 2 s later at most, once those are gone whom it left."""
LEAST_FREE_BYTES = 2**16
"""Of a disk that takes another line."""


class ManagedEngine(GuardedEngine):
    """One engine in one of its two places; see the diagram above."""

    def __init__(
        self, stack_setting: EngineSetting, slot: str, config: LaunchConfig, gate: TrafficGate
    ) -> None:
        """`stack_setting`: as the stack file has it, with both ports."""
        port = stack_setting.port if slot == SLOTS[0] else stack_setting.spare_port
        assert port is not None, "there is no second place"
        self.stack_setting, self.slot = stack_setting, slot
        self.setting = setting = replace(stack_setting, port=port)
        self.name = setting.name
        key = None if setting.key_env is None else os.environ[setting.key_env].strip()
        super().__init__(Host(name=self.name, url=setting.url), key, config.guard, config.tell)
        self.upstream = upstream_name(self.name, slot)
        """What the proxy calls this place, e.g., `qwen.a`."""
        self.log = config.folder / f"{self.upstream}.log"
        self.state: State = "waiting"
        self.why: str | None = None
        """Why it is down or restarting."""
        self.since = time.time()
        self.launches = 0
        """Of whoever serves under this name, since serve began."""
        self.took_s: float | None = None
        """From its last launch until it was warm."""
        self.ready_s: float | None = None
        self.kv_cache_tokens: int | None = None
        self.warmed: Warmed | None = None
        self._config, self._gate = config, gate
        self._watching: asyncio.Task[None] | None = None
        self._probe: LivenessProbe | None = None

    @property
    def served_name(self) -> str | None:
        """What clients call its model, as far as that is known."""
        told = self.setting.served_name or (self.warmed.model if self.warmed else None)
        return told or (self.setting.model if self.setting.kind == "vllm" else None)

    @property
    def is_well_watched(self) -> bool:
        """Whether its watchdog probes it, where one has to: not one that ended by a fault of ours, or hangs."""
        if self._watching is None or self.state == "down":
            return True
        if self._watching.done():
            return False
        if self.state != "up" or self._probe is None:
            return True
        return time.monotonic() - self._probe.last_read_s < 2 * self.guard.look_s + UNSEEN_S

    def status(self) -> dict[str, Any]:
        """What it does now; the keys of `toolkit serve status --json`."""
        setting, warmed = self.setting, self.warmed
        return {
            "name": self.name,
            "state": self.state,
            "why": self.why,
            "kind": setting.kind,
            "model": setting.model,
            "served_name": self.served_name,
            "preset": setting.preset,
            "team": setting.team,
            "gpus": setting.gpus,
            "url": setting.url,
            "port": setting.port,
            "pid": None if self.process is None else self.process.pid,
            "since": self.since,
            "restarts": max(0, self.launches - 1),
            "ready_s": self.ready_s,
            "kv_cache_tokens": self.kv_cache_tokens,
            "cold_ttft_ms": warmed.cold_ttft_ms if warmed else None,
            "warm_ttft_ms": warmed.warm_ttft_ms if warmed else None,
            "log": str(self.log),
        }

    def say(self, sentence: str) -> None:
        """Show a line about it."""
        self._config.say(f"{self.name}: {sentence}")

    def be(self, state: State, why: str | None = None) -> None:
        """Come into a state."""
        self.state, self.why, self.since = state, why, time.time()

    # --- from beginning to end -----------------------------------------------------------------------

    async def open(self) -> None:
        """Start it, warm it, let clients to it, and have it watched. Raises ToolkitError; then it is down."""
        self._gate.keep_out(self.upstream, "restart", self.took_s)
        try:
            await self.begin()
        except ToolkitError as error:
            await self.end()
            self._fail(error)
        await self.serve()

    async def serve(self) -> None:
        """Let clients to it, and have it watched."""
        await self.let_clients_in()
        self._watching = asyncio.create_task(self._watch())

    async def restart(self, drain_s: float) -> None:
        """Start it again once what is under way is answered. Raises ToolkitError; then it is down."""
        await self.drain(drain_s)
        self.event("restart", "restarted by order")
        await self.end()
        await self.open()

    async def drain(self, drain_s: float, why: Drained = "restart") -> None:
        """Call its watchdog off, let no new request to it, and wait for those under way."""
        await self.unwatch()
        self._gate.keep_out(self.upstream, why, self.took_s if why == "restart" else None)
        if self.state == "up":
            self.be("draining")
        if not await self._gate.until_idle(self.upstream, drain_s):
            self.say(f"still has requests under way after {drain_s:g} s, which are lost")

    async def end(self) -> None:
        """End its process. Raises ToolkitError where the system does not let go of it; then it is down."""
        try:
            await self.stop()
        except ToolkitError as error:
            self._fail(error)

    async def close(self) -> None:
        """End it, whatever it does."""
        await self.unwatch()
        await self.stop()
        self.be("ended")

    def _fail(self, error: ToolkitError) -> NoReturn:
        self._gate.keep_out(self.upstream, "order")
        self.be("down", error.message)
        self.event("stop", f"down: {error.message}")
        raise error

    # --- its process ---------------------------------------------------------------------------------

    async def start(self) -> float:
        """Launch it and wait until it is healthy. Raises ToolkitError with the cause, and leaves nothing behind then."""
        self.be("starting", self.why)
        setting, folder = self.setting, self._config.folder
        if setting.kind != "sim" and not self.launches:
            self.say("asks the installed vLLM for its flags, half a minute the first time")
        self.launches += 1
        argv, env, notes = await self._config.words(setting)
        for note in notes:
            self.say(note)
        # whoever listens there would be taken for the engine: its /health may be good, too
        port = await asyncio.to_thread(probe, setting.port, setting.host)
        if port.refusal is not None:
            who = next((f" by `{each.command}`" for each in port.holders if each.command), "")
            raise ToolkitError(
                f"`{self.name}` cannot listen on port {setting.port}: {port.refusal}{who}",
                "End what holds it, or name another `port` for the engine",
            )
        self.ready_s = self.kv_cache_tokens = self.warmed = None
        startup = Startup()
        try:
            process = await Process.start(argv, env, self.log, within_s=self.guard.stop_s)
        except OSError as error:
            raise unwritten(folder, error) from error
        self.process = process
        reading = asyncio.create_task(self._read(process, startup))
        try:
            self.ready_s = await ready(
                setting.url, self.key, setting.ready_s, lambda: process.code is None
            )
        except BaseException as error:
            why = error
            if isinstance(error, ToolkitError) and process.code is not None:
                # then it has said all that it will say
                await process.gone()
                why = self._why_ended(process, "did not start")
            await asyncio.shield(self.stop())
            raise why from error
        finally:
            # from now on its log holds a line for each request, which nobody here need read
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        self.kv_cache_tokens = startup.facts.kv_tokens
        if self.kv_cache_tokens is None:
            # its log does not tell, its metrics may
            with contextlib.suppress(PageError):
                async with HostClient(self.host, tls=True, key=self.key, timeout_s=5.0) as client:
                    self.kv_cache_tokens = (await client.numbers()).kv_cache_tokens
        self.say(f"ready after {self.ready_s:.1f} s")
        return self.ready_s

    async def _read(self, process: Process, startup: Startup) -> None:
        """Say how its start goes on, by its log."""
        code, share = "", 0.0
        async for line in process.lines():
            step = startup.feed(line)
            if step is None or self.ready_s is not None:
                continue
            if step.code != code or (step.share or 0.0) >= share + LEAST_STEP_SHARE:
                code, share = step.code, step.share or 0.0
                self.say(step.text if step.share is None else f"{step.text}, {step.share:.0%}")

    async def warm(self) -> Warmed:
        """Ask it until it is warm. Raises ToolkitError where it ends meanwhile."""
        self.be("warming", self.why)
        setting, process = self.setting, self.process
        assert process is not None, "it was not started"
        warm = Warming(
            host=self.host,
            setting=self._config.warm,
            key=self.key,
            model=setting.served_name,
            max_num_seqs=max_num_seqs(setting),
            profile=self._config.profile,
            log=self.log if setting.kind != "sim" else None,
            say=self.say,
        )
        # a dead engine is not warm, however well it began
        warming, ending = asyncio.create_task(warm.run()), asyncio.create_task(process.gone())
        try:
            await asyncio.wait((warming, ending), return_when=asyncio.FIRST_COMPLETED)
            if not ending.done() and warming.result().error:
                await asyncio.wait((ending,), timeout=LAST_BREATH_S)
            if ending.done():
                raise self._why_ended(process, "ended while it was warmed up")
            self.warmed = warmed = warming.result()
        finally:
            warming.cancel()
            ending.cancel()
            await asyncio.gather(warming, ending, return_exceptions=True)
        if warmed.error and warmed.measure:
            self.say(f"not known to be warm: {warmed.error}")
        self.took_s = None if self.ready_s is None else self.ready_s + warmed.took_s
        self.say(warmed.sentence())
        return warmed

    async def stop(self) -> None:
        """End its process with everybody whom that started; back only when all are gone."""
        process, setting = self.process, self.setting
        if process is None:
            return
        is_free = None
        if setting.kind == "vllm" and (await asyncio.to_thread(gpus, setting.gpus)).gpus:
            pids = {one.pid for one in process.members()}

            def is_free() -> bool:
                # a driver frees memory after the process
                held = [pid for gpu in gpus(setting.gpus).gpus for pid in gpu.processes]
                return pids.isdisjoint(held)

        await process.stop(self.guard.stop_s, is_free=is_free)
        self.process = None

    def _why_ended(self, process: Process, what: str) -> ToolkitError:
        said, folder = process.said(), self._config.folder
        found = cause(said, process.code)
        sentence, hint = found.sentence, found.hint
        if self.setting.kind == "sim":
            errors = [line.removeprefix("Error: ") for line in said if line.startswith("Error: ")]
            sentence, hint = (errors or [sentence])[-1], "`toolkit sim list` names what it can be"
        if not said and shutil.disk_usage(folder).free < LEAST_FREE_BYTES:
            # whatever it had to say went into its log, which took nothing
            sentence, hint = "the disk of its log is full", f"`df -h {folder}`"
        return ToolkitError(f"`{self.name}` {what}: {sentence}", hint or f"Its log: `{self.log}`")

    # --- its watchdog, and what that does -------------------------------------------

    async def unwatch(self) -> None:
        """Call the watchdog off."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    async def _watch(self) -> None:
        try:
            async with LivenessProbe(self.host, self.guard, key=self.key) as self._probe:
                await self.watch(self._probe)
        except Exception as error:
            self.say(f"its watchdog ended by a fault of ours: {type(error).__name__}: {error}")
            raise

    def keep_clients_out(self, cause: str, *, again: bool) -> None:
        """It does not serve any more: nobody is to be sent there, and it comes back cold."""
        self.be("restarting", cause)
        self.say(f"{cause}; it is started again" if again else cause)
        back_in_s = None if self.took_s is None else self.guard.backoff_s + self.took_s
        self._gate.keep_out(self.upstream, "restart" if again else "order", back_in_s)

    async def let_clients_in(self) -> None:
        """Let clients to it, once the proxy has seen that it answers: or it would be asked last, and only for want of others."""
        await self._gate.until_up(self.upstream)
        self._gate.let_in(self.upstream, self.took_s)
        self.be("up")
        if self.launches > 1:
            self.say("clients are let in again")

    def gave_up(self, cause: str) -> None:
        """A crash loop: somebody has to look."""
        self._gate.keep_out(self.upstream, "order")
        self.be("down", cause)
        self.say(
            f"stays down: {cause}. `toolkit serve restart {self.name}` tries again; its log: {self.log}"
        )
