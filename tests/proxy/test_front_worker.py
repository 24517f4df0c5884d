"""Several workers over real sockets, in one loop: what one cannot answer the primary does, and the client sees no difference."""

import asyncio
import json
from pathlib import Path

import pytest
from support.chat import DONE, FINISH, HEAD, LAST, ROLE, token, until
from support.proxied import ASKED, CHAT, Answer, raw, whole
from support.proxy_calls import gates
from support.scripted_upstream import Line, Script, ScriptedUpstream, dying, hanging, plain, slow
from support.worker_family import Family, family

from toolkit.proxy.workers import Relay

STREAMED = ASKED | {"stream": True}
KEYS = {"RED": "sk-red", "BLUE": "sk-blue"}
RED, BLUE = "sk-red", "sk-blue"
TEAMS = "".join(f'[[team]]\nname = "{n}"\nkey_env = "{n.upper()}"\n' for n in ("red", "blue"))
ALL = (0, 1, 2)


def other(number: int) -> dict[str, object]:
    return ASKED | {"seed": number}


# --- hits -----------------------------------------------------------------------------------------------


async def test_a_new_answer_that_a_client_wanted_takes_the_old_ones_place_at_every_worker(
    tmp_path: Path,
) -> None:
    async with ScriptedUpstream(whole("old")) as engine, family(engine, tmp_path) as home:
        await home.ask(1)
        assert {answer.text for answer in await home.everywhere()} == {"old"}
        engine.script = whole("new")
        fresh = await home.ask(1, headers=["cache-control: no-cache"])
        assert fresh.text == "new"
        async with asyncio.timeout(60):
            while {each.text for each in await home.everywhere()} != {"new"}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert len(engine.lines) == 2


# --- misses -----------------------------------------------------------------------------------------------


async def test_the_upstream_gets_the_very_body_and_its_allowed_headers(tmp_path: Path) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = b'{"model" : "tiny","messages":[{"role":"user","content":"\xc3\xa9 \\u0041"}]}'
    async with ScriptedUpstream(whole()) as engine, family(engine, tmp_path) as home:
        for worker, seed in ((0, b"1"), (1, b"2")):
            sent = body[:-1] + b', "seed": ' + seed + b"}"
            headers = [f"traceparent: {trace}", "cookie: secret", "accept: text/html"]
            await home.ask(worker, sent, key="sk-mine", headers=headers)
            line = engine.lines[-1]
            assert line.body == sent
            assert line.headers["traceparent"] == trace
            assert line.headers["content-type"] == "application/json"
        direct, relayed = engine.lines
        assert set(direct.headers) == set(relayed.headers)
        assert not {"cookie", "authorization", "x-toolkit-relay"} & set(relayed.headers)
        # also where both are long
        text = "x" * 5_000_000
        body = json.dumps(ASKED | {"messages": [{"role": "user", "content": text}]}).encode()
        wish = "x-toolkit-cache: " + "ttl=1h, " * 6000 + "ttl=1h"
        assert (await home.ask(1, body, headers=[wish])).status == 200
        assert engine.lines[2].body == body


async def test_each_event_of_a_stream_is_passed_on_at_once(tmp_path: Path) -> None:
    gate = gates(2)
    async with (
        ScriptedUpstream(slow(["one", "two"], gate)) as engine,
        family(engine, tmp_path) as home,
    ):
        client = await home.client(1)
        client.writer.write(raw(STREAMED))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"text/event-stream" in head
        assert b"transfer-encoding: chunked" in head
        for each, word in zip(gate, (b"one", b"two"), strict=True):
            each.set()
            # the next event waits for the next gate: this one was not kept until then
            await client.reader.readuntil(b'"%b"' % word)
        await client.reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_a_client_that_leaves_a_worker_is_seen_leaving_upstream(tmp_path: Path) -> None:
    async with ScriptedUpstream(hanging()) as engine, family(engine, tmp_path) as home:
        client = await home.client(1)
        client.writer.write(raw())
        line = await engine.asked()
        client.close()
        async with asyncio.timeout(60):
            await line.gone.wait()
        await until(lambda: home.primary.telemetry.counters.total("clients_left") == 1)


async def test_a_clients_wishes_and_its_id_reach_the_primary_as_they_were(tmp_path: Path) -> None:
    async with ScriptedUpstream(whole()) as engine, family(engine, tmp_path) as home:
        mine = ["x-request-id: mine-1", "cache-control: no-store", "cache-control: no-cache"]
        answer = await home.ask(1, headers=mine)
        assert answer.headers["x-request-id"] == "mine-1"
        assert answer.cache == "toolkit; fwd=request; fwd-status=200"
        # each of the two cache_control counted, or this would be a hit
        assert not (await home.ask(1)).is_hit
        # what can't be read as a wish of ours counts as `off`, as it does at the primary
        odd = raw().replace(b"\r\n\r\n", b"\r\nx-toolkit-cache: \xff\r\n\r\n", 1)
        await (await home.client(1)).send(odd)
        assert len(engine.lines) == 3
        only = await home.ask(1, other(5), headers=["cache-control: only-if-cached"])
        assert only.status == 504


