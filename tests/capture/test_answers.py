"""Answers cut out of what a server sent, beside their requests: recorded from a real vLLM, cut, framed and damaged in every way."""

import gzip
import json
import random
import tracemalloc
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest
from contract.harness.packets import ok
from support.answer_bytes import OK, STREAM, chunk, events, json_answer, streamed, tokens
from support.recordings import recorded
from support.streams import ACK, FIN, RST, SYN, Capture, key, post

from toolkit.capture.records import HttpAnswer, MemoryBounds

CHAT = recorded("chat_stream.txt")
WHOLE = json_answer(recorded("chat.json"))
TOLD = (21, 16, None, "length")
"""Of both: tokens of the prompt, of the answer, from the cache; and the finish reason."""
NOTHING = (None, None, None, None)
ONE, TWO = b'{"n": 1}', b'{"n": 2}'


def answering(*methods: str, limits: MemoryBounds | None = None) -> Capture:
    """With both sides' SYN seen, and a request of each method sent."""
    capture = Capture(follow=True, limits=limits)
    capture.open()
    capture.server_next = 9000
    capture.answer(flags=SYN | ACK)
    for method in methods:
        capture.client(f"{method} /v1/x HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    return capture


def read(segments: Sequence[bytes], *methods: str) -> Capture:
    """After all that is sent by the server, a millisecond apart."""
    capture = answering(*methods)
    for segment in segments:
        capture.answer(segment)
    return capture


def answers(capture: Capture) -> list[HttpAnswer]:
    return [request.answer or HttpAnswer() for request in capture.requests]


def statuses(capture: Capture) -> list[int | None]:
    return [answer.status for answer in answers(capture)]


def after_ms(capture: Capture, at: float | None) -> int | None:
    """Milliseconds from the last request, which are segments of the server."""
    return None if at is None else round((at - capture.requests[-1].ts_last) * 1000)


# --- what recordings hold, read off with the eye: usage (prompt, completion, cached) and finish reason -------


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("chat.json", TOLD),
        ("completions.body", (4, 8, None, "length")),
        ("v3/chat_prompt_details_2.json", (153, 4, 128, "length")),
    ],
)
def test_a_recorded_answer_tells_its_tokens(name: str, told: tuple[object, ...]) -> None:
    wire = json_answer(recorded(name))
    capture = read([wire[:40], wire[40:300], wire[300:]], "POST")
    (answer,) = answers(capture)
    assert tokens(answer) == told
    assert (answer.status, answer.complete, answer.damaged, answer.stream) == (
        200,
        True,
        False,
        False,
    )
    times = (answer.first_at, answer.token_at, answer.last_at)
    assert [after_ms(capture, at) for at in times] == [1, None, 3]


STREAMS = [
    ("chat_stream.txt", TOLD, 2),
    ("chat_stream_contusage.body", (21, 4, None, "length"), 2),
    ("chat_stream_nousage.body", (None, None, None, "length"), 2),
    ("completions_stream.body", (4, 4, None, "length"), 1),
    ("v3/chat_stream_details.txt", (153, 2, 128, "length"), 2),
    ("slow/stream_during_engine_death.txt", (None, None, None, "error"), 2),
]
"""The last number: the segment with the first token; 0 is the head, the role-only event comes next in a chat."""


@pytest.mark.parametrize(("name", "told", "first"), STREAMS)
def test_a_recorded_stream_tells_its_tokens_and_when_the_first_one_came(
    name: str, told: tuple[object, ...], first: int
) -> None:
    segments = streamed(recorded(name))
    capture = read(segments, "POST")
    (answer,) = answers(capture)
    assert tokens(answer) == told
    assert (answer.status, answer.stream, answer.complete) == (200, True, True)
    times = (answer.first_at, answer.token_at, answer.last_at)
    assert [after_ms(capture, at) for at in times] == [1, first + 1, len(segments)]


