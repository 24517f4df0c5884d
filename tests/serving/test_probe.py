"""What a look at an engine sees, and whether it makes a token: real sockets, and servers that hang, drip, lie and die."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from support.chat import hang
from support.raw_server import RawServer, http, vllm_pages

from toolkit.records import Host
from toolkit.serving.stack import GuardSetting
from toolkit.serving.watchdog import LivenessProbe, ProbeResult

Told = TypeVar("Told")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TOKEN = http(json.dumps({"choices": [{"text": "a"}]}), content_type="application/json")


def ask(
    server: RawServer, question: Callable[[LivenessProbe], Awaitable[Told]], **settings: Any
) -> Told:
    async def run() -> Told:
        async with server:
            return await question_of(server.url, question, **settings)

    return asyncio.run(run())


async def question_of(
    url: str, question: Callable[[LivenessProbe], Awaitable[Told]], **settings: Any
) -> Told:
    model = settings.pop("model", None)
    host = Host(name="alice", url=url, model=model)
    guard = GuardSetting(answer_s=settings.pop("answer_s", 5.0))
    async with LivenessProbe(host, guard, **({"limit_s": 5.0} | settings)) as probe:
        return await question(probe)


def look(pages: dict[str, Any], **settings: Any) -> ProbeResult:
    return ask(RawServer(pages), LivenessProbe.pages, **settings)


def token(pages: dict[str, Any], **settings: Any) -> bool | None:
    return ask(RawServer(pages), LivenessProbe.token, **settings)


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


async def cut(_: asyncio.StreamWriter) -> None:
    """Close the connection without a word."""


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


# --- a look -------------------------------------------------------------------------------------------------


def test_a_recorded_page_of_a_real_vllm_is_read_by_its_own_names() -> None:
    seen = look(vllm_pages())
    page = vllm_pages()["/metrics"]
    assert isinstance(page, bytes)

    def value(name: str) -> float:
        (line,) = [each for each in page.decode().splitlines() if each.startswith(name + "{")]
        return float(line.rpartition(" ")[2])

    assert seen.answer == "came"
    assert seen.signs == (
        value("vllm:prompt_tokens_total"),
        value("vllm:generation_tokens_total"),
        value("vllm:iteration_tokens_total_count"),
        value("vllm:kv_cache_usage_perc"),
    )
    assert seen.under_way == value("vllm:num_requests_running") + value("vllm:num_requests_waiting")


def test_nobody_listens() -> None:
    assert asyncio.run(question_of(closed_port(), LivenessProbe.pages)) == ProbeResult(
        answer="refused"
    )


def test_health_of_5xx_is_ill_and_its_counters_are_not_asked() -> None:
    server = RawServer(vllm_pages() | {"/health": http("", "503 Service Unavailable")})
    assert ask(server, LivenessProbe.pages).answer == "ill"
    assert server.paths() == ["/health/liveliness", "/health"]


@pytest.mark.parametrize("misbehave", [hang, drip, cut])
@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_a_page_that_hangs_drips_or_is_cut_is_late_and_not_refused(
    path: str, misbehave: Any
) -> None:
    assert look(vllm_pages() | {path: misbehave}, limit_s=0.3).answer == "late"


@pytest.mark.parametrize(
    "page", [http("", "404 Not Found"), http("no metrics at all"), http("", "500 Oh")]
)
def test_an_engine_without_metrics_came_but_tells_nothing(page: bytes) -> None:
    seen = look(vllm_pages() | {"/metrics": page})
    assert (seen.answer, seen.signs, seen.under_way) == ("came", (), None)


def test_a_page_without_end_is_given_up() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999\r\n\r\n")
        while True:
            writer.write(b"x" * 2**16)
            await writer.drain()

    assert look(vllm_pages() | {"/metrics": endless}, limit_s=30.0) == ProbeResult(answer="came")


# --- one token ------------------------------------------------------------------------------------------------


def test_one_token_is_asked_of_the_model_that_is_served_past_any_cache() -> None:
    server = RawServer(vllm_pages() | {COMPLETIONS: TOKEN})
    assert ask(server, LivenessProbe.token, key="sk-1") is True
    method, path, headers = server.requests[-1]
    body = json.loads(server.bodies[-1])
    assert (method, path) == ("POST", COMPLETIONS)
    assert (body["max_tokens"], body["model"]) == (1, "tiny")
    assert headers["authorization"] == "Bearer sk-1"
    assert "no-store" in headers["cache-control"]


def test_a_server_that_only_chats_is_asked_there() -> None:
    server = RawServer({CHAT: TOKEN})
    assert ask(server, LivenessProbe.token, model="m") is True
    assert server.paths() == [COMPLETIONS, CHAT]


def test_no_token_within_the_limit_is_no_token() -> None:
    assert token({COMPLETIONS: hang}, model="m", answer_s=0.2) is False
    assert token({COMPLETIONS: drip}, model="m", answer_s=0.2) is False


@pytest.mark.parametrize(
    ("answer", "made"),
    [
        (http('{"choices": []}'), False),
        (http("what?"), False),
        (http('{"error": {}}', "500 Internal Server Error"), False),
        (http('{"error": {}}', "429 Too Many Requests"), None),
        (http('{"error": {}}', "503 Busy"), None),
        (http('{"error": "Unauthorized"}', "401 Unauthorized"), None),
        (cut, False),
    ],
)
def test_what_an_answer_proves(answer: Any, *, made: bool | None) -> None:
    assert token({COMPLETIONS: answer}, model="m") is made


def test_where_nobody_listens_or_no_model_is_known_it_could_not_be_asked() -> None:
    assert asyncio.run(question_of(closed_port(), LivenessProbe.token, model="m")) is None
    assert token({"/v1/models": http("", "404 Not Found")}) is None
    assert token({"/v1/models": http("[]")}) is None


def test_a_model_list_that_hangs_is_no_token() -> None:
    assert token({"/v1/models": hang}, answer_s=0.2) is False
