"""Requests with their answers: paired in order, delivered when the answer is over, counted while it is not."""

from contract.harness.packets import ok
from support.streams import ACK, FIN, RST, SYN, Capture, key, post

from toolkit.capture.records import HttpRequest, MemoryBounds

ONE, TWO, THREE = b'{"n": 1}', b'{"n": 2}', b'{"n": 3}'
ANSWER = ok(b'{"usage": {"prompt_tokens": 5, "completion_tokens": 7}}')
JSON_ANSWER = ANSWER.replace(b"\r\n", b"\r\nContent-Type: application/json\r\n", 1)


def answering(limits: MemoryBounds | None = None) -> Capture:
    """With both sides' SYN seen."""
    capture = Capture(follow=True, limits=limits)
    capture.open()
    capture.server_next = 9000
    capture.answer(flags=SYN | ACK)
    return capture


def statuses(capture: Capture) -> list[int | None]:
    return [request.answer and request.answer.status for request in capture.requests]


def test_a_request_is_told_when_its_answer_is_over() -> None:
    capture = answering()
    capture.client(post(ONE))
    capture.answer(JSON_ANSWER[:30])
    assert capture.requests == []
    capture.answer(JSON_ANSWER[30:])
    (request,) = capture.requests
    answer = request.answer
    assert answer is not None
    assert (request.body, answer.status, answer.complete) == (ONE, 200, True)
    assert (answer.prompt_tokens, answer.output_tokens) == (5, 7)
    # SYN, SYN+ACK and the request took 3 ms; the answer came in the 4th and 5th
    assert (request.ts_last, answer.first_at, answer.last_at) == (100.003, 100.004, 100.005)


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
    capture = Capture(follow=True)
    capture.answer(ok())  # its request came before the capture
    capture.client(post(ONE))
    assert capture.requests == []
    capture.answer(JSON_ANSWER)
    (request,) = capture.requests
    assert request.answer is not None
    assert request.answer.output_tokens == 7


def test_a_request_without_an_answer_is_told_at_the_end() -> None:
    for ending in ("fin", "reset", "server reset", "close", "quiet", "again"):
        capture = answering()
        capture.client(post(ONE))
        capture.answer(JSON_ANSWER[:-10])
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
        (request,) = capture.requests
        assert (request.body, request.damaged) == (ONE, False), ending
        assert request.answer is not None, ending
        assert (request.answer.status, request.answer.complete) == (200, False), ending


def test_a_half_closed_connection_gets_its_answer() -> None:
    capture = answering()
    capture.client(post(ONE), flags=FIN | ACK)
    capture.next += 1
    capture.answer(ok(b"x" * 100)[:50])
    capture.answer(ok(b"x" * 100)[50:], flags=FIN | ACK)
    assert (capture.bodies, statuses(capture)) == ([ONE], [200])
    assert capture.streams._flows == capture.streams._servers == {}


def test_a_damaged_request_keeps_its_place_in_the_row() -> None:
    capture = answering()
    data = post(b"x" * 1000)
    capture.client(data[:500])
    capture.lose(100)
    capture.client(data[600:] + post(TWO))
    capture.answer(ok())  # it acknowledges all
    capture.answer(ok().replace(b"200", b"201"))
    assert [(one.damaged, one.answer and one.answer.status) for one in capture.requests] == [
        (True, 200),
        (False, 201),
    ]


def test_what_the_server_has_and_we_have_not_is_not_waited_for() -> None:
    capture = answering()
    data = post(b"x" * 1000)
    capture.client(data[:500])
    capture.lose(100)
    hole_ends = capture.next
    capture.client(data[600:])
    capture.answer(ack=hole_ends - 100)
    assert capture.losses.gaps == 0
    capture.answer(ack=capture.next)
    assert (capture.losses.gaps, capture.losses.gap_bytes) == (1, 100)
    capture.answer(ok())
    assert capture.problems == ["100 bytes lost"]


def test_an_answer_that_tells_of_a_hole_belongs_to_the_request_with_it() -> None:
    capture = answering()
    for body in (b"x" * 2000, ONE):
        data = post(body)
        if body != ONE:
            capture.lose(500)
            data = data[500:]
        capture.client(data, size=1448)
        # its only segment, and the first to acknowledge what we lost
        capture.answer(ok().replace(b"200", b"201" if body == ONE else b"503"))
    assert [(one.damaged, one.answer and one.answer.status) for one in capture.requests] == [
        (True, 503),
        (False, 201),
    ]


