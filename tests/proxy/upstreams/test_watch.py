"""The watch over servers that are well: what it reads, how often, and what it tells whom."""

import asyncio
import json
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path

import orjson
import pytest
from support.chat import until
from support.raw_server import RawServer, http, recorded, vllm_pages
from support.watching import FAST, watching

from toolkit.proxy.settings import RoutingSetting
from toolkit.proxy.stored.shared_cache import SharedCache

BUSY = b"""
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 4.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 70.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 30.0
vllm:iteration_tokens_total_count{engine="0",model_name="tiny"} 9.0
process_start_time_seconds 1.7e+09
"""


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def metrics(**changes: float) -> bytes:
    """A page of a vLLM with some numbers replaced, by the end of their names."""
    lines = []
    for line in BUSY.decode().splitlines():
        name = line.partition("{")[0].partition(" ")[0].removeprefix("vllm:")
        value = changes.get(name)
        lines.append(line if value is None else f"{line.rpartition(' ')[0]} {value}")
    return http("\n".join([*lines, ""]))


def test_a_look_reads_load_models_and_pages() -> None:
    async def work() -> None:
        pages = vllm_pages() | {"/metrics": metrics()}
        async with RawServer(pages) as server, watching({"a": server.url}) as around:
            await around.watch.first_look()
            await until(lambda: around.state("a").models)
            state = around.state("a")
            assert (state.state, state.models) == ("up", frozenset({"tiny"}))
            assert 6.5 < state.others <= 7.0, "3 run and 4 wait, and none is ours"
            assert around.watch.metrics("a").body.strip() == BUSY.strip()
            assert around.watch.version("a").body == recorded("version.json")

    run(work())


def test_pages_that_change_seldom_are_read_seldom_and_health_never() -> None:
    async def work() -> None:
        async with RawServer(vllm_pages()) as server, watching({"a": server.url}):
            await until(lambda: server.paths().count("/metrics") >= 20)
            paths = server.paths()
            assert (paths.count("/v1/models"), paths.count("/version")) == (1, 1)
            assert "/health" not in paths
            assert server.connections == 1

    run(work())


def test_they_are_read_again_when_their_time_has_come() -> None:
    async def work() -> None:
        server = RawServer(vllm_pages() | {"/metrics": metrics()})
        async with server, watching({"a": server.url}, identity_s=0.05) as around:
            await around.watch.first_look()
            card = json.loads(recorded("v1_models.json"))
            card["data"][0]["max_model_len"] = 1024
            server.pages["/v1/models"] = http(json.dumps(card))
            await until(lambda: around.generations.numbers == {"tiny": 1, "*": 1})

    run(work())


def test_metrics_that_appear_later_are_found() -> None:
    async def work() -> None:
        pages = {"/health": http()}
        async with (
            RawServer(pages) as server,
            watching({"a": server.url}, identity_s=0.05) as around,
        ):
            await until(lambda: server.paths().count("/health") >= 3)
            server.pages["/metrics"] = metrics()
            await until(lambda: around.watch.metrics("a"))

    run(work())


def test_a_page_that_takes_long_to_be_read_is_asked_for_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        # as if it had taken a thousand million times as long
        monkeypatch.setattr("toolkit.proxy.upstreams.watch.READING_SHARE", 1e-10)
        async with RawServer(vllm_pages()) as server, watching({"a": server.url}) as around:
            await around.watch.first_look()
            await asyncio.sleep(0.1)  # ten looks' time
            assert server.paths().count("/metrics") == 1

    run(work())


def test_every_request_says_whose_it_is_and_bears_the_upstreams_own_key() -> None:
    async def work() -> None:
        async with (
            RawServer(vllm_pages()) as one,
            RawServer(vllm_pages()) as two,
            watching({"a": one.url, "b": two.url}, keys={"a": "sk-a"}) as around,
        ):
            await around.watch.first_look()
            heads = [headers for _, _, headers in one.requests]
            assert {head["user-agent"] for head in heads} == {"llm-serving-toolkit-watch"}
            assert {head["authorization"] for head in heads} == {"Bearer sk-a"}
            assert not any("authorization" in headers for _, _, headers in two.requests)
            assert not any("cookie" in head for head in heads)

    run(work())


def test_one_that_is_not_to_be_watched_is_left_in_peace() -> None:
    async def work() -> None:
        async with (
            RawServer(vllm_pages()) as server,
            watching({"a": server.url}, probes=False) as around,
        ):
            await around.watch.first_look()
            await asyncio.sleep(0.05)  # five looks' time
            assert server.connections == 0
            assert around.watch.metrics("a") is None

    run(work())


