"""The prober over servers that are well, hang, drip, flood and lie: it costs a scrape, never another's, never the prober."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.chat import until
from support.raw_server import Misbehave, RawServer, http, recorded, vllm_pages

from toolkit.metrics.dialects import EngineNumbers, read_numbers
from toolkit.metrics.parser import read_page
from toolkit.proxy.config import CacheSetting, RoutingSetting, Settings, UpstreamSetting
from toolkit.proxy.upstream import health
from toolkit.proxy.upstream.connection import Upstream
from toolkit.proxy.upstream.fingerprint import Fingerprints
from toolkit.proxy.upstream.health import Prober, one_page
from toolkit.proxy.upstream.routing import Routing, UpstreamState

RECORDED = recorded("metrics_after_load.txt").decode()
METRICS = http(recorded("metrics_idle.txt"), content_type="text/plain; version=1.0.0")
PAGES = vllm_pages() | {"/metrics": METRICS}


FAST = RoutingSetting(look_s=0.01, stuck_s=0.2, probe_s=0.2, back_s=0.2)


class Watching:
    """What stands around a prober."""

    def __init__(self, upstreams: Mapping[str, Upstream], settings: Settings, **pace: Any) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []
        self.routing = Routing(settings.upstreams, settings.routing)
        self.prints = Fingerprints(settings, changed=lambda: None, event=self._event)
        self.prober = Prober(upstreams, self.routing, self.prints, event=self._event, **pace)

    def _event(self, kind: str, told: dict[str, object]) -> None:
        self.events.append((kind, told))

    def named(self, kind: str) -> list[dict[str, object]]:
        return [told for name, told in self.events if name == kind]

    def state(self, name: str) -> UpstreamState:
        states = self.routing.states(self.prober._clock())
        return next(each for each in states if each.name == name)


@asynccontextmanager
async def watching(
    urls: Mapping[str, str],
    *,
    routing: RoutingSetting = FAST,
    keys: Mapping[str, str] | None = None,
    limit_s: float = 5.0,
    identity_s: float = 3600.0,
    runs: bool = True,
    **changes: Any,
) -> AsyncIterator[Watching]:
    """Probe these upstreams until the block ends."""
    upstreams = tuple(
        replace(UpstreamSetting(name=name, url=url), **changes) for name, url in urls.items()
    )
    settings = Settings(upstreams=upstreams, routing=routing, cache=CacheSetting())
    async with AsyncExitStack() as stack:
        opened = {each.name: Upstream(each, key=(keys or {}).get(each.name)) for each in upstreams}
        for each in opened.values():
            stack.push_async_callback(each.close)
        around = Watching(opened, settings, limit_s=limit_s, identity_s=identity_s, tick_s=0.02)
        task = asyncio.create_task(around.prober.run() if runs else asyncio.sleep(3600))
        try:
            yield around
        finally:
            if task.done():
                task.result()  # it must not end by itself
            task.cancel()
            with suppress(asyncio.CancelledError):
                async with asyncio.timeout(60):
                    await task


async def hang(_: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def hang_within(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\nvllm:num_requests")
    await asyncio.Event().wait()


async def drip_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-y: z\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def flood(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"#" * 65_535 + b"\n\r\n")
        await writer.drain()


async def cut(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nvllm:")
    await writer.drain()


async def noise(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff\r\n" * 100)
    await writer.drain()


LATE = {"hang": hang, "within": hang_within, "head": drip_head}
BROKEN: dict[str, Any] = {
    "flood": flood,
    "cut": cut,
    "noise": noise,
    "binary": http(bytes(range(256)) * 50),
    "html": http("<html>It works!</html>"),
    "nan": http('vllm:num_requests_running{engine="0"} NaN\n'),
    "huge": http('vllm:num_requests_running{engine="0"} 1e999\n'),
    "gzip": http(b"\x1f\x8b\x08\x00", content_encoding="gzip"),
    "no_content": http(status="204 No Content"),
    "error": http(status="500 Oh"),
    "moved": http(status="302 Found", location="/health"),
    "deep": http(b'{"data":' * 5_000),
    "kinds": http(b'{"data": [{"id": 7}, null, [], {"id": null}], "version": {}}'),
    "string": http(b'"tiny"'),
}


# --- scrapes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("misbehave", LATE.values(), ids=LATE)
async def test_a_page_without_end_delays_nobody_else_is_given_up_and_asked_again(
    misbehave: Misbehave,
) -> None:
    bad = vllm_pages() | {"/metrics": misbehave}
    async with (
        RawServer(bad) as one,
        RawServer(PAGES) as two,
        watching({"a": one.url, "b": two.url}, limit_s=0.3) as around,
    ):
        await until(lambda: two.paths().count("/metrics") >= 10)
        await around.prober.first_scrape()
        await until(lambda: one.connections >= 3)
        assert around.state("a").state == "up", "late or strange, which is no refusal"
        one.pages["/metrics"] = METRICS
        await until(lambda: around.prober.metrics_age_s("a") is not None)
        assert around.named("watch_failed") == []


@pytest.mark.parametrize("misbehave", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/version"])
async def test_a_broken_page_ends_nothing_and_is_no_change(path: str, misbehave: Misbehave) -> None:
    async with (
        RawServer(PAGES | {path: misbehave}) as server,
        watching({"a": server.url}, limit_s=0.3, identity_s=0.05) as around,
    ):
        await around.prober.first_scrape()
        await until(lambda: server.paths().count(path) >= 1)
        server.pages = dict(PAGES)
        await until(lambda: around.state("a").models == {"tiny"})
        assert around.prints.incarnations == {}
        assert around.named("watch_failed") == []
        assert around.state("a").state == "up"


async def test_what_nobody_foresaw_is_reported_and_the_next_scrape_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with RawServer(PAGES) as server, watching({"a": server.url}) as around:
        await around.prober.first_scrape()

        def fail(*_: object) -> None:
            raise RuntimeError("oh")

        monkeypatch.setattr(health, "read_metrics", fail)
        await until(lambda: around.named("watch_failed"))
        assert around.named("watch_failed")[0] == {"upstream": "a", "error": "RuntimeError: oh"}
        monkeypatch.undo()
        scrapes = server.paths().count("/metrics")
        await until(lambda: server.paths().count("/metrics") > scrapes + 2)


async def test_it_ends_at_once_whatever_hangs_and_follows_no_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with RawServer({}) as stranger, RawServer({"/metrics": hang}) as server:
        monkeypatch.setenv("http_proxy", stranger.url)
        async with watching({"a": server.url}):
            await until(lambda: "/metrics" in server.paths())
        assert stranger.connections == 0
        left = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
        assert not [name for name in left if name.startswith("Prober.")]


# --- the engines' metrics for whoever asks ---------------------------------------------------------------------


class Gate:
    """A page that numbers its answers when it is asked, and gives them when it may."""

    def __init__(self) -> None:
        self.count, self.go_on, self.was_asked = 0, asyncio.Event(), asyncio.Event()

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        text = f"up {self.count}\n"
        self.was_asked.set()
        await self.go_on.wait()
        writer.write(http(text, content_type="text/plain"))
        await writer.drain()


async def test_who_asks_meanwhile_shares_the_next_answer_and_who_leaves_takes_nobody_s() -> None:
    gate = Gate()
    async with (
        RawServer({"/metrics": gate}) as server,
        watching({"a": server.url}, runs=False) as around,
    ):
        first, leaver = (asyncio.create_task(around.prober.metrics_page()) for _ in range(2))
        await gate.was_asked.wait()
        leaver.cancel()
        others = [asyncio.create_task(around.prober.metrics_page()) for _ in range(50)]
        await asyncio.wait([leaver])
        gate.go_on.set()
        assert await first == "up 1\n"
        assert set(await asyncio.gather(*others)) == {"up 2\n"}
        assert (await around.prober.metrics_page(), gate.count) == ("up 3\n", 3)


# --- several pages as one ----------------------------------------------------------------------------------------


def test_engines_add_up_as_replicas_do_and_none_loses_a_series() -> None:
    def numbers(page: str) -> EngineNumbers:
        found = read_numbers(read_page(page), "text/plain")
        assert found is not None
        return found

    both = one_page({0: RECORDED, 1: RECORDED})
    one, two = numbers(RECORDED), numbers(both)
    assert (two.engine, two.models, two.started_at) == (one.engine, one.models, one.started_at)
    assert (one.engines, two.engines) == (1, 2)
    for name in "running kv_cache_tokens prompt_tokens_total generation_tokens_total".split():
        assert getattr(two, name) == 2 * getattr(one, name), name
    families = {each.name: len(each.samples) for each in text_string_to_metric_families(both)}
    alone = {each.name: len(each.samples) for each in text_string_to_metric_families(RECORDED)}
    assert families == {name: 2 * count for name, count in alone.items()}


@pytest.mark.parametrize(
    ("line", "numbered"),
    [
        ("up 1", 'up{WorkerId="1"} 1'),
        ("up{} 1", 'up{WorkerId="1"} 1'),
        ('up{a="}{"} 1 170', 'up{WorkerId="1",a="}{"} 1 170'),
        ('up{WorkerId="x",a="b"} 1', 'up{WorkerId="x",a="b"} 1'),
        ("<html>", "<html>"),
    ],
)
def test_a_line_gets_its_page_s_number_among_its_labels(line: str, numbered: str) -> None:
    assert one_page({0: "", 1: line + "\n"}) == numbered + "\n"
