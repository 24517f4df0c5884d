"""Many hosts at once: nobody waits for another, nothing seen is lost."""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Sequence

import pytest
from support.raw_server import RawServer, http, recorded, vllm_pages

from toolkit.errors import ToolkitError
from toolkit.records import Host, Sighting
from toolkit.scout.scrape import CROWD, Pacing, Scout, tls_context
from toolkit.scout.watch import HostWatch

RESTARTED = recorded("metrics_after_load.txt").replace(
    b"process_start_time_seconds 1.79520096311e+09", b"process_start_time_seconds 1.8e+09"
)
"""The page of the same server, which started anew."""


class Watched:
    """A watch of servers by name, and what it handed out, in the order in which it came."""

    def __init__(self, timeout_s: float = 30.0, **more) -> None:
        self.stored: list[Sighting] = []
        self.shown: list[Sighting] = []
        self.on_show: Callable[[], object] = lambda: None
        self._timeout_s, self._more = timeout_s, more

    def keep(self, batch: Sequence[Sighting]) -> None:
        self.stored += batch

    def show(self, sighting: Sighting) -> None:
        self.shown.append(sighting)
        self.on_show()

    async def run(self, looks: int | None, interval_s: float = 0.05, **servers: RawServer) -> None:
        tls, pacing = tls_context(insecure=True), Pacing()
        scouts = [
            Scout(Host(name=name, url=server.url), tls, None, self._timeout_s, pacing)
            for name, server in servers.items()
        ]
        options = {"before": {}, "keep": self.keep, "show": self.show} | self._more
        await HostWatch(scouts, **options).run(looks, interval_s)

    def findings(self) -> list[list[str]]:
        return [[f.code for f in s.findings if f.code != "metrics_open"] for s in self.shown]


def test_a_hanging_host_delays_nobody_elses_looks_nor_their_keeping() -> None:
    watched, over, batches = Watched(), asyncio.Event(), []

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def keep(batch: Sequence[Sighting]) -> None:
            batches.append({sighting.name for sighting in batch})
            if len(watched.shown) == 3:
                loop.call_soon_threadsafe(over.set)

        async def hang_so_long(_: asyncio.StreamWriter) -> None:
            await over.wait()

        watched.keep = keep  # type: ignore[method-assign]
        async with (
            RawServer(vllm_pages()) as kind,
            RawServer(dict.fromkeys(vllm_pages(), hang_so_long)) as dead,
        ):
            await watched.run(3, kind=kind, dead=dead)

    asyncio.run(run())
    # the hanging host's first look lasts until three of the other's are kept
    assert [(s.name, s.status) for s in watched.shown] == [("kind", "ok")] * 3 + [("dead", "down")] * 3  # fmt: skip
    assert batches[0] == {"kind"}
    assert batches[-1] == {"dead"}


def test_two_looks_show_the_pair_and_keep_both() -> None:
    watched = Watched(show_first=False)

    async def run() -> None:
        async with RawServer(vllm_pages()) as kind:
            await watched.run(2, alice=kind)

    asyncio.run(run())
    assert [sighting.requests_per_s for sighting in watched.stored] == [None, 0.0]
    assert [sighting.requests_per_s for sighting in watched.shown] == [0.0]


@pytest.mark.parametrize("page", ["/health", "/metrics"])
def test_a_look_that_was_cut_short_invents_no_change_and_hides_no_restart(page: str) -> None:
    """Whether it was down or without its numbers."""
    watched = Watched()

    async def run() -> None:
        async with RawServer(vllm_pages()) as server:
            whole = dict(server.pages)
            broken = whole | {page: http(status="503 Service Unavailable")}
            states = iter([broken, whole | {"/metrics": http(RESTARTED)}])
            watched.on_show = lambda: server.pages.update(next(states, {}))
            await watched.run(3, alice=server)

    asyncio.run(run())
    middle = "down" if page == "/health" else "degraded"
    assert [sighting.status for sighting in watched.shown] == ["ok", middle, "ok"]
    assert watched.findings() == [[], [], ["restarted"]]


