"""The owner and the other workers as one: what is forgotten, raised, drained and counted is so everywhere."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.chat import until
from support.one_house import House, house
from support.proxied import ASKED, CHAT, whole
from support.proxy_calls import gates, run
from support.scripted_upstream import Line, ScriptedUpstream, slow

from toolkit.proxy.processes import crew

ALL = (0, 1, 2)


def other(number: int) -> dict[str, object]:
    return ASKED | {"seed": number}


async def counted(home: House) -> dict[str, float]:
    """Requests by how the cache served them, as the admin's page tells."""
    page = (await home.admin("/metrics")).body.decode()
    found: dict[str, float] = {}
    for line in page.splitlines():
        if line.startswith("toolkit_proxy_requests_total{"):
            cache = line.partition('cache="')[2].partition('"')[0]
            found[cache] = found.get(cache, 0) + float(line.rpartition(" ")[2])
    return found


# --- forgetting -------------------------------------------------------------------------------------------


def test_a_purge_reaches_what_each_worker_has_in_memory(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole("old")) as engine, house(engine, tmp_path) as home:
            await home.ask(1)
            assert all(answer.is_hit for answer in await home.everywhere())
            engine.script = whole("new")
            assert (await home.admin("/purge", {"all": True})).json == {"purged": 1}
            # the last one first, so that none of them is told by another's miss
            assert [(await home.ask(worker)).text for worker in (2, 1, 0)] == ["new"] * 3
            assert len(engine.lines) == 2

    run(test())


def test_a_purge_of_one_request_leaves_the_others_where_they_are(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole("old")) as engine, house(engine, tmp_path) as home:
            for body in (ASKED, other(1)):
                await home.ask(1, body)
                await home.everywhere(body)
            engine.script = whole("new")
            question = {"request": {"path": CHAT, "body": ASKED}}
            assert (await home.admin("/purge", question)).json == {"purged": 1}
            assert [(await home.ask(worker)).text for worker in ALL] == ["new"] * 3
            assert [(await home.ask(worker, other(1))).text for worker in ALL] == ["old"] * 3

    run(test())


def test_a_purge_that_a_worker_did_not_hear_is_told_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "LIMIT_S", 0.1)

    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, house(engine, tmp_path) as home:
            # somebody is there, and says nothing: it may hold anything
            await home.stop_other(2)
            path = tmp_path / "worker-2.sock"
            path.unlink(missing_ok=True)

            async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.read()
                writer.close()

            silent = await asyncio.start_unix_server(listen, path)
            async with silent:
                answer = await home.admin("/purge", {"all": True})
                assert answer.status == 400
                assert "`2`" in answer.json["error"]["message"]
            path.unlink(missing_ok=True)
            # nobody is there: it holds nothing
            assert (await home.admin("/purge", {"all": True})).status == 200

    run(test())


# --- epochs -----------------------------------------------------------------------------------------------


class Engine:
    """A vLLM that says when it was started, and answers with that."""

    def __init__(self) -> None:
        self.started_at = 1_000.0

    async def __call__(self, line: Line) -> None:
        if line.target == "/metrics":
            names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
            page = "".join(
                f'# TYPE vllm:{name} gauge\nvllm:{name}{{model_name="tiny"}} 0\n' for name in names
            )
            page += f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {self.started_at}\n"
            send(line, page.encode(), "text/plain; version=0.0.4")
        elif line.target.startswith("/v1/chat"):
            await whole(f"since {self.started_at:.0f}")(line)
        else:
            send(line, b"{}", "application/json")


def send(line: Line, body: bytes, content_type: str) -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    line.send(head.encode() + body)


def test_no_worker_serves_what_an_engine_said_before_its_restart(tmp_path: Path) -> None:
    async def test() -> None:
        pages, look = Engine(), '[routing]\nlook = "50ms"\n'
        async with (
            ScriptedUpstream(pages) as engine,
            house(engine, tmp_path, look, probes=True) as home,
        ):
            await home.ask(1)
            assert {answer.text for answer in await home.everywhere()} == {"since 1000"}
            pages.started_at = 2_000.0
            await until(lambda: bool(home.owner.kit.generations.numbers))
            wanted = home.owner.kit.generations.numbers
            await until(
                lambda: all(each._generations.numbers == wanted for each in home.others.values())
            )
            assert {(await home.ask(worker)).text for worker in ALL} == {"since 2000"}
            # and one that starts later knows it from the file
            await home.stop_other(2)
            await home.start_another(2)
            assert (await home.ask(2)).text == "since 2000"

    run(test())


def test_epochs_that_the_file_could_not_take_are_told_by_the_owner(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole("old")) as engine, house(engine, tmp_path) as home:
            await home.ask(1)
            await home.everywhere()
            engine.script = whole("new")
            # as the keeper does, but for the file
            home.owner.kit.generations.bump(["tiny", "*"])
            await home.owner.crew.look()
            assert [(await home.ask(worker)).text for worker in (1, 2)] == ["new"] * 2

    run(test())


def test_epochs_are_read_from_the_file_where_no_owner_tells_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole("old")) as engine, house(engine, tmp_path) as home:
            await home.ask(1)
            await home.everywhere()
            await home.owner.stop(0.0)
            shared = home.others[2]._shared
            await asyncio.to_thread(shared.bump, "tiny")
            await asyncio.to_thread(shared.bump, "*")
            await until(lambda: home.others[1]._generations.of("tiny") == "tiny@1")
            assert (await home.ask(1)).status == 503

    run(test())


# --- counting ---------------------------------------------------------------------------------------------