@pytest.mark.parametrize(("name", "told", "first"), [STREAMS[2], STREAMS[3]])
def test_a_stream_cut_at_every_place_is_the_same(
    name: str, told: tuple[object, ...], first: int
) -> None:
    segments = streamed(recorded(name))
    wire = b"".join(segments)
    # the event with the first token is whole where its blank line is; the chunk's own end comes behind it
    token_ends = len(b"".join(segments[: first + 1])) - 2
    for cut in range(1, len(wire)):
        capture = read([wire[:cut], wire[cut:]], "POST")
        (answer,) = answers(capture)
        assert tokens(answer) == told, cut
        assert after_ms(capture, answer.token_at) == (1 if cut >= token_ends else 2), cut


# --- what the end of an answer tells ------------------------------------------------------------------

DONE = b"data: [DONE]\n\n"
LIE = '"usage":{"prompt_tokens":1,"completion_tokens":2},"finish_reason":"stop"'
LONG = b": " + b"x" * 9000 + b"\n\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def token(finish: str | None = None, *, text: str = "x", index: int = 0, **fields: Any) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    return event(choices=[choice], **fields)


ERROR = event(error={"message": "gone", "code": 500})
SPENT = {"input_tokens": 12, "output_tokens": 3}


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        (CHAT.replace(b"\n", b"\r\n"), TOLD),
        (CHAT[:2000] + LONG + CHAT[2000:], TOLD),
        # what a text says is no field
        (token(text=LIE) + token("length", text=LIE) + DONE, (None, None, None, "length")),
        # the last usage counts
        (
            b"".join(
                token(end, usage={"prompt_tokens": 9, "completion_tokens": n})
                for n, end in ((1, None), (2, None), (3, "stop"))
            ),
            (9, 3, None, "stop"),
        ),
        # an error is the end, after the last token, too; null is a usual field of an answer without one
        (token() + ERROR + DONE, (None, None, None, "error")),
        (LONG + token("stop") + ERROR + DONE, (None, None, None, "error")),
        (token("stop", error=None) + DONE, (None, None, None, "stop")),
        (token("abort") + DONE, (None, None, None, "abort")),
        # of two choices the first one's end counts
        (token("stop") + token(index=1) * 9 + token("length", index=1), (None, None, None, "stop")),
        # Anthropic's words
        (
            event(type="content_block_delta") * 9
            + event(type="message_delta", delta={"stop_reason": "tool_use"}, usage=SPENT),
            (12, 3, None, "tool_calls"),
        ),
        # no end
        (b"".join(events(CHAT)[:5]), NOTHING),
        (b"data: garbage", NOTHING),
    ],
)
def test_a_stream_tells_what_its_end_holds(stream: bytes, told: tuple[object, ...]) -> None:
    (answer,) = answers(read([STREAM, *map(chunk, [stream]), b"0\r\n\r\n"], "POST"))
    assert tokens(answer) == told


@pytest.mark.parametrize("size", [0, 20_000])
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"usage": {"completion_tokens": 7}, "choices": [{"finish_reason": "stop"}]}, (None, 7, None, "stop")),
        ({"choices": [{"message": {"content": LIE}, "finish_reason": "length"}]}, (None, None, None, "length")),
        ({"type": "message", "stop_reason": "end_turn", "usage": SPENT}, (12, 3, None, "stop")),
        ({"choices": [{"finish_reason": "stop", "stop_reason": "max_tokens"}]}, (None, None, None, "stop")),
        *(
            ({"choices": [{"finish_reason": "stop"}], "usage": {"completion_tokens": number}}, (None, None, None, "stop"))
            for number in (-1, 1.5, 10**17, "12", True)
        ),
    ],
)  # fmt: skip
def test_a_body_tells_its_tokens_however_long_it_is(
    fields: dict[str, Any], told: tuple[object, ...], size: int
) -> None:
    body = json.dumps({"text": '1,"completion_tokens":5' * (size // 24)} | fields).encode()
    wire = json_answer(body)
    (answer,) = answers(read([wire[at : at + 1000] for at in range(0, len(wire), 1000)], "POST"))
    assert tokens(answer) == told


def test_a_long_stream_is_forgotten_but_for_its_end() -> None:
    role, first, *rest = events(CHAT)
    capture = read([STREAM, chunk(role)], "POST")
    tracemalloc.start()
    for _ in range(5000):
        capture.answer(chunk(first))
    capture.answer(chunk(b": " + b"x" * 100_000 + b"\n\n"))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 50_000
    for each in [*map(chunk, rest), b"0\r\n\r\n"]:
        capture.answer(each)
    (answer,) = answers(capture)
    assert tokens(answer) == TOLD
    assert after_ms(capture, answer.token_at) == 3


def test_a_stream_that_never_has_a_token_is_not_read_for_ever() -> None:
    pings = [chunk(b"data: " + b'{"type":"ping"}' * 60 + b"\n\n")] * 400
    late = chunk(events(CHAT)[1])
    (answer,) = answers(read([STREAM, *pings, late, b"0\r\n\r\n"], "POST"))
    assert (answer.complete, answer.token_at) == (True, None)


# --- framing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "method", "status"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n", "HEAD", 200),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "HEAD", 200),
        (b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", "POST", 204),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", "GET", 304),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "POST", 200),
        (b"HTTP/1.1 200\r\nContent-Length:0\r\n\r\n", "POST", 200),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 X\r\ncontent-length: 2\r\n\r\n{}",
            "POST",
            400,
        ),
    ],
)
def test_an_answer_ends_where_it_ends(head: bytes, method: str, status: int) -> None:
    first, second = answers(read([head, WHOLE], method, "POST"))
    assert (first.status, first.complete, first.damaged) == (status, True, False)
    assert tokens(second) == TOLD


