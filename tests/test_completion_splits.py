"""Answers cut into reads in every way, and answers made of anything at all."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from toolkit.completion import Answer, Completion

RECORDED = Path(__file__).parent / "data" / "vllm-0.32.0-cpu"
STREAM = "text/event-stream"
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n'

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

BODIES = [
    *((RECORDED / name).read_bytes() for name in (
        "chat_stream_contusage.body",
        "slow/stream_during_engine_death.txt",
        "v3/chat_stream_details.txt",
    )),
    # characters of 2, 3 and 4 bytes, as themselves and escaped
    '\ufeffdata: {"choices":[{"delta":{"content":"é€😀\\ud83d"}}]}\n\n'.encode() + LAST,
    ROLE + b': ping\n\nid: 1\ndata:\ndata: {"choices":\ndata:[]}\n\n' + LAST + b"data: [DONE]",
    LAST + b"data: [DONE]\n\ndata: {damaged\n\n" + LAST,
    LAST + b"data: {damaged\n\nevent: error\ndata: gone\n\n",
    LAST + b'data: {"choices":[{"delta":{"content":"cut off',
    b"\n\n\n",
]  # fmt: skip


def read(reads: list[bytes], stamps: list[float], *, content_type: str = STREAM) -> Answer:
    reader = Completion(status=200, content_type=content_type)
    for data, at in zip(reads, stamps, strict=True):
        reader.feed(data, at)
    return reader.end(stamps[-1] if stamps else 0.0)


def pieces(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    return [body[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@calm
@given(
    body=st.sampled_from(BODIES),
    cuts=st.lists(st.integers(min_value=0, max_value=10_000), max_size=40),
)
def test_how_a_stream_was_cut_into_reads_changes_nothing(end, body, cuts):
    body = body.replace(b"\n", end)
    reads = pieces(body, cuts)
    assert read(reads, [1.0] * len(reads)) == read([body], [1.0])


def test_characters_of_many_bytes_survive_a_cut_through_them():
    body = BODIES[3]
    answer = read([body[at : at + 1] for at in range(len(body))], [1.0] * len(body))
    assert answer.text == "é€😀\ud83db"


@calm
@given(cuts=st.lists(st.integers(min_value=0, max_value=10_000), max_size=10))
def test_how_a_whole_body_was_cut_into_reads_changes_nothing(cuts):
    body = (RECORDED / "chat.json").read_bytes()
    reads = pieces(body, cuts)
    answer = read(reads, [1.0] * len(reads), content_type="application/json")
    assert answer == read([body], [1.0], content_type="application/json")
    assert answer.ok


@pytest.mark.parametrize(
    # a blank line of CRLF has ended at its CR: nobody waits for an LF that may not come
    ("end", "ended"),
    [(b"\n", rb"\n\n"), (b"\r", rb"\r\r"), (b"\r\n", rb"\r\n\r")],
)
@pytest.mark.parametrize("name", ["chat_stream.txt", "slow/stream_during_engine_death.txt"])
def test_each_event_has_the_time_of_its_last_byte(name, end, ended):
    body = (RECORDED / name).read_bytes()
    # found without the code under test: a chunk with a token is one whose content is not empty
    is_token = [
        b'"content":' in said and b'"content":""' not in said for said in body.split(b"\n\n")
    ]
    body = body.replace(b"\n", end)
    ends = [match.end() - 1.0 for match in re.finditer(ended, body)]
    stamps = [at for at, token in zip(ends, is_token, strict=False) if token]

    answer = read(
        [body[at : at + 1] for at in range(len(body))], [float(at) for at in range(len(body))]
    )
    assert (answer.first_token_at, answer.last_token_at) == (stamps[0], stamps[-1])
    assert [wait for wait, _ in answer.gaps] == [later - now for now, later in pairwise(stamps)]
    assert answer.token_chunks == len(stamps)


@calm
@given(
    waits=st.lists(st.integers(min_value=0, max_value=9), min_size=1, max_size=30),
    lost=st.lists(st.booleans(), min_size=30, max_size=30),
    tokens=st.lists(st.integers(min_value=1, max_value=9), min_size=30, max_size=30),
)
def test_with_usage_in_every_chunk_all_tokens_find_their_chunk(waits, lost, tokens):
    """Chunks whose text is still to come (`lost`) hand their tokens to the next one with text."""
    at, total, chunks, expected, open_tokens = 0, 0, [], [], 0
    for wait, is_lost, count in zip(waits, lost, tokens, strict=False):
        at, total, open_tokens = at + wait, total + count, open_tokens + count
        delta = {"content": "" if is_lost else "x"}
        chunks.append((at, {"choices": [{"delta": delta}], "usage": {"completion_tokens": total}}))
        if not is_lost:
            expected.append((at, open_tokens))
            open_tokens = 0
    answer = read(
        [b"data: " + json.dumps(said).encode() + b"\n\n" for _, said in chunks],
        [float(at) for at, _ in chunks],
    )
    assert answer.output_tokens == total
    assert answer.gap_tokens_known
    assert answer.token_chunks == len(expected)
    assert answer.first_chunk_tokens == (expected[0][1] if expected else None)
    assert answer.gaps == tuple(
        (later - now, count) for (now, _), (later, count) in pairwise(expected)
    )


# Anything at all

KEYS = (
    "choices delta message content reasoning reasoning_content refusal tool_calls function name arguments"
    " function_call text index finish_reason usage prompt_tokens completion_tokens error detail object id"
    " prompt_tokens_details cached_tokens completion_tokens_details reasoning_tokens model role"
).split()
atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**40), max_value=10**40),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["stop", "error", "assistant", "\ud800", "\x1b[2J", "a"]),
)
anything = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)
deltas = st.dictionaries(st.sampled_from(KEYS), anything, max_size=3) | anything
choices = st.fixed_dictionaries(
    {}, optional={"index": anything, "delta": deltas, "message": deltas, "text": anything}
    | {"finish_reason": st.sampled_from(["stop", "length", "abort"]) | anything}
)  # fmt: skip
chunks = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(choices | anything, max_size=3) | anything,
        "usage": st.dictionaries(st.sampled_from(KEYS), anything, max_size=3) | anything,
        "error": anything,
        "object": anything,
        "id": anything,
        "model": anything,
    },
)


def judge(answer: Answer) -> None:
    """What holds of every answer, whatever came."""
    assert answer.ok == (answer.error_kind is None) == (answer.error is None)
    assert answer.error is None or 0 < len(answer.error) <= 300
    words = (answer.error, answer.model, answer.answer_id, answer.finish_reason)
    assert all(word is None or (type(word) is str and word.isprintable()) for word in words)
    for told in (answer.text, answer.reasoning, answer.tool_calls):
        assert type(told) is str
    counts = (
        answer.prompt_tokens,
        answer.output_tokens,
        answer.cached_tokens,
        answer.reasoning_tokens,
    )
    assert all(count is None or (type(count) is int and 0 <= count < 2**53) for count in counts)
    assert (answer.text_hash is None) == (answer.text_chars == 0)
    assert all(type(tokens) is int and tokens >= 1 for _, tokens in answer.gaps)
    assert (answer.tpot_s is None) == (not answer.gaps)
    if answer.streamed:
        assert len(answer.gaps) == max(0, answer.token_chunks - 1)
        assert (answer.first_token_at is None) == (answer.token_chunks == 0)
        assert answer.e2e_end_at == answer.last_token_at
        assert type(answer.output_tokens) is int


@calm
@given(said=st.lists(chunks | anything, max_size=6), broken=st.none() | st.text(max_size=3))
@example(said=[{"choices": [{"index": 10**30, "delta": {"content": "a"}}]}], broken=None)
def test_no_stream_of_json_is_too_strange_to_be_read(said, broken):
    reader = Completion(status=200, content_type=STREAM)
    for at, each in enumerate(said):
        reader.feed(b"data: " + json.dumps(each).encode() + b"\n\n", float(at))
    judge(reader.end(100.0, broken))


@calm
@given(said=chunks | anything, status=st.sampled_from([200, 400]))
@example(said={"choices": [{"delta": {"content": "a"}, "finish_reason": "x" * 999}]}, status=200)
def test_no_body_of_json_is_too_strange_to_be_read(said, status):
    reader = Completion(status=status, content_type="application/json")
    reader.feed(json.dumps(said).encode(), 1.0)
    judge(reader.end(2.0))


@calm
@given(
    reads=st.lists(
        st.binary(max_size=8)
        | st.sampled_from(
            [
                b"data: ",
                b"event: error",
                b"\n",
                b"\r",
                b"[DONE]",
                b"{",
                b'"',
                ROLE,
                LAST,
                LAST[6:-2],
            ]
        ),
        max_size=12,
    ),
    content_type=st.sampled_from([STREAM, "application/json"]),
    status=st.sampled_from([200, 500]),
)
def test_no_bytes_are_too_strange_to_be_read(reads, content_type, status):
    reader = Completion(status=status, content_type=content_type)
    for at, data in enumerate(reads):
        reader.feed(data, float(at))
    judge(reader.end(100.0))
