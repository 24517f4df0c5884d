"""Many hosts at once: nobody waits for another, nothing seen is lost."""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Sequence

import pytest
from support.raw_server import RawServer, http, recorded, vllm_pages

from toolkit.errors import ToolkitError
from toolkit.records import Host, Sighting
from toolkit.scout.look import CROWD, Crowd, QuietMoments, Scout, tls_context
from toolkit.scout.watch import HostWatch

RESTARTED = recorded("metrics_after_load.txt").replace(
    b"process_start_time_seconds 1.79520096311e+09", b"process_start_time_seconds 1.8e+09"
)
"""The page of the same server, which started anew."""


class Kept:
    """What the watch handed out, in the order in which it came."""

    def __init__(self) -> None:
        self.stored: list[Sighting] = []
        self.shown: list[Sighting] = []

    def keep(self, batch: Sequence[Sighting]) -> None:
        self.stored += batch


def watch(urls: dict[str, str], kept: Kept, timeout_s: float = 5.0, **more) -> HostWatch:
    tls = tls_context(insecure=True)
    quiet = QuietMoments()
    scouts = [
        Scout(Host(name=name, url=url), tls, None, timeout_s, quiet) for name, url in urls.items()
    ]
    return HostWatch(
        scouts, before=more.pop("before", {}), keep=kept.keep, show=kept.shown.append, **more
    )


