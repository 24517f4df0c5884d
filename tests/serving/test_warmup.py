"""Warming real servers up over real sockets: the simulator, and raw ones that do what no server should."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from support.chat import STREAM, WHOLE, ChatServer
from support.raw_server import RawServer, http

from toolkit.records import Host
from toolkit.serving.stack import WarmSetting
from toolkit.serving.warmup import Warmed, Warming

# answers of a millisecond differ by many times that on a busy machine; so many rounds always have two that agree
QUICK = WarmSetting(concurrency=(1, 2, 4), max_tokens=2, limit_s=60.0, tolerance=1.0, rounds=100)
JSON_ANSWER = http(WHOLE, content_type="application/json")


class Chat(ChatServer):
    """Streams to who asks for it, else answers whole; `answer` may decide otherwise."""

    def __init__(self, answer: Callable[[dict[str, Any]], bytes | None] = lambda _: None) -> None:
        super().__init__(self.reply)
        self.answer = answer

    async def reply(self, writer: asyncio.StreamWriter) -> bool:
        body = json.loads(self.bodies[-1])
        writer.write(self.answer(body) or (STREAM if body["stream"] else JSON_ANSWER))
        return True


def warming(server: RawServer, setting: WarmSetting, **more: Any) -> Warming:
    return Warming(host=Host(name="alice", url=server.url), setting=setting, **more)


def warmed(server: RawServer, setting: WarmSetting = QUICK, **more: Any) -> Warmed:
    async def run() -> Warmed:
        async with server:
            return await warming(server, setting, **more).run()

    return asyncio.run(run())


def phases(told: Warmed) -> list[tuple[str, int]]:
    return [(each.phase, each.concurrency) for each in told.rounds]


# --- the order, and what is asked ---------------------------------------------------------------------------


def test_a_level_is_sent_at_once() -> None:
    most = 0
    under_way = 0

    async def slowly(writer: asyncio.StreamWriter) -> bool:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.02)
        under_way -= 1
        writer.write(STREAM)
        return True

    warmed(ChatServer(slowly), WarmSetting(concurrency=(1, 6), limit_s=60.0, stream=True))
    assert most == 6


def test_an_unsteady_server_ends_after_its_rounds_and_says_so() -> None:
    async def run() -> Warmed:
        count = 0

        async def unsteady(writer: asyncio.StreamWriter) -> bool:
            nonlocal count
            count += 1
            # each round of one takes 40 ms more than the one before: never within a fifth
            await asyncio.sleep(0.02 * 2**count if count < 6 else 0)
            writer.write(STREAM)
            return True

        async with ChatServer(unsteady) as server:
            setting = WarmSetting(concurrency=(1,), rounds=3, limit_s=60.0, stream=True)
            return await warming(server, setting).run()

    told = asyncio.run(run())
    assert not told.agreed
    assert told.error == "3 rounds, and no two in a row agree"
    assert [phase for phase, _ in phases(told)] == ["cold", "settle", "settle", "settle", "probe"]


# --- hosts that are down, refuse, or hang ----------------------------------------------------------------------


def test_a_model_that_is_not_served_is_a_reason() -> None:
    told = warmed(Chat(), model="other")
    assert told.error == "it does not serve `other` but `tiny`"


def test_a_level_that_fails_as_a_whole_ends_the_ramp_and_is_told() -> None:
    server = Chat()

    def busy(_: dict[str, Any]) -> bytes | None:
        # the third level's four requests all meet a limit
        return (
            http('{"error": {"message": "full"}}', "503 Busy")
            if 4 <= len(server.asked()) < 8
            else None
        )

    server.answer = busy
    told = warmed(server)
    assert phases(told)[:4] == [("cold", 1), ("cold", 2), ("cold", 4), ("settle", 2)]
    assert told.errors >= 3
    assert told.measure == "ttft"


def test_one_failed_request_in_a_round_is_counted_and_ends_nothing() -> None:
    server = Chat()
    server.answer = lambda _: (
        http('{"error": {"message": "no"}}', "500 Internal Server Error")
        if len(server.asked()) == 5
        else None
    )
    told = warmed(server)
    assert (told.errors, told.agreed) == (1, True)
    assert [each.concurrency for each in told.rounds if each.error] == [4]
