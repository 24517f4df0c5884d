"""Segments in any order, twice, overlapping and cut: the bytes that were sent, in order, or a hole that is told."""

import pytest
from support.streams import Capture, opened, post

ONE, TWO = b'{"n": 1, "text": "first"}', b'{"n": 2}'


def test_a_request_in_one_segment_is_told_with_all_that_is_known() -> None:
    capture = opened()
    capture.client(post(ONE, path=b"/v1/chat/completions"))
    (request,) = capture.requests
    assert (request.method, request.path, request.body) == ("POST", "/v1/chat/completions", ONE)
    # the SYN came at 100.001, the request a millisecond later
    assert (request.ts, request.ts_last) == (100.002, 100.002)
    assert (request.client, request.client_port) == (bytes([10, 0, 0, 1]), 40000)
    assert (request.server, request.server_port) == (bytes([10, 0, 9, 9]), 8000)
    assert (request.damaged, request.problem, request.answer) == (False, None, None)
    assert request.in_flight is None


def test_a_request_is_the_same_wherever_it_is_split_even_if_the_second_half_comes_first() -> None:
    data = post(ONE) + post(TWO)
    for at in range(1, len(data)):
        capture = opened()
        capture.client(data[:at])
        capture.client(data[at:])
        assert capture.bodies == [ONE, TWO], f"split at {at}"
        capture = opened()
        capture.send(capture.next + at, data[at:])
        capture.send(capture.next, data[:at])
        assert capture.bodies == [ONE, TWO], f"split at {at}, the second half first"


def test_the_last_byte_of_a_request_is_the_one_that_closed_the_hole() -> None:
    capture = opened()
    data = post(ONE)
    capture.send(capture.next + 10, data[10:])
    capture.send(capture.next, data[:10])
    (request,) = capture.requests
    assert (request.ts, request.ts_last) == (100.003, 100.003)


def test_a_request_behind_a_hole_begins_when_it_can_be_read() -> None:
    capture = opened()
    data = post(ONE)
    capture.send(capture.next + 10, data[10:])
    capture.send(capture.next + len(data), post(TWO))
    capture.wait(1)
    capture.send(capture.next, data[:10])
    assert [(one.ts, one.ts_last) for one in capture.requests] == [(101.004, 101.004)] * 2


def test_what_waits_and_is_sent_again_waits_once() -> None:
    capture = opened()
    capture.send(capture.next + 10, b"x" * 1000)
    held = capture.streams.held_bytes
    for start in (10, 10, 500, 1009):
        capture.send(capture.next + start, b"x" * (1010 - start))
    assert capture.streams.held_bytes == held > 1000


def test_of_two_versions_that_wait_the_first_that_came_counts() -> None:
    head = post(b"abcdefgh")[:-8]
    capture = opened()
    at = capture.next + len(head)
    capture.send(at + 2, b"cd")
    capture.send(at + 5, b"f")
    capture.send(at, b"abXXeXgh")
    capture.send(capture.next, head)
    assert capture.bodies == [b"abcdefgh"]


def test_a_lost_middle_is_waited_for_and_then_told() -> None:
    capture = opened()
    data = post(b"x" * 4000)
    capture.client(data[:1000])
    capture.lose(1448)
    capture.client(data[2448:])
    capture.client(post(TWO))
    assert capture.requests == []
    capture.wait(1.9)
    assert capture.requests == []
    capture.wait(0.2)
    assert capture.problems == ["1,448 bytes lost"]
    assert capture.bodies == [TWO]
    (hurt, _) = capture.requests
    # 4,000 bytes of body, 1,448 of them not seen
    assert (hurt.method, hurt.path, hurt.body, hurt.body_bytes) == ("POST", "/v1/x", None, 2552)
    assert (capture.losses.gaps, capture.losses.gap_bytes) == (1, 1448)


