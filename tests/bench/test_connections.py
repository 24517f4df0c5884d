"""Connections that know when their bytes came; names that are looked up beside everything else."""

import asyncio
import socket
import threading
import time
from typing import Any

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from support.chat import ask, client_of, context, one_shot

from toolkit.bench.connections import TimedConnection, addresses


class Inner(asyncio.Protocol):
    """Notes what it is handed, and when."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.at_s = 0.0

    def data_received(self, data: bytes) -> None:
        self.at_s = time.monotonic()
        self.calls.append(data)

    def eof_received(self) -> bool | None:
        self.calls.append("eof")
        return True

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append(exc)


def test_a_wire_hands_everything_on() -> None:
    inner = Inner()
    timed = TimedConnection(inner)
    lost = OSError()
    timed.data_received(b"a")
    assert timed.eof_received() is True
    timed.pause_writing()
    timed.resume_writing()
    timed.connection_lost(lost)
    assert inner.calls == [b"a", "eof", "pause", "resume", lost]


def test_bytes_are_stamped_before_anybody_reads_them() -> None:
    inner = Inner()
    before_s = time.monotonic()
    timed = TimedConnection(inner)
    made_s = timed.read_s
    timed.data_received(b"a")
    assert before_s <= made_s <= timed.read_s <= inner.at_s


class Body(Inner):
    """Makes a body of what it is handed, as aiohttp's protocol does."""

    def __init__(self) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self.content = aiohttp.StreamReader(ResponseHandler(loop), 2**16, loop=loop)

    def data_received(self, data: bytes) -> None:
        self.content.feed_data(data)


async def test_a_body_is_fed_where_it_is_read_each_piece_with_its_moment() -> None:
    fed: list[tuple[bytes, float]] = []

    def feed(data: bytes, at: float) -> bool:
        fed.append((data, at))
        return len(fed) < 3

    body = Body()
    timed = TimedConnection(body)
    timed.data_received(b"early")
    moments = [(0, timed.read_s)]
    pouring = asyncio.create_task(timed.pour(body.content, feed))
    await asyncio.sleep(0)
    for piece in (b"one", b"two", b"too many"):
        timed.data_received(piece)
        moments.append((len(fed), timed.read_s))  # nobody else had a turn
    await pouring
    assert [data for data, _ in fed] == [b"early", b"one", b"two"]
    assert [count for count, _ in moments] == [0, 2, 3, 3]
    assert [at for _, at in fed] == [at for _, at in moments[:3]]


async def test_a_body_ends_with_its_end() -> None:
    body, fed = Body(), []
    timed = TimedConnection(body)
    pouring = asyncio.create_task(timed.pour(body.content, lambda data, _: not fed.append(data)))
    await asyncio.sleep(0)
    timed.data_received(b"all")
    body.content.feed_eof()
    await pouring
    assert fed == [b"all"]


@pytest.mark.parametrize("broken", ["lost", "lost before", "told", "ours"])
def test_who_waits_for_a_body_hears_what_broke_it(broken: str) -> None:
    """aiohttp tells most faults itself; of a connection that it closes for malformed chunks it tells nobody."""

    def feed(_: bytes, __: float) -> bool:
        raise KeyError("a mistake of ours")

    async def scene() -> None:
        body = Body()
        timed = TimedConnection(body)
        if broken == "lost before":
            timed.connection_lost(None)
        pouring = asyncio.create_task(timed.pour(body.content, feed))
        await asyncio.sleep(0)
        if broken == "ours":
            timed.data_received(b"data")
        if broken == "told":
            body.content.set_exception(aiohttp.ClientPayloadError("half"))
        if broken != "lost before":
            timed.connection_lost(None)
        async with asyncio.timeout(60):
            await pouring

    kind, words = {
        "lost": (ValueError, "not framed"),
        "lost before": (ValueError, "not framed"),
        "told": (aiohttp.ClientPayloadError, "half"),
        "ours": (KeyError, "a mistake"),
    }[broken]
    with pytest.raises(kind, match=words):
        asyncio.run(scene())


# --- names ---------------------------------------------------------------------------------------------


@pytest.fixture
def slow_names(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A resolver that knows no `.test` name before the event; others as ever."""
    known, real = threading.Event(), socket.getaddrinfo

    def look_up(host: str, *rest: Any, **more: Any) -> Any:
        if host.endswith(".test"):
            known.wait(60)
        return real("127.0.0.1" if host.endswith(".test") else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@pytest.mark.usefixtures("loop")
async def test_addresses_are_found_and_missing_names_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = socket.getaddrinfo

    def look_up(host: str, *rest: Any, **more: Any) -> Any:
        if host == "missing.test":  # no test asks a name server
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    known = [address for _, address in await addresses("127.0.0.1", 80)]
    errors = []
    for name in ("missing.test", "a" * 70 + ".test"):
        with pytest.raises(OSError, match=r"known|idna") as raised:
            await addresses(name, 80)
        errors.append(type(raised.value).__name__)
    assert known == ["127.0.0.1"]
    assert errors == ["gaierror", "OSError"]


@pytest.mark.usefixtures("loop")
async def test_many_dead_names_make_nobody_wait(slow_names: threading.Event) -> None:
    """asyncio's own pool has 6 threads on two cores."""

    dead = [asyncio.create_task(addresses(f"host-{n}.test", 80)) for n in range(40)]
    await asyncio.sleep(0)
    found = [address for _, address in await addresses("127.0.0.1", 80)]
    assert not any(task.done() for task in dead)
    slow_names.set()
    late = await asyncio.gather(*dead)
    seen = found + [address for _, address in late[-1]]
    assert seen == ["127.0.0.1", "127.0.0.1"]


@pytest.mark.usefixtures("loop")
async def test_a_name_that_is_still_looked_up_holds_up_no_end(
    slow_names: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.bench.client.CONNECT_TIMEOUT_S", 0.1)

    shot = await one_shot("http://slow.test:8000")
    found = shot.error_kind, shot.error
    # it ends although the lookup does not: the event is set only afterwards
    assert found == ("connect", "no connection within 0.1 s")
    slow_names.set()


async def test_a_machine_without_threads_blames_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with client_of("http://somewhere.test:8000") as client:
        monkeypatch.setattr(threading.Thread, "start", start)
        assert (
            await client.send(context(), ask(), time.monotonic())
        ).error == "no connection: this machine is out of threads for name lookups"
