"""A whole proxy over real sockets: what is answered from the cache, what goes upstream, and what each client sees."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.chat import DONE, FINISH, HEAD, LAST, ROLE, USAGE, token, until
from support.proxied import ASKED, CHAT, proxied, raw, whole
from support.proxy_calls import gates, run
from support.scripted_upstream import (
    Line,
    ScriptedUpstream,
    dying,
    error_event,
    plain,
    slow,
    streaming,
)

STREAMED = ASKED | {"stream": True}
WITH_USAGE = STREAMED | {"stream_options": {"include_usage": True}}


async def with_usage(line: Line) -> None:
    line.send(HEAD + ROLE + token("Hello") + token(" there") + FINISH + USAGE + DONE + LAST)


# --- hits ---------------------------------------------------------------------------------------------


def test_what_was_asked_before_is_answered_without_the_upstream() -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, proxied(engine) as proxy:
            client = await proxy.client()
            answers = [await client.ask() for _ in range(4)]
            assert [answer.is_hit for answer in answers] == [False, True, True, True]
            assert len({answer.body for answer in answers}) == 1
            assert answers[0].cache == "toolkit; fwd=miss; fwd-status=200; stored"
            assert "age" not in answers[0].headers
            assert answers[2].headers["age"] == "0"
            assert len({answer.headers["x-request-id"] for answer in answers}) == 4
            assert len(engine.lines) == 1
            assert proxy.total("requests") == 4

    run(test())


@pytest.mark.parametrize(
    "again",
    [
        b'{"messages": [{"content": "Hi", "role": "user"}], "model": "tiny"}',
        b'{"model":"tiny","messages":[{"role":"user","content":"\\u0048i"}]}',
        b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"stream":false}',
    ],
)
def test_another_spelling_of_the_same_is_the_same(again: bytes) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, proxied(engine) as proxy:
            await proxy.ask()
            answer = await proxy.ask(again)
            assert answer.is_hit
            assert answer.text == "Hello there"

    run(test())


@pytest.mark.parametrize(
    "other",
    [
        ASKED | {"temperature": 0},
        ASKED | {"min_p": 0.1},
        ASKED | {"a_field_of_tomorrow": 1},
        ASKED | {"messages": [{"role": "user", "content": "hi"}]},
        ASKED | {"user": "somebody"},
    ],
)
def test_any_field_that_differs_makes_another_request(other: object) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, proxied(engine) as proxy:
            await proxy.ask()
            assert not (await proxy.ask(other)).is_hit
            assert len(engine.lines) == 2

    run(test())


def test_a_path_is_a_part_of_what_is_asked() -> None:
    body = {"model": "tiny", "prompt": "Hi", "messages": ASKED["messages"]}

    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, proxied(engine) as proxy:
            await proxy.ask(body)
            assert not (await proxy.ask(body, path="/v1/completions")).is_hit

    run(test())


def test_very_bytes_are_remembered_and_still_go_out_of_time() -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, proxied(engine) as proxy:
            client = await proxy.client()
            for _ in range(3):
                await client.ask()
            assert len(proxy.proxy.kit.layers.memo) == 1
            await proxy.admin("/purge", {"all": True})
            assert not (await client.ask()).is_hit
            assert len(engine.lines) == 2

    run(test())


@pytest.mark.parametrize("header", ["x-request-id: mine", "cache-control: max-age=60"])
def test_what_differs_from_time_to_time_is_not_remembered_by_its_bytes(header: str) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, proxied(engine) as proxy:
            answers = [await proxy.ask(headers=[header]) for _ in range(3)]
            assert answers[2].is_hit
            assert len(proxy.proxy.kit.layers.memo) == 0
            if header.startswith("x-"):
                assert answers[2].headers["x-request-id"] == "mine"

    run(test())


def test_a_client_that_closes_after_its_answer_is_told_so_by_hits_too() -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, proxied(engine) as proxy:
            for _ in range(3):
                client = await proxy.client()
                answer = await client.ask(headers=["connection: close"])
                assert answer.headers["connection"] == "close"
                assert await client.reader.read() == b""
            assert answer.is_hit

    run(test())


# --- one stored answer in two views ------------------------------------------------------------------


def test_a_stored_whole_is_shown_as_a_stream_and_a_stored_stream_as_a_whole() -> None:
    async def test() -> None:
        async with ScriptedUpstream() as engine, proxied(engine) as proxy:
            engine.scripts = [whole("from a whole"), with_usage]
            await proxy.ask()
            streamed = await proxy.ask(STREAMED)
            assert streamed.is_hit
            assert streamed.text == "from a whole"
            assert streamed.body.endswith(b"data: [DONE]\n\n")
            other = STREAMED | {"seed": 1}
            assert (await proxy.ask(other)).text == "Hello there"
            told = await proxy.ask(ASKED | {"seed": 1})
            assert told.is_hit
            assert told.json["choices"][0]["message"]["content"] == "Hello there"
            usage = told.json["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 2)

    run(test())


def test_the_usage_is_asked_for_and_shown_to_those_alone_who_asked() -> None:
    async def test() -> None:
        async with ScriptedUpstream(with_usage) as engine, proxied(engine) as proxy:
            plain_, again = await proxy.ask(STREAMED), await proxy.ask(STREAMED)
            asking = await proxy.ask(WITH_USAGE)
            sent = json.loads(engine.lines[0].body)
            assert sent == STREAMED | {"stream_options": {"include_usage": True}}
            assert not any("usage" in event for event in plain_.events + again.events)
            assert asking.events[-1]["usage"]["completion_tokens"] == 2
            assert (again.is_hit, asking.is_hit, len(engine.lines)) == (True, True, 1)

    run(test())


def test_a_body_goes_upstream_byte_for_byte_where_nothing_is_to_be_added() -> None:
    body = b'\t{"temperature" : 1.0, "model":"tiny", "messages":[{"role":"user","content":"H\\u0069"}] }\n'

    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, proxied(engine) as proxy:
            await proxy.ask(body)
            assert engine.lines[0].body == body

    run(test())


def test_a_view_that_is_not_known_is_neither_stored_nor_given() -> None:
    odd = STREAMED | {"stream_options": {"include_usage": True, "tomorrow": 1}}

    async def test() -> None:
        async with ScriptedUpstream(with_usage) as engine, proxied(engine) as proxy:
            await proxy.ask(WITH_USAGE)
            for _ in range(2):
                assert not (await proxy.ask(odd)).is_hit
            assert [json.loads(line.body) for line in engine.lines[1:]] == [odd, odd]

    run(test())


# --- twins -----------------------------------------------------------------------------------------------


def test_many_equal_requests_at_once_make_one_call_and_all_see_it_live() -> None:
    async def test() -> None:
        gate = gates(2)
        async with (
            ScriptedUpstream(slow(["Hello", " there"], gate)) as engine,
            proxied(engine) as proxy,
        ):
            asking = [asyncio.create_task(proxy.ask(STREAMED)) for _ in range(16)]
            await engine.asked()
            gate[0].set()
            late = asyncio.create_task(proxy.ask(STREAMED))
            whole_ = asyncio.create_task(proxy.ask())
            await until(lambda: len(proxy.proxy.inside.calls) == 1 and joined(proxy) == 18)
            gate[1].set()
            answers = await asyncio.gather(*asking, late)
            assert {answer.text for answer in answers} == {"Hello there"}
            assert sum("collapsed" in answer.cache for answer in answers) == 16
            assert (await whole_).status == 200
            assert len([line for line in engine.lines if b'stream": true' in line.body]) == 1

    run(test())


def joined(proxy: Any) -> int:
    """Clients aboard of all calls."""
    calls = proxy.proxy.inside.calls
    return sum(call.clients for call in calls._under_way)


def test_a_leader_that_leaves_ends_nothing_and_the_last_one_ends_it() -> None:
    async def test() -> None:
        gate = gates(2)
        async with (
            ScriptedUpstream(slow(["Hello", " there"], gate)) as engine,
            proxied(engine) as proxy,
        ):
            leader, other = await proxy.client(), await proxy.client()
            leader.writer.write(raw(STREAMED))
            await engine.asked()
            other.writer.write(raw(STREAMED))
            await until(lambda: joined(proxy) == 2)
            leader.close()
            await until(lambda: joined(proxy) == 1)
            assert not engine.lines[0].gone.is_set()
            other.close()
            await engine.lines[0].gone.wait()
            assert len(proxy.proxy.inside.calls) == 0

    run(test())


# --- what is never stored -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        plain("500 Internal Server Error", b'{"error":{"message":"no"}}'),
        plain("400 Bad Request", b'{"error":{"message":"no"}}'),
        plain(
            "200 OK", b'{"choices":[{"index":0,"message":{"content":"cut"},"finish_reason":null}]}'
        ),
        plain(
            "200 OK", b'{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"abort"}]}'
        ),
        plain("200 OK", b"not JSON"),
        dying("Hello"),
    ],
    ids=["500", "400", "unfinished", "abort", "garbage", "dies"],
)
def test_what_is_not_whole_is_passed_on_and_not_stored(script: Any) -> None:
    async def test() -> None:
        async with ScriptedUpstream(script) as engine, proxied(engine) as proxy:
            for _ in range(2):
                answer = await proxy.ask(STREAMED)
                assert not answer.is_hit
                assert "stored" not in answer.cache
            assert len(engine.lines) == 2
            assert len(proxy.proxy.kit.layers.memory) == 0

    run(test())


def test_a_stream_that_fails_inside_is_not_stored() -> None:
    async def test() -> None:
        end = asyncio.Event()
        end.set()
        async with (
            ScriptedUpstream(error_event("Hello", end=end)) as engine,
            proxied(engine) as proxy,
        ):
            for _ in range(2):
                answer = await proxy.ask(STREAMED)
                assert b"EngineCore encountered an issue" in answer.body
            assert len(engine.lines) == 2

    run(test())


# --- policies and wishes --------------------------------------------------------------------------------


def test_declared_stores_only_what_says_that_one_answer_is_as_good_as_another() -> None:
    async def test() -> None:
        async with (
            ScriptedUpstream(whole()) as engine,
            proxied(engine, '[cache]\npolicy = "declared"\n') as proxy,
        ):
            for body, is_kept in (
                (ASKED, False),
                (ASKED | {"temperature": 0.7}, False),
                (ASKED | {"temperature": 0}, True),
                (ASKED | {"seed": 3}, True),
            ):
                await proxy.ask(body)
                again = await proxy.ask(body)
                assert again.is_hit is is_kept, body
            assert "fwd=bypass" in (await proxy.ask()).cache

    run(test())


def test_a_client_can_only_be_stricter() -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, proxied(engine) as proxy:

            async def ask(*headers: str) -> Any:
                return await proxy.ask(headers=headers)

            assert (await ask("cache-control: only-if-cached")).status == 504
            assert len(engine.lines) == 0
            assert not (await ask("cache-control: no-store")).is_hit
            assert not (await ask()).is_hit, "it was not stored"
            assert (await ask()).is_hit
            engine.script = whole("newer")
            assert (await ask("cache-control: no-cache")).text == "newer"
            assert (await ask()).text == "newer", "no-cache is stored"
            assert (await ask("cache-control: no-store")).is_hit, "no-store may read"
            assert not (await ask("x-toolkit-cache: off")).is_hit
            assert (await ask("cache-control: only-if-cached")).is_hit
            assert len(engine.lines) == 4

    run(test())


def test_off_stores_nothing_and_joins_nobody() -> None:
    async def test() -> None:
        async with (
            ScriptedUpstream(whole()) as engine,
            proxied(engine, '[cache]\npolicy = "off"\n') as proxy,
        ):
            await asyncio.gather(proxy.ask(), proxy.ask())
            assert len(engine.lines) == 2
            assert len(proxy.proxy.kit.layers.memory) == 0

    run(test())


# --- refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"model":"a","model":"b","messages":[]}', "duplicate keys"),
        (b'{"model":"a","temperature":NaN}', "NaN or Infinity"),
        (b'{"a":' + b"[" * 80 + b"]" * 80 + b"}", "nested deeper than 64"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b"[1]", "not a JSON object"),
        (b"", "not JSON"),
    ],
)
def test_a_body_that_two_readers_may_take_for_different_ones_goes_nowhere(
    body: bytes, why: str
) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, proxied(engine) as proxy:
            answer = await proxy.ask(body)
            assert answer.status == 400
            assert why in answer.json["error"]["message"]
            assert engine.lines == []

    run(test())


def test_what_is_not_said_to_be_json_is_refused() -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, proxied(engine) as proxy:
            answer = await proxy.ask(headers=["content-type: text/plain"])
            assert (answer.status, engine.lines) == (415, [])

    run(test())


@pytest.mark.parametrize(
    "path",
    ["/metrics/", "/tokenize", "/invocations", "/v1/../metrics", "/v1/load_lora_adapter", "/"],
)
def test_what_is_not_on_the_list_is_not_forwarded(path: str) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, proxied(engine) as proxy:
            assert (await proxy.ask(path=path)).status == 404
            assert (await proxy.ask(path=CHAT, method="PUT")).status == 405
            assert engine.lines == []

    run(test())


# --- what goes upstream, and what comes back ----------------------------------------------------------


def test_headers_go_by_list_in_both_directions() -> None:
    script = plain(
        "500 Internal Server Error",
        b'{"error":{"message":"no"}}',
        "set-cookie: a=b",
        "server: uvicorn",
        "x-model-api-base: http://10.0.0.4",
    )

    async def test() -> None:
        async with ScriptedUpstream(script) as engine, proxied(engine) as proxy:
            answer = await proxy.ask(
                key="sk-mine",
                headers=["cookie: a=b", "x-forwarded-for: 1.2.3.4", "traceparent: 00-ab-cd-01"],
            )
            assert set(answer.headers) == {
                *("date", "content-length", "content-type", "cache-status", "x-request-id")
            }
            assert set(engine.lines[0].headers) == {
                *(
                    "host",
                    "accept",
                    "accept-encoding",
                    "user-agent",
                    "content-type",
                    "content-length",
                ),
                "traceparent",
            }

    run(test())


def test_a_fallback_is_asked_for_its_own_model_and_its_answer_is_not_stored() -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine, ScriptedUpstream(whole("B")) as other:
            engine.stop_listening()
            settings = (
                f'[[upstream]]\nname = "a"\nurl = "{engine.url}"\nprobes = false\n'
                f'[[upstream]]\nname = "b"\nurl = "{other.url}"\nfallback = true\n'
                'model = "spare"\nkey_env = "SPARE_KEY"\n'
            )
            async with proxied(
                [engine, other], settings, environ={"SPARE_KEY": "sk-spare"}
            ) as proxy:
                for _ in range(2):
                    answer = await proxy.ask()
                    assert (answer.text, answer.is_hit) == ("B", False)
                assert [line.method for line in other.lines] == ["POST", "POST"], "a look may cost"
                assert json.loads(other.lines[0].body)["model"] == "spare"
                assert other.lines[0].headers["authorization"] == "Bearer sk-spare"

    run(test())


# --- over a restart -------------------------------------------------------------------------------------


def test_answers_survive_the_proxy(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedUpstream(streaming("Hello", " there")) as engine:
            async with proxied(engine, folder=tmp_path) as first:
                await first.ask(STREAMED)
            async with proxied(engine, folder=tmp_path) as second:
                answers = [await second.ask(STREAMED) for _ in range(3)]
            assert all(answer.is_hit for answer in answers)
            assert answers[0].text == "Hello there"
            assert len(engine.lines) == 1
        lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert [line["cache"] for line in lines] == ["miss", "hit", "hit", "hit"]
        assert [line.get("layer") for line in lines] == [None, "disk", "memory", "memory"]
        assert [line["new"] for line in lines] == [True, False, False, False]

    run(test())
