"""Answers cut into reads in every way, and made of anything: read the same, to the last field, as if each chunk was parsed."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from toolkit.protocol import completion
from toolkit.protocol.completion import MOST_TRIES, Answer, Completion

RECORDED = Path(__file__).parents[1] / "data" / "vllm-0.32.0-cpu"
STREAM = "text/event-stream"
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    choice = {"index": more.pop("index", 0), "delta": delta, "finish_reason": more.pop("end", None)}
    return {"id": "chatcmpl-1", "model": "tiny", "choices": [choice], **more}


def event(value: object) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(value)


def said(*texts: str) -> bytes:
    return b"".join(event(chunk({"content": text})) for text in texts)


def read(reads: list[bytes], *, stamps: list[float] | None = None) -> Answer:
    """The answer of reads at 0.0, 1.0 ..., or at these stamps."""
    stamps = [float(at) for at in range(len(reads))] if stamps is None else stamps
    reader = Completion(status=200, content_type=STREAM)
    for data, at in zip(reads, stamps, strict=True):
        reader.feed(data, at)
    return reader.end(stamps[-1] if stamps else 0.0)


def parsed(reads: list[bytes]) -> Answer:
    """The same with every chunk parsed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completion, "MOST_TRIES", 0)
        return read(reads)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(at)]


ROLE, END = event(chunk({"role": "assistant", "content": ""})), event(chunk({}, end="stop"))
LAST, DONE = event(chunk({"content": "b"}, end="stop")), b"data: [DONE]\n\n"
PLACES = st.lists(st.integers(0, 10_000), max_size=20)


# How it was cut

BODIES = [
    *((RECORDED / name).read_bytes() for name in (
        "chat_stream_contusage.body", "slow/stream_during_engine_death.txt", "v3/chat_stream_details.txt",
    )),
    # characters of 2, 3 and 4 bytes, as themselves and escaped
    '\ufeffdata: {"choices":[{"delta":{"content":"é€😀\\ud83d"}}]}\n\n'.encode() + LAST,
    ROLE + b': ping\n\nid: 1\ndata:\ndata: {"choices":\ndata:[]}\n\n' + LAST + DONE[:-2],
    LAST + DONE + b"data: {damaged\n\n" + LAST,
    LAST + b"data: {damaged\n\nevent: error\ndata: gone\n\n",
    LAST + b'data: {"choices":[{"delta":{"content":"cut off',
    b"\n\n\n",
]  # fmt: skip


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@calm
@given(body=st.sampled_from(BODIES), places=PLACES)
def test_how_a_stream_was_cut_into_reads_changes_nothing(
    end: bytes, body: bytes, places: list[int]
) -> None:
    body = body.replace(b"\n", end)
    reads = cut(body, places)
    assert read(reads, stamps=[1.0] * len(reads)) == read([body], stamps=[1.0])


@pytest.mark.parametrize(
    # a blank line of CRLF has ended at its CR: nobody waits for an LF that may not come
    ("end", "ended"),
    [(b"\n", rb"\n\n"), (b"\r", rb"\r\r"), (b"\r\n", rb"\r\n\r")],
)
def test_each_event_has_the_time_of_its_last_byte(end: bytes, ended: bytes) -> None:
    body = (RECORDED / "slow/stream_during_engine_death.txt").read_bytes()
    # found without the code under test: a chunk with a token is one whose content is not empty
    is_token = [b'"content":' in one and b'"content":""' not in one for one in body.split(b"\n\n")]
    body = body.replace(b"\n", end)
    ends = [match.end() - 1.0 for match in re.finditer(ended, body)]
    stamps = [at for at, token in zip(ends, is_token, strict=False) if token]
    answer = read([body[at : at + 1] for at in range(len(body))])
    assert (answer.first_token_at, answer.last_token_at) == (stamps[0], stamps[-1])
    assert [wait for wait, _ in answer.gaps] == [later - now for now, later in pairwise(stamps)]


# Chunks that are read by what differs