AFTER = post(ONE) + post(TWO)
LONG, BOTH = post(b"x" * 3000), post(b"x" * 1000) + post(ONE)
AT_V1 = post(ONE, path=b"/v1/completions")
CHUNKED = b"POST /v1/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"
NAMELESS, NAMED = (None, None), ("POST", "/v1/x")
# what is sent, and how many bytes of it are lost; per damaged request what is told of it; the whole bodies
HOLES = {
    "up to a body's last byte: the next request is spared, even in segments without a whole first line": (
        [LONG[:1000], len(LONG) - 1000, *(AFTER[at : at + 10] for at in range(0, len(AFTER), 10))],
        [(f"{len(LONG) - 1000:,} bytes lost", NAMED)],
        [ONE, TWO],
    ),
    "beyond a body's end: it hurts until a segment begins with a request": (
        [BOTH[:500], len(BOTH) - 510, BOTH[-10:], post(TWO)],
        [(f"{len(BOTH) - 510:,} bytes lost", NAMED)],
        [TWO],
    ),
    "beyond a body's end, the second one": (
        [BOTH[:500], 100, BOTH[600:700], len(BOTH) - 710, BOTH[-10:], post(TWO)],
        [(f"{len(BOTH) - 610:,} bytes lost", NAMED)],
        [TWO],
    ),
    "in the head of a pipelined request: its first line may be cut": (
        [post(ONE) + AT_V1[:12], 10, AT_V1[22:], post(TWO)],
        [("10 bytes lost", NAMELESS)],
        [ONE, TWO],
    ),
    "in a head behind its first line": (
        [AT_V1[:40], 10, AT_V1[50:], post(TWO)],
        [("10 bytes lost", ("POST", "/v1/completions"))],
        [TWO],
    ),
    "twice in one body": (
        [LONG[:1000], 100, LONG[1100:1200], 200, LONG[1400:], post(TWO)],
        [("300 bytes lost", NAMED)],
        [TWO],
    ),
    "a whole request, and later beyond a body's end": (
        [len(AT_V1), post(TWO), BOTH[:500], len(BOTH) - 510, BOTH[-10:], post(TWO)],
        [(f"{len(BOTH) - 510:,} bytes lost", NAMED)],
        [TWO, TWO],
    ),
    "a whole request: no request": ([len(AT_V1), post(TWO)], [], [TWO]),
    "in a chunk": ([CHUNKED, 2, b"\r\n0\r\n\r\n", post(TWO)], [("2 bytes lost", NAMED)], [TWO]),
}


@pytest.mark.parametrize(("sent", "damaged", "bodies"), HOLES.values(), ids=HOLES)
def test_a_hole_hurts_the_request_that_it_is_in_and_no_other(
    sent: list[bytes | int],
    damaged: list[tuple[str, tuple[str | None, str | None]]],
    bodies: list[bytes],
) -> None:
    capture = opened()
    for step in sent:
        if isinstance(step, int):
            capture.lose(step)
        else:
            capture.client(step)
    capture.wait(3)
    hurt = [one for one in capture.requests if one.damaged]
    assert [(one.problem, (one.method, one.path)) for one in hurt] == damaged
    assert capture.bodies == bodies
    losses, lost = capture.losses, [step for step in sent if isinstance(step, int)]
    assert (losses.gaps, losses.gap_bytes, losses.unparsed) == (len(lost), sum(lost), 0)


def test_a_cut_frame_that_comes_early_is_a_hole_in_its_place() -> None:
    capture = opened()
    data = post(b"x" * 100)
    capture.send(capture.next + 60, data[60:70], missing=len(data) - 70)
    capture.send(capture.next, data[:60])
    capture.next += len(data)
    capture.client(post(TWO))
    assert capture.problems == [f"{len(data) - 70} bytes lost"]
    assert capture.bodies == [TWO]


def test_a_syn_that_data_overtook_begins_no_second_connection() -> None:
    capture = Capture()
    data = post(ONE)
    capture.client(data[:30])  # no whole first line: it waits
    capture.send(capture.isn, flags=2)
    capture.client(data[30:])
    assert capture.bodies == [ONE]
    capture = Capture()
    capture.client(data)
    capture.send(capture.isn, flags=2)
    capture.client(post(TWO))
    assert (capture.bodies, capture.losses.gaps) == ([ONE, TWO], 0)
