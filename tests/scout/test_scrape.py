"""One scrape over real sockets: what is asked and what never; tests/contract/scout has the hosts that hang, lie and never end."""

import asyncio
import contextlib
import gzip
import ssl
import threading
import time
import zlib
from dataclasses import replace

import pytest
import trustme
from support.raw_server import RawServer, http, one_look, vllm_pages

from toolkit.hosts import same_origin
from toolkit.records import Host
from toolkit.scout import pages
from toolkit.scout.lookups import LookupThreads
from toolkit.scout.pages import HEALTH, METRICS, MODELS, VERSION, PageAnswer, follow_ups
from toolkit.scout.problems import problem_of
from toolkit.scout.scrape import Pacing, Scout, tls_context
from toolkit.scout.sighting import examine, judge

Writer = asyncio.StreamWriter
LOAD = b"vllm:num_requests_running 1\n" * 1000
PACKED = gzip.compress(LOAD, mtime=0)


def test_a_kind_host_is_asked_for_four_pages_and_once_more_for_its_latency(scrape_of) -> None:
    scrape, server = scrape_of(vllm_pages())
    assert sorted(server.paths()) == [HEALTH, HEALTH, METRICS, MODELS, VERSION]
    assert all(scrape.answer(path).ok for path in pages.FIRST_ROUND)
    assert len(scrape.answer(METRICS).body) == 56_530  # the recording's size
    assert 0 < scrape.answer(HEALTH).elapsed_ms < 5000
    headers = server.requests[0][2]
    assert headers["accept-encoding"] == "identity"
    assert headers["user-agent"].startswith("toolkit")


def test_a_cookie_is_not_brought_back(scrape_of) -> None:
    baked = {path: page.replace(b"\r\n", b"\r\nset-cookie: a=b; path=/\r\n", 1)
             for path, page in vllm_pages().items()}  # fmt: skip
    _, server = scrape_of(baked)
    assert [headers.get("cookie") for _, _, headers in server.requests] == [None] * 5


def test_a_proxy_from_the_environment_is_not_contacted(scrape_of, monkeypatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert scrape_of(vllm_pages())[0].answer(HEALTH).ok


# --- bodies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packed", "encoding", "body", "problem"),
    [
        (PACKED, "gzip", LOAD, None),
        (zlib.compress(LOAD), "deflate", LOAD, None),
        (PACKED[:99], "gzip", b"", "is compressed and did not unpack whole"),
        (PACKED * 2, "gzip", b"", "is compressed and did not unpack whole"),
        (b"\x1b", "br", b"", "is compressed as `br`, which was not asked for"),
        # no part of an answer reaches a terminal as an escape sequence
        (b"x", "\x1b[2Jx", b"", "is compressed as `?[2jx`, which was not asked for"),
    ],
    ids=range(6),
)
def test_a_compressed_page_is_read_whole_or_not_at_all(
    scrape_of, packed: bytes, encoding: str, body: bytes, problem: str | None
) -> None:
    scrape, _ = scrape_of(vllm_pages() | {METRICS: http(packed, content_encoding=encoding)})
    found = scrape.answer(METRICS)
    assert (found.body, found.problem) == (body, problem and f"`/metrics` {problem}")


def test_a_small_page_may_not_be_large(scrape_of) -> None:
    scrape, _ = scrape_of(vllm_pages() | {MODELS: http(b" " * (2**20 + 1))})
    assert scrape.answer(MODELS).problem == "`/v1/models` is larger than 1 MiB"


# --- connections ----------------------------------------------------------------------------------------


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
            scrape = await one_look(server.url)
            assert all(scrape.answer(path).ok for path in pages.FIRST_ROUND)
            return server.paths()

    # read once each: what the closed connections carried was never read
    assert sorted(asyncio.run(run())) == [HEALTH, HEALTH, METRICS, MODELS, VERSION]


def test_a_host_that_closes_a_fresh_connection_is_not_asked_again(scrape_of) -> None:
    async def close(_: Writer) -> None:
        pass

    _, server = scrape_of(dict.fromkeys(vllm_pages(), close))
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


def test_an_untrusted_certificate_is_a_reason_and_a_trusted_one_is_not(tmp_path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_tls)

    async def problem(tls: ssl.SSLContext) -> str | None:
        async with RawServer(vllm_pages(), tls=server_tls) as server:
            scout = Scout(Host(name="alice", url=server.url), tls, None, 5.0, Pacing())
            answer = (await scout.scrape()).answer(HEALTH)
            await scout.aclose()
            return answer.problem

    assert "TLS certificate not trusted" in asyncio.run(problem(tls_context()))
    assert asyncio.run(problem(tls_context(ca_file=str(tmp_path / "ca.pem")))) is None
    assert asyncio.run(problem(tls_context(insecure=True))) is None


def test_plain_http_to_a_port_that_speaks_tls_says_so() -> None:
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(server_tls)

    async def run() -> tuple[str, str | None]:
        async with RawServer(vllm_pages(), tls=server_tls) as server:
            return judge(examine(await one_look(server.url.replace("https:", "http:"))))

    assert asyncio.run(run()) == ("down", "wants TLS; write `https://` before the address")


def test_a_name_server_that_hangs_holds_up_neither_others_nor_the_end() -> None:
    pool = LookupThreads()
    stuck = [pool.submit(time.sleep, 30) for _ in range(50)]
    assert pool.submit(lambda: "quick").result(timeout=10) == "quick"
    assert isinstance(pool.submit(int, "x").exception(timeout=10), ValueError)
    pool.shutdown(wait=True)  # returns though fifty lookups hang
    assert not any(future.done() for future in stuck)