def test_a_change_since_the_last_known_sighting_is_found() -> None:
    first, second = Watched(), Watched()

    async def run() -> None:
        async with RawServer(vllm_pages()) as server:
            await first.run(1, alice=server)
            server.pages["/metrics"] = http(RESTARTED)
            second._more["before"] = {"alice": first.shown[0]}
            await second.run(1, alice=server)

    asyncio.run(run())
    assert second.findings() == [["restarted"]]


def test_a_busy_machine_begins_no_look_beyond_the_hundredth_and_one_that_waits_keeps_nobody_out() -> (
    None
):
    """Deadlines run from a look's beginning: who cannot be served yet must not begin."""
    inside = most = begun = 0

    async def busy(pacing: Pacing) -> None:
        nonlocal inside, most
        async with pacing.place():
            inside += 1
            most = max(most, inside)
            for _ in range(2):
                time.sleep(0.001)  # noqa: ASYNC251 (work: 100 of them take a round of 0.1 s)
                await asyncio.sleep(0)
            inside -= 1

    async def hanging(pacing: Pacing, over: asyncio.Event) -> None:
        nonlocal begun
        async with pacing.place():
            begun += 1
            if begun == 3 * CROWD:
                over.set()
            await over.wait()

    async def run() -> None:
        pacing, over = Pacing(), asyncio.Event()
        await asyncio.gather(*(busy(pacing) for _ in range(CROWD + 50)))
        looks = [asyncio.create_task(hanging(pacing, over)) for _ in range(3 * CROWD)]
        await asyncio.wait_for(asyncio.gather(*looks), timeout=30)

    asyncio.run(run())
    assert (most, begun) == (CROWD, 3 * CROWD)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly_and_keeps_what_was_seen(stop: signal.Signals) -> None:
    watched = Watched()
    watched.on_show = lambda: os.kill(os.getpid(), stop)

    async def run() -> None:
        async with RawServer(vllm_pages()) as server:
            await watched.run(None, 60, alice=server)

    with pytest.raises((KeyboardInterrupt, asyncio.CancelledError)):
        asyncio.run(run())
    assert len(watched.stored) == len(watched.shown) == 1


def test_no_question_outlives_a_look_that_is_stopped() -> None:
    complaints: list[str] = []

    async def hang(_: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
        async with RawServer(vllm_pages() | {"/version": hang}) as server:
            running = asyncio.create_task(Watched().run(None, 1, alice=server))
            while "/version" not in server.paths():  # noqa: ASYNC110 (the server has no event for it)
                await asyncio.sleep(0.001)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.sleep(0.05)

    asyncio.run(run())
    gc.collect()  # asyncio complains of a task's unread exception when the task is thrown away
    assert complaints == []


def test_a_store_that_fails_ends_the_watch_with_its_error() -> None:
    def full(_: Sequence[Sighting]) -> None:
        raise ToolkitError("`x.db` cannot grow, the disk is full")

    async def run() -> None:
        async with RawServer(vllm_pages()) as server:
            await Watched(keep=full).run(None, 0.1, alice=server)

    with pytest.raises(ToolkitError, match="disk is full"):
        asyncio.run(run())


def test_a_page_of_sixteen_megabytes_delays_nobody() -> None:
    watched = Watched()
    line = 'vllm:num_requests_running{engine="%d",model_name="m"} 1\n'
    huge = "".join(line % number for number in range(250_000)).encode()[: 16 * 2**20]

    async def run() -> None:
        async with (
            RawServer(vllm_pages()) as kind,
            RawServer(vllm_pages() | {"/metrics": http(huge)}) as odd,
        ):
            await watched.run(1, odd=odd, kind=kind)

    asyncio.run(run())
    assert [sighting.name for sighting in watched.shown] == ["kind", "odd"]
