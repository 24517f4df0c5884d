"""What is no HTTP/1, or not quite: counted, never guessed at, and the next good request is read."""

import pytest
from contract.harness.packets import chunked
from support.streams import Capture, post

ONE, TWO = b'{"n": 1}', b'{"n": 2}'
CHUNKED = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)
RECORD = bytes.fromhex("1703030100") + bytes(256)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


def sent(*segments: bytes, opened: bool = True) -> Capture:
    capture = Capture()
    if opened:
        capture.open()
    for segment in segments:
        capture.client(segment)
    return capture


@pytest.mark.parametrize(
    "strange",
    [
        b"\x00\x01\x02\x03",
        b"hello\r\n\r\n",
        b"hello world\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/3.7\r\n\r\n",
        b"FOO-BAR / HTTP/1.1\r\n\r\n",
        b"POST /v1/x HTTP/1.1\nHost: h\nContent-Length: 8\n\n" + ONE,
        post(ONE, b"Transfer-Encoding: chunked"),
        post(ONE, b"Content-Length: 9"),
        post(ONE, b"Content-Length: 8"),
        post(ONE, b"Content-Length: eight"),
        post(ONE, b"Content-Length: -8"),
        post(ONE, b"Content-Length: 99999999999999999999999"),
        post(ONE, b"Transfer-Encoding: identity"),
        post(ONE, b"No colon"),
        post(ONE, b"X: a\r\n folded"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        RECORD[:4] + b"\r\n\r\n",
    ],
)
def test_what_is_no_request_is_counted_once_and_the_next_one_is_read(strange: bytes) -> None:
    for segments in ([strange], [post(TWO) + strange], [strange[:9], strange[9:]]):
        before = [TWO] if segments[0].startswith(post(TWO)) else []
        capture = sent(*[segment for segment in segments if segment], post(ONE), post(TWO))
        assert capture.bodies == [*before, ONE, TWO]
        assert (capture.problems, capture.losses.unparsed) == ([], 1)
        assert capture.streams.held_bytes == 0


def test_a_head_of_lines_without_returns_is_told_at_once() -> None:
    capture = sent(b"POST /v1/x HTTP/1.1\nHost: h\nContent-Length: 8\n\n" + ONE)
    assert capture.losses.unparsed == 1
    capture.fin()
    assert (capture.requests, capture.losses.unparsed) == ([], 1)


def test_garbage_for_ever_is_one_stretch() -> None:
    capture = sent(*[bytes([number]) * 500 for number in range(100)])
    assert (capture.requests, capture.losses.unparsed) == ([], 1)


def test_garbage_without_an_end_of_line_gives_way_to_a_request() -> None:
    capture = sent(b"HELO mail", post(ONE), post(TWO))
    assert (capture.bodies, capture.losses.unparsed) == ([ONE, TWO], 1)


def test_chunks_that_make_no_sense_leave_a_damaged_request() -> None:
    for broken in (b"xyz\r\n", b"3\r\nabcd\r\n", b"-1\r\n", b"fffffffffffffffff\r\n"):
        capture = sent(CHUNKED + b"2\r\nab\r\n" + broken, post(ONE))
        assert capture.bodies == [ONE]
        assert capture.problems == ["its body's framing is broken"]
        assert (capture.requests[0].path, capture.requests[0].body) == ("/v1/x", None)


def test_a_wish_for_http_2_is_passed_over_as_servers_do() -> None:
    wish = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk")
    data = post(ONE, *wish) + post(TWO)
    assert sent(data).bodies == [ONE, TWO]
    for at in range(1, len(data)):
        assert sent(data[:at], data[at:]).bodies == [ONE, TWO], f"split at {at}"
    head = CHUNKED[:-2] + b"\r\n".join(wish) + b"\r\n\r\n"
    assert sent(head + chunked(ONE, [3]) + post(TWO)).bodies == [ONE, TWO]


def test_a_wish_for_http_2_keeps_its_times_and_its_encoding() -> None:
    wish = (b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Encoding: gzip")
    data = post(b"no gzip", *wish)
    (request,) = sent(data[:20], data[20:-3], data[-3:]).requests
    assert (request.ts, request.ts_last) == (100.002, 100.004)
    assert request.problem == "its body can't be decoded: it is not gzip"


def test_a_wish_that_was_granted_is_http_2() -> None:
    wish = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    capture = sent(wish, PREFACE, b"frames" * 10)
    assert [request.method for request in capture.requests] == ["GET"]
    assert (capture.losses.http2, capture.losses.unparsed) == (1, 1)


def test_a_web_socket_is_its_request_and_one_unparsed_stretch() -> None:
    wish = b"GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    capture = sent(wish, b"\x81\x85\0\0\0\0hello", b"\x81\x85\0\0\0\0hello")
    assert ([request.path for request in capture.requests], capture.losses.unparsed) == (["/ws"], 1)


def test_connect_is_a_request_without_a_body() -> None:
    capture = sent(b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n", b"\x16\x03\x01tunnel", b"more")
    (request,) = capture.requests
    assert (request.method, request.path, request.body) == ("CONNECT", "h:443", None)
    assert capture.losses.unparsed == 1


@pytest.mark.parametrize("opened", [True, False])
def test_http_2_is_counted_and_named(opened: bool) -> None:
    capture = sent(PREFACE, b"\0\0\x10\x01" * 20, post(ONE), opened=opened)
    assert capture.requests == []
    assert (capture.losses.http2, capture.losses.unparsed, capture.losses.encrypted) == (1, 1, 0)


def test_http_2_is_known_wherever_its_preface_is_split() -> None:
    for at in range(1, 16):
        assert sent(PREFACE[:at], PREFACE[at:]).losses.http2 == 1, f"split at {at}"


@pytest.mark.parametrize("at", [None, 1, 2, 5])
def test_a_tls_connection_is_counted_once(at: int | None) -> None:
    capture = sent(HELLO[:at], *([HELLO[at:]] if at else []), RECORD, RECORD)
    capture.fin()
    assert (capture.requests, capture.losses.encrypted, capture.losses.unparsed) == ([], 1, 0)


def test_a_tls_connection_that_began_before_the_capture_is_counted_once() -> None:
    capture = sent(RECORD, RECORD, RECORD, opened=False)
    capture.wait(3)
    capture.client(RECORD)
    capture.fin()
    assert (capture.requests, capture.losses.encrypted, capture.losses.unparsed) == ([], 1, 0)


def test_each_tls_connection_counts() -> None:
    capture = sent(HELLO)
    capture.isn, capture.next = 90_000, 90_001
    capture.open()
    capture.client(HELLO)
    assert capture.losses.encrypted == 2


def test_a_body_that_looks_like_tls_behind_a_hole_silences_nothing() -> None:
    capture = sent(post(b"x" * 100), CHUNKED + b"10\r\n")
    capture.lose(100)
    capture.client(RECORD)
    capture.wait(3)
    capture.client(post(ONE))
    assert capture.bodies == [b"x" * 100, ONE]
    assert capture.losses.encrypted == 0


def test_a_request_of_the_middle_of_a_body_is_not_read_without_its_whole_first_line() -> None:
    capture = sent(b"POST /v1/x HTTP/1.", b"1 is how it begins", post(ONE), opened=False)
    capture.wait(3)
    assert (capture.bodies, capture.problems) == ([ONE], [])
