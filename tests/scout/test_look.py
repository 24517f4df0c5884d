"""One look over real sockets: kind hosts, and hosts that are hostile by accident."""

import asyncio
import contextlib
import gzip
import socket
import ssl
import time
import zlib

import pytest
import trustme
from support.raw_server import RawServer, http, one_look, vllm_pages

from toolkit.hosts import same_origin
from toolkit.records import Host
from toolkit.scout.answers import HEALTH, METRICS, MODELS, VERSION, PageAnswer
from toolkit.scout.look import MAX_METRICS_BYTES, QuietMoments, Scout, tls_context
from toolkit.scout.problems import problem_of

Writer = asyncio.StreamWriter


def test_a_kind_host_is_asked_for_four_pages_and_once_more_for_its_latency(look_at) -> None:
    look, server = look_at(vllm_pages())
    assert sorted(server.paths()) == ["/health", "/health", "/metrics", "/v1/models", "/version"]
    assert all(look.answer(path).ok for path in (HEALTH, VERSION, MODELS, METRICS))
    assert len(look.answer(METRICS).body) == 56_530  # the recording's size
    assert 0 < look.answer(HEALTH).elapsed_ms < 5000


def test_a_page_asks_for_nothing_compressed_and_says_who_asks(look_at) -> None:
    _, server = look_at(vllm_pages())
    headers = server.requests[0][2]
    assert headers["accept-encoding"] == "identity"
    assert headers["user-agent"].startswith("toolkit")


def test_a_host_that_hangs_costs_the_deadline_and_only_its_own_pages(look_at) -> None:
    async def hang(_: Writer) -> None:
        await asyncio.sleep(30)

    started = time.monotonic()
    look, _ = look_at(vllm_pages() | {METRICS: hang}, timeout_s=1.0)
    assert time.monotonic() - started < 20  # far from the 30 s of the hang
    assert look.answer(METRICS).problem == "`/metrics` did not finish within 1 s"
    assert look.answer(HEALTH).ok
    assert look.answer(MODELS).ok


