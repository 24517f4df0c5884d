"""What HTTP/1 allows a client to send, read as it was meant; what is none, or not quite, is counted, and the next request is read."""

import gc
import gzip

import pytest
from contract.harness.packets import chunked
from support.streams import Capture, post

from toolkit.capture.records import HttpRequest, MemoryBounds

ONE, TWO, THREE = b'{"n": 1}', b'{"n": 2}', b'{"n": 3}'
CHUNKED = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"
HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)
RECORD = bytes.fromhex("1703030100") + bytes(256)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
UPGRADE = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk")
BROKEN = "its body's framing is broken"


def sent(*segments: bytes, is_open: bool = True, limits: MemoryBounds | None = None) -> Capture:
    capture = Capture(limits=limits)
    if is_open:
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


OLD = post(ONE).replace(b"HTTP/1.1", b"HTTP/1.0")
KEPT = post(ONE, b"Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0")
TRAILER = b"Content-Encoding: gzip\r\nUpgrade: h2c\r\n"
PACKED = gzip.compress(ONE)
GOOD = {
    "pipelined, with and without a body": (post(ONE) + GET + post(TWO) + GET, [ONE, None, TWO, None]),
    "chunks with a trailer": (CHUNKED + chunked(ONE, [4, 1], trailer=b"X-Sum: 1\r\n") + post(TWO), [ONE, TWO]),
    "a trailer says nothing of the next": (CHUNKED + chunked(ONE, trailer=TRAILER) + post(TWO), [ONE, TWO]),
    "HTTP/1.0 with and without keep-alive": (OLD + KEPT + OLD, [ONE, ONE, ONE]),
    "after Connection: close": (post(ONE, b"Connection: close") + post(TWO) + post(THREE), [ONE, TWO, THREE]),
    "line breaks before and behind": (b"\r\n" + post(ONE) + b"\r\n" + post(TWO) + b"\r\n\r\n", [ONE, TWO]),
    "a wish for HTTP/2 is passed over as servers do": (post(ONE, *UPGRADE) + post(TWO), [ONE, TWO]),
    "in chunks, too": (CHUNKED[:-2] + b"\r\n".join(UPGRADE) + b"\r\n\r\n" + chunked(ONE, [3]) + post(TWO), [ONE, TWO]),
    "spaces around a length": (post(ONE).replace(b"Length: 8", b"Length:   8  ") + post(TWO), [ONE, TWO]),
    "gzip": (post(PACKED, b"Content-Encoding: gzip") + post(TWO), [ONE, TWO]),
    "identity and gzip": (post(PACKED, b"Content-Encoding: identity", b"content-encoding: GZIP"), [ONE]),
    "gzip by Transfer-Encoding": (CHUNKED.replace(b"chunked", b"gzip, chunked") + chunked(PACKED, [5]), [ONE]),
    "a wish for HTTP/2 with a gzip body": (post(PACKED, *UPGRADE, b"Content-Encoding: gzip"), [ONE]),
    **{name: (post(ONE).replace(b"POST", name.encode(), 1), [ONE]) for name in ("PUT", "DELETE", "HEAD", "PROPFIND", "M-SEARCH")},
}  # fmt: skip


@pytest.mark.parametrize(("data", "bodies"), GOOD.values(), ids=GOOD)
def test_what_may_be_sent_is_read_wherever_it_is_split(
    data: bytes, bodies: list[bytes | None]
) -> None:
    for at in range(1, len(data)):
        capture = sent(data[:at], data[at:])
        assert capture.bodies == bodies, f"split at {at}"
        assert (capture.losses.unparsed, capture.streams.held_bytes) == (0, 0)
    assert all(each.body_bytes == len(each.body or b"") for each in capture.requests)
    assert data.lstrip()[:3] in (capture.requests[0].method or "").encode()


def test_the_second_of_two_pipelined_requests_begins_with_its_own_first_byte() -> None:
    capture = sent(post(ONE) + post(TWO)[:5], post(TWO)[5:10], post(TWO)[10:] + GET)
    times = [(each.ts, each.ts_last) for each in capture.requests]
    assert times == [(100.002, 100.002), (100.002, 100.004), (100.004, 100.004)]
    # a line break before it is none of it
    assert one(b"\r\n", post(ONE)).ts == 100.003


def test_a_clock_that_is_set_back_within_a_body_turns_no_times_round() -> None:
    capture = sent(post(ONE)[:-4])
    capture.now = 50.0
    capture.client(post(ONE)[-4:])
    assert [(each.ts, each.ts_last) for each in capture.requests] == [(100.002, 100.002)]


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/v1/chat/completions", "/v1/chat/completions"),
        (b"/v1/x?api_key=s3cret&b=?", "/v1/x"),
        (b"http://10.0.0.2:8000/v1/x", "/v1/x"),
        (b"http://user:s3cret@h:8000/v1/x?y#z", "/v1/x"),
        (b"https://h", "/"),
        (b"/v1/x#part", "/v1/x"),
        (b"/go?to=http://h/y", "/go"),
        (b"/a://b/c", "/a://b/c"),
        (b"*", "*"),
        (b"//h/x", "//h/x"),
        (b"user:s3cret@h:443", "h:443"),
    ],
)
def test_a_path_is_the_target_without_host_and_query(target: bytes, path: str) -> None:
    method = {b"*": b"OPTIONS", b"u": b"CONNECT"}.get(target[:1], b"POST")
    assert one(b"%s %s HTTP/1.1\r\nHost: h\r\n\r\n" % (method, target)).path == path


