"""The real nginx with the rendered file, in front of scripted engines and of the proxy."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.deployed import site
from support.nginxes import serving
from support.proxied import ASKED, CHAT, Client, proxied, raw
from support.scripted_upstream import (
    ScriptedUpstream,
    dying,
    hanging_in_stream,
    plain,
    refusing,
    slow,
)

from toolkit.deploy.site import Site
from toolkit.workload import read

PATIENCE_S = 30
BARE = "proxy = false\n"


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def engines(ports: Sequence[int], more: str = "") -> Site:
    """A site without a proxy, whose engines listen there."""
    tables = "".join(
        f'[[engine]]\nname = "e{port}"\nkind = "sim"\nmodel = "gptq-int4"\nport = {port}\n'
        for port in ports
    )
    return site(BARE + tables + more)


def behind(port: int, more: str = "") -> Site:
    """A site whose proxy listens there."""
    return site(
        f'[[engine]]\nkind = "sim"\nmodel = "gptq-int4"\nport = 1\nspare_port = 2\n[proxy]\nport = {port}\nadmin_port = 3\n{more}'
    )


async def connected(port: int) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", port))


async def read_until(client: Client, wanted: bytes) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await client.reader.readuntil(wanted)


@pytest.mark.parametrize("through", ["engines", "proxy"])
async def test_each_token_of_a_stream_arrives_before_the_next_one_is_made(
    tmp_path: Path, through: str
) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    script = slow(["one", "two", "three"], gates)
    async with ScriptedUpstream(script) as upstream, proxied(upstream) as proxy:
        direct = engines([port_of(upstream.url)])
        made = direct if through == "engines" else behind(proxy.port)
        with serving(tmp_path, made) as nginx:
            client = await connected(nginx.port)
            client.writer.write(raw(ASKED | {"stream": True}))
            # the head comes before any token, and each token before the next one's gate opens
            assert b" 200 " in await read_until(client, b"\r\n\r\n")
            for text, gate in zip((b"one", b"two", b"three"), gates, strict=True):
                gate.set()
                await read_until(client, text)
            assert await read_until(client, b"[DONE]")
            client.close()


async def test_a_refused_connection_is_followed_by_the_next_server_and_a_post_that_was_sent_is_not(
    tmp_path: Path,
) -> None:
    async with ScriptedUpstream(refusing()) as ill, ScriptedUpstream(plain("200 OK")) as well:
        ports = [port_of(ill.url), port_of(well.url)]
        # never left alone here: each request may meet the ill one
        with serving(tmp_path, engines(ports), (("max_fails=2", "max_fails=0"),)) as nginx:
            posts = [await _status(nginx.port, "POST", CHAT) for _ in range(8)]
            assert sorted(set(posts)) == [200, 502]
            # whoever got no answer was sent once, to the ill one alone
            assert (posts.count(502), posts.count(200)) == (len(ill.lines), len(well.lines))
            gets = [await _status(nginx.port, "GET", "/v1/models") for _ in range(8)]
            assert set(gets) == {200}
            ill.stop_listening()
            assert {await _status(nginx.port, "POST", CHAT) for _ in range(8)} == {200}


async def _status(port: int, method: str, path: str) -> int:
    client = await connected(port)
    answer = await client.ask({}, path=path, method=method)
    client.close()
    return answer.status


async def test_a_stream_that_breaks_off_is_not_begun_anew(tmp_path: Path) -> None:
    async with ScriptedUpstream(dying("one")) as ill, ScriptedUpstream(dying("one")) as other:
        made = engines([port_of(ill.url), port_of(other.url)])
        with serving(tmp_path, made) as nginx:
            client = await connected(nginx.port)
            answer = await client.ask(ASKED | {"stream": True})
            assert not answer.is_whole
            assert answer.body.count(b'"one"') == 1
            assert len(ill.lines) + len(other.lines) == 1
            client.close()


async def test_an_engine_stops_when_its_client_leaves(tmp_path: Path) -> None:
    async with ScriptedUpstream(hanging_in_stream("one")) as upstream:
        with serving(tmp_path, engines([port_of(upstream.url)])) as nginx:
            client = await connected(nginx.port)
            client.writer.write(raw(ASKED | {"stream": True}))
            await read_until(client, b"one")
            client.close()
            line = await upstream.asked()
            async with asyncio.timeout(PATIENCE_S):
                await line.gone.wait()


async def test_connections_to_engines_are_kept(tmp_path: Path) -> None:
    async with ScriptedUpstream(plain("200 OK")) as upstream:
        with serving(tmp_path, engines([port_of(upstream.url)])) as nginx:
            client = await connected(nginx.port)
            for _ in range(20):
                assert (await client.ask({})).status == 200
            client.close()
        # one client is served by one worker process, which keeps one connection
        assert (upstream.connections, len(upstream.lines)) == (1, 20)
        assert "connection" not in upstream.lines[0].headers


async def test_no_key_and_no_query_stands_in_the_log(tmp_path: Path) -> None:
    async with ScriptedUpstream(plain("200 OK")) as upstream:
        with serving(tmp_path, engines([port_of(upstream.url)])) as nginx:
            client = await connected(nginx.port)
            await client.ask({}, path=f"{CHAT}?api_key=sk-query", key="sk-header")
            await client.ask({}, path="/x%22%0aevil?sk-query", key="sk-header", method="GET")
            client.close()
            # what clients send as their key reaches the engine, which asks for it
            assert upstream.lines[0].headers["authorization"] == "Bearer sk-header"
    assert "sk-" not in nginx.log
    with (nginx.folder / "contest.jsonl").open("rb") as lines:
        found = read(lines, "contest.jsonl", client=str)
        (answered, _) = found.seen
    assert (found.kind, answered.path, answered.status) == ("nginx", CHAT, 200)
    first, second = map(json.loads, nginx.log.splitlines())
    assert (first["request_uri"], first["status"]) == (CHAT, 200)
    assert (second["request_uri"], second["status"]) == ('/x"\nevil', 404)


async def test_a_server_behind_steers_nothing_by_its_headers(tmp_path: Path) -> None:
    odd = plain("200 OK", b"{}", "X-Accel-Redirect: /health", "X-Accel-Buffering: yes")
    async with ScriptedUpstream(odd) as upstream:
        with serving(tmp_path, engines([port_of(upstream.url)])) as nginx:
            client = await connected(nginx.port)
            answer = await client.ask({}, headers=["x-forwarded-for: 6.6.6.6"])
            client.close()
    assert (answer.status, answer.body) == (200, b"{}")
    # those further out are not to gather a stream either
    assert answer.headers["x-accel-buffering"] == "no"
    assert upstream.lines[0].headers["x-forwarded-for"] == "127.0.0.1"
    assert len(upstream.lines) == 1
