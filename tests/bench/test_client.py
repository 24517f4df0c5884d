"""One request through the bench's client: what is timed, what is told, who is contacted."""

import asyncio
import gzip
import socket
import time
from typing import Any

import pytest
from support.chat import (
    CHAT,
    DONE,
    FINISH,
    HEAD,
    LAST,
    ROLE,
    STREAM,
    USAGE,
    WHOLE,
    ChatServer,
    ask,
    client_of,
    context,
    models_page,
    one_shot,
    token,
    turns,
)
from support.raw_server import RawServer, http

from toolkit.bench.client import PageError
from toolkit.stats import Sketch

WHOLE_PAGE = http(WHOLE, content_type="application/json")


# --- what is timed -------------------------------------------------------------------------------------


class Slow:
    """A streaming answer that notes when it wrote what, and lets everybody read each piece before the next."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.pause_s = pause_s
        self.wrote_s: list[float] = []
        """Just before each piece: headers and role, `Hello`, ` there`, the end."""
        self.read_s: list[float] = []
        """When each piece had been read for sure."""

    async def __call__(self, writer: asyncio.StreamWriter) -> bool:
        pieces = (HEAD + ROLE, token("Hello"), token(" there"), FINISH + USAGE + DONE + LAST)
        for piece in pieces:
            await asyncio.sleep(self.pause_s)
            self.wrote_s.append(time.monotonic())
            writer.write(piece)
            await turns()
            self.read_s.append(time.monotonic())
        return True


async def test_a_stream_is_timed_from_its_send_to_its_tokens() -> None:
    slow = Slow()
    async with ChatServer(slow) as server:
        shot = await one_shot(server.url)
    assert shot.ok, shot.error
    assert None not in (shot.sent_at, shot.ttft_ms, shot.e2e_ms, shot.took_ms)
    sent_s = shot.sent_at
    first_s, last_s = sent_s + shot.ttft_ms / 1000, sent_s + shot.e2e_ms / 1000
    ended_s = sent_s + shot.took_ms / 1000
    role, hello, there, end = slow.wrote_s
    # neither the role nor the usage is a token; nothing is read before it was written
    assert sent_s < role < hello <= first_s < there <= last_s < end <= ended_s
    assert shot.ttft_visible_ms == shot.ttft_ms
    # two tokens, so that one gap is all the time after the first
    assert shot.tpot_ms == pytest.approx(shot.e2e_ms - shot.ttft_ms)


async def test_a_gap_is_never_told_shorter_than_it_was() -> None:
    slow = Slow(pause_s=0.03)
    async with ChatServer(slow) as server:
        shot = await one_shot(server.url)
    assert shot.itl is not None
    [gap_ms] = [Sketch.from_bytes(shot.itl).quantile(1.0)]
    # `there` was read after it was written, `Hello` before everybody's turns were over; a sketch is right within 1 %
    assert gap_ms is not None
    assert gap_ms >= 0.99 * 1000 * (slow.wrote_s[2] - slow.read_s[1])
    assert Sketch.from_bytes(shot.itl).count == 1


async def test_a_token_counts_from_its_read_and_not_from_its_readers_turn() -> None:
    """The reader's turn comes after whatever else is due, in a burst after all other streams'."""

    busy_s = 0.0

    async def answer(writer: asyncio.StreamWriter) -> bool:
        nonlocal busy_s
        writer.write(HEAD + ROLE)
        await turns()
        writer.write(token("Hello"))
        await turns(2)  # by now it is read, and its reader is due right after us
        busy_s = time.monotonic()
        while time.monotonic() < busy_s + 0.05:
            pass
        writer.write(FINISH + USAGE + DONE + LAST)
        return True

    async with ChatServer(answer) as server:
        shot = await one_shot(server.url)
    assert shot.sent_at is not None
    assert shot.ttft_ms is not None
    assert shot.sent_at + shot.ttft_ms / 1000 < busy_s


async def test_a_request_that_is_overdue_by_its_timeout_is_late_at_once() -> None:
    async with ChatServer() as server, client_of(server.url, timeout_s=3.0) as client:
        shot = await client.send(context(None), ask(), time.monotonic() - 4.0)
    assert (shot.ok, shot.error_kind) == (False, "timeout")


# --- what is told --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("loop")
async def test_an_answers_facts_become_the_shots() -> None:
    page = STREAM.replace(b"\r\n\r\n", b"\r\nx-cache: HIT\r\n\r\n", 1)
    async with ChatServer(page) as server:
        shot = await one_shot(server.url)
    assert (shot.ok, shot.error_kind, shot.error, shot.status_code) == (True, None, None, 200)
    assert (shot.prompt_tokens, shot.output_tokens, shot.output_tokens_estimated) == (7, 2, False)
    assert (shot.token_chunks, shot.text_chars, shot.finish_reason) == (2, 11, "stop")
    assert (shot.model, shot.answer_id, shot.cache_status) == ("tiny", "chatcmpl-1", "HIT")
    assert (shot.run, shot.name, shot.url) == ("r", "alice", "u")
    assert (shot.slot, shot.kind, shot.prompt, shot.max_tokens) == (0, "unique", "hi", 4)


async def test_cache_status_goes_before_x_cache() -> None:
    head = b"\r\nx-cache: MISS\r\ncache-status: toolkit; hit\r\n\r\n"

    async with ChatServer(STREAM.replace(b"\r\n\r\n", head, 1)) as server:
        assert (await one_shot(server.url)).cache_status == "toolkit; hit"


async def test_a_header_is_fit_for_a_screen_and_for_the_store() -> None:
    page = STREAM.replace(b"\r\n\r\n", b"\r\nx-cache: a\xff\x1b[31mb\r\n\r\n", 1)
    async with ChatServer(page) as server:
        assert (await one_shot(server.url)).cache_status == "a??[31mb"


@pytest.mark.usefixtures("loop")
async def test_an_answer_that_is_packed_though_nobody_asked_for_it_is_unpacked() -> None:
    packed = gzip.compress(WHOLE.encode())

    page = http(packed, content_type="application/json").replace(
        b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n", 1
    )
    async with ChatServer(page) as server:
        shot = await one_shot(server.url, stream=False)
    assert (shot.ok, shot.output_tokens) == (True, 2)


# --- who is contacted, and how -------------------------------------------------------------------------


@pytest.mark.usefixtures("loop")
async def test_requests_one_after_the_other_share_a_connection() -> None:
    async with ChatServer() as server, client_of(server.url) as client:
        shots = [await client.send(context(), ask(slot), time.monotonic()) for slot in range(20)]
        assert ([shot.ok for shot in shots], server.connections) == ([True] * 20, 1)


@pytest.mark.usefixtures("loop")
async def test_connections_are_ready_before_the_load() -> None:
    async with ChatServer() as server, client_of(server.url) as client:
        await client.open_connections(8)
        ready = server.connections
        sends = (client.send(context(8), ask(slot), time.monotonic()) for slot in range(8))
        assert all(shot.ok for shot in await asyncio.gather(*sends))
        assert (ready, server.connections) == (8, 8)


async def test_the_body_is_what_the_ask_says_and_nothing_else_is_sent() -> None:
    async with ChatServer() as server:
        await one_shot(server.url)
    assert server.asked() == [ask().body]
    [(method, path, headers)] = server.requests
    assert (method, path) == ("POST", CHAT)
    assert headers.pop("host") == server.url.removeprefix("http://")
    assert headers.pop("content-length") == str(len(server.bodies[0]))
    assert headers == {
        "accept": "*/*",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "user-agent": "llm-serving-toolkit",
    }


async def test_a_long_prompt_arrives_whole() -> None:
    long = ask(text="x" * 1_000_000)

    async with ChatServer() as server, client_of(server.url) as client:
        shot = await client.send(context(), long, time.monotonic())
        assert (shot.ok, server.asked() == [long.body]) == (True, True)


async def test_nobody_but_the_host_is_contacted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    async with RawServer({}) as other, ChatServer() as server:
        netrc = tmp_path / "netrc"
        netrc.write_text("machine 127.0.0.1 login eve password secret\n")
        monkeypatch.setenv("NETRC", str(netrc))
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
            monkeypatch.setenv(name, other.url)
        away = http("", "307 Temporary Redirect", location=f"{other.url}{CHAT}")
        kinds = [(await one_shot(server.url)).error_kind]
        server.pages = dict.fromkeys(server.pages, away)
        kinds.append((await one_shot(server.url)).error_kind)
        async with client_of(server.url) as client:
            for page in (client.models, client.numbers):
                with pytest.raises(PageError, match="answered 307"):
                    await page()
        assert not any("authorization" in headers for _, _, headers in server.requests)
        assert (kinds, other.paths()) == ([None, "http_307"], [])


async def test_no_cookie_is_kept() -> None:
    page = STREAM.replace(b"\r\n\r\n", b"\r\nset-cookie: seen=1; path=/\r\n\r\n", 1)
    # by its name: aiohttp's own jar keeps no cookie of a bare address
    async with (
        ChatServer(page) as server,
        client_of(server.url.replace("127.0.0.1", "localhost")) as client,
    ):
        for slot in range(2):
            await client.send(context(), ask(slot), time.monotonic())
        assert [headers.get("cookie", "") for _, _, headers in server.requests] == ["", ""]


async def test_a_host_below_a_path_is_asked_below_it() -> None:
    pages = {f"/team{CHAT}": STREAM, "/team/v1/models": models_page({"id": "tiny"})}
    async with RawServer(pages) as server, client_of(f"{server.url}/team") as client:
        await client.models()
        shot = await client.send(context(), ask(), time.monotonic())
        assert (shot.ok, server.paths()) == (True, ["/team/v1/models", f"/team{CHAT}"])


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(
    not has_ipv6(), reason="no `::1` here: `sysctl net.ipv6.conf.lo.disable_ipv6=0`"
)
@pytest.mark.usefixtures("loop")
async def test_a_host_with_an_ipv6_address_is_asked() -> None:
    async with RawServer({CHAT: STREAM}, address="::1") as server:
        assert server.url.startswith("http://[::1]:")
        async with client_of(server.url) as client:
            assert ((await one_shot(server.url)).ok, await client.rtt_ms() is not None) == (
                True,
                True,
            )


async def test_a_name_is_tried_at_each_of_its_addresses() -> None:
    """`localhost` is often `::1` first, where nothing listens."""

    async with ChatServer() as server:
        url = server.url.replace("127.0.0.1", "localhost")
        async with client_of(url) as client:
            assert ((await one_shot(url)).ok, await client.rtt_ms() is not None) == (True, True)