def test_a_host_that_drips_does_not_outlast_the_deadline(look_at) -> None:
    async def drip(writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    look, _ = look_at(vllm_pages() | {METRICS: drip}, timeout_s=1.0)
    assert look.answer(METRICS).problem == "`/metrics` did not finish within 1 s"
    assert look.answer(VERSION).ok


def test_a_host_that_spews_is_cut_off_at_sixteen_mebibytes(look_at) -> None:
    sent = 0

    async def spew(writer: Writer) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(64 * 16):  # a gigabyte, if somebody let it
                writer.write(b"100000\r\n" + b"x" * 2**20 + b"\r\n")
                await writer.drain()
                sent += 2**20

    look, _ = look_at(vllm_pages() | {METRICS: spew}, timeout_s=20)
    assert look.answer(METRICS).problem == "`/metrics` is larger than 16 MiB"
    assert sent < 3 * MAX_METRICS_BYTES


def test_a_small_page_may_not_be_large(look_at) -> None:
    look, _ = look_at(vllm_pages() | {MODELS: http(b" " * (2**20 + 1))})
    assert look.answer(MODELS).problem == "`/v1/models` is larger than 1 MiB"


def test_a_compressed_page_is_read_rightly(look_at) -> None:
    body = b"vllm:num_requests_running 1\n" * 1000
    for packed, encoding in ((gzip.compress(body), "gzip"), (zlib.compress(body), "deflate")):
        look, _ = look_at(vllm_pages() | {METRICS: http(packed, content_encoding=encoding)})
        assert look.answer(METRICS).body == body


def test_a_compressed_bomb_is_refused_at_the_same_size(look_at) -> None:
    bomb = gzip.compress(b"\0" * (MAX_METRICS_BYTES + 1))
    assert len(bomb) < 20_000
    look, _ = look_at(vllm_pages() | {METRICS: http(bomb, content_encoding="gzip")})
    assert look.answer(METRICS).problem == "`/metrics` is larger than 16 MiB"


@pytest.mark.parametrize(
    ("body", "encoding", "problem"),
    [
        (b"not gzip", "gzip", "`/metrics` says it is compressed but is not"),
        (b"\x1b", "br", "`/metrics` is compressed as `br`, which was not asked for"),
    ],
)
def test_what_cannot_be_unpacked_is_a_reason(look_at, body, encoding, problem) -> None:
    look, _ = look_at(vllm_pages() | {METRICS: http(body, content_encoding=encoding)})
    assert look.answer(METRICS).problem == problem


def test_half_of_a_compressed_page_is_not_taken_for_the_page(look_at) -> None:
    packed = gzip.compress(b"vllm:num_requests_running 1\n" * 1000)
    for damaged in (packed[: len(packed) // 2], packed + packed):
        look, _ = look_at(vllm_pages() | {METRICS: http(damaged, content_encoding="gzip")})
        assert look.answer(METRICS).problem == "`/metrics` is compressed and did not unpack whole"


def test_no_part_of_an_answer_reaches_a_terminal_as_an_escape_sequence(look_at) -> None:
    look, _ = look_at(vllm_pages() | {METRICS: http(b"x", content_encoding="\x1b[2Jx")})
    assert look.answer(METRICS).problem == (
        "`/metrics` is compressed as `?[2jx`, which was not asked for"
    )
    assert problem_of(ValueError("a\x1b[2Jb"), "/health") == "`/health`: a?[2Jb"


def test_a_cookie_is_not_brought_back(look_at) -> None:
    pages = {path: page.replace(b"\r\n", b"\r\nset-cookie: a=b; path=/\r\n", 1)
             for path, page in vllm_pages().items()}  # fmt: skip
    look, server = look_at(pages)
    assert look.answer(METRICS).ok
    assert [headers.get("cookie") for _, _, headers in server.requests] == [None] * 5


class ClosesIdleConnections(RawServer):
    """Answers once on each connection and closes it as soon as it is used again."""

    async def _serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        with contextlib.suppress(
            asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError
        ):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ")[1]
            self.requests.append(("GET", path, {}))
            writer.write(self.pages[path])
            await reader.readuntil(b"\r\n\r\n")
        writer.close()


def test_a_connection_that_the_host_closed_meanwhile_is_no_failure() -> None:
    async def run() -> list[str]:
        async with ClosesIdleConnections(vllm_pages()) as server:
            look = await one_look(server.url)
            assert all(look.answer(path).ok for path in (HEALTH, VERSION, MODELS, METRICS))
            return server.paths()

    # read once each: what the closed connections carried was never read
    assert sorted(asyncio.run(run())) == [HEALTH, HEALTH, METRICS, MODELS, VERSION]


def test_a_host_that_closes_a_fresh_connection_is_not_asked_again(look_at) -> None:
    async def close(_: Writer) -> None:
        pass

    _, server = look_at(dict.fromkeys(vllm_pages(), close))
    assert sorted(server.paths()) == [HEALTH, METRICS, MODELS, VERSION]


def test_a_plain_port_behind_https_says_so() -> None:
    async def run() -> str | None:
        async def answer(reader: asyncio.StreamReader, writer: Writer) -> None:
            await reader.read(1)
            writer.write(http(b"what?", "400 Bad Request"))
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return (await one_look(f"https://127.0.0.1:{port}")).answer(HEALTH).problem

    assert asyncio.run(run()) == "the port does not speak TLS; write `http://` if it is a plain one"


def test_a_redirect_to_another_host_is_not_followed() -> None:
    async def run() -> None:
        async with RawServer({"/metrics": http(b"secret 1\n")}) as other:
            moved = http(status="307 Temporary Redirect", location=other.url + "/metrics")
            async with RawServer(vllm_pages() | {METRICS: moved}) as server:
                look = await one_look(server.url)
        assert (
            look.answer(METRICS).problem == f"`/metrics` redirects to `{other.url}`, not followed"
        )
        assert other.requests == []

    asyncio.run(run())


def test_a_redirect_on_the_same_host_is_followed(look_at) -> None:
    # LiteLLM and older vLLM mount the page, so that /metrics becomes /metrics/
    moved = http(status="307 Temporary Redirect", location="/metrics/")
    look, _ = look_at(vllm_pages() | {METRICS: moved, "/metrics/": http(b"vllm:x 1\n")})
    assert look.answer(METRICS).body == b"vllm:x 1\n"


def test_a_redirect_in_a_circle_ends(look_at) -> None:
    look, server = look_at({METRICS: http(status="302 Found", location="/metrics")})
    assert look.answer(METRICS).problem == "`/metrics` redirects in a circle"
    assert server.paths().count("/metrics") == 4


def test_a_proxy_from_the_environment_is_not_contacted(look_at, monkeypatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    look, _ = look_at(vllm_pages())
    assert look.answer(HEALTH).ok


def test_the_key_goes_only_to_pages_that_ask_for_one(look_at) -> None:
    closed = http(b'{"error":"Unauthorized"}', "401 Unauthorized")
    look, server = look_at(vllm_pages() | {MODELS: closed, HEALTH: closed}, key="s3cret")
    sent = [(path, headers.get("authorization")) for _, path, headers in server.requests]
    assert [path for path, key in sent if key == "Bearer s3cret"] == ["/v1/models"]
    assert sent.count(("/v1/models", None)) == 1
    assert look.answer(MODELS).with_key
    assert not look.answer(METRICS).with_key


def test_the_key_does_not_follow_a_redirect_to_another_host() -> None:
    async def run() -> None:
        async with RawServer({}) as other:
            pages = vllm_pages() | {MODELS: http(status="401 Unauthorized")}

            async def unauthorized_then_moved(writer: Writer) -> None:
                pages_now = server.requests[-1][2]
                target = f"location: {other.url}/steal\r\n" if "authorization" in pages_now else ""
                status = "307 Moved" if target else "401 Unauthorized"
                writer.write(f"HTTP/1.1 {status}\r\n{target}content-length: 0\r\n\r\n".encode())
                await writer.drain()

            async with RawServer(pages | {MODELS: unauthorized_then_moved}) as server:
                look = await one_look(server.url, key="s3cret")
        assert "redirects to" in look.answer(MODELS).problem
        assert other.requests == []

    asyncio.run(run())


def test_nothing_listening_is_a_reason() -> None:
    with (
        socket.socket() as reserved
    ):  # bound, not listening: refused, and nobody else takes the port
        reserved.bind(("127.0.0.1", 0))
        look = asyncio.run(one_look(f"http://127.0.0.1:{reserved.getsockname()[1]}"))
    assert look.answer(HEALTH).problem.startswith("connection refused")


def test_an_untrusted_certificate_is_a_reason_and_a_trusted_one_is_not(tmp_path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_tls)

    async def serve(_: asyncio.StreamReader, writer: Writer) -> None:
        writer.write(http(b"up"))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async def look(tls: ssl.SSLContext) -> str | None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_tls)
        async with server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            scout = Scout(Host(name="alice", url=url), tls, None, 5.0, QuietMoments())
            answer = (await scout.look()).answer(HEALTH)
            await scout.aclose()
            return answer.problem

    assert "TLS certificate not trusted" in asyncio.run(look(tls_context()))
    assert asyncio.run(look(tls_context(ca_file=str(tmp_path / "ca.pem")))) is None
    assert asyncio.run(look(tls_context(insecure=True))) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://h", "http://h:80/x", True),
        ("https://h", "https://h:443", True),
        ("http://h:8000/team-a", "http://h:8000/", True),
        ("http://H", "http://h", True),
        ("http://h", "https://h", False),
        ("http://h", "http://h:8080", False),
        ("http://h", "http://h.evil.example", False),
        ("http://h", "http://h@evil.example", False),
    ],
)
def test_the_same_server_is_the_same_scheme_host_and_port(one: str, other: str, same: bool) -> None:
    assert same_origin(one, other) is same


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"this is not HTTP\r\n\r\n", "`/health`: not a complete HTTP answer"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
            "`/health`: not a complete HTTP answer",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "`/health`: not a complete HTTP answer"),
        (b"", "`/health`: closed without an answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 40_000, "`/health`: not a complete HTTP answer"),
        (
            b"HTTP/1.1 302 Found\r\nlocation: http://[::1\r\ncontent-length: 0\r\n\r\n",
            "`/health`: ",
        ),
    ],
)
def test_an_answer_that_is_no_http_is_a_reason(look_at, answer: bytes, problem: str) -> None:
    async def write(writer: Writer) -> None:
        writer.write(answer)
        await writer.drain()

    look, _ = look_at(vllm_pages() | {HEALTH: write})
    assert look.answer(HEALTH).problem.startswith(problem)
    assert look.answer(METRICS).ok