def test_what_the_client_has_and_we_have_not_is_not_waited_for() -> None:
    capture = answering()
    capture.client(post(ONE))
    answer = ok(b"x" * 1000)
    capture.answer(answer[:500])
    capture.server_next += 100
    capture.answer(answer[600:])
    assert capture.requests == []
    capture.send(capture.next, ack=capture.server_next)
    (request,) = capture.requests
    assert request.answer is not None
    assert (request.answer.status, request.answer.damaged) == (200, True)
    assert capture.losses.gap_bytes == 100


def test_segments_of_an_answer_may_come_in_any_order_and_twice() -> None:
    capture = answering()
    capture.client(post(ONE))
    first = capture.server_next
    for start in (40, 0, 40, 20, 0):
        capture.answer(JSON_ANSWER[start : start + 20], seq=first + start)
    capture.answer(JSON_ANSWER[60:], seq=first + 60)
    (request,) = capture.requests
    assert request.answer is not None
    assert (request.answer.output_tokens, request.answer.damaged) == (7, False)


def other(number: int, capture: Capture) -> None:
    capture.key, capture.next, capture.server_next = key(50_000 + number), 1001, 9001
    capture.open()


def test_nobody_knows_what_is_in_flight_where_only_clients_were_captured() -> None:
    capture = Capture(follow=True)
    capture.open()
    capture.client(post(ONE))
    capture.client(post(TWO))
    capture.streams.close()
    assert [request.in_flight for request in capture.requests] == [None, None]


def test_a_server_that_took_the_connection_and_is_silent_has_them_in_flight() -> None:
    capture = answering()
    capture.client(post(ONE))
    capture.client(post(TWO))
    capture.streams.close()
    assert (statuses(capture), [one.in_flight for one in capture.requests]) == ([None] * 2, [0, 1])


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
    assert capture.streams._in_flight == {}


def test_servers_are_counted_apart_by_address_and_port() -> None:
    requests: list[HttpRequest] = []
    capture = answering()
    capture.streams._ports = [8000, 8001]
    for dport in (8000, 8001):
        capture.key, capture.next = key(50_000 + dport, dport), 1001
        capture.open()
        capture.answer(flags=SYN | ACK)
        capture.client(post(ONE) + post(TWO))
    capture.streams.close()
    requests = capture.requests
    assert [(one.server_port, one.in_flight) for one in requests] == [
        (8000, 0), (8000, 1), (8001, 0), (8001, 1),
    ]  # fmt: skip


def test_where_only_the_clients_half_is_captured_requests_are_told_all_the_same() -> None:
    capture = answering()
    for number in range(1000):
        capture.client(post(b"%d" % number))
    assert 800 < len(capture.requests) < 1000
    capture.streams.close()
    assert capture.bodies == [b"%d" % number for number in range(1000)]
    assert statuses(capture) == [None] * 1000


def test_unanswered_requests_stay_within_the_total() -> None:
    limits = MemoryBounds(total_bytes=1_000_000)
    capture = answering(limits)
    for number in range(300):
        other(number, capture)
        capture.client(post(b"x" * 50_000))
        assert capture.streams.held_bytes <= limits.total_bytes
    assert capture.losses.gave_up > 200
    assert all(not request.damaged for request in capture.requests)
    capture.streams.close()
    assert capture.streams.held_bytes == 0


def test_an_unanswered_request_is_counted_with_what_its_answer_may_keep() -> None:
    capture = answering()
    capture.client(post(b"x" * 50_000))
    # the body, and 8 KiB for the end of the answer
    assert capture.streams.held_bytes >= 50_000 + 8192
    capture.answer(ok())
    assert capture.streams.held_bytes == 0


def test_a_capture_that_begins_with_the_servers_half_reads_on() -> None:
    capture = Capture(follow=True)
    capture.answer(flags=SYN | ACK)
    capture.open()  # captured late
    capture.client(post(ONE))
    capture.answer(ok())
    assert (capture.bodies, statuses(capture)) == ([ONE], [200])


def test_a_servers_start_is_known_from_its_syn_even_if_that_came_first() -> None:
    capture = Capture(follow=True)
    capture.server_next = 9000
    capture.answer(flags=SYN | ACK)
    capture.open()
    capture.client(post(ONE))
    capture.server_next += 10
    capture.answer(ok()[10:])
    capture.send(capture.next, ack=capture.server_next)
    assert capture.losses.gap_bytes == 10


def test_late_segments_of_the_server_begin_no_connection() -> None:
    capture = answering()
    capture.client(post(ONE))
    capture.answer(ok())
    capture.fin()
    capture.answer(flags=FIN | ACK)
    capture.answer(ok(), seq=9001)
    assert capture.streams._flows == {}