def test_a_machine_out_of_threads_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    error = LookupThreads().submit(time.time).exception(timeout=10)
    assert problem_of(error, "/health") == "this machine is out of threads for name lookups"


# --- the key --------------------------------------------------------------------------------------------


def test_the_key_goes_only_to_pages_that_ask_for_one(scrape_of) -> None:
    closed = http(b'{"error":"Unauthorized"}', "401 Unauthorized")
    scrape, server = scrape_of(vllm_pages() | {MODELS: closed, HEALTH: closed}, key="s3cret")
    sent = [(path, headers.get("authorization")) for _, path, headers in server.requests]
    assert [path for path, key in sent if key == "Bearer s3cret"] == [MODELS]
    assert sent.count((MODELS, None)) == 1
    assert (scrape.answer(MODELS).with_key, scrape.answer(METRICS).with_key) == (True, False)


def test_the_key_does_not_follow_a_redirect_to_another_host() -> None:
    async def run() -> None:
        async with RawServer({}) as other:

            async def unauthorized_then_moved(writer: Writer) -> None:
                has_key = "authorization" in server.requests[-1][2]
                target = f"location: {other.url}/steal\r\n" if has_key else ""
                status = "307 Moved" if has_key else "401 Unauthorized"
                writer.write(f"HTTP/1.1 {status}\r\n{target}content-length: 0\r\n\r\n".encode())
                await writer.drain()

            async with RawServer(vllm_pages() | {MODELS: unauthorized_then_moved}) as server:
                scrape = await one_look(server.url, key="s3cret")
        assert "redirects to" in scrape.answer(MODELS).problem
        assert other.requests == []

    asyncio.run(run())


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


# --- which further pages are asked ------------------------------------------------------------------------

OK, MISSING, REFUSED = PageAnswer(status=200), PageAnswer(status=404), PageAnswer(status=401)
FIRST = {
    HEALTH: OK,
    VERSION: replace(OK, body=b'{"version":"0.32.0"}'),
    MODELS: replace(OK, body=b'{"data":[]}'),
    METRICS: replace(OK, body=b"vllm:num_requests_running 1\n"),
}


@pytest.mark.parametrize(
    ("changed", "has_key", "further"),
    [
        ({}, False, []),
        # trtllm-serve keeps them elsewhere
        ({METRICS: MISSING}, False, ["/prometheus/metrics"]),
        ({METRICS: replace(OK, body=b' [{"iter": 1}]')}, False, ["/prometheus/metrics"]),
        # one that calls no model
        ({HEALTH: REFUSED}, False, ["/health/liveliness"]),
        # where a key is wanted: routes that may be open beside it
        ({MODELS: REFUSED}, False, ["/invocations", "/tokenize"]),
        ({}, True, ["/invocations"]),
        # engines without /version
        ({VERSION: MISSING, METRICS: replace(OK, body=b"sglang:x 1\n")}, False, ["/server_info"]),
        ({VERSION: MISSING, METRICS: replace(OK, body=b"tgi_x 0\n")}, False, ["/info"]),
        ({VERSION: MISSING, MODELS: replace(OK, body=b'"llamacpp"')}, False, ["/props"]),
    ],
)
def test_further_pages_are_asked_by_what_was_answered_first(
    changed: dict[str, PageAnswer], has_key: bool, further: list[str]
) -> None:
    assert follow_ups(FIRST | changed, has_key=has_key) == further


def test_none_of_the_pages_runs_inference_and_the_key_never_goes_where_it_would() -> None:
    # GET on a POST route answers 405 and runs nothing
    assert set(pages.POSTED) == {"/tokenize"}
    assert not {HEALTH, pages.LITELLM_ALIVE, pages.INVOCATIONS} & pages.KEY_GOES_TO


# --- latency --------------------------------------------------------------------------------------------


def test_a_host_is_asked_for_its_latency_only_when_the_work_for_others_is_done() -> None:
    async def run() -> list[str]:
        order: list[str] = []

        async def work() -> None:
            for _ in range(20):
                time.sleep(0.005)  # noqa: ASYNC251 (a loop that is busy is what is tested)
                await asyncio.sleep(0)
            order.append("work done")

        async def ask() -> PageAnswer:
            order.append("asked")
            return OK

        busy = asyncio.create_task(work())
        await Pacing().quietly(ask)
        await busy
        return order

    assert asyncio.run(run()) == ["work done", "asked"]


def test_a_near_host_answers_before_the_next_is_asked_and_a_far_one_holds_up_nobody() -> None:
    async def run() -> list[str]:
        order: list[str] = []
        pacing, far_may_answer = Pacing(), asyncio.Event()

        async def near(name: str) -> PageAnswer:
            order.append(f"{name} asked")
            await asyncio.sleep(0)
            order.append(f"{name} answered")
            return OK

        async def far() -> PageAnswer:
            order.append("far asked")
            await far_may_answer.wait()
            order.append("far answered")
            return OK

        asking = [asyncio.create_task(pacing.quietly(far))]
        asking += [asyncio.create_task(pacing.quietly(lambda n=n: near(n))) for n in ("one", "two")]
        await asyncio.gather(*asking[1:])
        far_may_answer.set()
        await asking[0]
        return order

    assert asyncio.run(run()) == [
        "far asked", "one asked", "one answered", "two asked", "two answered", "far answered",
    ]  # fmt: skip
