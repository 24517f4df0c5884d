"""The watch over servers that hang, drip, flood, lie and redirect: it costs a look, never another's, never the watch."""

import asyncio
import json
from collections.abc import Coroutine

import pytest
from support.chat import until
from support.raw_server import Misbehave, RawServer, http, recorded, vllm_pages
from support.watching import watching

METRICS = http(recorded("metrics_idle.txt"), content_type="text/plain; version=1.0.0")


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def hang(_: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def hang_within(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\nvllm:num_requests")
    await asyncio.Event().wait()


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        writer.write(b"#")
        await writer.drain()
        await asyncio.sleep(0.001)


async def drip_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-y: z\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def flood(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    part = b"10000\r\n" + b"#" * 65_535 + b"\n\r\n"
    while True:
        writer.write(part)
        await writer.drain()


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def cut(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nvllm:")
    await writer.drain()


async def noise(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff\r\n" * 100)
    await writer.drain()


async def bad_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\nvllm:\r\n0\r\n\r\n")
    await writer.drain()
    await asyncio.Event().wait()


LATE = {"hang": hang, "within": hang_within, "drip": drip, "head": drip_head}
ENDLESS = LATE | {"flood": flood}
BROKEN = {
    "close": close,
    "cut": cut,
    "noise": noise,
    "chunks": bad_chunks,
    "binary": http(bytes(range(256)) * 50),
    "html": http("<html>It works!</html>"),
    "empty": http(),
    "nan": http('vllm:num_requests_running{engine="0"} NaN\n'),
    "huge": http('vllm:num_requests_running{engine="0"} 1e999\n'),
    "gzip": http(b"\x1f\x8b\x08\x00", content_encoding="gzip"),
    "no_content": http(status="204 No Content"),
    "error": http(status="500 Oh"),
}


@pytest.mark.parametrize("misbehave", LATE.values(), ids=LATE)
def test_metrics_without_end_delay_nobody_else(misbehave: Misbehave) -> None:
    async def work() -> None:
        bad = vllm_pages() | {"/metrics": misbehave}
        # longer than `until` waits: who waits for the first look at `a` is not through in time
        async with (
            RawServer(bad) as one,
            RawServer(vllm_pages()) as two,
            watching({"a": one.url, "b": two.url}, limit_s=60.0) as around,
        ):
            await until(lambda: one.paths() and two.paths().count("/metrics") >= 10)
            assert around.watch.metrics("a") is None, "still at its first look"

    run(work())


@pytest.mark.parametrize("misbehave", LATE.values(), ids=LATE)
def test_metrics_without_end_are_given_up_and_asked_again(misbehave: Misbehave) -> None:
    async def work() -> None:
        bad = vllm_pages() | {"/metrics": misbehave}
        async with RawServer(bad) as server, watching({"a": server.url}, limit_s=0.3) as around:
            await around.watch.first_look()
            await until(lambda: server.connections >= 3)
            assert around.state("a").state == "up", "late or strange, which is no refusal"
            server.pages["/metrics"] = METRICS
            await until(lambda: around.watch.metrics("a"))
            assert around.named("watch_failed") == []

    run(work())


def test_metrics_that_are_too_long_are_given_up_and_health_is_asked_instead() -> None:
    async def work() -> None:
        pages = vllm_pages() | {"/metrics": flood}
        async with RawServer(pages) as server, watching({"a": server.url}, limit_s=20.0) as around:
            await until(lambda: server.paths().count("/health") >= 3)
            assert server.paths().count("/metrics") == 1, "the next time in 10 s"
            assert around.state("a").state == "up"
            # nobody goes on sending
            await until(lambda: len(server.handlers()) == 1)

    run(work())


@pytest.mark.parametrize("misbehave", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/version"])
def test_a_broken_page_ends_no_watch_and_raises_no_epoch(path: str, misbehave: Misbehave) -> None:
    async def work() -> None:
        pages = vllm_pages() | {"/metrics": METRICS}
        async with (
            RawServer(pages | {path: misbehave}) as server,
            watching({"a": server.url}, limit_s=0.3) as around,
        ):
            await until(lambda: server.paths().count(path) >= 1)
            await around.watch.first_look()
            server.pages = dict(pages)
            await until(lambda: around.state("a").looked_s_ago is not None)
            assert around.generations.numbers == {}
            assert around.named("watch_failed") == []

    run(work())


@pytest.mark.parametrize("path", ["/v1/models", "/version"])
@pytest.mark.parametrize("misbehave", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_page_beside_good_metrics_leaves_the_load_known(
    path: str, misbehave: Misbehave
) -> None:
    async def work() -> None:
        pages = vllm_pages() | {"/metrics": METRICS, path: misbehave}
        async with (
            RawServer(pages) as server,
            watching({"a": server.url}, limit_s=0.2) as around,
        ):
            await until(lambda: server.paths().count("/metrics") >= 5)
            assert server.paths().count(path) == 1
            assert around.state("a").looked_s_ago is not None
            assert around.watch.metrics("a") is not None

    run(work())


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_no_redirect_is_followed(status: str) -> None:
    async def work() -> None:
        async with RawServer(vllm_pages()) as secret:
            moved = {
                path: http(status=status, location=secret.url + path)
                for path in ("/metrics", "/health", "/v1/models", "/version", "/v1/completions")
            }
            async with (
                RawServer(moved) as server,
                watching({"a": server.url}, keys={"a": "sk-a"}, model="tiny") as around,
            ):
                around.routing.started("a", around.watch._clock())
                await until(lambda: around.named("probe"))
                assert around.named("probe")[0]["token"] is None
                assert secret.connections == 0
                assert around.state("a").models is None

    run(work())


def test_no_cookie_is_kept() -> None:
    async def work() -> None:
        pages = vllm_pages() | {"/metrics": http("x 1\n", set_cookie="who=proxy")}
        async with RawServer(pages) as server, watching({"a": server.url}):
            await until(lambda: server.paths().count("/health") >= 3)
            assert not any("cookie" in headers for _, _, headers in server.requests)

    run(work())


def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with RawServer({}) as stranger, RawServer(vllm_pages()) as server:
            monkeypatch.setenv("http_proxy", stranger.url)
            monkeypatch.setenv("HTTP_PROXY", stranger.url)
            async with watching({"a": server.url}) as around:
                await around.watch.first_look()
                assert server.connections == 1
                assert stranger.connections == 0

    run(work())


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"data":' * 5_000,
        json.dumps({"data": [{"id": "x" * 10**6}]}).encode(),
        json.dumps({"data": [{"id": 7}, None, [], {"id": None}]}).encode(),
        b'{"data": {"id": "tiny"}}',
        b'"tiny"',
        b'{"data": [{"id": "tiny", "root": {}, "max_model_len": "many"}]}',
        b"\xff\xfe",
    ],
    ids=["deep", "nested", "long", "kinds", "object", "string", "fields", "bytes"],
)
def test_strange_lists_of_models_are_no_models(body: bytes) -> None:
    async def work() -> None:
        pages = vllm_pages() | {"/metrics": METRICS, "/v1/models": http(body)}
        async with RawServer(pages) as server, watching({"a": server.url}) as around:
            await until(lambda: server.paths().count("/metrics") >= 3)
            assert around.named("watch_failed") == []
            assert around.state("a").state == "up"

    run(work())


def test_a_page_of_many_engines_is_read_beside_the_loop() -> None:
    async def work() -> None:
        # 1 MB, 16 engines, the sixteenth part of the load each
        text = recorded("metrics_after_load.txt").decode()
        page = "".join(text.replace('engine="0"', f'engine="{number}"') for number in range(16))
        pages = vllm_pages() | {"/metrics": http(page)}
        async with RawServer(pages) as server, watching({"a": server.url}) as around:
            await around.watch.first_look()
            assert len(around.watch.metrics("a").body) == len(page)
            assert around.state("a").looked_s_ago is not None

    run(work())


@pytest.mark.parametrize("answer", [cut, close, hang, drip])
def test_no_token_comes_of_an_answer_that_breaks_or_does_not_end(answer: Misbehave) -> None:
    async def work() -> None:
        pages = vllm_pages() | {"/metrics": METRICS, "/v1/completions": answer}
        async with RawServer(pages) as server, watching({"a": server.url}) as around:
            await around.watch.first_look()
            around.routing.started("a", around.watch._clock())
            await until(lambda: around.named("probe"))
            assert around.named("probe")[0]["token"] is False

    run(work())


def test_a_look_that_nobody_foresaw_is_told_and_the_next_one_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        async with RawServer(vllm_pages()) as server, watching({"a": server.url}) as around:
            await around.watch.first_look()

            def fail(*_: object) -> None:
                raise RuntimeError("oh")

            monkeypatch.setattr("toolkit.proxy.upstreams.upstream_pages.metrics", fail)
            await until(lambda: around.named("watch_failed"))
            assert around.named("watch_failed")[0] == {"upstream": "a", "error": "RuntimeError: oh"}
            monkeypatch.undo()
            looks = server.paths().count("/metrics")
            await until(lambda: server.paths().count("/metrics") > looks + 2)

    run(work())
