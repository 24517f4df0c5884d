"""The watch over simulated engines: every dialect's load and identity, a restart, a frozen process, a long queue."""

import asyncio
import os
import signal
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from support import sim_fleet
from support.chat import until
from support.watching import watching

from toolkit.proxy.settings import RoutingSetting
from toolkit.sim.app import SimServer
from toolkit.sim.life import setup_for

MODEL = "Qwen3.5-35B-A3B"


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


@pytest.mark.parametrize("dialect", ["v0", "v1", "rust"])
def test_every_dialect_tells_its_load_and_who_it_is(dialect: Any) -> None:
    async def work() -> None:
        setup = setup_for("gptq-int4", dialect=dialect, load=8)
        async with SimServer(setup) as server, watching({"a": server.url}) as around:
            await until(lambda: around.state("a").others > 0 and around.state("a").models)
            assert around.state("a").models == {MODEL}
            known = around.watch._keeper._epochs.identity("a")
            assert known.version is not None
            # of a process's start vLLM's Rust front end says nothing
            assert (known.started_at is None) == (dialect == "rust")
            assert known.models[0].max_model_len == server.setup.personality.max_model_len

    run(work())


def test_a_restart_with_another_model_is_left_found_again_and_raises_the_epoch() -> None:
    async def work() -> None:
        # simulated seconds: down for 300, which take 0.3 real ones
        setup = setup_for("switcher", down_for_s=300, time_scale=0.001, down_after_s=10**6)
        async with SimServer(setup) as server, watching({"a": server.url}) as around:
            await around.watch.first_look()
            server.change_now()
            await until(lambda: around.state("a").reason == "unreachable")
            assert around.generations.numbers == {}, "while it is down its last identity counts"
            await until(lambda: around.state("a").state == "up")
            await until(lambda: around.generations.numbers.get(MODEL))
            await asyncio.wait_for(server.listening.wait(), 60)

    run(work())


def test_a_restart_is_known_where_no_start_time_tells_it() -> None:
    async def work() -> None:
        setup = setup_for(
            "gptq-int4", dialect="rust", down_for_s=300, time_scale=0.001, down_after_s=10**6
        )
        setup = replace(setup, personality=replace(setup.personality, later=setup.personality))
        async with SimServer(setup) as server, watching({"a": server.url}) as around:
            await until(lambda: around.state("a").models)
            server.change_now()
            await until(lambda: around.generations.numbers)
            assert around.generations.numbers == {MODEL: 1, "*": 1}

    run(work())


@pytest.mark.slow
def test_a_long_queue_is_no_standstill() -> None:
    async def work() -> None:
        # 64 at a time of 500: the others wait, and tokens are made all the while, unless this machine stands still
        setup = setup_for("gptq-int4", load=500, time_scale=0.1)
        watched = RoutingSetting(look_s=0.02, stuck_s=1.5, probe_s=1.0, back_s=0.2)
        async with (
            SimServer(setup) as server,
            watching({"a": server.url}, routing=watched) as around,
        ):
            await until(lambda: around.state("a").others > 300)
            for _ in range(160):  # 3.2 s: more than twice the time until it would be suspect
                await asyncio.sleep(0.02)
                assert around.state("a").state == "up"
            assert around.named("probe") == []

    run(work())


@pytest.mark.slow
def test_a_frozen_process_is_left_and_taken_back_when_it_goes_on() -> None:
    async def work(url: str, pid: int) -> None:
        watched = RoutingSetting(look_s=0.02, stuck_s=0.3, probe_s=0.3, back_s=0.1)
        async with watching({"a": url}, routing=watched, limit_s=0.3) as around:
            await until(lambda: around.state("a").models)
            around.routing.started("a", around.watch._clock())
            os.kill(pid, signal.SIGSTOP)
            try:
                await until(lambda: around.state("a").reason == "stuck")
            finally:
                os.kill(pid, signal.SIGCONT)
            await until(lambda: around.state("a").state == "up")
            assert around.generations.numbers == {}, "it is the same as before"

    with sim_fleet.running({"a": ("gptq-int4", {})}) as hosts:
        url = hosts.split()[1]
        run(work(url, _pid_of(int(url.rpartition(":")[2]))))


def _pid_of(port: int) -> int:
    import psutil

    (found,) = [
        each.pid
        for each in psutil.Process().children(recursive=True)
        for connection in each.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]
    return int(found)


def test_a_dead_engine_whose_server_still_answers_pages_is_left_by_its_health() -> None:
    async def work() -> None:
        setup = setup_for(
            "gptq-int4", stats=False
        )  # `--disable-log-stats`: no numbers of an engine
        async with SimServer(setup) as server, watching({"a": server.url}) as around:
            await around.watch.first_look()
            server.kill_engine()
            async with (
                aiohttp.ClientSession() as session,
                session.get(server.url + "/health") as answer,
            ):
                assert answer.status == 503
            await until(lambda: around.state("a").reason == "unreachable")

    run(work())
