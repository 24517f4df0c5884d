"""Answers cut out of what a server sent: recorded from a real vLLM, cut at every place, framed in every way."""

import gzip

import pytest
from support.answer_bytes import OK, STREAM, chunk, events, json_answer, streamed, tokens
from support.recordings import recorded

from toolkit.capture.answers import TAIL_BYTES, AnswerReader
from toolkit.capture.records import HttpAnswer


def read(
    segments: list[bytes], *methods: str | None, until: float | None = None
) -> list[HttpAnswer]:
    """Read segments, one a second from 0; the requests went out before."""
    told: list[HttpAnswer] = []
    answers = AnswerReader(told.append)
    for method in methods:
        answers.asked(method, -1.0)
    for at, segment in enumerate(segments):
        answers.data(float(at), segment)
    if until is not None:
        answers.end(until)
    return told


# What the recordings hold, read off with the eye: usage (prompt, completion, cached) and finish reason.
WHOLE = [
    ("chat.json", (21, 16, None, "length")),
    ("completions.body", (4, 8, None, "length")),
    ("v3/chat_prompt_details_2.json", (153, 4, 128, "length")),
]
STREAMS = [
    ("chat_stream.txt", (21, 16, None, "length"), 2),
    ("chat_stream_contusage.body", (21, 4, None, "length"), 2),
    ("chat_stream_nousage.body", (None, None, None, "length"), 2),
    ("completions_stream.body", (4, 4, None, "length"), 1),
    ("v3/chat_stream_details.txt", (153, 2, 128, "length"), 2),
    ("slow/stream_during_engine_death.txt", (None, None, None, "error"), 2),
]
"""The last number: the segment with the first token; 0 is the head, the role-only event comes next in a chat."""


@pytest.mark.parametrize(("name", "told"), WHOLE)
def test_a_recorded_answer_tells_its_tokens(name: str, told: tuple[object, ...]) -> None:
    wire = json_answer(recorded(name))
    (answer,) = read([wire[:40], wire[40:300], wire[300:]], "POST")
    assert tokens(answer) == told
    assert (answer.status, answer.complete, answer.damaged) == (200, True, False)
    assert (answer.first_at, answer.token_at, answer.last_at) == (0.0, None, 2.0)
    assert not answer.stream


@pytest.mark.parametrize(("name", "told", "first"), STREAMS)
def test_a_recorded_stream_tells_its_tokens_and_when_the_first_one_came(
    name: str, told: tuple[object, ...], first: int
) -> None:
    segments = streamed(recorded(name))
    (answer,) = read(segments, "POST")
    assert tokens(answer) == told
    assert (answer.status, answer.stream, answer.complete) == (200, True, True)
    assert (answer.first_at, answer.token_at) == (0.0, float(first))
    assert answer.last_at == len(segments) - 1


@pytest.mark.parametrize("name", ["chat_stream_nousage.body", "completions_stream.body"])
def test_a_stream_cut_at_every_place_is_the_same(name: str) -> None:
    segments = streamed(recorded(name))
    wire = b"".join(segments)
    told, first = next((told, first) for other, told, first in STREAMS if other == name)
    # the event with the first token is whole where its blank line is; the chunk's own end comes behind it
    token_ends = len(b"".join(segments[: first + 1])) - 2
    for cut in range(1, len(wire)):
        (answer,) = read([wire[:cut], wire[cut:]], "POST")
        assert tokens(answer) == told, cut
        assert answer.token_at == (0.0 if cut >= token_ends else 1.0), cut
        assert (answer.last_at, answer.complete) == (1.0, True)


# --- framing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "method", "status"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n", "HEAD", 200),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "HEAD", 200),
        (b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", "POST", 204),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", "GET", 304),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "POST", 200),
        (b"HTTP/1.1 200\r\nContent-Length:0\r\n\r\n", "POST", 200),
    ],
)
def test_an_answer_without_a_body_ends_with_its_head(head: bytes, method: str, status: int) -> None:
    first, second = read([head, json_answer(recorded("chat.json"))], method, "POST")
    assert (first.status, first.complete, first.last_at) == (status, True, 0.0)
    assert second.output_tokens == 16


def test_interim_answers_are_none() -> None:
    wire = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    (answer,) = read([wire, json_answer(recorded("chat.json"))], "POST")
    assert (answer.status, answer.first_at) == (200, 1.0)


@pytest.mark.parametrize(
    "body",
    [
        b'5;ext=1\r\n{"a":\r\n2 \r\n1}\r\n0\r\n\r\n',
        b'007\r\n{"a":1}\r\n0;x\r\nx-trailer: 1\r\ny: 2\r\n\r\n',
        b'1\r\n{\r\n1\r\n"\r\n1\r\na\r\n1\r\n"\r\n3\r\n:1}\r\n000\r\n\r\n',
        b'C\r\n{"a":"0\\r\\n"\r\n1\r\n}\r\n0\r\n\r\n',
        b'F\r\n{"a":"\r\n0\r\n\r\n"}\r\n0\r\n\r\n',
    ],
)
def test_chunks_in_every_form_end_where_they_end(body: bytes) -> None:
    head = OK + b"Content-Type: application/json\r\nTransfer-Encoding: Chunked\r\n\r\n"
    wire = head + body + json_answer(recorded("completions.body"))
    for cut in range(1, len(wire)):
        answers = read([wire[:cut], wire[cut:]], "POST", "POST")
        assert [answer.complete for answer in answers] == [True, True], cut
        assert answers[1].output_tokens == 8


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    head = b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n"
    body = recorded("chat.json")
    assert read([head, body[:100], body[100:]], "POST") == []
    (answer,) = read([head, body[:100], body[100:]], "POST", until=9.0)
    assert (answer.complete, answer.output_tokens, answer.last_at) == (True, 16, 2.0)