def test_counters_add_up_to_what_was_sent_and_survive_a_worker(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, house(engine, tmp_path) as home:
            await home.ask(1)
            await home.everywhere()
            # of the 6 each worker had 2, and all were hits: the owner's of its memory
            assert await counted(home) == {"miss": 1, "hit": 6}
            for worker in ALL:
                await home.ask(worker, {"no": "model"}, headers=["x-toolkit-cache: off"])
                await home.ask(worker, b"{")
            found = await counted(home)
            assert (found["hit"], found["miss"], found["bypass"]) == (6, 1, 6)
            await home.stop_other(2)
            assert await counted(home) == found
            await home.start_another(2)
            await home.ask(2)
            assert await counted(home) == found | {"hit": 7}

    run(test())


def test_each_request_is_logged_once_by_who_answered_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, house(engine, tmp_path) as home:
            await home.ask(1)
            await home.everywhere()
            await home.ask(2, other(1))
            await home.ask(2, b"{")
        log = (tmp_path / "log.jsonl").read_text()
        # a miss, 6 hits, a miss and a refusal
        assert log.count('"cache":"miss"') == 2
        assert log.count('"cache":"hit"') == 6
        assert log.count('"path"') == 9

    run(test())


def test_a_worker_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, house(engine, tmp_path) as home:
            client = await home.client(2)
            await client.ask()
            assert (await home.admin("/state")).json["connections"] == 1
            await home.stop_other(2)
            state = (await home.admin("/state")).json
            assert (state["workers"], state["connections"]) == (2, 0)

    run(test())


# --- draining ---------------------------------------------------------------------------------------------


def test_draining_and_its_end_reach_every_worker(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, house(engine, tmp_path) as home:

            async def endings() -> list[str | None]:
                return [(await home.ask(each)).headers.get("connection") for each in ALL]

            await home.ask(1)
            await home.everywhere()
            assert await endings() == [None] * 3
            assert (await home.admin("/drain", b"")).status == 200
            assert await endings() == ["close"] * 3
            assert (await home.ask(1, b"", path="/ready", method="GET")).status == 503
            assert (await home.admin("/undrain", b"")).status == 200
            assert await endings() == [None] * 3
            assert (await home.ask(1, b"", path="/ready", method="GET")).status == 200

    run(test())


def test_a_worker_that_shuts_finishes_what_it_handed_on(tmp_path: Path) -> None:
    async def test() -> None:
        gate = gates(1)
        async with ScriptedUpstream(slow(["x"], gate)) as engine, house(engine, tmp_path) as home:
            asking: asyncio.Task[Any] = asyncio.create_task(home.ask(1, ASKED | {"stream": True}))
            await engine.asked()
            server = home.others[1]
            server.shut()
            ending = asyncio.create_task(server.until_idle())
            gate[0].set()
            answer = await asking
            assert answer.is_whole
            assert answer.text == "x"
            home.close_clients()
            await ending

    run(test())


def test_with_a_redis_all_workers_agree_in_who_answers(tmp_path: Path) -> None:
    async def test() -> None:
        # nobody listens there: what is left of a Redis is how keys are made
        settings = '[cache]\nredis_env = "CACHE"\n[routing]\nlook = "50ms"\n'
        pages = Engine()
        async with (
            ScriptedUpstream(pages) as engine,
            house(
                engine, tmp_path, settings, environ={"CACHE": "redis://127.0.0.1:9"}, probes=True
            ) as home,
        ):
            await home.ask(1)
            answers = await home.everywhere()
            assert {answer.text for answer in answers} == {"since 1000"}
            makers = {answer.headers["x-request-id"].partition("-")[0] for answer in answers}
            assert len(makers) == 3
            for server in home.others.values():
                assert server._generation("tiny") == home.owner.kit.generation("tiny")
                assert server._generation(None) == home.owner.kit.generation(None)
            pages.started_at = 2_000.0
            await until(lambda: bool(home.owner.kit.generations.numbers))
            await until(
                lambda: all(
                    each._generation("tiny") == home.owner.kit.generation("tiny")
                    for each in home.others.values()
                )
            )
            assert {(await home.ask(worker)).text for worker in ALL} == {"since 2000"}

    run(test())


def test_a_purge_that_redis_refuses_is_made_everywhere_else_and_told(tmp_path: Path) -> None:
    async def test() -> None:
        # nobody listens there
        environ = {"CACHE": "redis://127.0.0.1:9"}
        async with (
            ScriptedUpstream(whole()) as engine,
            house(engine, tmp_path, '[cache]\nredis_env = "CACHE"\n', environ=environ) as home,
        ):
            await home.ask(1)
            assert all(answer.is_hit for answer in await home.everywhere())
            refused = await home.admin("/purge", {"all": True})
            assert refused.status == 400
            assert "there is no connection to it" in refused.json["error"]["message"]
            assert not (await home.ask(2)).is_hit
            assert len(engine.lines) == 2

    run(test())


def test_a_worker_lets_nobody_in_before_it_knows_who_answers_now(tmp_path: Path) -> None:
    """It was made while the owner had not looked at the upstreams yet, as all workers are."""

    async def test() -> None:
        settings = '[cache]\nredis_env = "CACHE"\n[routing]\nlook = "50ms"\n'
        environ = {"CACHE": "redis://127.0.0.1:9"}
        pages = Engine()
        async with (
            ScriptedUpstream(pages) as engine,
            house(engine, tmp_path, settings, workers=1, environ=environ, probes=True) as home,
        ):
            server, before = home.another(1), home.owner.kit.generation("tiny")
            pages.started_at = 2_000.0
            await until(lambda: home.owner.kit.generation("tiny") != before)
            # the owner writes it down a moment later
            await until(lambda: server._read_identities() != server._identities)
            await server.start()
            await server.open()
            assert server._generation("tiny") == home.owner.kit.generation("tiny")

    run(test())
