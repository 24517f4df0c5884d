"""What a request leaves behind goes at once: what only the collector finds stays for thousands of requests, bodies and all."""

import gc
from typing import Any

import pytest
import uvloop
from support.chat import DONE, FINISH, HEAD, LAST, ROLE, USAGE, token, until
from support.proxied import ASKED, proxied, raw
from support.scripted_upstream import Line, ScriptedUpstream

ROUNDS = 20


def ours(found: list[Any]) -> list[str]:
    """The proxy's own objects and functions, and the parsers that hold them; not those of the test's client."""
    return sorted(
        {
            f"{module}.{kind}"
            for each in found
            for module, kind in [
                (each.__module__, each.__qualname__)
                if callable(each) and hasattr(each, "__qualname__")
                else (type(each).__module__, type(each).__qualname__)
            ]
            if str(module).startswith(("toolkit.", "httptools"))
        }
    )


@pytest.fixture
def unreachable() -> Any:
    """What only the collector finds after the call, kept in a list until then."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def collect() -> list[Any]:
        gc.collect()
        return gc.garbage

    try:
        yield collect
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def stream(line: Line) -> None:
    for part in (HEAD, ROLE, token("one"), token("two"), FINISH, USAGE, DONE, LAST):
        line.send(part)


async def begin(line: Line) -> None:
    """It never goes on."""
    line.send(HEAD + ROLE + token("one"))


def test_misses_and_hits_leave_nothing_to_the_collector(unreachable: Any) -> None:
    async def test() -> None:
        async with ScriptedUpstream(stream) as engine, proxied(engine) as proxy:
            client = await proxy.client()
            for number in range(ROUNDS):
                asked = ASKED | {"stream": True, "seed": number}
                assert (await client.ask(asked)).text == "onetwo"
                await until(lambda most=number: len(proxy.proxy.cache.memory) > most)
                assert "hit" in (await client.ask(asked)).cache
            assert ours(unreachable()) == []

    uvloop.run(test())


def test_clients_that_leave_leave_nothing(unreachable: Any) -> None:
    async def test() -> None:
        async with ScriptedUpstream(begin) as engine, proxied(engine) as proxy:
            for number in range(ROUNDS):
                client = await proxy.client()
                client.writer.write(raw(ASKED | {"stream": True, "seed": number}))
                await client.reader.readuntil(b"one")
                client.close()
                await until(lambda: not proxy.proxy.front.busy)
            await until(lambda: not proxy.proxy.upstreams["u0"].connections)
            assert ours(unreachable()) == []

    uvloop.run(test())