def test_a_host_is_asked_for_its_latency_only_when_the_work_for_others_is_done() -> None:
    async def run() -> list[str]:
        told: list[str] = []

        async def work() -> None:
            for _ in range(20):
                time.sleep(0.005)  # noqa: ASYNC251 (a loop that is busy is what is tested)
                await asyncio.sleep(0)
            told.append("work done")

        async def question() -> PageAnswer:
            told.append("asked")
            return PageAnswer(status=200)

        busy = asyncio.create_task(work())
        await QuietMoments().ask(question)
        await busy
        return told

    assert asyncio.run(run()) == ["work done", "asked"]


def test_a_near_host_answers_before_the_next_is_asked_and_a_far_one_holds_up_nobody() -> None:
    async def run() -> list[str]:
        told: list[str] = []
        quiet, far_may_answer = QuietMoments(), asyncio.Event()

        async def near(name: str) -> PageAnswer:
            told.append(f"{name} asked")
            await asyncio.sleep(0)
            told.append(f"{name} answered")
            return PageAnswer(status=200)

        async def far() -> PageAnswer:
            told.append("far asked")
            await far_may_answer.wait()
            told.append("far answered")
            return PageAnswer(status=200)

        asked = [asyncio.create_task(quiet.ask(far))]
        asked += [asyncio.create_task(quiet.ask(lambda n=n: near(n))) for n in ("one", "two")]
        await asyncio.gather(*asked[1:])
        far_may_answer.set()
        await asked[0]
        return told

    assert asyncio.run(run()) == [
        "far asked", "one asked", "one answered", "two asked", "two answered", "far answered",
    ]  # fmt: skip