@pytest.mark.parametrize(
    "body",
    [
        b'5;ext=1\r\n{"a":\r\n2 \r\n1}\r\n0\r\n\r\n',
        b'007\r\n{"a":1}\r\n0;x\r\nx-trailer: 1\r\ny: 2\r\n\r\n',
        b'1\r\n{\r\n1\r\n"\r\n1\r\na\r\n1\r\n"\r\n3\r\n:1}\r\n000\r\n\r\n',
        b'C\r\n{"a":"0\\r\\n"\r\n1\r\n}\r\n0\r\n\r\n',
    ],
)
def test_chunks_in_every_form_end_where_they_end(body: bytes) -> None:
    head = OK + b"Content-Type: application/json\r\nTransfer-Encoding: Chunked\r\n\r\n"
    wire = head + body + WHOLE
    for cut in range(1, len(wire)):
        capture = read([wire[:cut], wire[cut:]], "POST", "POST")
        assert [answer.complete for answer in answers(capture)] == [True, True], cut
        assert tokens(answers(capture)[1]) == TOLD


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    for head in (b"HTTP/1.0 200 OK\r\n", OK):
        segments = [head + b"content-type: text/event-stream\r\n\r\n", *events(CHAT)]
        capture = read(segments, "POST")
        assert capture.requests == []
        capture.fin()
        capture.answer(flags=FIN | ACK)
        (answer,) = answers(capture)
        assert (answer.complete, tokens(answer)) == (True, TOLD)
        assert after_ms(capture, answer.token_at) == 3


@pytest.mark.parametrize(
    ("ending", "status"), [(streamed(CHAT)[:-1], 200), ([b"HTTP/1.1 200 OK\r\ncontent"], None)]
)
def test_a_connection_that_ends_within_an_answer_leaves_it_incomplete(
    ending: list[bytes], status: int | None
) -> None:
    capture = read(ending, "POST")
    capture.streams.close()
    (answer,) = answers(capture)
    assert (answer.status, answer.complete, answer.damaged) == (status, False, False)
    assert after_ms(capture, answer.first_at) == 1
    assert tokens(answer) == NOTHING


def test_after_an_upgrade_nothing_is_read() -> None:
    wire = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n"
    capture = read([wire + json_answer(b"{}"), json_answer(b"{}")], "GET", "GET")
    capture.streams.close()
    assert statuses(capture) == [101, None]


def test_errors_and_compressed_answers_have_no_tokens() -> None:
    refused = json_answer(recorded("err_overlong.body"), b"HTTP/1.1 400 Bad Request\r\n")
    head = STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    coded = STREAM.replace(b"chunked", b"gzip, chunked")
    # one that only says so is not believed either: who would know where its tokens are
    bodies = [head + chunk(gzip.compress(CHAT)), head + chunk(CHAT), coded + chunk(CHAT)]
    segments = [refused, *(body + b"0\r\n\r\n" for body in bodies)]
    capture = read(segments, "POST", "POST", "POST", "POST")
    assert statuses(capture) == [400, 200, 200, 200]
    assert {(each.complete, each.token_at, *tokens(each)) for each in answers(capture)} == {
        (True, None, *NOTHING)
    }


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
    assert answers(read([wire], "POST"))[0].cache_status == told