# --- limits -------------------------------------------------------------------------------------------


def test_of_a_body_beyond_the_limit_length_and_hash_are_kept_and_no_more() -> None:
    # by `printf 'aaaaaaaaaabbbbbbbbbbc' | b2sum -l 128`
    digest = "27bb25f153dbec70f124d8ebaa18a8f2"
    long, exact = b"a" * 10 + b"b" * 10 + b"c", b"a" * 20
    for size in (1000, 7, 1):
        capture = sent(limits=MemoryBounds(body_bytes=20))
        capture.client(post(long) + post(exact), size=size)
        first, second = capture.requests
        assert (first.body, first.body_bytes, first.damaged) == (None, 21, False)
        assert first.body_hash is not None
        assert first.body_hash.hex() == digest
        assert first.problem == "its body is longer than 20 bytes"
        assert (second.body, second.body_hash, second.problem) == (exact, None, None)
    capture = sent(limits=MemoryBounds(body_bytes=10_000))
    data = post(b"x" * 1_000_000)
    for start in range(0, len(data) - 10_000, 10_000):
        capture.client(data[start : start + 10_000])
        assert capture.streams.held_bytes < (12_000 if start < 10_000 else 2_000)


def test_a_head_up_to_the_limit_is_read_and_a_longer_one_is_unparsed() -> None:
    for size, read in ((9_000, True), (20_000, False)):
        capture = sent(limits=MemoryBounds(header_bytes=10_000))
        capture.client(post(ONE, b"X-Long: " + b"y" * size), size=1448)
        assert capture.bodies == ([ONE] if read else [])
        assert capture.losses.unparsed == (0 if read else 1)
        assert capture.streams.held_bytes == 0
        capture.client(post(TWO))
        assert capture.bodies[-1] == TWO


@pytest.mark.parametrize(
    ("framing", "ending", "body"),
    [
        (b"0\r\nX-Long: ", b"\r\n\r\n", b"abc"),
        (b"5;ext=", b"\r\nhello\r\n0\r\n\r\n", b"abchello"),
    ],
)
def test_trailers_and_extensions_are_bounded_each_requests_own(
    framing: bytes, ending: bytes, body: bytes
) -> None:
    begun = CHUNKED + b"3\r\nabc\r\n" + framing
    capture = sent(begun, *[b"y" * 1000] * 20, post(TWO))
    assert (capture.problems, capture.bodies) == ([BROKEN], [TWO])
    assert capture.streams.held_bytes == 0
    whole = [begun, *[b"y" * 1000] * 15, ending]
    assert sent(*whole, *whole).bodies == [body, body]


def test_a_body_that_cannot_be_decoded_is_told_and_hashed_as_sent() -> None:
    capture = sent(post(b"no gzip", b"Content-Encoding: gzip"), post(ONE))
    first, second = capture.requests
    # by `printf 'no gzip' | b2sum -l 128`
    assert first.body_hash is not None
    assert first.body_hash.hex() == "c14166aba8bebdeade2fdcf6e8263d9c"
    assert (first.body, first.body_bytes, first.damaged) == (None, 7, False)
    assert first.problem == "its body can't be decoded: it is not gzip"
    assert second.body == ONE