TWICE = b'data: {"id":"1","choices":[{"delta":{"content":"a","content":"b"}}]}\n\n'
DELTAS = st.one_of(
    st.builds(
        lambda name, text: {name: text},
        st.sampled_from(["content", "content", "reasoning_content", "reasoning"]),
        st.sampled_from(["a", " the", "tiny", "probe", ":", '"', "\\", "\n", "", "é", "\ufffd"])
        | st.text(max_size=4).filter(str.isprintable),
    ),
    st.sampled_from([
        {"role": "assistant", "content": ""},
        {"content": "a", "reasoning": "b"},
        {"content": None},
        {},
        {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
    ]),
)  # fmt: skip
MORE = st.sampled_from(
    [
        *({"index": 0}, {"index": 1}, {"created": 0}, {"created": 1}, {"end": "stop"}),
        *({"usage": {"completion_tokens": 3}}, {"error": {"message": "no"}}),
    ]
)
CHANGES = [
    *((b"\n", b"\r\n"), (b"data: ", b"data:"), (b"a", b"\t"), (b"a", b"\\ud83d")),
    *((b"data: ", b"event: error\ndata: "), (b"data: ", b"event: message\ndata: ")),
]
USUAL = st.builds(lambda delta: event(chunk(delta)), DELTAS)
ODD = st.one_of(
    st.builds(lambda delta, more: event(chunk(delta, **more)), DELTAS, MORE),
    st.builds(lambda usual, change: usual.replace(*change), USUAL, st.sampled_from(CHANGES)),
    st.sampled_from(
        [
            *(b": ping\n\n", b"data: {\n\n", b"data: 1\n\n", b"\n", DONE, LAST, TWICE),
            event({"choices": [], "usage": {"completion_tokens": 7, "prompt_tokens": 3}}),
        ]
    ),
)


@calm
@given(
    events=st.lists(st.one_of(USUAL, USUAL, USUAL, USUAL, ODD), max_size=25),
    end=st.sampled_from([b"", LAST + DONE, END + DONE]),
    places=PLACES,
)
@example(events=[said("a", "b", "c")], end=b"", places=[])
@example(events=[said("a"), said("b")], end=b"", places=[len(said("a")) - 1])
@example(events=[said("a", "b"), b"event: error\n", said("c")], end=b"", places=[])
@example(events=[said("a", "b"), b"data: 1\n", said("c")], end=b"", places=[])
@example(events=[TWICE, TWICE.replace(b'"b"', b'"c"')], end=b"", places=[])
def test_any_stream_means_the_same_as_if_each_chunk_was_parsed(
    events: list[bytes], end: bytes, places: list[int]
) -> None:
    for reads in (cut(b"".join(events) + end, places), [*events, end]):
        assert read(reads) == parsed(reads)


def parsed_chunks(events: list[bytes], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many chunks of an answer went through the parser, event by event and all in one read."""
    loads, counts = orjson.loads, [0, 0]
    for place, reads in enumerate((events, [b"".join(events)])):

        def counting(data: bytes, place: int = place) -> Any:
            counts[place] += 1
            return loads(data)

        with monkeypatch.context() as patch:
            patch.setattr(completion.orjson, "loads", counting)
            assert read(reads).ok
    return counts


def test_of_a_usual_stream_few_chunks_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [ROLE, *(said(f" {number}") for number in range(200)), END, DONE]
    # the role, the first text and its probe, all others at once, the end; `[DONE]` is none
    assert parsed_chunks(events, monkeypatch) == [5, 5]
    # where all chunks differ, the search ends: each is parsed, and the first eight have a probe
    differing = [event(chunk({"content": "a"}, created=number)) for number in range(200)]
    assert parsed_chunks([*differing, END], monkeypatch) == [201 + MOST_TRIES] * 2
    # it goes on while a frame is of use: the first text and its probe, the others five at a time, and what is odd
    odd = event(chunk({"content": "a"}, created=1, end="length"))
    mixed = [*(said("b") for _ in range(5)), odd] * 40
    assert parsed_chunks(mixed, monkeypatch) == [2 + 40 + 40] * 2


# Anything at all

KEYS = (
    "choices delta message content reasoning reasoning_content refusal tool_calls function name arguments"
    " function_call text index finish_reason usage prompt_tokens completion_tokens error detail object id"
    " prompt_tokens_details cached_tokens completion_tokens_details reasoning_tokens model role"
).split()
WORDS = st.sampled_from(["stop", "error", "\ud800", "\x1b[2J", "x" * 999]) | st.text(max_size=3)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=4)
CHOICES = st.builds(
    lambda delta, more: {"delta": delta, "message": delta} | more, OBJECTS | ANYTHING, OBJECTS
)
BODIES_OF_JSON = st.one_of(
    st.builds(
        lambda choices, more: {"choices": choices} | more, st.lists(CHOICES, max_size=3), OBJECTS
    ),
    ANYTHING,
)
AS_JSON = BODIES_OF_JSON.map(json.dumps).map(str.encode)
EVENTS = AS_JSON.map(lambda said: b"data: %b\n\n" % said)
PIECES = st.binary(max_size=8) | st.sampled_from(
    [b"data: ", b"event: error", b"\r", b"[DONE]", LAST]
)


@calm
@given(
    reads=st.lists(EVENTS | PIECES, max_size=6) | st.tuples(AS_JSON),
    kind=st.sampled_from([STREAM, "application/json"]),
    status=st.sampled_from([200, 200, 400]),
    broken=st.none() | st.text(max_size=3),
)
@example(
    [b'data: {"choices":[{"index":%d,"delta":{"content":"a"}}]}\n\n' % 10**30], STREAM, 200, ""
)
def test_nothing_is_too_strange_to_be_read(
    reads: list[bytes], kind: str, status: int, broken: str | None
) -> None:
    reader = Completion(status=status, content_type=kind)
    for at, data in enumerate(reads):
        reader.feed(data, float(at))
    answer = reader.end(100.0, broken)
    assert answer.ok == (answer.error_kind is None) == (answer.error is None)
    for word in (answer.error, answer.model, answer.answer_id, answer.finish_reason):
        assert word is None or (0 < len(word) <= 300 and word.isprintable())
    counts = answer.prompt_tokens, answer.output_tokens, answer.cached_tokens
    for count in counts:
        assert count is None or (type(count) is int and 0 <= count < 2**53)
    assert type(answer.text) is type(answer.reasoning) is type(answer.tool_calls) is str
    assert (answer.text_hash is None) == (answer.text_chars == 0)
    assert all(type(tokens) is int and tokens >= 1 for _, tokens in answer.gaps)
    assert len(answer.gaps) == max(0, (answer.token_chunks or 0) - 1)
    assert (answer.first_token_at is None) == (not answer.token_chunks)