# --- which request an answer belongs to ----------------------------------------------------------------


def test_a_refusal_that_comes_before_the_request_is_whole_belongs_to_it() -> None:
    capture = answering()
    refusal = ok().replace(b"200 OK", b"413 Content Too Large")
    for split in (len(refusal), 20):
        data = post(b"x" * 1000)
        capture.client(data[:500])
        capture.answer(refusal[:split])
        capture.client(data[500:])
        if split < len(refusal):
            capture.answer(refusal[split:])
        capture.client(post(ONE))
        capture.answer(ok())
    assert statuses(capture) == [413, 200, 413, 200]


def test_an_answer_to_nobody_is_passed_over() -> None:
    for stray in (
        ok(),
        WHOLE[100:],
        b"\x16\x03\x01\x00",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2x0 \r\n\r\n",
    ):
        capture = Capture(follow=True)
        capture.answer(stray)  # its request came before the capture
        capture.client(post(ONE))
        assert capture.requests == []
        capture.answer(WHOLE)
        assert tokens(answers(capture)[0]) == TOLD


def test_a_request_without_an_answer_is_told_at_the_end() -> None:
    for ending in ("fin", "reset", "server reset", "close", "quiet", "again"):
        capture = answering("POST")
        capture.answer(WHOLE[:-10])
        assert capture.requests == []
        if ending == "fin":
            capture.fin()
            assert capture.requests == []  # half closed: the answer may still come
            capture.answer(flags=FIN | ACK)
        elif ending == "reset":
            capture.send(capture.next, flags=RST)
        elif ending == "server reset":
            capture.answer(flags=RST)
        elif ending == "close":
            capture.streams.close()
        elif ending == "quiet":
            capture.wait(601)
            capture.wait(601)
        else:
            capture.send(70_000, flags=SYN)
        (answer,) = answers(capture)
        assert (answer.status, answer.complete) == (200, False), ending


def test_a_half_closed_connection_gets_its_answer() -> None:
    capture = answering()
    capture.client(post(ONE), flags=FIN | ACK)
    capture.next += 1
    capture.answer(WHOLE[:50])
    capture.answer(WHOLE[50:], flags=FIN | ACK)
    assert (capture.bodies, statuses(capture)) == ([ONE], [200])


def test_segments_of_an_answer_may_come_in_any_order_and_twice() -> None:
    capture = answering("POST")
    first = capture.server_next
    for start in (40, 0, 40, 20, 0):
        capture.answer(WHOLE[start : start + 20], seq=first + start)
    capture.answer(WHOLE[60:], seq=first + 60)
    (answer,) = answers(capture)
    assert (tokens(answer), answer.damaged) == (TOLD, False)


def other(number: int, capture: Capture, *, dport: int = 8000) -> None:
    capture.key, capture.next, capture.server_next = key(50_000 + number, dport), 1001, 9001
    capture.open()


def test_requests_in_flight_are_those_unanswered_at_the_same_server() -> None:
    capture = answering()
    for number in range(3):
        other(number, capture)
        capture.client(post(ONE))
    for number in range(3):
        capture.key, capture.next, capture.server_next = key(50_000 + number), 2000, 9001
        capture.answer(ok())
    other(3, capture)
    capture.client(post(TWO))
    capture.answer(ok())
    assert [request.in_flight for request in capture.requests] == [0, 1, 2, 0]


def test_servers_are_counted_apart_by_address_and_port() -> None:
    capture = Capture(follow=True, ports=[8000, 8001])
    for dport in (8000, 8001):
        other(dport, capture, dport=dport)
        capture.answer(flags=SYN | ACK)
        capture.client(post(ONE) + post(TWO))
    capture.streams.close()
    flights = [(one.server_port, one.in_flight) for one in capture.requests]
    assert flights == [(8000, 0), (8000, 1), (8001, 0), (8001, 1)]


