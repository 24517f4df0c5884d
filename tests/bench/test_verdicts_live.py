"""Verdicts on real runs: a runner asks simulated servers over sockets, straight or through a front that cheats."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession, web
from support.benching import measured, plan, runner_at

from toolkit.bench.verdicts.case import Case
from toolkit.bench.verdicts.judgement import judgement
from toolkit.records import Verdict
from toolkit.sim.app import SimServer
from toolkit.sim.presets import setup_for

QUICK = {"time_scale": 0.05}
"""0.7 ms a token."""
TOKENS = 48
Event = dict[str, Any]


class Front:
    """Stands before a server, hands on what it says, and lies where a subclass does."""

    def __init__(self, session: ClientSession, behind: str) -> None:
        self.session, self.behind = session, behind

    async def page(self, path: str) -> tuple[bytes, str]:
        async with self.session.get(self.behind + path) as answer:
            return await answer.read(), answer.headers["content-type"]

    async def heard(self, body: dict[str, Any]) -> AsyncIterator[Event]:
        """The server's events, or its whole answer as the only one."""
        url = f"{self.behind}/v1/chat/completions"
        async with self.session.post(url, json=body) as answer:
            if not body["stream"]:
                yield await answer.json()
                return
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])

    async def said(self, body: dict[str, Any]) -> AsyncIterator[Event]:
        async for event in self.heard(body):
            yield event

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            body, kind = await self.page(request.path)
            return web.Response(body=body, headers={"content-type": kind})
        asked = await request.json()
        if not asked["stream"]:
            return web.json_response(await anext(self.said(asked)))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        async for event in self.said(asked):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


class Broken(Front):
    """Passes eight tokens on, breaks the request off, and calls the answer complete."""

    async def said(self, body: dict[str, Any]) -> AsyncIterator[Event]:
        shown = 0
        async for event in self.heard(body):
            yield event
            shown += _has_token(event)
            if shown == 8:
                break
        last = {"index": 0, "delta": {}, "finish_reason": "stop"}
        yield event | {"choices": [last]}
        yield event | {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 8}}


class OneLength(Front):
    """Asks for twenty tokens, and calls the end a natural one; shows no counters."""

    async def page(self, path: str) -> tuple[bytes, str]:
        return await super().page(path if path != "/metrics" else "/version")

    async def said(self, body: dict[str, Any]) -> AsyncIterator[Event]:
        async for event in self.heard(body | {"max_tokens": 20}):
            for choice in event["choices"]:
                if choice.get("finish_reason"):
                    choice["finish_reason"] = "stop"
            yield event


class Inflated(Front):
    """Claims a fifth more tokens than there were."""

    async def said(self, body: dict[str, Any]) -> AsyncIterator[Event]:
        async for event in self.heard(body):
            if event.get("usage"):
                event["usage"]["completion_tokens"] = TOKENS * 6 // 5
            yield event


class Frozen(Front):
    """Shows the counters as they were when first looked at."""

    kept: tuple[bytes, str] | None = None

    async def page(self, path: str) -> tuple[bytes, str]:
        if path != "/metrics":
            return await super().page(path)
        self.kept = self.kept or await super().page(path)
        return self.kept


class Remembering(Front):
    """Answers what it heard before from memory, after 20 ms, under a new id."""

    def __init__(self, session: ClientSession, behind: str) -> None:
        super().__init__(session, behind)
        self.memory: dict[str, list[Event]] = {}
        self.hits = 0

    async def said(self, body: dict[str, Any]) -> AsyncIterator[Event]:
        key = json.dumps(body)
        known = self.memory.get(key)
        if known is None:
            known = [event async for event in self.heard(body)]
            self.memory[key] = known
            for event in known:
                yield event
            return
        self.hits += 1
        id_ = f"chatcmpl-memory-{self.hits}"
        await asyncio.sleep(0.02)
        for event in known:
            yield event | {"id": id_}


def _has_token(event: Event) -> bool:
    return any(choice.get("delta", {}).get("content") for choice in event["choices"])


@asynccontextmanager
async def behind(kind: Callable[[ClientSession, str], Front], url: str) -> AsyncIterator[str]:
    """Put a front before the server; its own URL."""
    async with ClientSession() as session:
        runner = web.ServerRunner(web.Server(kind(session, url).answer, access_log=None))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def judged(
    kind: Callable[[ClientSession, str], Front] = Front,
    server: dict[str, Any] | None = None,
    **wanted: Any,
) -> dict[str, Verdict]:
    """Code -> verdict of a run of 24 requests, six of them twins.

    Not that it was cold: where this machine is busy its first answers truly are half a second late.
    """

    async def main() -> dict[str, Verdict]:
        setup = setup_for("gptq-int4", **QUICK | (server or {}))
        usual: dict[str, Any] = {
            "requests": 24,
            "concurrency": 4,
            "max_tokens": TOKENS,
            "sameness": "pairs",
        }
        async with SimServer(setup) as sim, behind(kind, sim.url) as url:
            runner = runner_at(url, plan(**usual | wanted))
            shots = await measured(runner)
            assert all(shot.ok for shot in shots)
            found = judgement(Case(records=shots, ledger=runner.ledger, host=runner.host)).verdicts
            return {verdict.code: verdict for verdict in found if verdict.code != "cold"}

    return asyncio.run(main())


SHARES = pytest.mark.parametrize("stream_share", [0.0, 0.5])


@pytest.mark.parametrize("dialect", ["v0", "v1", "rust"])
@SHARES
def test_an_honest_front_is_clean(dialect: str, stream_share: float) -> None:
    found = judged(server={"dialect": dialect}, stream_share=stream_share, temperature=0)
    assert set(found) == {"clean"}
    assert found["clean"].confidence == "high"


def test_requests_broken_off_by_the_front_are_cut_answers() -> None:
    # the engine counts no request that was aborted, though it made each token that was shown
    found = judged(Broken)
    assert found.keys() - {"not_judged"} == {"truncated_output"}
    assert "the server finished no request" in found["truncated_output"].evidence


@SHARES
def test_a_hidden_limit_shows_by_answers_of_one_length_without_counters_and_peers(
    stream_share: float,
) -> None:
    found = judged(OneLength, stream_share=stream_share)
    assert found.keys() - {"not_judged"} == {"truncated_output"}
    assert "stop at exactly 20 tokens" in found["truncated_output"].evidence


@SHARES
def test_a_claim_that_is_a_fifth_too_high_is_inflated_and_no_hidden_backend(
    stream_share: float,
) -> None:
    # 57 claimed for 48
    found = judged(Inflated, stream_share=stream_share)
    assert set(found) == {"inflated_usage"}
    assert found["inflated_usage"].confidence == ("low" if stream_share == 0 else "high")


@pytest.mark.parametrize("sameness", ["pairs", "repeat"])
@SHARES
def test_counters_that_stand_still_are_a_hidden_backend_and_no_cache(
    stream_share: float, sameness: str
) -> None:
    # at temperature 0 the repeated requests get equal answers, after the usual time
    found = judged(Frozen, stream_share=stream_share, sameness=sameness, requests=48, temperature=0)
    assert found.keys() - {"not_judged"} == {"hidden_backend"}


@SHARES
def test_a_slow_memory_with_new_ids_is_a_cache_for_all_that_it_answered(
    stream_share: float,
) -> None:
    found = judged(Remembering, stream_share=stream_share)
    assert set(found) == {"response_cache"}
    assert found["response_cache"].evidence.startswith("6 of 6 repeated requests")
