"""Puts another engine into a seat: beside the old one and without a gap where there is room, else in its place. It asks nobody.

    beside     new started and warmed | new let in | old kept out, its answers finished | what was stored forgotten | old ended
    in place   old kept out, its answers finished | old ended | new started and warmed | what was stored forgotten | new let in

A new engine that does not come up changes nothing: beside it the old one serves on, in place the old one is started again.
"""

import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.serving.fit.facts import Gpus, Memory
from toolkit.serving.fit.gpu_checks import parts
from toolkit.serving.house.seat import Seat
from toolkit.serving.house.standing import answers_alike
from toolkit.serving.outcome import size
from toolkit.serving.stack import EngineSetting
from toolkit.serving.start.engine import Engine

UTILIZATION = 0.92
"""vLLM's own since 0.20 (0.9 before): the higher one, as the lower leaves room in any case."""
SPARE_SHARE = 0.1
"""Of the machine's memory stays free for everybody else, where an engine runs on the CPU."""

SECRET = frozenset({"hf-token", "api-key"})
"""Flags whose values stand in no event: a board shows those to everybody."""

Forget = Callable[[], Awaitable[None]]
"""Makes what was stored of the old engine unreachable."""


async def beside(seat: Seat, setting: EngineSetting, drain_s: float, forget: Forget) -> None:
    """Start the new engine beside the old one, and switch. Raises ToolkitError; where the new one was not let in, the old one serves on."""
    new, old, was = seat.beside(setting), seat.engine, seat.setting
    await seat.gate.keep_out(new.upstream, "spare")
    try:
        await _begin(seat, new)
        await seat.gate.let_in(new.upstream, new.took_s)
    except BaseException:
        await new.stop()
        raise
    try:
        await seat.unwatch()
        seat.take(setting, new)
        seat.be("up")
        seat.watch()
        seat.tell("model", _words(was, setting))
        await seat.gate.keep_out(old.upstream, "spare")
        if not await seat.gate.until_idle(old.upstream, drain_s):
            old.say(f"the old engine has requests under way after {drain_s:g} s, which are lost")
        await _forget(was, setting, forget)
    finally:
        await old.stop()


async def in_place(seat: Seat, setting: EngineSetting, drain_s: float, forget: Forget) -> None:
    """End the old engine, and start the new one where it was.

    Raises ToolkitError; where the new one did not come up, the old one was started again then.
    """
    old, was = seat.engine, seat.setting
    await seat.leave(drain_s)
    await seat.end_engine()
    seat.take(setting, seat.instead(setting))
    seat.tell("restart", f"swapped: {_words(was, setting)}")
    try:
        await seat.begin()
    except ToolkitError as error:
        await seat.end_engine()
        seat.take(was, old)
        old.say(f"{error.message}; the one before is started again")
        await seat.open()
        raise ToolkitError(f"{error.message}; the one before serves again", error.hint) from error
    stored: ToolkitError | None = None
    try:
        await _forget(was, setting, forget)
    except ToolkitError as error:
        # what is stored is given in any case; kept out, the new one would only be of no use
        stored = error
    await seat.go_on()
    seat.tell("model", _words(was, setting))
    if stored is not None:
        raise stored


async def _begin(seat: Seat, new: Engine) -> None:
    """Have it warm, and known to the proxy."""
    new.say(f"the new engine starts at {new.setting.url}, beside the old one")
    await new.start()
    new.say(f"the new engine is ready after {new.ready_s:.1f} s")
    await new.warm()
    if not await seat.gate.until_up(new.upstream):
        raise ToolkitError(
            f"the proxy does not reach the new `{seat.name}` at {new.setting.url}",
            f"The old one serves on; see `{new.log}`",
        )


async def _forget(was: EngineSetting, setting: EngineSetting, forget: Forget) -> None:
    """After the last answer of the old one: it would be stored, too."""
    if not answers_alike(was, setting):
        await forget()


def _words(was: EngineSetting, setting: EngineSetting) -> str:
    if was.model != setting.model:
        return f"{was.model or was.kind} -> {setting.model or setting.kind}"
    if was.preset != setting.preset:
        return f"preset {was.preset or 'none'} -> {setting.preset or 'none'}"
    old, new = dict(was.flags), dict(setting.flags)
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    changed = ", ".join(
        f"--{name}" if name in SECRET else f"--{name} {old.get(name, '-')} -> {new.get(name, '-')}"
        for name in names
    )
    return changed or "the same settings"


# --- is there room? --------------------------------------------------------------------------------------


def why_no_room(
    seat: Seat,
    setting: EngineSetting,
    gpus: Callable[[str | None], Gpus],
    memory: Callable[[], Memory],
) -> str | None:
    """Why the new engine cannot run beside the old one; None: it can, as far as anybody knows."""
    if setting.spare_port is None:
        return "the stack has no second port for it, which only a proxy could switch to"
    if setting.kind == "sim":
        return None
    seen = gpus(setting.gpus)
    if setting.kind == "tiny" or not seen.gpus:
        return _no_memory(seat.engine, memory())
    wanted = _utilization(setting)
    for name, part in parts(seen):
        if part.free_bytes is None or part.total_bytes is None:
            continue
        if part.free_bytes < wanted * part.total_bytes:
            return (
                f"{name} has {size(part.free_bytes)} free, and vLLM claims"
                f" {size(wanted * part.total_bytes)} ({wanted:.0%} of it)"
            )
    return None


def _utilization(setting: EngineSetting) -> float:
    value = dict(setting.flags).get("gpu-memory-utilization", UTILIZATION)
    try:
        return min(1.0, max(0.0, float(value)))
    except ValueError:
        return UTILIZATION


def _no_memory(old: Engine, memory: Memory) -> str | None:
    """On the CPU the new one will take about as much as the old one has."""
    if old.process is None or memory.available_bytes is None or memory.total_bytes is None:
        return None
    free = memory.available_bytes
    if memory.limit_bytes is not None and memory.limit_used_bytes is not None:
        free = min(free, memory.limit_bytes - memory.limit_used_bytes)
    taken = resident_bytes(one.pid for one in old.process.members())
    if free - taken < SPARE_SHARE * memory.total_bytes:
        return f"the old engine takes {size(taken)} of memory, and {size(free)} are free"
    return None


def resident_bytes(pids: Iterable[int], proc: Path = Path("/proc")) -> int:
    """What processes have in memory; what several share counts several times."""
    pages = 0
    for pid in pids:
        try:
            pages += int((proc / str(pid) / "statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            continue  # it has gone
    return pages * os.sysconf("SC_PAGE_SIZE")