def test_a_stream_without_a_length_tells_its_first_token_too() -> None:
    head = OK + b"content-type: text/event-stream\r\nconnection: close\r\n\r\n"
    (answer,) = read([head, *events(recorded("chat_stream.txt"))], "POST", until=99.0)
    assert (answer.token_at, answer.last_at) == (2.0, 19.0)
    assert tokens(answer) == (21, 16, None, "length")


def test_a_connection_that_ends_within_an_answer_leaves_it_incomplete() -> None:
    segments = streamed(recorded("slow/aborted_stream.txt"))[:-1]
    (answer,) = read(segments, "POST", until=99.0)
    assert (answer.complete, answer.damaged) == (False, False)
    assert (answer.status, answer.token_at, answer.last_at) == (200, 2.0, len(segments) - 1)
    assert tokens(answer) == (None, None, None, None)


def test_a_head_that_never_ends_is_an_answer_without_a_status() -> None:
    (answer,) = read([b"HTTP/1.1 200 OK\r\ncontent"], "POST", until=3.0)
    assert (answer.status, answer.first_at, answer.complete) == (None, 0.0, False)


def test_after_an_upgrade_nothing_is_read() -> None:
    wire = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n"
    answers = read([wire + json_answer(b"{}"), json_answer(b"{}")], "GET", until=5.0)
    assert [answer.status for answer in answers] == [101]


def test_errors_have_a_status_and_no_tokens() -> None:
    wire = json_answer(recorded("err_overlong.body"), b"HTTP/1.1 400 Bad Request\r\n")
    (answer,) = read([wire], "POST")
    assert (answer.status, answer.complete) == (400, True)
    assert tokens(answer) == (None, None, None, None)


@pytest.mark.parametrize(
    ("header", "packed"),
    [
        (b"transfer-encoding: chunked\r\n", b"transfer-encoding: gzip, chunked\r\n"),
        (b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_compressed_answer_has_times_and_no_tokens(
    header: bytes, packed: bytes, is_packed: bool
) -> None:
    # one that only says so is not believed either: who would know where its tokens are
    body = recorded("chat_stream.txt")
    body = gzip.compress(body) if is_packed else body
    head = STREAM.replace(header, packed)
    assert head != STREAM
    (answer,) = read([head, chunk(body), b"0\r\n\r\n"], "POST")
    assert (answer.complete, answer.stream, answer.last_at) == (True, True, 2.0)
    assert (answer.token_at, *tokens(answer)) == (None, None, None, None, None)


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (b"Cache-Status: proxy; hit; ttl=60", "proxy; hit; ttl=60"),
        (b"x-cache:MISS", "MISS"),
        (b"x-cache: MISS\r\ncache-status: p; hit", "p; hit"),
        (b"x-cache: \x1b[2J" + b"x" * 300, "?[2J" + "x" * 196),
        (b"x-cached: HIT", None),
    ],
)
def test_what_a_cache_says_is_told_as_sent(header: bytes, told: str | None) -> None:
    wire = b"HTTP/1.1 200 OK\r\n" + header + b"\r\ncontent-length: 0\r\n\r\n"
    assert read([wire], "POST")[0].cache_status == told


# --- long bodies -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1_000, 60_000])
def test_a_long_body_tells_its_tokens_by_its_end(size: int) -> None:
    content = b'1,\\"completion_tokens\\":5' * (400_000 // 24)
    body = recorded("chat.json").replace(b":exception", content, 1)
    assert len(body) > 400_000
    wire = json_answer(body)
    segments = [wire[at : at + size] for at in range(0, len(wire), size)]
    (answer,) = read(segments, "POST")
    assert tokens(answer) == (21, 16, None, "length")
    assert answer.last_at == len(segments) - 1


def test_a_long_stream_is_forgotten_but_for_its_end() -> None:
    body = recorded("chat_stream.txt")
    role, token, *rest = events(body)
    told: list[HttpAnswer] = []
    answers = AnswerReader(told.append)
    answers.asked("POST", -1.0)
    answers.data(0.0, STREAM)
    answers.data(1.0, chunk(role))
    for at in range(5000):
        answers.data(2.0 + at, chunk(token))
        assert len(answers._tail) <= 2 * TAIL_BYTES
    answers.data(6000.0, chunk(b": " + b"x" * 100_000 + b"\n\n"))
    assert len(answers._tail) <= 2 * TAIL_BYTES
    for event in rest:
        answers.data(7000.0, chunk(event))
    answers.data(7001.0, b"0\r\n\r\n")
    assert tokens(told[0]) == (21, 16, None, "length")
    assert (told[0].token_at, told[0].last_at) == (2.0, 7001.0)


def test_a_stream_that_never_has_a_token_is_not_read_for_ever() -> None:
    told: list[HttpAnswer] = []
    answers = AnswerReader(told.append)
    answers.asked("POST", -1.0)
    answers.data(0.0, STREAM)
    for at in range(400):
        answers.data(1.0 + at, chunk(b"data: " + b'{"type":"ping"}' * 60 + b"\n\n"))
    assert answers._reader is None
    answers.data(500.0, b"0\r\n\r\n")
    assert (told[0].complete, told[0].token_at) == (True, None)


def test_of_two_choices_the_first_ones_end_counts() -> None:
    def event(index: int, finish: str) -> bytes:
        said = b'{"choices":[{"index":%d,"delta":{"content":"x"},"finish_reason":%s}]}'
        return b"data: " + said % (index, finish.encode()) + b"\n\n"

    body = [event(0, '"stop"'), *[event(1, "null")] * 9, event(1, '"length"'), b"data: [DONE]\n\n"]
    (answer,) = read(streamed(b"".join(body)), "POST")
    assert answer.finish_reason == "stop"