@pytest.mark.parametrize(
    ("script", "status", "body"),
    [
        (plain("404 Not Found", b'{"error": "no model"}'), 404, b'{"error": "no model"}'),
        (plain("500 Internal Server Error", b"x" * 100_000), 500, b"x" * 100_000),
        (plain("429 Too Many", b"{}", "retry-after: 7"), 429, b"{}"),
    ],
)
async def test_an_answer_comes_back_as_the_primary_gives_it(
    script: Script, status: int, body: bytes, tmp_path: Path
) -> None:
    async with ScriptedUpstream(script) as engine, family(engine, tmp_path) as home:
        answers = [await home.ask(worker, other(worker)) for worker in (0, 1)]
        assert [(answer.status, answer.body) for answer in answers] == [(status, body)] * 2
        direct, relayed = (without(answer) for answer in answers)
        assert direct == relayed


def without(answer: Answer) -> dict[str, str]:
    own = {"x-request-id", "date"}
    return {name: value for name, value in answer.headers.items() if name not in own}


async def test_a_stream_that_is_cut_upstream_is_cut_for_the_client_and_says_why(
    tmp_path: Path,
) -> None:
    async with ScriptedUpstream(dying("Hel")) as engine, family(engine, tmp_path) as home:
        answer = await home.ask(1, STREAMED)
        assert not answer.is_whole
        assert b'"error"' in answer.body
        assert home.primary.telemetry.counters.total("errors") == 1


async def test_a_client_that_reads_slowly_gets_everything_and_holds_the_primary_back(
    tmp_path: Path,
) -> None:
    piece = token("x" * 1000)

    async def long(line: Line) -> None:
        line.send(HEAD + ROLE)
        for _ in range(8000):
            line.send(piece)
        line.send(FINISH + DONE + LAST)

    async with ScriptedUpstream(long) as engine, family(engine, tmp_path) as home:
        client = await home.client(1)
        client.writer.write(raw(STREAMED))
        await client.reader.readuntil(b"\r\n\r\n")
        # it reads no further, and so nobody does: not the worker, and not the primary
        relays = home.primary._fronts[2]
        await until(lambda: any(each.waits_for == "client" for each in relays._open))
        body = b""
        async with asyncio.timeout(60):
            while (size := int(await client.reader.readuntil(b"\r\n"), 16)) > 0:
                body += (await client.reader.readexactly(size + 2))[:-2]
        assert body.count(b"x" * 1000) == 8000
        assert body.endswith(b"data: [DONE]\n\n")


# --- who asks ---------------------------------------------------------------------------------------------


async def test_the_primarys_private_socket_takes_nothing_but_what_workers_say(
    tmp_path: Path,
) -> None:
    async with (
        ScriptedUpstream(whole()) as engine,
        family(engine, tmp_path, TEAMS, environ=KEYS) as home,
    ):
        assert home.ports
        path = home.folder / "primary.sock"
        assert path.stat().st_mode & 0o077 == 0
        for team, wanted in (([], b"401"), (["x-toolkit-team: nobody"], b"500")):
            lines = ["x-toolkit-arrived: 0.0", *team]
            assert (await private(home, raw(headers=lines))).split(b" ")[1] == wanted
        assert (await private(home, raw())).split(b" ")[1] == b"400"
        assert (await private(home, raw(key=RED))).split(b" ")[1] == b"400"
        assert not engine.lines


async def private(home: Family, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(home.folder / "primary.sock"))
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    return head


async def test_a_worker_refuses_by_itself_what_nobody_may_ask(tmp_path: Path) -> None:
    async with ScriptedUpstream(whole()) as engine, family(engine, tmp_path) as home:
        for more, status in (
            ({"path": "/v1/nothing"}, 404),
            ({"path": CHAT, "method": "PUT"}, 405),
            ({"body": b"{"}, 400),
            ({"headers": ["content-type: text/plain"]}, 415),
        ):
            relayed, direct = await home.ask(1, **more), await home.ask(0, **more)
            assert (relayed.status, relayed.body) == (direct.status, direct.body)
            assert relayed.status == status
        assert not engine.lines


async def test_a_head_tells_no_length_that_a_get_would_not_have(tmp_path: Path) -> None:
    # with a length and no body, as a server answers HEAD
    async def models(line: Line) -> None:
        line.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n")

    async with ScriptedUpstream(models) as engine, family(engine, tmp_path) as home:
        for worker in ALL:
            answer = await home.ask(worker, b"", path="/v1/models", method="HEAD")
            assert answer.status == 200
            assert answer.headers.get("content-length") is None
            assert answer.body == b""


async def test_pages_and_passed_paths_come_from_the_primary(tmp_path: Path) -> None:
    models, settings = plain("200 OK", b'{"data": []}'), '[cache]\nmemory = "9MiB"\n'
    async with ScriptedUpstream(models) as engine, family(engine, tmp_path, settings) as home:
        answer = await home.ask(1, b"", path="/v1/models", method="GET")
        assert answer.json == {"data": []}
        assert (await home.ask(1, b"", path="/ready", method="GET")).status == 200
        page = await home.ask(1, b"", path="/metrics", method="GET")
        assert b"toolkit_proxy_requests_total" in page.body
        assert json.loads((await home.ask(1, b"", path="/version", method="GET")).body)
        # memory is parted, and the whole is what the settings say
        state = (await home.admin("/state")).json
        memory = next(each for each in state["layers"] if each["layer"] == "memory")
        assert (state["workers"], memory["limit_bytes"]) == (3, 9 * 2**20)


# --- faults -------------------------------------------------------------------------------------------------


async def test_a_fault_of_ours_leaves_no_client_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(Relay, "received", broken)
    async with ScriptedUpstream(whole()) as engine, family(engine, tmp_path) as home:
        answer = await home.ask(1)
        assert answer.status == 503
