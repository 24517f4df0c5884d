"""The primary and the other workers as one: what is forgotten, raised, drained and counted is so everywhere."""

import asyncio
from pathlib import Path

import pytest
from support.chat import until
from support.proxied import ASKED, CHAT, whole
from support.proxy_calls import run
from support.scripted_upstream import Line, ScriptedUpstream
from support.worker_family import family

from toolkit.proxy import workers

ALL = (0, 1, 2)


def other(number: int) -> dict[str, object]:
    return ASKED | {"seed": number}


# --- forgetting -------------------------------------------------------------------------------------------


def test_a_purge_of_one_request_leaves_the_others_where_they_are(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole("old")) as engine, family(engine, tmp_path) as home:
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
    monkeypatch.setattr(workers, "LIMIT_S", 0.1)

    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, family(engine, tmp_path) as home:
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


def test_epochs_that_the_file_could_not_take_are_told_by_the_primary(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole("old")) as engine, family(engine, tmp_path) as home:
            await home.ask(1)
            await home.everywhere()
            engine.script = whole("new")
            home.primary.fingerprints._file = None
            home.primary.fingerprints.raise_all()
            await home.primary.front_workers.sync()
            assert [(await home.ask(worker)).text for worker in (1, 2)] == ["new"] * 2

    run(test())


def test_epochs_are_read_from_the_file_where_no_primary_tells_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole("old")) as engine, family(engine, tmp_path) as home:
            await home.ask(1)
            await home.everywhere()
            await home.primary.stop(0.0)
            shared = home.others[2].cache.sqlite
            shared.keep_fingerprints({"model *": "1"})
            await until(lambda: home.others[1].fingerprints.incarnations == {"*": 1})
            assert (await home.ask(1)).status == 503

    run(test())


# --- counting ---------------------------------------------------------------------------------------------


def test_each_request_is_logged_once_by_who_answered_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, family(engine, tmp_path) as home:
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
        async with ScriptedUpstream(whole()) as engine, family(engine, tmp_path) as home:
            client = await home.client(2)
            await client.ask()
            assert (await home.admin("/state")).json["connections"] == 1
            await home.stop_other(2)
            state = (await home.admin("/state")).json
            assert (state["workers"], state["connections"]) == (2, 0)

    run(test())


def test_with_a_redis_all_workers_agree_in_who_answers(tmp_path: Path) -> None:
    async def test() -> None:
        # nobody listens there: what is left of a Redis is how keys are made
        settings = '[cache]\nredis_env = "CACHE"\n[routing]\nlook = "50ms"\n'
        pages = Engine()
        async with (
            ScriptedUpstream(pages) as engine,
            family(
                engine, tmp_path, settings, environ={"CACHE": "redis://127.0.0.1:9"}, probes=True
            ) as home,
        ):

            def agrees() -> bool:
                words = [each.fingerprints.of("tiny") for each in home.others.values()]
                return set(words) == {home.primary.fingerprints.of("tiny")}

            # a worker that has not read yet what the primary knows looks under another word
            await until(lambda: home.primary.fingerprints.facts and agrees())
            await home.ask(1)
            answers = await home.everywhere()
            assert {answer.text for answer in answers} == {"since 1000"}
            makers = {answer.headers["x-request-id"].partition("-")[0] for answer in answers}
            assert len(makers) == 3
            for server in home.others.values():
                assert server.fingerprints.of(None) == home.primary.fingerprints.of(None)
            pages.started_at = 2_000.0
            await until(lambda: bool(home.primary.fingerprints.incarnations))
            await until(agrees)
            assert {(await home.ask(worker)).text for worker in ALL} == {"since 2000"}

    run(test())


def test_a_purge_that_redis_refuses_is_made_everywhere_else_and_told(tmp_path: Path) -> None:
    async def test() -> None:
        # nobody listens there
        environ = {"CACHE": "redis://127.0.0.1:9"}
        async with (
            ScriptedUpstream(whole()) as engine,
            family(engine, tmp_path, '[cache]\nredis_env = "CACHE"\n', environ=environ) as home,
        ):
            await home.ask(1)
            assert all(answer.is_hit for answer in await home.everywhere())
            refused = await home.admin("/purge", {"all": True})
            assert refused.status == 400
            assert "there is no connection to it" in refused.json["error"]["message"]
            assert not (await home.ask(2)).is_hit
            assert len(engine.lines) == 2

    run(test())
