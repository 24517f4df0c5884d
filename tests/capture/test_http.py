"""What HTTP/1 allows a client to send, read as it was meant."""

import gzip

import pytest
from contract.harness.packets import chunked
from support.streams import Capture, post

from toolkit.capture.records import HttpRequest, MemoryBounds

ONE, TWO, THREE = b'{"n": 1}', b'{"n": 2}', b'{"n": 3}'
CHUNKED = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"


def sent(*segments: bytes, limits: MemoryBounds | None = None) -> Capture:
    capture = Capture(limits=limits)
    capture.open()
    for segment in segments:
        capture.client(segment)
    return capture


def one(*segments: bytes) -> HttpRequest:
    capture = sent(*segments)
    (request,) = capture.requests
    assert not request.damaged
    assert capture.losses.unparsed == 0
    return request


# --- several requests of one connection -----------------------------------------------------------


def test_the_second_of_two_pipelined_requests_begins_with_its_own_first_byte() -> None:
    capture = sent(post(ONE) + post(TWO)[:5], post(TWO)[5:10], post(TWO)[10:] + GET)
    first, second, third = capture.requests
    assert (first.ts, first.ts_last) == (100.002, 100.002)
    assert (second.ts, second.ts_last) == (100.002, 100.004)
    assert (third.ts, third.ts_last) == (100.004, 100.004)


# --- bodies and their framing ---------------------------------------------------------------------


def test_chunks_may_be_split_anywhere() -> None:
    body = b'{"text": "abc"}'
    data = CHUNKED + chunked(body, [4, 1], trailer=b"X-Sum: 1\r\n") + post(TWO)
    for at in range(1, len(data)):
        assert sent(data[:at], data[at:]).bodies == [body, TWO], f"split at {at}"


def test_a_trailer_says_nothing_of_the_next_request() -> None:
    trailer = b"Content-Encoding: gzip\r\nUpgrade: h2c\r\n"
    capture = sent(CHUNKED + chunked(ONE, trailer=trailer) + post(TWO))
    assert capture.bodies == [ONE, TWO]


def test_http_1_0_with_and_without_keep_alive() -> None:
    old = post(ONE).replace(b"HTTP/1.1", b"HTTP/1.0")
    assert sent(old, old).bodies == [ONE, ONE]
    kept = post(ONE, b"Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0")
    assert sent(kept + kept).bodies == [ONE, ONE]


def test_what_is_sent_after_connection_close_is_told_as_sent() -> None:
    closing = post(ONE, b"Connection: close")
    assert sent(closing, post(TWO), post(THREE)).bodies == [ONE, TWO, THREE]
    assert sent(closing + post(TWO)).bodies == [ONE, TWO]


@pytest.mark.parametrize(
    "method", ["PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "PROPFIND", "M-SEARCH"]
)
def test_other_methods_are_told_by_name(method: str) -> None:
    request = one(post(ONE).replace(b"POST", method.encode(), 1))
    assert (request.method, request.body) == (method, ONE)


def test_line_breaks_before_a_request_are_passed_over() -> None:
    assert one(b"\r\n" + post(ONE)).body == ONE
    assert sent(post(ONE) + b"\r\n", post(TWO) + b"\r\n").bodies == [ONE, TWO]
    request = one(b"\r\n", post(ONE))
    assert (request.body, request.ts) == (ONE, 100.003)


def test_a_clock_that_is_set_back_within_a_body_turns_no_times_round() -> None:
    capture = sent(post(ONE)[:-4])
    capture.now = 50.0
    capture.client(post(ONE)[-4:])
    assert [(one.ts, one.ts_last) for one in capture.requests] == [(100.002, 100.002)]


# --- targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v1/chat/completions", "/v1/chat/completions"),
        (b"/v1/x?api_key=s3cret&b=?", "/v1/x"),
        (b"/proxy/v1/chat/completions", "/proxy/v1/chat/completions"),
        (b"http://10.0.0.2:8000/v1/x", "/v1/x"),
        (b"http://user:s3cret@h:8000/v1/x?y#z", "/v1/x"),
        (b"https://h", "/"),
        (b"/v1/x#part", "/v1/x"),
        (b"/go?to=http://h/y", "/go"),
        (b"/a://b/c", "/a://b/c"),
        (b"*", "*"),
        (b"//h/x", "//h/x"),
    ],
)
def test_a_path_is_the_target_without_host_and_query(target: bytes, path: str) -> None:
    method = b"OPTIONS" if target == b"*" else b"POST"
    data = post(ONE, path=target).replace(b"POST", method, 1)
    for _ in range(2):
        assert one(data).path == path


