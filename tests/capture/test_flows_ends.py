"""Where connections begin and end: FIN, RST, ports used again, with and without what should have told it."""

from support.streams import ACK, FIN, RST, SYN, Capture, key, opened, post

from toolkit.capture.records import MemoryBounds

ONE, TWO = b'{"n": 1}', b'{"n": 2}'
HALF = post(b"x" * 1000)[:500]


def reopened(capture: Capture, isn: int) -> None:
    capture.isn, capture.next = isn, isn + 1
    capture.open()


def flows(capture: Capture) -> int:
    return len(capture.streams._flows)


def test_a_fin_that_comes_early_waits_for_the_bytes_before_it() -> None:
    capture = opened()
    data = post(ONE)
    capture.send(capture.next + len(data), flags=FIN | ACK)
    assert flows(capture) == 1
    capture.client(data)
    assert (capture.bodies, flows(capture)) == ([ONE], 0)


def test_a_fin_behind_a_hole_ends_the_connection_when_the_hole_is_given_up() -> None:
    capture = opened()
    capture.client(HALF)
    capture.lose(500)
    capture.fin()
    capture.wait(2.5)
    assert capture.problems == ["500 bytes lost, then the connection ended before it was whole"]
    assert flows(capture) == 0


def test_what_comes_behind_a_fin_is_none_of_the_stream() -> None:
    capture = opened()
    capture.client(post(ONE))
    data = post(TWO)
    capture.send(capture.next + 5, flags=FIN | ACK)
    capture.send(capture.next, data)
    assert capture.bodies == [ONE]
    assert capture.requests[1].damaged


def test_a_request_that_a_fin_cuts_is_damaged() -> None:
    capture = opened()
    capture.client(HALF)
    capture.fin()
    assert capture.problems == ["the connection ended before it was whole"]


def test_a_reset_reads_what_waited_behind_a_hole() -> None:
    capture = opened()
    capture.client(HALF)
    capture.lose(10)
    capture.client(post(b"x" * 1000)[510:] + post(TWO))
    capture.send(capture.next, flags=RST | ACK)
    assert (capture.problems, capture.bodies) == (["10 bytes lost"], [TWO])


def test_a_port_used_again_without_a_fin_is_a_new_connection() -> None:
    capture = opened()
    capture.client(post(ONE) + HALF)
    reopened(capture, 77)
    capture.client(post(TWO))
    assert capture.bodies == [ONE, TWO]
    assert capture.problems == ["another connection took its place before it was whole"]


def test_a_port_used_again_without_fin_and_syn_is_read_at_its_first_request() -> None:
    for isn in (3_000_000_000, 90_000_000):
        capture = opened()
        capture.client(post(ONE))
        capture.next = isn
        capture.client(post(TWO))
        assert capture.bodies == [ONE, TWO]
        capture.client(post(ONE))
        assert capture.bodies == [ONE, TWO, ONE]
        assert capture.losses.gaps == 1


def test_a_port_used_again_in_the_middle_of_a_request_is_believed_at_the_second_segment() -> None:
    capture = opened()
    capture.client(HALF)
    capture.next = 3_000_000_000
    data = post(b"y" * 3000)
    capture.client(data[:1448])
    assert capture.requests == []
    capture.client(data[1448:])
    assert capture.bodies == [b"y" * 3000]
    assert capture.problems == ["bytes lost"]


def test_data_that_came_before_the_syn_of_its_connection_is_not_read_as_the_last_ones() -> None:
    capture = opened()
    capture.client(post(ONE))
    isn = capture.next + 500
    capture.send(isn + 1, post(TWO))  # waits behind a hole of 501 bytes
    reopened(capture, isn)
    capture.client(post(TWO))
    assert capture.bodies == [ONE, TWO]


def test_what_a_stream_that_was_left_sends_again_is_old() -> None:
    capture = opened()
    capture.client(post(ONE))
    capture.client(post(TWO))
    left = capture.next
    capture.next = 3_000_000_000
    capture.client(post(TWO))  # the port is used again, or this is a stray
    capture.send(1001, post(ONE))
    capture.send(left, post(ONE))  # a stray: what it left goes on
    capture.client(post(TWO))
    assert capture.bodies == [ONE, TWO, TWO, ONE, TWO]


def test_a_copy_from_farther_back_than_is_waited_for_is_old() -> None:
    capture = Capture(limits=MemoryBounds(stash_bytes=5000))
    capture.open()
    for _ in range(10):
        capture.client(post(b"x" * 1000))
    capture.send(1001, post(b"x" * 1000))
    assert len(capture.bodies) == 10


def test_a_stray_segment_from_far_off_changes_nothing() -> None:
    capture = opened()
    data = post(b"x" * 1000)
    capture.client(data[:500])
    capture.send(3_000_000_000, b"stray")
    capture.client(data[500:])
    capture.send(3_000_000_005, b"and another")
    capture.send(3_000_000_500, post(ONE)[:20])
    capture.client(post(TWO))
    assert capture.bodies == [b"x" * 1000, TWO]
    assert capture.losses.gaps == 0


def test_a_syn_sent_again_changes_nothing() -> None:
    capture = opened()
    capture.open()
    capture.client(HALF)
    capture.open()
    capture.client(post(b"x" * 1000)[500:])
    capture.open()
    assert (capture.bodies, capture.problems) == ([b"x" * 1000], [])


def test_what_is_sent_again_after_the_end_begins_no_connection() -> None:
    capture = opened()
    data = post(ONE)
    capture.client(data)
    capture.fin()
    capture.send(1001, data)
    capture.send(1001, data, FIN | ACK)
    capture.send(1000, flags=SYN)
    capture.send(1001, data)
    assert (capture.bodies, flows(capture)) == ([ONE], 0)


def test_strays_of_the_connection_before_the_last_begin_none() -> None:
    capture = opened()
    capture.client(post(ONE))
    capture.fin()
    reopened(capture, 5_000_000)
    capture.client(post(TWO))
    capture.fin()
    capture.send(1000, flags=SYN)
    capture.send(1001, post(ONE))
    capture.send(5_000_001, post(TWO))
    assert (capture.bodies, flows(capture)) == ([ONE, TWO], 0)


def test_a_lone_fin_reset_or_acknowledgement_begins_no_connection() -> None:
    capture = Capture()
    for flags in (FIN | ACK, RST, RST | ACK, ACK):
        capture.send(5000, flags=flags)
    assert (flows(capture), capture.requests) == (0, [])


def test_the_servers_half_is_left_alone_where_answers_are_not_followed() -> None:
    capture = Capture()
    capture.key = key(8000, 40000)
    capture.client(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert (flows(capture), capture.requests, capture.losses.unparsed) == (0, [], 0)


def test_a_server_that_calls_from_a_watched_port_is_a_client_there() -> None:
    # a gateway on 8000 may be bound to 8000 as it calls another one
    capture = Capture()
    capture.key = key(8000, 8000)
    capture.open()
    capture.client(post(ONE))
    assert capture.bodies == [ONE]


def test_the_end_of_the_capture_tells_what_is_unfinished() -> None:
    capture = opened()
    capture.client(post(ONE) + HALF)
    capture.streams.close()
    assert capture.bodies == [ONE]
    assert capture.problems == ["the capture ended before it was whole"]
    assert (flows(capture), capture.streams.held_bytes) == (0, 0)
