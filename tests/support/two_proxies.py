"""Two whole proxies before one engine, with one Redis, in the test's own loop; and the case that most tests begin with: one of them asks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from support.chat import until
from support.proxied import ASKED, Answer, Proxied, proxied, whole
from support.scripted_upstream import Line, Script, ScriptedUpstream

PATIENT = '[cache]\nredis_env = "CACHE"\nredis_timeout = "10s"\n'
"""Where Redis' limit of time is not what is tested: this machine may be busy."""
HELLO = "Hello there"
"""What the scripted engine says."""


@contextlib.asynccontextmanager
async def two(
    url: str, engine: ScriptedUpstream, settings: str = PATIENT, **environ: str
) -> AsyncIterator[tuple[Proxied, Proxied]]:
    """Both, with the Redis at this address."""
    known = {"CACHE": url} | environ
    async with (
        proxied(engine, settings, environ=known) as one,
        proxied(engine, settings, environ=known) as other,
    ):
        yield one, other


async def waits(proxy: Proxied) -> None:
    """Until somebody there waits for another proxy's call."""
    await until(lambda: proxy.proxy._answering._far._waits)


def gated(gate: asyncio.Event, script: Script) -> Script:
    """A script that begins when the test says so."""

    async def play(line: Line) -> None:
        await gate.wait()
        await script(line)

    return play


@dataclass
class Led:
    """The first proxy asks the engine, in the place of both; the engine's answer waits for the gate."""

    one: Proxied
    other: Proxied
    engine: ScriptedUpstream
    gate: asyncio.Event
    first: asyncio.Task[Answer]
    """What the first one's client gets."""

    async def followed(self, body: object = ASKED) -> asyncio.Task[Answer]:
        """What a client of the other proxy gets, who asks the same and waits by now for what the first one is told."""
        second = asyncio.create_task(self.other.ask(body))
        await waits(self.other)
        return second


@contextlib.asynccontextmanager
async def led(
    url: str,
    script: Script | None = None,
    *,
    then: Script | None = None,
    body: object = ASKED,
    settings: str = PATIENT,
) -> AsyncIterator[Led]:
    """Two proxies, once the engine was asked by the first; `then`: what it says to all who ask later, at once."""
    gate = asyncio.Event()
    held = gated(gate, script or whole())
    async with (
        ScriptedUpstream(then or held) as engine,
        two(url, engine, settings) as (one, other),
    ):
        engine.scripts = [held]
        first = asyncio.create_task(one.ask(body))
        await engine.asked()
        yield Led(one, other, engine, gate, first)