def test_nobody_knows_what_is_in_flight_where_only_clients_were_captured() -> None:
    for speaks in (False, True):
        capture = answering("POST", "POST") if speaks else Capture(follow=True)
        if not speaks:
            capture.open()
            capture.client(post(ONE) + post(TWO))
        capture.streams.close()
        assert [one.in_flight for one in capture.requests] == ([0, 1] if speaks else [None, None])


def test_where_only_the_clients_half_is_captured_requests_are_told_all_the_same() -> None:
    capture = answering()
    for number in range(1000):
        capture.client(post(b"%d" % number))
    assert 800 < len(capture.requests) < 1000
    capture.streams.close()
    assert capture.bodies == [b"%d" % number for number in range(1000)]
    assert set(statuses(capture)) == {None}


def test_unanswered_requests_stay_within_the_total() -> None:
    limits = MemoryBounds(total_bytes=1_000_000)
    capture = answering(limits=limits)
    for number in range(300):
        other(number, capture)
        capture.client(post(b"x" * 50_000))
        assert capture.streams.held_bytes <= limits.total_bytes
    # each with 8 KiB for the end of its answer
    assert capture.losses.gave_up > 300 - 1_000_000 // 58_192
    assert all(not request.damaged for request in capture.requests)
    capture.streams.close()
    assert capture.streams.held_bytes == 0


# --- what is missing -----------------------------------------------------------------------------------


def lose(capture: Capture, count: int, then: bytes) -> None:
    """Bytes of the server that never reach us; what the client acknowledges after the next ones tells that it has them."""
    capture.server_next += count
    capture.answer(then)
    capture.send(capture.next, ack=capture.server_next)


def test_a_hole_within_a_body_is_stepped_over() -> None:
    stream = b"".join(streamed(CHAT))
    for wire, told in ((WHOLE, (21, 16, None, None)), (stream, TOLD)):
        for start, end in ((250, 500), (len(wire) - 60, len(wire) - 20)):
            capture = read([wire[:start]], "POST")
            lose(capture, end - start, wire[end:])
            capture.client(post(ONE))
            capture.answer(WHOLE)
            first, second = answers(capture)
            assert (first.status, first.damaged, first.complete) == (200, True, False)
            # its end is whole or not, and nothing is made up for its beginning
            assert tokens(first) in (told, NOTHING, (None, None, None, "length"))
            assert (tokens(second), second.damaged) == (TOLD, False)


def test_what_either_side_has_and_we_have_not_is_not_waited_for() -> None:
    capture = answering()
    data = post(b"x" * 1000)
    capture.client(data[:500])
    capture.lose(100)
    hole_ends = capture.next
    capture.client(data[600:] + post(TWO))
    capture.answer(ack=hole_ends - 100)
    assert capture.losses.gaps == 0
    # the first to acknowledge what we lost, and the answer to the request with it
    capture.answer(ok().replace(b"200", b"503"))
    assert (capture.losses.gaps, capture.losses.gap_bytes) == (1, 100)
    capture.answer(ok().replace(b"200", b"201"))
    assert capture.problems == ["100 bytes lost"]
    assert (statuses(capture), capture.bodies) == ([503, 201], [TWO])


def test_a_hole_beyond_an_answer_costs_that_one_and_those_that_it_hid() -> None:
    capture = answering()
    for number in range(4):
        capture.client(post(b"%d" % number))
        if number == 1:
            capture.answer(WHOLE[:400])
            capture.server_next += len(WHOLE) - 400
        elif number == 2:
            capture.server_next += len(WHOLE)
        else:
            lose(capture, 0, WHOLE)
    assert [answer.damaged for answer in answers(capture)] == [False, True, True, False]
    assert [answer.status for answer in answers(capture)] == [200, 200, None, 200]


@pytest.mark.parametrize(
    "broken",
    [b"zz\r\n", b"-5\r\n", b"\r\n", b"5\r\nabcdeX\r\n", b"f" * 17 + b"\r\n", b"5" * 20_000],
)
def test_broken_chunks_damage_the_answer(broken: bytes) -> None:
    capture = read([STREAM, chunk(events(CHAT)[0]), broken], "POST")
    (answer,) = answers(capture)
    assert (answer.damaged, answer.complete) == (True, False)
    capture.client(post(ONE))
    capture.answer(WHOLE)
    assert not answers(capture)[1].damaged