def test_where_there_are_no_metrics_health_is_asked() -> None:
    async def work() -> None:
        pages = vllm_pages()
        del pages["/metrics"]
        async with RawServer(pages) as server, watching({"a": server.url}) as around:
            await until(lambda: server.paths().count("/health") >= 5)
            # asked for once more only after 10 s
            assert server.paths().count("/metrics") == 1
            assert around.state("a").models == {"tiny"}
            assert around.watch.metrics("a") is None

    run(work())


def test_one_that_has_no_pages_at_all_is_well() -> None:
    async def work() -> None:
        async with RawServer({}) as server, watching({"a": server.url}) as around:
            await until(lambda: server.paths().count("/health") >= 3)
            assert around.state("a").state == "up"
            assert around.state("a").looked_s_ago is not None

    run(work())


def test_a_health_that_says_no_leaves_the_upstream_until_it_says_yes() -> None:
    async def work() -> None:
        pages = {"/health": http(status="503 Service Unavailable")}
        async with RawServer(pages) as server, watching({"a": server.url}) as around:
            await until(lambda: around.state("a").reason == "unreachable")
            server.pages["/health"] = http()
            await until(lambda: around.state("a").state == "up")
            await until(lambda: around.named("upstream_back"))
            assert around.named("upstream_left") == [{"upstream": "a", "reason": "unreachable"}]
            assert around.named("upstream_back") == [{"upstream": "a", "reason": "unreachable"}]

    run(work())


def test_one_that_goes_is_left_and_comes_back_with_its_pages_read_anew() -> None:
    async def work() -> None:
        first = RawServer(vllm_pages())
        async with first, watching({"a": first.url}) as around:
            await around.watch.first_look()
            port = int(first.url.rpartition(":")[2])
            first._server.close()
            for handler in first.handlers():
                handler.cancel()
            await until(lambda: around.state("a").reason == "unreachable")
            second = RawServer(vllm_pages())
            listener = await asyncio.start_server(second._serve, "127.0.0.1", port)
            await until(lambda: around.state("a").state == "up")
            await until(lambda: "/version" in second.paths())
            assert "/v1/models" in second.paths()
            listener.close()

    run(work())


# --- epochs ------------------------------------------------------------------------------------------------


def test_another_start_time_raises_the_epoch_of_what_it_serves() -> None:
    async def work() -> None:
        server = RawServer(vllm_pages() | {"/metrics": metrics()})
        async with server, watching({"a": server.url}) as around:
            await around.watch.first_look()
            assert around.generations.numbers == {}
            server.pages["/metrics"] = metrics(process_start_time_seconds=1.7e9 + 60)
            await until(lambda: around.generations.numbers)
            assert around.generations.numbers == {"tiny": 1, "*": 1}
            await until(lambda: around.named("epoch"))
            assert around.named("epoch") == [
                {"upstream": "a", "models": ["*", "tiny"], "why": "restart"}
            ]
            assert sorted(around.changed) == ["*", "tiny"]
            looks = server.paths().count("/metrics")
            await until(lambda: server.paths().count("/metrics") > looks + 5)
            assert around.generations.numbers == {"tiny": 1, "*": 1}, "once"

    run(work())


def test_another_model_behind_the_name_raises_its_epoch_though_nothing_restarted() -> None:
    async def work() -> None:
        server = RawServer(vllm_pages() | {"/metrics": metrics()})
        async with server, watching({"a": server.url}, epoch="change") as around:
            await around.watch.first_look()
            card = json.loads(recorded("v1_models.json"))
            card["data"][0]["root"] = "/models/other"
            server.pages["/v1/models"] = http(json.dumps(card))
            # its pages are read anew because it started anew, which alone is no change here
            server.pages["/metrics"] = metrics(process_start_time_seconds=1.7e9 + 60)
            await until(lambda: around.generations.numbers)
            assert around.generations.numbers == {"tiny": 1, "*": 1}
            assert around.named("epoch")[0]["why"] == "models"

    run(work())


def test_while_it_is_down_its_identity_stays_and_the_same_one_coming_back_changes_nothing() -> None:
    async def work() -> None:
        server = RawServer(vllm_pages() | {"/metrics": metrics()})
        async with server, watching({"a": server.url}) as around:
            await around.watch.first_look()
            pages, server.pages = server.pages, {"/health": http(status="500 Oh")}
            await until(lambda: around.state("a").reason == "unreachable")
            server.pages = pages
            await until(lambda: around.state("a").state == "up")
            assert around.generations.numbers == {}

    run(work())


