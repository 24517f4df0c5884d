"""Through a whole proxy, at the client's socket: one stored answer in the other mode field by field, and paced gap by gap.

What must come is what the same vLLM said when it was asked in that mode, as recorded; when it may come is what the upstream's own
clock says. Nothing may come earlier; how much later a busy machine lets it come, no test can say.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.chat import LAST, chunk
from support.pairs import NAMES, PAIRS, Fields, merged
from support.proxied import Answer, Client, Proxied, proxied, raw
from support.scripted_upstream import Line, ScriptedUpstream

from toolkit.proxy.exchange import Kept

OWN_VIEW = [name for name in NAMES if "echo" in name or "prompt_logprobs" in name]
"""What vLLM tells of the prompt only whole."""
CUT_CALLS = ["chat_tool_auto", "chat_tool_cut"]
"""vLLM streams the parts of a call that was cut, and gives its raw text whole."""
CROSSING = [name for name in NAMES if name not in (*OWN_VIEW, *CUT_CALLS)]
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
TICK_S = 0.002
"""A recorded time is whole milliseconds, and so is a timer."""


# --- an upstream that says what vLLM said ----------------------------------------------------------------


def recorded(name: str, ending: str) -> bytes:
    return (PAIRS / f"{name}{ending}").read_bytes()


def asked(name: str) -> tuple[str, Fields]:
    """Path and body of the recorded request."""
    fields = json.loads(recorded(name, ".request.json"))
    return fields.pop("path"), fields


def as_stream(fields: Fields) -> Fields:
    return fields | {"stream": True, "stream_options": {"include_usage": True}}


def vllm(name: str) -> ScriptedUpstream:
    """Answers as recorded, in the mode it is asked in."""

    async def play(line: Line) -> None:
        fields = json.loads(line.body)
        if not fields.get("stream"):
            body = recorded(name, ".json")
            head = (
                f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
            )
            line.send(f"{head}\r\n\r\n".encode() + body)
            return
        usage = (fields.get("stream_options") or {}).get("include_usage")
        body = recorded(name, ".txt" if usage else ".nousage.txt")
        line.send(STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk(body) + LAST)

    return ScriptedUpstream(play)


# --- field by field ---------------------------------------------------------------------------------------


def leaves(body: Fields, *, nulls: bool) -> dict[str, Any]:
    """Path -> value of everything in it, but what differs between any two answers: ids and the time."""
    found: dict[str, Any] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(f"{path}.{name}", inner)
        elif isinstance(value, list):
            found[f"{path}[]"] = len(value)
            for index, inner in enumerate(value):
                walk(f"{path}[{index}]", inner)
        elif value is not None or nulls:
            found[path] = value

    walk("", body)
    # a null that only a whole body's usage has, and what vLLM draws anew for each answer
    drawn = (".id", ".created", ".usage.prompt_tokens_details.multimodal_tokens")
    return {
        path: json.loads(value) if path.endswith(".arguments") else value
        for path, value in found.items()
        if path not in drawn and not (".tool_calls[" in path and path.endswith(".id"))
    }


async def both(name: str, first: Fields, second: Fields) -> tuple[Answer, Answer, int]:
    """Two answers of one proxy, and how often its upstream was asked."""
    path, _ = asked(name)
    async with vllm(name) as upstream, proxied(upstream) as proxy:
        answers = [await proxy.ask(fields, path=path) for fields in (first, second)]
        assert [answer.status for answer in answers] == [200, 200]
        assert all(answer.is_whole for answer in answers)
        return answers[0], answers[1], len(upstream.lines)


def test_most_of_what_is_recorded_crosses():
    assert len(CROSSING) >= 15
    assert len(OWN_VIEW) + len(CUT_CALLS) + len(CROSSING) == len(NAMES)


@pytest.mark.parametrize("name", CROSSING)
def test_asked_as_a_stream_first_the_whole_is_the_same_in_every_field(name: str) -> None:
    _, fields = asked(name)
    live, stored, calls = asyncio.run(both(name, as_stream(fields), fields))
    assert live.body == recorded(name, ".txt")
    assert (stored.is_hit, calls) == (True, 1)
    assert stored.headers["content-type"] == "application/json"
    must = json.loads(recorded(name, ".json"))
    assert leaves(stored.json, nulls=True) == leaves(must, nulls=True)
    assert list(stored.json) == list(must)


@pytest.mark.parametrize("name", CROSSING)
def test_asked_whole_first_the_stream_comes_to_the_same_in_every_field(name: str) -> None:
    _, fields = asked(name)
    live, stored, calls = asyncio.run(both(name, fields, as_stream(fields)))
    assert live.body == recorded(name, ".json")
    assert (stored.is_hit, calls) == (True, 1)
    assert stored.headers["content-type"] == "text/event-stream; charset=utf-8"
    must = leaves(merged(recorded(name, ".txt")), nulls=False)
    assert leaves(merged(stored.body), nulls=False) == must


@pytest.mark.parametrize("name", CROSSING)
def test_there_and_back_it_is_byte_for_byte_what_came(name: str) -> None:
    """The other view makes nothing of its own of what is stored."""
    path, fields = asked(name)

    async def run() -> list[Answer]:
        async with vllm(name) as upstream, proxied(upstream) as proxy:
            wanted = (as_stream(fields), fields, as_stream(fields), fields)
            return [await proxy.ask(each, path=path) for each in wanted]

    live, whole, again, whole_again = asyncio.run(run())
    assert again.body == live.body == recorded(name, ".txt")
    assert whole_again.body == whole.body


@pytest.mark.parametrize("name", [*OWN_VIEW, *CUT_CALLS])
def test_what_would_lose_something_is_asked_anew_and_then_is_what_vllm_says(name: str) -> None:
    _, fields = asked(name)
    live, other, calls = asyncio.run(both(name, as_stream(fields), fields))
    assert live.body == recorded(name, ".txt")
    assert (other.is_hit, calls) == (False, 2)
    assert other.body == recorded(name, ".json")


# --- gap by gap -------------------------------------------------------------------------------------------

GAPS_S = (0.08, 0.02, 0.15, 0.01, 0.09, 0.03, 0.06, 0.05, 0.02, 0.04)
"""Before each event; those beyond come without one."""


def paced(events: list[bytes], sent_s: list[float]) -> ScriptedUpstream:
    """Sends a stream event by event, and notes when, counted from its request: nobody can have read one sooner."""

    async def play(line: Line) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        line.send(STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n")
        for number, event in enumerate(events):
            if number < len(GAPS_S):
                await asyncio.sleep(GAPS_S[number])
            sent_s.append(loop.time() - began_s)
            line.send(chunk(event))
        line.send(LAST)

    return ScriptedUpstream(play)


async def timed(client: Client, data: bytes) -> tuple[bytes, list[float], dict[str, str], float]:
    """A streamed answer: its body, when each event was there, counted from the request, its headers and its end."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    client.writer.write(data)
    head = (await client.reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    body, times = b"", []
    length = int(headers.get("content-length", -1))
    while length < 0 or len(body) < length:
        if length < 0:
            size = int((await client.reader.readuntil(b"\r\n")).strip(), 16)
            piece = (await client.reader.readexactly(size + 2))[:-2]
            if not size:
                break
        else:
            piece = await client.reader.read(length - len(body))
        body += piece
        times += [loop.time() - began_s] * (body.count(b"\n\n") - len(times))
    return body, times, headers, loop.time() - began_s


def events_of(body: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in body.split(b"\n\n")[:-1]]


@asynccontextmanager
async def replaying(
    mode: str, sent_s: list[float], kept: list[Kept]
) -> AsyncIterator[tuple[Proxied, bytes]]:
    """A proxy that replays so, its upstream's own times, and the stored answer as it was stored."""
    events = events_of(recorded("chat_logprobs", ".txt"))
    async with (
        paced(events, sent_s) as upstream,
        proxied(upstream, f"[cache]\nreplay = {mode}\n") as proxy,
    ):
        layers = proxy.proxy.kit.layers
        keep = layers.keep

        def noted(key: bytes, answer: Kept, **more: Any) -> bool:
            kept.append(answer)
            return keep(key, answer, **more)

        layers.keep = noted  # type: ignore[method-assign]
        yield proxy, raw(as_stream(asked("chat_logprobs")[1]))


async def live_and_replayed(
    mode: str, sent_s: list[float], kept: list[Kept]
) -> tuple[list[float], float, list[float]]:
    """When each event came live, when all had, and when each came of what was stored."""
    must = recorded("chat_logprobs", ".txt")
    async with replaying(mode, sent_s, kept) as (proxy, data):
        body, live_s, headers, whole_s = await timed(await proxy.client(), data)
        assert (body, "; hit" in headers["cache-status"]) == (must, False)
        body, replayed_s, headers, _ = await timed(await proxy.client(), data)
        assert (body, "; hit" in headers["cache-status"]) == (must, True)
        return live_s, whole_s, replayed_s


@pytest.mark.slow
def test_at_the_original_pace_each_event_comes_when_it_came_and_never_before() -> None:
    sent_s: list[float] = []
    kept: list[Kept] = []
    live_s, whole_s, replayed_s = asyncio.run(live_and_replayed('"original"', sent_s, kept))
    (stored,) = kept
    assert len(live_s) == len(replayed_s) == len(sent_s) == len(stored.event_ms)
    stored_s = [each / 1000 for each in stored.event_ms]
    # what was noted lies between when the upstream sent it and when the client had it whole
    for sent, noted in zip(sent_s, stored_s, strict=True):
        assert sent - TICK_S <= noted <= whole_s + TICK_S
    # and gap by gap the replay keeps to what was noted
    for event, (noted, came) in enumerate(zip(stored_s, replayed_s, strict=True)):
        assert came >= noted - TICK_S, event
    assert replayed_s == sorted(replayed_s)
    assert replayed_s[-1] >= sum(GAPS_S[: len(sent_s)]) - TICK_S
    assert len(set(replayed_s)) >= 3, "not in one lump"


@pytest.mark.slow
def test_at_so_many_tokens_a_second_no_token_comes_before_its_turn() -> None:
    live_s, _, replayed_s = asyncio.run(live_and_replayed("20.0", [], []))
    assert len(live_s) == len(replayed_s)
    # the role, then a token an event: the first at once, the n-th after (n - 1) / 20 s; usage and end with the last
    said = merged(recorded("chat_logprobs", ".txt"))["choices"]
    tokens = len(said[0]["logprobs"]["content"])
    assert len(replayed_s) == 1 + tokens + 2
    for number in range(tokens):
        assert replayed_s[1 + number] >= number / 20 - TICK_S, number
    assert replayed_s[-1] >= (tokens - 1) / 20 - TICK_S
    assert replayed_s == sorted(replayed_s)
    assert len(set(replayed_s)) >= 3, "not in one lump"


def test_a_replay_that_is_paced_is_never_answered_from_the_request_s_bytes() -> None:
    """Three times the same bytes on one connection: each replay takes its time."""

    async def run() -> list[float]:
        async with replaying("200.0", [], []) as (proxy, data):
            client = await proxy.client()
            found = []
            for _ in range(4):
                _, times, _, _ = await timed(client, data)
                found.append(times[-1])
            return found[1:]

    # at 200 tokens/s the last of 8 tokens is due after 35 ms
    tokens = len(merged(recorded("chat_logprobs", ".txt"))["choices"][0]["logprobs"]["content"])
    for took_s in asyncio.run(run()):
        assert took_s >= (tokens - 1) / 200 - TICK_S
