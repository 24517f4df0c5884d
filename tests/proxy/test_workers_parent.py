"""The parent of several workers with workers of the test's own, and the sockets that they share."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.proxy import workers
from toolkit.proxy.config import CacheSetting, Settings, UpstreamSetting
from toolkit.proxy.workers import Workers, listeners

BEGIN = """
import json, os, socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
stream = channel.makefile("rwb")
stream.read(int.from_bytes(stream.read(8)))
number = int(sys.argv[2].removeprefix("worker-"))
def say(**told):
    stream.write(json.dumps(told).encode() + b"\\n")
    stream.flush()
def hear():
    return stream.readline().decode().split()
"""
GOOD = """
say(open=True)
word = hear()
while word and word[0] not in ("end", "shut" if number else "end"):
    word = hear()
say(counters={"counts": {"events": [["x", 1]]}, "times": {}})
"""
DIES = """
if number:
    say(open=True)
    sys.exit(7)
"""


class Parent:
    """One that runs, and what it said."""

    def __init__(self, script: str, folder: Path) -> None:
        self.said: list[str] = []
        self.ports: list[tuple[int, int]] = []
        self.ends, self._moved = asyncio.Event(), asyncio.Event()
        settings = Settings(
            upstreams=(UpstreamSetting(name="u", url="http://127.0.0.1:9"),),
            port=0,
            admin_port=0,
            workers=2,
            drain_s=0.2,
            cache=CacheSetting(file=str(folder / "c.db")),
        )
        self.workers = Workers(
            settings,
            variables={},
            keys=[("red", "sk-red")],
            # the standard library alone, and so soon there
            command=[sys.executable, "-I", "-S", "-c", BEGIN + script],
            environ={"FOLDER": str(folder)},
            say=self._say,
        )

    def _say(self, sentence: str) -> None:
        self.said.append(sentence)
        self._moved.set()

    async def run(self) -> None:
        try:
            await self.workers.start()
            self.ports.append(self.workers.ports)
            self._moved.set()
            await self.ends.wait()
        finally:
            await self.workers.stop()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._moved.clear()
            await self._moved.wait()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("sys.exit(3)", "ended with status 3"),
        ("os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ('say(error=["no file", "make one"]); sys.exit(1)', "no file"),
    ],
)
async def test_a_first_start_that_fails_ends_all(script: str, told: str, tmp_path: Path) -> None:
    parent = Parent(f"if number == 1: {script}\n{GOOD}", tmp_path)
    with pytest.raises(ToolkitError, match=told):
        await parent.run()
    assert not parent.ports


async def test_one_that_dies_again_and_again_is_started_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(workers, "LONGEST_PAUSE_S", 0.04)
    monkeypatch.setattr(workers, "SHUT_S", 0.04)
    parent = Parent(DIES + GOOD, tmp_path)
    running = asyncio.create_task(parent.run())
    await parent.until(lambda: len(parent.said) >= 5)
    parent.ends.set()
    await running
    pauses = [line.rpartition(" in ")[2] for line in parent.said[:5]]
    assert pauses == ["0.01 s", "0.02 s", "0.04 s", "0.04 s", "0.04 s"]
    assert all("Worker 1" in line and "status 7" in line for line in parent.said[:5])


async def test_nobody_waits_behind_the_door_of_a_worker_that_is_away_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "FIRST_PAUSE_S", 5.0)
    parent = Parent(DIES + GOOD, tmp_path)
    running = asyncio.create_task(parent.run())
    await parent.until(lambda: bool(parent.said) and bool(parent.ports))
    port = parent.ports[0][0]
    # half of 30 would wait at the dead one's door; they are all at the owner's, which is there
    for _ in range(30):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.abort()
    assert accepted(parent.workers._listeners[0][0]) == 30
    parent.ends.set()
    await running


def accepted(door: socket.socket) -> int:
    count = 0
    door.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            door.accept()[0].close()
            count += 1
    return count


async def test_one_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "GRACE_S", 0.2)
    deaf = """
if number:
    say(open=True)
    while True:
        hear()
"""
    parent = Parent(deaf + GOOD, tmp_path)
    running = asyncio.create_task(parent.run())
    await parent.until(lambda: bool(parent.ports))
    parent.ends.set()
    await running
    assert parent.workers.counters.total("events") == 1
    assert not parent.workers._folder.exists()


def close(opened: list[list[socket.socket]]) -> None:
    for mine in opened:
        for each in mine:
            each.close()


def ports(opened: list[list[socket.socket]]) -> set[int]:
    return {each.getsockname()[1] for mine in opened for each in mine}


@pytest.mark.parametrize("count", [1, 3])
def test_a_port_that_another_proxy_has_is_refused_though_it_could_be_shared(count: int) -> None:
    first = listeners("127.0.0.1", 0, 2)
    (port,) = ports(first)
    try:
        with pytest.raises(ToolkitError, match="cannot listen on") as caught:
            listeners("127.0.0.1", port, count)
        assert str(port) in caught.value.message
        assert "--port" in caught.value.hint
        # its own may be joined by a worker that is started again
        close(listeners("127.0.0.1", port, 1, joins=True))
    finally:
        close(first)
    close(listeners("127.0.0.1", port, count))


async def test_a_proxy_of_one_process_is_refused_beside_one_of_several_and_the_other_way_round() -> (
    None
):
    async def alone(port: int) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(asyncio.Protocol, "127.0.0.1", port)

    several = listeners("127.0.0.1", 0, 2)
    (port,) = ports(several)
    with pytest.raises(OSError, match="in use"):
        await alone(port)
    close(several)
    server = await alone(port)
    with pytest.raises(ToolkitError):
        listeners("127.0.0.1", port, 2)
    server.close()
    await server.wait_closed()
