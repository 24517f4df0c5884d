"""Warming real servers up over real sockets: the simulator, and raw ones that do what no server should."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.chat import CHAT, STREAM, WHOLE, ChatServer, hang
from support.raw_server import RawServer, http
from support.sim_fleet import running

from toolkit.profiles import Profile, Prompt
from toolkit.records import Host
from toolkit.serving.stack import WarmSetting
from toolkit.serving.warm.warm import Target, Warming, seed, warm
from toolkit.serving.warm.warm_rounds import Warmed

# answers of a millisecond differ by many times that on a busy machine; so many rounds always have two that agree
QUICK = WarmSetting(concurrency=(1, 2, 4), max_tokens=2, limit_s=60.0, tolerance=1.0, rounds=100)
JSON_ANSWER = http(WHOLE, content_type="application/json")
HI = Profile(
    name="hi",
    prompts=(Prompt(name="hi", messages=({"role": "user", "content": "Hi"},)),),
    max_tokens=9,
)


class Chat(ChatServer):
    """Streams to who asks for it, else answers whole; `answer` may decide otherwise."""

    def __init__(self, answer: Callable[[dict[str, Any]], bytes | None] = lambda _: None) -> None:
        super().__init__(self.reply)
        self.answer = answer

    async def reply(self, writer: asyncio.StreamWriter) -> bool:
        body = json.loads(self.bodies[-1])
        writer.write(self.answer(body) or (STREAM if body["stream"] else JSON_ANSWER))
        return True


def warmed(server: RawServer, setting: WarmSetting = QUICK, **more: Any) -> Warmed:
    async def run() -> Warmed:
        async with server:
            return await warm(server.url, setting=setting, **more)

    return asyncio.run(run())


def phases(told: Warmed) -> list[tuple[str, int]]:
    return [(each.phase, each.concurrency) for each in told.rounds]


# --- cold against warm --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_ratio_that_is_built_into_a_cold_simulator_is_told() -> None:
    # the first step takes 3.8 s more than the 0.2 s of every other; nothing else takes time: 4.0 / 0.2 = 20
    built_in: dict[str, Any] = {"cold_s": 3.8, "step_overhead_s": 0.2, "jitter": 0.0}
    built_in |= {"prefill_s_per_token": 0.0, "decode_s_per_sequence": 0.0}
    with running({"sim": ("cold", built_in)}) as hosts:
        setting = WarmSetting(concurrency=(1,), max_tokens=1, limit_s=60.0)
        told = asyncio.run(warm(hosts.split()[1], setting=setting))
    assert told.error is None
    assert told.agreed
    # our own share of a time to the first token, up to some 50 ms on a busy machine, makes it less and never more
    assert told.ratio is not None
    assert 15 <= told.ratio <= 20.1
    assert told.cold_ttft_ms == pytest.approx(4000, rel=0.1)


def test_a_warm_simulator_agrees_at_once_and_every_kind_of_request_is_answered() -> None:
    with running({"sim": ("gptq-int4", {"time_scale": 0.02, "seed": 1})}) as hosts:
        setting = WarmSetting(
            concurrency=(1, 2, 4, 8),
            max_tokens=2,
            limit_s=60.0,
            structured=True,
            long_prompts=True,
            tolerance=1.0,
            rounds=100,
        )
        told = asyncio.run(warm(hosts.split()[1], setting=setting, profile=HI))
    assert (told.error, told.errors, told.model) == (None, 0, "Qwen3.5-35B-A3B")
    assert [(each.kind, each.concurrency) for each in told.levels] == [
        *(("plain", level) for level in (1, 2, 4, 8)),
        ("structured", 8),
        ("long", 3),
    ]
    assert told.seeded == 2, "the one prompt in both views"
    assert told.rounds[-1].kind == "seed", "the clients' own come last"


def test_without_streams_end_to_end_times_are_told() -> None:
    told = warmed(Chat(), WarmSetting(concurrency=(1, 2), stream=False, limit_s=60.0))
    assert told.measure == "e2e"
    assert told.cold_ttft_ms is None
    assert told.cold_e2e_ms is not None


# --- the order, and what is asked ---------------------------------------------------------------------------


def test_each_level_once_the_highest_until_two_agree_then_all_once_more() -> None:
    told = warmed(Chat(), max_num_seqs=3)
    settled = sum(phase == "settle" for phase, _ in phases(told))
    assert 1 <= settled <= QUICK.rounds
    assert phases(told) == [
        *(("cold", level) for level in (1, 2, 3)),
        *[("settle", 3)] * settled,
        *(("probe", level) for level in (1, 2, 3)),
    ]
    # a probe of a low level is of four requests at least: 4 x 1, 2 x 2, 2 x 3
    assert [each.requests for each in told.rounds[-3:]] == [4, 4, 6]


def test_no_two_requests_are_alike_before_the_clients_own_are_sent_as_they_are() -> None:
    server = Chat()
    told = warmed(server, profile=HI)
    bodies = server.asked()
    own = [body for body in bodies if body["messages"] == [{"role": "user", "content": "Hi"}]]
    assert own == bodies[-2:]
    assert [body["max_tokens"] for body in own] == [9, 9]
    texts = [body["messages"][0]["content"] for body in bodies[:-2]]
    assert len(set(texts)) == len(texts) == told.requests - 2
    assert {text[12:] for text in texts} == {"Hi"}


def test_only_the_clients_own_may_be_asked_for() -> None:
    server = Chat()

    async def run() -> Any:
        async with server:
            none = await seed(server.url)
            return none, await seed(server.url, profile=HI)

    none, done = asyncio.run(run())
    assert none is None
    assert (done.ok, done.requests) == (2, 2)
    assert len(server.asked()) == 2


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
            return await warm(server.url, setting=setting)

    told = asyncio.run(run())
    assert not told.agreed
    assert told.error == "3 rounds, and no two in a row agree"
    assert [phase for phase, _ in phases(told)] == ["cold", "settle", "settle", "settle", "probe"]


# --- hosts that are down, refuse, or hang ----------------------------------------------------------------------


def test_a_host_where_nobody_listens_is_a_reason(unused_port: int) -> None:
    told = asyncio.run(warm(f"http://127.0.0.1:{unused_port}", setting=QUICK))
    assert told.error == "`/v1/models`: no connection: connection refused"
    assert (told.measure, told.requests) == (None, 0)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_model_that_is_not_served_is_a_reason() -> None:
    told = warmed(Chat(), model="other")
    assert told.error == "it does not serve `other` but `tiny`"


def test_a_host_that_refuses_every_request_is_asked_for_one_level_only() -> None:
    server = Chat(lambda _: http('{"error": {"message": "no"}}', "500 Internal Server Error"))
    told = warmed(server)
    assert phases(told) == [("cold", 1)]
    assert told.error is not None
    assert told.measure is None
    assert told.rounds[0].error_kinds[0].kind == "http_500"


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


def test_a_host_that_stops_answering_is_told_with_its_reason() -> None:
    server = Chat()
    gone = http('{"error": {"message": "gone"}}', "500 Internal Server Error")
    server.answer = lambda _: gone if len(server.asked()) > 7 else None
    told = warmed(server)
    assert phases(told) == [("cold", 1), ("cold", 2), ("cold", 4), ("settle", 4)]
    assert told.error is not None
    assert told.error.startswith("it stopped answering: ")
    assert not told.agreed


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


def test_a_host_that_never_answers_takes_no_longer_than_the_limit() -> None:
    told = warmed(ChatServer(hang), WarmSetting(concurrency=(1, 2), limit_s=0.3))
    assert told.error == "no whole answer within 0.3 s"
    assert phases(told) == [("cold", 1)]


def test_a_warmup_that_is_not_done_in_time_says_so_and_keeps_what_was_measured() -> None:
    async def run() -> Warmed:
        count = 0

        async def at_first(writer: asyncio.StreamWriter) -> bool:
            nonlocal count
            count += 1
            if count > 1:
                await asyncio.Event().wait()
            writer.write(STREAM)
            return True

        async with ChatServer(at_first) as server:
            setting = WarmSetting(concurrency=(1, 2), limit_s=0.5, stream=True)
            return await warm(server.url, setting=setting)

    told = asyncio.run(run())
    assert told.error == "not done within 0.5 s"
    assert not told.agreed
    assert told.levels[0].cold_ms is not None


def test_one_that_was_stopped_tells_what_it_has() -> None:
    async def run() -> Warmed:
        async with Chat() as server:
            first = asyncio.Event()
            target = Target(host=Host(name="alice", url=server.url))
            warming = Warming(target, QUICK, lambda _: first.set())
            task = asyncio.create_task(warming.run())
            await first.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return warming.told()

    told = asyncio.run(run())
    assert told.error == "it was stopped"
    assert told.rounds


def test_a_key_is_sent_and_told_nowhere() -> None:
    server = Chat(lambda _: http('{"error": {"message": "bad sk-12345"}}', "401 Unauthorized"))
    told = warmed(server, key="sk-12345")
    assert all(
        headers["authorization"] == "Bearer sk-12345"
        for _, path, headers in server.requests
        if path == CHAT
    )
    assert "sk-12345" not in repr(told)
    assert "sk-12345" not in repr(Target(host=Host(name="a", url="u"), key="sk-12345"))


# --- the server's log ------------------------------------------------------------------------------------------

LINE = "WARNING [jit_monitor.py:137] Triton kernel JIT compilation during inference: {}. This causes a latency spike; x\n"


def test_what_is_compiled_in_the_probe_is_told_apart_from_what_warmup_compiled(
    tmp_path: Path,
) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(LINE.format("before_us"))
    server, said = Chat(), list[str]()

    def compiling(body: dict[str, Any]) -> None:
        with log.open("a") as file:
            if len(server.asked()) == 1:
                file.write(LINE.format("first_request"))
            if said and "(settle)" in said[-1] and body["stream"]:
                file.write(LINE.format("late_one"))

    server.answer = compiling
    # one level and one round to settle: what follows a settle round is the probe
    setting = WarmSetting(concurrency=(1,), rounds=1, limit_s=60.0, stream=True)
    told = warmed(server, setting, log=log, say=said.append)
    assert told.compiled == 1
    assert told.late_compilations is not None
    assert set(told.late_compilations) == {
        "Triton kernel JIT compilation during inference: late_one"
    }


def test_without_a_log_nothing_is_claimed_of_compilations(tmp_path: Path) -> None:
    told = warmed(Chat(), log=tmp_path / "none.log")
    assert (told.compiled, told.late_compilations) == (None, None)
