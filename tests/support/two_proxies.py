"""Two whole proxies before one engine, with one Redis, in the test's own loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from support.proxied import Proxied, proxied
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


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 (what is waited for tells nobody)
        await asyncio.sleep(0.005)


async def waits(proxy: Proxied) -> None:
    """Until somebody there waits for another proxy's call."""
    await until(lambda: proxy.proxy._answering._far._waits)


def gated(gate: asyncio.Event, script: Script) -> Script:
    """A script that begins when the test says so."""

    async def play(line: Line) -> None:
        await gate.wait()
        await script(line)

    return play