def test_a_connect_names_the_host_without_the_user_before_it() -> None:
    for _ in range(2):
        assert one(b"CONNECT user:s3cret@h:443 HTTP/1.1\r\nHost: h\r\n\r\n").path == "h:443"


# --- limits ---------------------------------------------------------------------------------------


def test_of_a_body_beyond_the_limit_length_and_hash_are_kept() -> None:
    # by `printf 'aaaaaaaaaabbbbbbbbbbc' | b2sum -l 128`
    digest = "27bb25f153dbec70f124d8ebaa18a8f2"
    limits = MemoryBounds(body_bytes=20)
    long, exact = b"a" * 10 + b"b" * 10 + b"c", b"a" * 20
    for size in (1000, 7, 1):
        capture = Capture(limits=limits)
        capture.open()
        capture.client(post(long) + post(exact), size=size)
        first, second = capture.requests
        assert (first.body, first.body_bytes, first.damaged) == (None, 21, False)
        assert first.body_hash is not None
        assert first.body_hash.hex() == digest
        assert first.problem == "its body is longer than 20 bytes"
        assert (second.body, second.body_hash, second.problem) == (exact, None, None)


def test_a_body_beyond_the_limit_is_not_held() -> None:
    capture = Capture(limits=MemoryBounds(body_bytes=10_000))
    capture.open()
    data = post(b"x" * 1_000_000)
    for start in range(0, len(data) - 10_000, 10_000):
        capture.client(data[start : start + 10_000])
        assert capture.streams.held_bytes < 12_000
    assert capture.streams.held_bytes < 2_000


def test_a_head_up_to_the_limit_is_read_and_a_longer_one_is_unparsed() -> None:
    limits = MemoryBounds(header_bytes=10_000)
    for size, read in ((9_000, True), (20_000, False)):
        capture = Capture(limits=limits)
        capture.open()
        capture.client(post(ONE, b"X-Long: " + b"y" * size), size=1448)
        assert capture.bodies == ([ONE] if read else [])
        assert capture.losses.unparsed == (0 if read else 1)
        assert capture.streams.held_bytes == 0
        capture.client(post(TWO))
        assert capture.bodies[-1] == TWO


def test_trailers_and_extensions_are_bounded() -> None:
    for framing in (b"0\r\nX-Long: ", b"5;ext="):
        capture = sent(CHUNKED + b"3\r\nabc\r\n" + framing, *[b"y" * 1000] * 20)
        assert capture.problems == ["its body's framing is broken"]
        assert capture.streams.held_bytes == 0
        capture.client(post(TWO))
        assert capture.bodies == [TWO]
        ending = b"\r\n\r\n" if framing.startswith(b"0") else b"\r\nhello\r\n0\r\n\r\n"
        body = b"abc" if framing.startswith(b"0") else b"abchello"
        for _ in range(2):
            again = [CHUNKED + b"3\r\nabc\r\n" + framing, *[b"y" * 1000] * 15, ending]
            assert sent(*again).bodies == [body]


def test_the_bound_on_framing_is_each_requests_own() -> None:
    long, body = b"x" * 30_000, b"z" * 20_000
    data = CHUNKED + chunked(long) + CHUNKED + chunked(body)
    cut = len(CHUNKED + chunked(long) + CHUNKED) + 10
    segments = [data[cut + start : cut + start + 1000] for start in range(0, len(data) - cut, 1000)]
    assert sent(data[:20_000], data[20_000:cut], *segments).bodies == [long, body]


# --- encoded bodies -------------------------------------------------------------------------------


def test_an_encoded_body_is_given_plain() -> None:
    packed = gzip.compress(ONE)
    request = one(post(packed, b"Content-Encoding: gzip"))
    assert (request.body, request.body_bytes, request.problem) == (ONE, len(ONE), None)
    assert one(post(ONE, b"Content-Encoding: identity")).body == ONE
    assert one(CHUNKED.replace(b"chunked", b"gzip, chunked") + chunked(packed, [5])).body == ONE
    both = post(packed, b"Content-Encoding: identity", b"content-encoding: GZIP")
    assert one(both).body == ONE


def test_a_body_that_cannot_be_decoded_is_told_and_hashed_as_sent() -> None:
    capture = sent(post(b"no gzip", b"Content-Encoding: gzip"), post(ONE))
    first, second = capture.requests
    # by `printf 'no gzip' | b2sum -l 128`
    assert first.body_hash is not None
    assert first.body_hash.hex() == "c14166aba8bebdeade2fdcf6e8263d9c"
    assert (first.body, first.body_bytes, first.damaged) == (None, 7, False)
    assert first.problem == "its body can't be decoded: it is not gzip"
    assert second.body == ONE