async def hang(_: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


def test_a_hanging_host_delays_nobody_elses_looks() -> None:
    kept = Kept()

    async def run() -> None:
        over = asyncio.Event()

        def show(sighting: Sighting) -> None:
            kept.shown.append(sighting)
            if len(kept.shown) == 3:
                over.set()

        async def hang_so_long(_: asyncio.StreamWriter) -> None:
            await over.wait()

        async with (
            RawServer(vllm_pages()) as kind,
            RawServer(dict.fromkeys(vllm_pages(), hang_so_long)) as dead,
        ):
            running = watch({"kind": kind.url, "dead": dead.url}, kept, timeout_s=30.0)
            running._show = show
            await running.run(looks=3, interval_s=0.1)

    asyncio.run(run())
    names = [sighting.name for sighting in kept.shown]
    # the hanging host's first look lasts until three of the other's are shown
    assert names[:3] == ["kind"] * 3
    assert names[3:] == ["dead"] * 3
    assert [s.status for s in kept.shown] == ["ok"] * 3 + ["down"] * 3
    assert sorted(kept.stored, key=lambda s: s.at) == sorted(kept.shown, key=lambda s: s.at)


def test_two_looks_show_the_pair_and_keep_both() -> None:
    kept = Kept()

    async def run() -> None:
        async with RawServer(vllm_pages()) as kind:
            await watch({"alice": kind.url}, kept, only_pairs=True).run(looks=2, interval_s=0.05)

    asyncio.run(run())
    assert [sighting.requests_per_s for sighting in kept.stored] == [None, 0.0]
    assert [sighting.requests_per_s for sighting in kept.shown] == [0.0]


def test_a_change_since_the_last_known_sighting_is_found_across_an_outage() -> None:
    kept = Kept()

    async def run() -> None:
        async with RawServer(vllm_pages()) as server:
            one = watch({"alice": server.url}, kept)
            await one.run(looks=1, interval_s=0.05)
            known = {"alice": kept.shown[-1]}
            server.pages["/health"] = http(status="503 Service Unavailable")
            await watch({"alice": server.url}, kept, before=known).run(looks=1, interval_s=0.05)
            server.pages["/health"] = http()
            server.pages["/metrics"] = http(RESTARTED)
            await watch({"alice": server.url}, kept, before=known).run(looks=1, interval_s=0.05)

    asyncio.run(run())
    assert [s.status for s in kept.shown] == ["ok", "down", "ok"]
    assert [f.code for f in kept.shown[2].findings if f.code == "restarted"] == ["restarted"]


def test_a_look_that_was_cut_short_invents_no_change_and_hides_no_restart() -> None:
    kept = Kept()

    async def run() -> None:
        async with RawServer(vllm_pages()) as server:
            broken = http(status="503 Service Unavailable")
            answers = iter([server.pages["/metrics"], broken, http(RESTARTED)])
            running = watch({"alice": server.url}, kept)

            def show(sighting: Sighting) -> None:
                kept.shown.append(sighting)
                server.pages["/metrics"] = next(answers, http(RESTARTED))

            running._show = show
            server.pages["/metrics"] = next(answers)
            await running.run(looks=3, interval_s=0.05)

    asyncio.run(run())
    assert [s.status for s in kept.shown] == ["ok", "degraded", "ok"]
    told = [[f.code for f in s.findings if f.code != "metrics_open"] for s in kept.shown]
    assert told == [[], [], ["restarted"]]


def test_what_is_remembered_of_a_look_holds_no_page() -> None:
    kept = Kept()

    async def run() -> int:
        async with RawServer(vllm_pages()) as server:
            running = watch({"alice": server.url}, kept)
            await running.run(looks=1, interval_s=1)
            remembered = running._evidence["alice"]
            assert remembered.numbers is not None
            return sum(len(answer.body) for answer in remembered.look.answers.values())

    assert asyncio.run(run()) == 0


def test_a_busy_machine_begins_no_look_beyond_the_hundredth() -> None:
    """Deadlines run from a look's beginning: who cannot be served yet must not begin."""
    inside = most = ended = 0

    async def look(crowd: Crowd) -> None:
        nonlocal inside, most, ended
        async with crowd.place():
            inside += 1
            most = max(most, inside)
            for _ in range(2):
                time.sleep(0.001)  # noqa: ASYNC251 (work: 100 of them take a round of 0.1 s)
                await asyncio.sleep(0)
            inside -= 1
            ended += 1

    async def run() -> None:
        crowd = Crowd()
        await asyncio.gather(*(look(crowd) for _ in range(CROWD + 50)))

    asyncio.run(run())
    assert (most, ended) == (CROWD, CROWD + 50)


def test_hosts_that_hang_keep_nobody_from_beginning() -> None:
    async def run() -> int:
        crowd, begun = Crowd(), 0

        async def look() -> None:
            nonlocal begun
            async with crowd.place():
                begun += 1
                await asyncio.sleep(3600)

        looks = [asyncio.create_task(look()) for _ in range(3 * CROWD)]
        give_up = time.monotonic() + 30
        while begun < 3 * CROWD and time.monotonic() < give_up:  # noqa: ASYNC110 (nobody is told)
            await asyncio.sleep(0.01)
        for task in looks:
            task.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
        return begun

    assert asyncio.run(run()) == 3 * CROWD


def test_what_was_seen_is_kept_before_a_hanging_host_is_given_up() -> None:
    batches: list[list[str]] = []

    async def run() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def keep(batch: Sequence[Sighting]) -> None:
            batches.append([sighting.name for sighting in batch])
            loop.call_soon_threadsafe(over.set)

        async def hang_so_long(_: asyncio.StreamWriter) -> None:
            await over.wait()

        async with (
            RawServer(vllm_pages()) as kind,
            RawServer(dict.fromkeys(vllm_pages(), hang_so_long)) as dead,
        ):
            urls = {"kind": kind.url, "dead": dead.url}
            running = watch(urls, Kept(), timeout_s=30.0)
            running._keep = keep
            await running.run(looks=1, interval_s=1)

    asyncio.run(run())
    assert batches == [["kind"], ["dead"]]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly_and_keeps_what_was_seen(stop: signal.Signals) -> None:
    kept = Kept()

    async def run() -> None:
        async with RawServer(vllm_pages()) as server:
            running = watch({"alice": server.url}, kept)
            running._show = lambda sighting: (
                kept.shown.append(sighting),
                os.kill(os.getpid(), stop),
            )
            await running.run(looks=None, interval_s=60)

    with pytest.raises((KeyboardInterrupt, asyncio.CancelledError)):
        asyncio.run(run())
    assert len(kept.stored) == len(kept.shown) == 1


def test_no_question_outlives_a_look_that_is_stopped() -> None:
    complaints: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, told: complaints.append(told["message"]))
        async with RawServer(vllm_pages() | {"/version": hang}) as server:
            running = asyncio.create_task(watch({"alice": server.url}, Kept()).run(None, 1))
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
            running = watch({"alice": server.url}, Kept())
            running._keep = full
            await running.run(looks=None, interval_s=0.1)

    with pytest.raises(ToolkitError, match="disk is full"):
        asyncio.run(run())


def test_a_page_of_sixteen_megabytes_delays_nobody() -> None:
    kept = Kept()
    line = 'vllm:num_requests_running{engine="%d",model_name="m"} 1\n'
    huge = "".join(line % number for number in range(250_000)).encode()[: 16 * 2**20]

    async def run() -> None:
        async with (
            RawServer(vllm_pages()) as kind,
            RawServer(vllm_pages() | {"/metrics": http(huge)}) as odd,
        ):
            urls = {"odd": odd.url, "kind": kind.url}
            await watch(urls, kept).run(looks=1, interval_s=1)

    asyncio.run(run())
    assert [sighting.name for sighting in kept.shown] == ["kind", "odd"]