# --- what is no HTTP/1 --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strange",
    [
        b"\x00\x01\x02\x03",
        b"hello\r\n\r\n",
        b"hello world\r\n\r\n",
        b"HELO mail",
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


def test_garbage_for_ever_is_one_stretch() -> None:
    capture = sent(*[bytes([number]) * 500 for number in range(100)])
    assert (capture.requests, capture.losses.unparsed) == ([], 1)


@pytest.mark.parametrize(
    "broken", [b"xyz\r\n", b"x", b"3\r\nabcd\r\n", b"3\r\nabcd", b"-1\r\n", b"f" * 17 + b"\r\n"]
)
def test_chunks_that_make_no_sense_leave_a_damaged_request(broken: bytes) -> None:
    capture = sent(CHUNKED + b"2\r\nab\r\n" + broken, post(ONE))
    assert (capture.bodies, capture.problems) == ([ONE], [BROKEN])
    assert (capture.requests[0].path, capture.requests[0].body) == ("/v1/x", None)


@pytest.mark.parametrize(
    ("asked", "behind", "http2"),
    [
        (GET.replace(b"Host", b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost"), PREFACE, 1),
        (
            GET.replace(b"Host", b"Connection: Upgrade\r\nUpgrade: websocket\r\nHost"),
            b"\x81\x85",
            0,
        ),
        (b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n", HELLO, 0),
    ],
)
def test_what_follows_a_wish_that_was_granted_is_one_unparsed_stretch(
    asked: bytes, behind: bytes, http2: int
) -> None:
    capture = sent(asked, behind, b"\x81\x85\0\0\0\0hello", b"frames" * 10)
    assert [(request.damaged, request.body) for request in capture.requests] == [(False, None)]
    assert (capture.losses.http2, capture.losses.unparsed) == (http2, 1)


@pytest.mark.parametrize("is_open", [True, False])
def test_http_2_is_counted_and_named_wherever_its_preface_is_split(is_open: bool) -> None:
    for at in range(1, 16) if is_open else [len(PREFACE)]:
        segments = [PREFACE[:at], PREFACE[at:], b"\0\0\x10\x01" * 20, post(ONE)]
        capture = sent(*[each for each in segments if each], is_open=is_open)
        losses = capture.losses
        assert capture.requests == []
        assert (losses.http2, losses.unparsed, losses.encrypted) == (1, 1, 0), f"split at {at}"


@pytest.mark.parametrize(
    "segments", [[HELLO], [HELLO[:1], HELLO[1:]], [HELLO[:2], HELLO[2:]], [HELLO[:5], HELLO[5:]]]
)
def test_a_tls_connection_is_counted_once(segments: list[bytes]) -> None:
    capture = sent(*segments, RECORD, RECORD)
    # another one, on the same ports, and one that began before the capture
    capture.isn, capture.next = 90_000, 90_001
    capture.open()
    capture.client(HELLO)
    capture.streams.close()
    assert (capture.requests, capture.losses.encrypted, capture.losses.unparsed) == ([], 2, 0)
    capture = sent(RECORD, RECORD, RECORD, is_open=False)
    capture.wait(3)
    capture.client(RECORD)
    assert (capture.requests, capture.losses.encrypted, capture.losses.unparsed) == ([], 1, 0)


def test_a_body_that_looks_like_tls_behind_a_hole_silences_nothing() -> None:
    capture = sent(post(b"x" * 100), CHUNKED + b"10\r\n")
    capture.lose(100)
    capture.client(RECORD)
    capture.wait(3)
    capture.client(post(ONE))
    assert (capture.bodies, capture.losses.encrypted) == ([b"x" * 100, ONE], 0)


def test_a_request_of_the_middle_of_a_body_is_not_read_without_its_whole_first_line() -> None:
    capture = sent(b"POST /v1/x HTTP/1.", b"1 is how it begins", post(ONE), is_open=False)
    capture.wait(3)
    assert (capture.bodies, capture.problems) == ([ONE], [])


# --- secrets ------------------------------------------------------------------------------------------

SECRET, QUERY = b"s3cret-pl4nted", b"an0ther-in-the-target"
NAMES = (b"Authorization: Bearer ", b"Cookie: session=", b"X-Api-Key: ")
HEADERS = tuple(name + SECRET for name in NAMES)


def holds(root: object, needle: bytes) -> bool:
    """Whether anything reachable holds the needle in its text or bytes, by the collector's own graph and by slots."""
    seen, rows = set[int](), [root]
    while rows:
        thing = rows.pop()
        if isinstance(thing, bytes | bytearray) and needle in thing:
            return True
        if isinstance(thing, str) and needle.decode() in thing:
            return True
        kind = type(thing).__name__
        if id(thing) not in seen and kind not in ("module", "function", "code", "type"):
            seen.add(id(thing))
            rows += gc.get_referents(thing)
    return False


@pytest.mark.parametrize("size", [10_000, 50, 1])
@pytest.mark.parametrize("follow", [False, True])
def test_a_secret_of_a_head_is_in_no_object_once_its_request_is_read(
    size: int, follow: bool
) -> None:
    capture = Capture(follow=follow)
    capture.open()
    path = b"/v1/x?api_key=" + QUERY
    for target in (path, b"http://user:" + QUERY + b"@h/v1/x"):
        capture.client(post(b"{}", *HEADERS, path=target), size=size)
    assert not holds(capture, SECRET)
    capture.client(post(SECRET + b" in the body", *HEADERS, path=path)[:-1], size=size)
    assert holds(capture, SECRET), "the search finds what is kept"
    capture.streams.close()
    assert len(capture.requests) == 3
    assert not holds(capture, SECRET)
    assert not holds(capture, QUERY)


@pytest.mark.parametrize("cut", [60, 100, 130])
def test_a_secret_of_a_damaged_head_is_in_no_object(cut: int) -> None:
    data = post(b"{}", *HEADERS, path=b"/v1/x?key=" + SECRET)
    capture = sent(data[:cut])
    capture.lose(30)
    capture.client(data[cut + 30 :])
    capture.client(post(b"{}", *HEADERS, b"No colon " + SECRET))
    capture.wait(3)
    assert (capture.problems, capture.losses.unparsed) == (["30 bytes lost"], 1)
    assert not holds(capture, SECRET)
