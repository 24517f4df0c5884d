"""Segments in any order, twice, overlapping and cut: the bytes that were sent, in order, or a hole that is told."""

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


def test_a_request_is_the_same_wherever_it_is_split() -> None:
    data = post(ONE) + post(TWO)
    for at in range(1, len(data)):
        capture = opened()
        capture.client(data[:at])
        capture.client(data[at:])
        assert capture.bodies == [ONE, TWO], f"split at {at}"


def test_a_request_is_the_same_wherever_the_late_half_begins() -> None:
    data = post(ONE) + post(TWO)
    for at in range(1, len(data)):
        capture = opened()
        capture.send(capture.next + at, data[at:])
        capture.send(capture.next, data[:at])
        assert capture.bodies == [ONE, TWO], f"split at {at}"


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


def test_a_hole_up_to_a_bodys_last_byte_spares_the_next_request() -> None:
    capture = opened()
    data = post(b"x" * 3000)
    capture.client(data[:1000])
    capture.lose(len(data) - 1000)
    # in such small segments that none holds a whole first line
    capture.client(post(ONE) + post(TWO), size=10)
    capture.wait(3)
    assert capture.bodies == [ONE, TWO]


def test_a_hole_beyond_a_bodys_end_hurts_until_a_segment_begins_with_a_request() -> None:
    capture = opened()
    data = post(b"x" * 1000) + post(ONE)
    capture.client(data[:500])
    capture.lose(len(data) - 510)
    capture.client(data[-10:])
    capture.client(post(TWO))
    capture.wait(3)
    assert capture.problems == [f"{len(data) - 510:,} bytes lost"]
    assert (capture.bodies, capture.losses.unparsed) == ([TWO], 0)


def test_a_second_hole_beyond_a_bodys_end_hurts_as_the_first_would() -> None:
    capture = opened()
    data = post(b"x" * 1000) + post(ONE)
    capture.client(data[:500])
    capture.lose(100)
    capture.client(data[600:700])
    capture.lose(len(data) - 710)
    capture.client(data[-10:])
    capture.client(post(TWO))
    capture.wait(3)
    assert capture.problems == [f"{100 + len(data) - 710:,} bytes lost"]
    assert (capture.bodies, capture.losses.unparsed) == ([TWO], 0)


def test_a_hole_in_the_head_of_a_pipelined_request_leaves_its_first_line_open() -> None:
    capture = opened()
    data = post(TWO, path=b"/v1/completions")
    capture.client(post(ONE) + data[:12])
    capture.lose(10)
    capture.client(data[22:])
    capture.client(post(TWO))
    capture.wait(3)
    assert capture.problems == ["10 bytes lost"]
    assert (capture.requests[1].method, capture.requests[1].path) == (None, None)
    assert capture.bodies == [ONE, TWO]


def test_a_hole_in_the_head_keeps_the_first_line_if_that_was_seen() -> None:
    capture = opened()
    data = post(ONE, path=b"/v1/completions")
    capture.client(data[:40])
    capture.lose(10)
    capture.client(data[50:])
    capture.client(post(TWO))
    capture.wait(3)
    hurt, whole = capture.requests
    assert (hurt.damaged, hurt.method, hurt.path) == (True, "POST", "/v1/completions")
    assert whole.body == TWO


def test_a_request_lost_whole_is_a_gap_and_no_request() -> None:
    capture = opened()
    capture.lose(len(post(ONE)))
    capture.client(post(TWO))
    capture.wait(3)
    assert (capture.bodies, capture.problems) == ([TWO], [])
    assert capture.losses.gap_bytes == len(post(ONE))


def test_a_chunked_body_with_a_hole_is_damaged_and_the_next_request_whole() -> None:
    capture = opened()
    head = b"POST /v1/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    capture.client(head + b"5\r\nhel")
    capture.lose(2)
    capture.client(b"\r\n0\r\n\r\n")
    capture.client(post(TWO))
    capture.wait(3)
    assert (capture.bodies, capture.problems) == ([TWO], ["2 bytes lost"])


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