def test_a_head_without_an_end_is_given_up() -> None:
    filler = [b"x-filler: " + b"x" * 1000 + b"\r\n"] * 300
    capture = read([b"HTTP/1.1 200 OK\r\n", *filler, b"\r\n" + WHOLE], "POST")
    assert statuses(capture) == [200]


# --- any of it, anywhere ---------------------------------------------------------------------------------

Sent = tuple[str, int, bytes]
"""Method, status, and the answer's bytes."""


def any_answer(chance: random.Random) -> Sent:
    """Of any framing; its body looks like framing, and is none."""
    body = bytes(chance.choices(b"abcHTTP/1.1 200 \r\n{}05", k=chance.randrange(200)))
    kind = chance.randrange(4)
    if kind == 0:
        status = chance.choice([200, 201, 400, 503])
        head = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        return "POST", status, head + body
    if kind == 1:
        method, status = chance.choice([("HEAD", 200), ("POST", 204), ("GET", 304)])
        return method, status, b"HTTP/1.1 %d X\r\ncontent-length: 7\r\n\r\n" % status
    if kind == 2:
        return "POST", 200, chance.choice([WHOLE, b"".join(streamed(CHAT))])
    wire = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    while body:
        size = min(len(body), chance.randrange(1, 40))
        wire += b"%x%s\r\n%s\r\n" % (size, chance.choice([b"", b";a=b", b" "]), body[:size])
        body = body[size:]
    return "POST", 200, wire + chance.choice([b"0\r\n\r\n", b"000;x\r\nt: v\r\n\r\n"])


@pytest.mark.parametrize("most", [1, 7, 500])
def test_answers_cut_anywhere_are_all_found(most: int) -> None:
    for seed in range(40):
        chance = random.Random(seed)
        sent = [any_answer(chance) for _ in range(chance.randrange(2, 8))]
        before = [b"", b"\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"]
        wire, at = b"".join(chance.choice(before) + one for _, _, one in sent), 0
        capture = answering(*(method for method, _, _ in sent))
        while at < len(wire):
            size = chance.randrange(1, most + 1)
            capture.answer(wire[at : at + size])
            at += size
        assert statuses(capture) == [status for _, status, _ in sent], seed
        assert all(one.complete and not one.damaged for one in answers(capture)), seed


@pytest.mark.parametrize("is_known", [False, True])
def test_an_answer_that_lost_bytes_is_never_told_as_whole_and_the_others_keep_their_requests(
    is_known: bool,
) -> None:
    for seed in range(300):
        chance = random.Random(seed)
        # the last one is whole, so that what was lost before it is known to be
        last = ("POST", 202, b"HTTP/1.1 202 X\r\ncontent-length: 0\r\n\r\n")
        sent = [*(any_answer(chance) for _ in range(chance.randrange(2, 8))), last]
        ends = list(accumulate(len(wire) for _, _, wire in sent))
        lost = chance.randrange(ends[-2])
        behind = min(ends[-2], lost + chance.choice([1, 50, 500, 5000]))
        # of a hole that is far too long nobody knows the length
        jump = 0 if is_known else 50_000_000
        capture, is_hit = answering(), []
        for (method, _, wire), end in zip(sent, ends, strict=True):
            start = end - len(wire)
            is_hit.append(start < behind and end > lost)
            capture.client(f"{method} / HTTP/1.1\r\n\r\n".encode())
            capture.answer(wire[: max(0, lost - start)])
            if start < behind <= end:
                capture.server_next += behind - lost + jump
            rest = wire[max(0, behind - start, lost - start) :]
            if jump:  # a lone segment from far off is not believed
                capture.answer(rest[:1])
                rest = rest[1:]
            lose(capture, 0, rest)
        capture.streams.close()
        whole = [answer for answer in answers(capture) if answer.complete]
        assert not any(answer.damaged for answer in whole), seed
        assert len(whole) <= len(is_hit) - sum(is_hit), seed
        if is_known:
            assert [answer.damaged for answer in answers(capture)] == is_hit, seed
