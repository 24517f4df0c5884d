"""Proxies of several workers each on one real Redis: one call for all of them, each worker's own hits, and nothing counted twice or lost."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.crewed import Crewed, crewed
from support.proxied import ASKED, whole
from support.proxy_calls import run
from support.redis_server import needs_redis, redis_server
from support.scripted_upstream import Line, Script, ScriptedUpstream
from support.worker_family import Family, family

pytestmark = needs_redis

PATIENT = '[cache]\nredis_env = "CACHE"\nredis_timeout = "10s"\n'
"""Where Redis' limit of time is not what is tested: this machine may be busy."""
LONG_LEASE = "import toolkit.proxy.cache.redis as redis; redis.LEASE_S = 120.0"
"""A proxy that stands still for three seconds loses its call to another one, which is right, and not what is tested."""


def gated(gate: asyncio.Event, script: Script) -> Script:
    """A script that begins when the test says so."""

    async def play(line: Line) -> None:
        await gate.wait()
        await script(line)

    return play


@contextlib.asynccontextmanager
async def houses(
    url: str, engine: ScriptedUpstream, folder: Path, settings: str = PATIENT, **keys: str
) -> AsyncIterator[tuple[Family, Family]]:
    """Two machines with two workers each, and a file of their own each."""
    places = folder / "one", folder / "other"
    for place in places:
        place.mkdir()
    known = {"CACHE": url} | keys
    async with (
        family(engine, places[0], settings, workers=2, environ=known) as one,
        family(engine, places[1], settings, workers=2, environ=known) as other,
    ):
        yield one, other


def test_what_came_from_redis_every_worker_knows_without_the_primary(tmp_path: Path) -> None:
    async def test(url: str) -> None:
        async with (
            ScriptedUpstream(whole()) as engine,
            houses(url, engine, tmp_path) as (one, other),
        ):
            await one.ask(1)
            await one.primary.cache.redis.settle()
            assert (await other.ask(1)).is_hit
            assert all(answer.is_hit for answer in await other.everywhere())
            # the second worker passes nothing on, once it has seen what another one wrote: whoever answers counts
            counters = other.others[1].telemetry.counters
            async with asyncio.timeout(60):
                while counters.settle().total("requests", cache="hit") < 2:
                    await other.everywhere()
            assert len(engine.lines) == 1

    with redis_server(tmp_path) as server:
        run(test(server.url))


def test_a_team_s_purge_takes_what_came_from_redis_for_it_and_no_other_team_s(
    tmp_path: Path,
) -> None:
    teams = "".join(
        f'[[team]]\nname = "{name}"\nkey_env = "{name.upper()}"\n' for name in ("red", "blue")
    )
    keys = {"RED": "r" * 32, "BLUE": "b" * 32}

    async def test(url: str) -> None:
        async with (
            ScriptedUpstream(whole()) as engine,
            houses(url, engine, tmp_path, PATIENT + teams, **keys) as (one, other),
        ):
            for key in keys.values():
                await one.ask(1, key=key)
            await one.primary.cache.redis.settle()
            for key in keys.values():
                assert (await other.ask(1, key=key)).is_hit
            assert (await other.admin("/purge", {"team": "red"})).json == {"purged": 1}
            assert (await other.ask(1, key=keys["BLUE"])).is_hit
            assert not (await other.ask(1, key=keys["RED"])).is_hit
            # one for each team, and the one after the purge
            assert len(engine.lines) == 3

    with redis_server(tmp_path) as server:
        run(test(server.url))


@pytest.mark.slow
def test_equal_misses_at_all_workers_of_both_machines_are_one_call_and_are_counted_exactly(
    tmp_path: Path,
) -> None:
    """As a user starts them: `toolkit proxy --workers 2`, twice."""
    many = 24

    async def test(url: str) -> None:
        gate = asyncio.Event()
        places = [tmp_path / "one", tmp_path / "other"]
        for place in places:
            place.mkdir()
        async with (
            ScriptedUpstream(gated(gate, whole())) as engine,
            crewed(
                engine, places[0], PATIENT, workers=2, environ={"CACHE": url}, before=LONG_LEASE
            ) as one,
            crewed(
                engine, places[1], PATIENT, workers=2, environ={"CACHE": url}, before=LONG_LEASE
            ) as other,
        ):
            clients = [*await one.clients(many), *await other.clients(many)]
            asking = [asyncio.create_task(client.ask()) for client in clients]
            for each in (one, other):
                await each.until(lambda proxy=each: is_busy(proxy, many))
            gate.set()
            first = await asyncio.gather(*asking)
            assert {answer.status for answer in first} == {200}
            assert len(engine.lines) == 1
            again = await asyncio.gather(*(client.ask() for client in clients))
            assert all(answer.is_hit for answer in again)
            # three that nobody made before, at both machines at once
            bodies = [ASKED | {"seed": number} for number in range(3)]
            new = await asyncio.gather(
                *(each.ask(body) for body in bodies for each in (one, other))
            )
            assert {answer.status for answer in new} == {200}
            counted = Counter(await one.counts()) + Counter(await other.counts())
            assert counted["miss"] == len(engine.lines) == 1 + 3
            # one that was on its way to an primary still when the answer came is a hit
            assert counted["hit"] + counted["coalesced"] == 4 * many - 1 + 3
            assert counted["hit"] >= 2 * many
            assert counted.total() == 4 * many + 6

    with redis_server(tmp_path) as server:
        asyncio.run(asyncio.wait_for(test(server.url), 60))


async def is_busy(proxy: Crewed, count: int) -> bool:
    """So many requests are under way there, in all workers."""
    return (await proxy.admin("/state")).json["busy"] == count
