"""`toolkit proxy --workers 3` as a user starts it: processes that share a port, die, come back and end in good order."""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support.crewed import Crewed, crewed
from support.proxied import ASKED, Answer, Client, raw, whole
from support.proxy_calls import gates
from support.scripted_upstream import ScriptedUpstream, hanging, slow

from toolkit.store import Store

pytestmark = pytest.mark.slow

MANY = 48


def other(number: int) -> dict[str, object]:
    return ASKED | {"seed": number}


def maker(answer: Answer) -> str:
    """Whose id it bears: the worker's that took the request."""
    return answer.headers["x-request-id"].partition("-")[0]


def stored_in(folder: Path) -> int:
    """Answers in the file that the workers share."""
    with contextlib.closing(sqlite3.connect(folder / "cache.db")) as file:
        return int(file.execute("select count(*) from answers").fetchone()[0])


async def warmed(
    proxy: Crewed, engine: ScriptedUpstream, clients: list[Client]
) -> dict[str, list[Client]]:
    """Have every worker know the answer to ASKED; the connections by who serves them."""
    await clients[0].ask()
    # where each worker finds it
    await proxy.until(lambda: stored_in(proxy.folder) == len(engine.lines))

    async def is_known_to_all() -> bool:
        """Until the others have seen in the file what the primary wrote, they pass it on to the primary."""
        for client in clients:
            assert (await client.ask()).is_hit
        return sum(line.get("layer") == "disk" for line in proxy.log) == 2

    await proxy.until(is_known_to_all)
    found: dict[str, list[Client]] = {}
    for client in clients:
        answer = await client.ask()
        assert answer.is_hit
        found.setdefault(maker(answer), []).append(client)
    assert len(found) == 3
    return found


def left_in(folder: Path) -> list[Path]:
    """Private folders of workers."""
    return list(folder.glob("toolkit-proxy-*"))


def is_gone(pid: int) -> bool:
    try:
        return ") Z" in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


async def test_what_is_under_way_is_answered_before_the_end(tmp_path: Path) -> None:
    gate = gates(1)
    async with (
        ScriptedUpstream(slow(["x"], gate)) as engine,
        crewed(engine, tmp_path) as proxy,
    ):
        clients, pids = await proxy.clients(MANY), proxy.pids()
        asking = [
            asyncio.create_task(client.ask(other(place) | {"stream": True}))
            for place, client in enumerate(clients)
        ]
        await engine.asked(MANY)
        proxy.process.terminate()
        await proxy.heard("Ending")

        async def is_shut() -> bool:
            try:
                (await proxy.client()).close()
            except OSError:
                return True
            return False

        await proxy.until(is_shut)
        assert not any(task.done() for task in asking)
        gate[0].set()
        answers = await asyncio.gather(*asking)
        assert all(answer.is_whole and answer.text == "x" for answer in answers)
        assert await proxy.process.wait() == 0
        assert f"{MANY} requests" in proxy.said[-1]
        assert all(map(is_gone, pids.values()))
        # nothing of the private folder is left
        assert not left_in(tmp_path)


async def test_what_does_not_end_in_time_is_ended_and_told_to_the_client(tmp_path: Path) -> None:
    async with (
        ScriptedUpstream(hanging()) as engine,
        crewed(engine, tmp_path, 'drain = "200ms"\n') as proxy,
    ):
        clients = await proxy.clients(MANY)
        asking = [
            asyncio.create_task(client.ask(other(place))) for place, client in enumerate(clients)
        ]
        await engine.asked(MANY)
        proxy.process.terminate()
        answers = await asyncio.gather(*asking)
        assert {answer.status for answer in answers} == {503}
        assert await proxy.process.wait() == 0


async def test_workers_end_with_a_parent_that_is_killed_and_free_its_port(tmp_path: Path) -> None:
    async with ScriptedUpstream(hanging()) as engine, crewed(engine, tmp_path) as proxy:
        pids, clients = proxy.pids(), await proxy.clients(MANY)
        for place, client in enumerate(clients):
            client.writer.write(raw(other(place)))
        await engine.asked(MANY)
        proxy.process.kill()
        await proxy.until(lambda: all(map(is_gone, pids.values())))
        with pytest.raises(ConnectionRefusedError):
            await proxy.client()
        assert not left_in(tmp_path)


async def test_signals_to_workers_are_the_parents_and_log_and_rows_of_all_are_one(
    tmp_path: Path,
) -> None:
    settings = f'[tell]\ndatabase = "{tmp_path / "runs.db"}"\n'
    async with ScriptedUpstream(whole()) as engine, crewed(engine, tmp_path, settings) as proxy:
        pids = proxy.pids()
        for pid in pids.values():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(pid, number)
        clients = await proxy.clients(MANY)
        await warmed(proxy, engine, clients)
        assert proxy.pids() == pids
        old = tmp_path / "old.jsonl"
        (tmp_path / "log.jsonl").rename(old)
        proxy.process.send_signal(signal.SIGHUP)
        await proxy.until((tmp_path / "log.jsonl").exists)

        async def all_are_there() -> bool:
            """A line of each worker is in the new log."""
            for client in clients:
                await client.ask()
            made = [each["request_id"] for each in proxy.log if "event" not in each]
            return len({each.partition("-")[0] for each in made}) == 3

        await proxy.until(all_are_there)
        proxy.process.terminate()
        await proxy.process.wait()
        lines = [*map(json.loads, old.read_text().splitlines()), *proxy.log]
    with Store.open(tmp_path / "runs.db") as store:
        (one,) = store.runs()
        assert store.content(one.id).requests == sum("event" not in each for each in lines)
        assert f"{store.content(one.id).requests:,} requests" in proxy.said[-1]


def refused(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from toolkit.cli import main; main()", "proxy"]
    return subprocess.run(
        [*command, "--upstream", "http://127.0.0.1:9", "--workers", "2", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_several_workers_need_a_file_to_share() -> None:
    for more in ((), ("--check",)):
        found = refused("--no-cache-file", *more)
        assert found.returncode == 1
        assert "share stored answers in a file" in found.stderr
        assert "--cache-file" in found.stderr


def test_what_keeps_a_worker_from_its_start_is_told_once_and_ends_all(tmp_path: Path) -> None:
    (tmp_path / "other.db").write_text("")
    folder = tmp_path / "folder.db"
    folder.mkdir()
    found = refused("--port", "0", "--admin-port", "0", "--cache-file", str(folder))
    assert found.returncode == 1
    assert "is a folder" in found.stderr
    assert "Traceback" not in found.stderr