def test_epochs_that_another_process_raised_are_taken_over(tmp_path: Path) -> None:
    async def work() -> None:
        file = tmp_path / "cache.db"
        with closing(SharedCache(file, 2**20)) as one, closing(SharedCache(file, 2**20)) as two:
            async with (
                RawServer(vllm_pages()) as server,
                watching({"a": server.url}, book=one) as around,
            ):
                await around.watch.first_look()
                two.bump("tiny")
                await until(lambda: around.generations.numbers == {"tiny": 1})
                assert around.changed == ["tiny"]

    run(work())


# --- probes ------------------------------------------------------------------------------------------------

TOKEN = http('{"choices":[{"text":"pong","finish_reason":"length"}]}')


def test_one_that_stands_still_is_asked_for_a_token_and_stays_if_it_makes_one() -> None:
    async def work() -> None:
        pages = vllm_pages() | {"/metrics": metrics(), "/v1/completions": TOKEN}
        async with RawServer(pages) as server, watching({"a": server.url}) as around:
            around.routing.started("a", around.watch._clock())
            await until(lambda: around.named("probe"))
            assert around.named("probe")[0] == {"upstream": "a", "token": True}
            assert around.state("a").state == "up"
            at = server.paths().index("/v1/completions")
            method, _, headers = server.requests[at]
            assert (method, headers["user-agent"]) == ("POST", "llm-serving-toolkit-probe")
            assert headers["cache-control"] == "no-cache, no-store"
            asked = orjson.loads(server.bodies[at])
            assert (asked["model"], asked["max_tokens"]) == ("tiny", 1)

    run(work())


async def _hang(writer: asyncio.StreamWriter) -> None:
    await writer.drain()
    await asyncio.Event().wait()


def test_an_engine_that_answers_health_and_metrics_but_makes_no_token_is_left() -> None:
    async def work() -> None:
        pages = vllm_pages() | {"/metrics": metrics(), "/v1/completions": _hang}
        async with RawServer(pages) as server, watching({"a": server.url}) as around:
            await until(lambda: around.state("a").reason == "stuck")
            assert around.routing.given_up() == ("a",)
            await until(lambda: around.named("upstream_left"))
            assert around.named("upstream_left")[0] == {"upstream": "a", "reason": "stuck"}
            # it moves again
            server.pages["/metrics"] = metrics(generation_tokens_total=71.0)
            await until(lambda: around.state("a").state == "up")

    run(work())


def test_a_server_that_hangs_as_a_whole_is_left_too() -> None:
    async def work() -> None:
        pages = vllm_pages() | {"/metrics": metrics(), "/v1/completions": TOKEN}
        async with RawServer(pages) as server, watching({"a": server.url}) as around:
            await around.watch.first_look()
            server.pages = dict.fromkeys([*pages, "/v1/completions"], _hang)
            around.routing.started("a", around.watch._clock())
            await until(lambda: around.state("a").reason == "stuck")

    run(work())


def test_a_server_without_completions_is_asked_to_chat() -> None:
    async def work() -> None:
        pages = vllm_pages() | {"/metrics": metrics(), "/v1/chat/completions": TOKEN}
        async with RawServer(pages) as server, watching({"a": server.url}) as around:
            await until(lambda: around.named("probe"))
            assert around.named("probe")[0]["token"] is True
            asked = orjson.loads(server.bodies[server.paths().index("/v1/chat/completions")])
            assert asked["messages"][0]["role"] == "user"
            await until(lambda: len(around.named("probe")) > 1)
            assert server.paths().count("/v1/completions") == 1

    run(work())


def test_a_probe_holds_up_no_look_and_no_other_probe() -> None:
    async def work() -> None:
        stuck = vllm_pages() | {"/metrics": metrics(), "/v1/completions": _hang}
        well = vllm_pages() | {"/metrics": metrics(), "/v1/completions": TOKEN}
        slow = RoutingSetting(look_s=0.01, stuck_s=0.1, probe_s=30.0)
        async with (
            RawServer(stuck) as one,
            RawServer(well) as two,
            watching({"a": one.url, "b": two.url}, routing=slow) as around,
        ):
            await until(lambda: "/v1/completions" in one.paths())
            looks = one.paths().count("/metrics")
            await until(lambda: one.paths().count("/metrics") >= looks + 5)
            await until(lambda: {"upstream": "b", "token": True} in around.named("probe"))
            assert around.named("probe").count({"upstream": "a", "token": False}) == 0

    run(work())


def test_the_watch_ends_at_once_whatever_hangs() -> None:
    async def work() -> None:
        pages = {"/metrics": _hang, "/v1/completions": _hang}
        async with RawServer(pages) as server:
            async with watching({"a": server.url}, routing=FAST) as around:
                await until(lambda: "/metrics" in server.paths())
            assert around.watch._unseen == {"a"}, "its first look was under way"
            left = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
            assert not [name for name in left if name.startswith("Watch.")]

    run(work())
