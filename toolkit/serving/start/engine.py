"""One engine of a stack in one of its two places: launched, awaited, warmed and ended. It decides nothing about when.

Its process is launch.py's, its words are engine_words.py's; here they come together, and its startup log is read to the screen.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.bench.client import HostClient, PageError
from toolkit.errors import ToolkitError
from toolkit.profiles import Profile
from toolkit.records import Host
from toolkit.serving.fit.gpus import gpus
from toolkit.serving.fit.ports import ports
from toolkit.serving.stack import EngineSetting, WarmSetting
from toolkit.serving.start.causes import cause
from toolkit.serving.start.engine_words import Speller, max_num_seqs
from toolkit.serving.start.launch import Process
from toolkit.serving.start.leftovers import unwritten
from toolkit.serving.start.readiness import ready
from toolkit.serving.start.startup_log import Startup, Step
from toolkit.serving.warm.warm import warm
from toolkit.serving.warm.warm_rounds import Warmed

LEAST_STEP_SHARE = 0.25
"""A step's progress is said again when it has come so much further: a screen is no log."""
LAST_BREATH_S = 3.0
"""One that stops answering may be ending; its keeper knows 2 s later at most, once those are gone whom it left."""
LEAST_FREE_BYTES = 2**16
"""Of a disk that takes another line."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outfit:
    """What all engines of one stack are started and warmed with."""

    speller: Speller
    folder: Path
    warm: WarmSetting
    stop_s: float
    profile: Profile | None = None
    """Whose prompts they are warmed with."""
    keys: Callable[[EngineSetting], str | None] = lambda _: None


class Engine:
    """One engine at one port; `start`, `warm` and `stop` may come again and again, each after the other has ended."""

    def __init__(self, setting: EngineSetting, upstream: str, outfit: Outfit, say: Say) -> None:
        """`upstream`: what the proxy calls this place, e.g., `qwen.a`."""
        self.setting, self.upstream = setting, upstream
        self._outfit, self._say = outfit, say
        self.log = outfit.folder / f"{upstream}.log"
        self.process: Process | None = None
        self.ready_s: float | None = None
        self.kv_cache_tokens: int | None = None
        self.warmed: Warmed | None = None
        self._startup = Startup()
        self._reading: asyncio.Task[None] | None = None
        self._said = Step(code="", text="")

    @property
    def key(self) -> str | None:
        """Its API key."""
        return self._outfit.keys(self.setting)

    @property
    def host(self) -> Host:
        """As whom it is asked."""
        return Host(name=self.setting.name, url=self.setting.url)

    @property
    def served_name(self) -> str | None:
        """What clients call its model, as far as that is known."""
        setting = self.setting
        told = setting.served_name or (self.warmed.model if self.warmed else None)
        return told or (setting.model if setting.kind == "vllm" else None)

    @property
    def took_s(self) -> float | None:
        """From its launch until it was warm, the last time."""
        if self.ready_s is None or self.warmed is None:
            return None
        return self.ready_s + self.warmed.took_s

    def code(self) -> int | None:
        """How its process ended; None while it runs, or was never started."""
        return None if self.process is None else self.process.code

    async def start(self) -> None:
        """Launch it and wait until it is healthy. Raises ToolkitError with the cause, and leaves nothing behind then."""
        if self.setting.kind != "sim" and self.process is None and self._startup.step is None:
            self.say("asks the installed vLLM for its flags, half a minute the first time")
        words = await self._outfit.speller.words(self.setting)
        for note in words.notes:
            self.say(note)
        await asyncio.to_thread(_refuse_taken, self.setting)
        self.ready_s = self.kv_cache_tokens = self.warmed = None
        self._startup = Startup()
        try:
            self.process = await Process.start(
                words.argv, words.env, self.log, within_s=self._outfit.stop_s
            )
        except OSError as error:
            raise unwritten(self._outfit.folder, error) from error
        self._reading = asyncio.create_task(self._read(self.process))
        try:
            self.ready_s = await self._ready(self.process)
        except BaseException:
            await asyncio.shield(self.stop())
            raise
        # from now on its log holds a line for each request, which nobody here need read
        await self._read_no_more()
        self.kv_cache_tokens = self._startup.facts.kv_tokens or await self._counted_tokens()

    async def warm(self) -> Warmed:
        """Ask it until it is warm. Raises ToolkitError where it answers nothing, or ends meanwhile."""
        setting, process = self.setting, self.process
        assert process is not None, "it was not started"
        asking = warm(
            setting.url,
            setting=self._outfit.warm,
            name=setting.name,
            key=self.key,
            model=setting.served_name,
            max_num_seqs=max_num_seqs(setting),
            profile=self._outfit.profile,
            log=self.log if setting.kind != "sim" else None,
            say=self.say,
        )
        self.warmed = warmed = await self._while_it_runs(process, asking)
        if warmed.requests == warmed.errors:
            raise ToolkitError(
                f"`{setting.name}` answers nothing: {warmed.error or 'no reason given'}",
                f"See `{self.log}`",
            )
        if warmed.error:
            self.say(f"not known to be warm: {warmed.error}")
        return warmed

    async def stop(self) -> None:
        """End it with everybody whom it started; back only when all are gone."""
        process = self.process
        if process is not None:
            is_free = await asyncio.to_thread(_is_free, process, self.setting)
            await process.stop(self._outfit.stop_s, is_free=is_free)
        await self._read_no_more()
        self.process = None

    def say(self, sentence: str) -> None:
        """Tell something about it."""
        self._say(f"{self.setting.name}: {sentence}")

    # --- while it starts -------------------------------------------------------------------------------

    async def _ready(self, process: Process) -> float:
        limit_s = self.setting.ready_s
        try:
            return await ready(self.setting.url, self.key, limit_s, lambda: process.code is None)
        except ToolkitError as error:
            if process.code is None:
                raise
            # then it has said all that it will say
            await process.gone()
            raise self._why(process.said(), process.code) from error

    async def _while_it_runs(self, process: Process, asking: Coroutine[Any, Any, Warmed]) -> Warmed:
        """Its warm-up, and why it ended where it ends meanwhile: a dead engine is not warm, however well it began."""
        warming, ending = asyncio.create_task(asking), asyncio.create_task(process.gone())
        try:
            await asyncio.wait((warming, ending), return_when=asyncio.FIRST_COMPLETED)
            if not ending.done() and warming.result().error:
                await asyncio.wait((ending,), timeout=LAST_BREATH_S)
            if ending.done():
                raise self._why(process.said(), process.code, "ended while it was warmed up")
            return warming.result()
        finally:
            warming.cancel()
            ending.cancel()
            await asyncio.gather(warming, ending, return_exceptions=True)

    def _why(
        self, said: Sequence[str], code: int | None, what: str = "did not start"
    ) -> ToolkitError:
        found = cause(said, code)
        sentence, hint = found.sentence, found.hint
        if self.setting.kind == "sim":
            errors = [line.removeprefix("Error: ") for line in said if line.startswith("Error: ")]
            sentence, hint = (errors or [sentence])[-1], "`toolkit sim list` names what it can be"
        if not said and shutil.disk_usage(self._outfit.folder).free < LEAST_FREE_BYTES:
            # whatever it had to say went into its log, which took nothing
            sentence, hint = "the disk of its log is full", f"`df -h {self._outfit.folder}`"
        return ToolkitError(
            f"`{self.setting.name}` {what}: {sentence}", hint or f"Its log: `{self.log}`"
        )

    async def _read(self, process: Process) -> None:
        async for line in process.lines():
            step = self._startup.feed(line)
            if step is not None and self.ready_s is None:
                self._tell(step)

    async def _read_no_more(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _tell(self, step: Step) -> None:
        is_new = step.code != self._said.code
        if is_new or (step.share or 0.0) >= (self._said.share or 0.0) + LEAST_STEP_SHARE:
            self._said = step
            share = "" if step.share is None else f", {step.share:.0%}"
            self.say(f"{step.text}{share}")

    async def _counted_tokens(self) -> int | None:
        """Of an engine whose log does not tell: its metrics may."""
        with contextlib.suppress(PageError):
            async with HostClient(self.host, tls=True, key=self.key, timeout_s=5.0) as client:
                return (await client.numbers()).kv_cache_tokens
        return None


def _is_free(process: Process, setting: EngineSetting) -> Callable[[], bool] | None:
    """Whether no GPU names one of its processes any more; None: it has no GPU. A driver frees memory after the process."""
    if setting.kind != "vllm" or not gpus(setting.gpus).gpus:
        return None
    pids = {one.pid for one in process.members()}

    def is_free() -> bool:
        held = [each.pid for gpu in gpus(setting.gpus).gpus for each in gpu.processes or ()]
        return pids.isdisjoint(held)

    return is_free


def _refuse_taken(setting: EngineSetting) -> None:
    """Whoever listens there would be taken for the engine: its /health may be good, too."""
    (port,) = ports((setting.port,), setting.host)
    if port.refusal is None:
        return
    who = next((f" by `{each.command}`" for each in port.holders if each.command), "")
    raise ToolkitError(
        f"`{setting.name}` cannot listen on port {setting.port}: {port.refusal}{who}",
        "End what holds it, or name another `port` for the engine",
    )
