"""Event streams: WHATWG's rules for lines and fields, whatever way the bytes were cut into reads."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolkit.protocol.sse import EventStream

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def events(*reads: bytes, limit: int = 1000) -> tuple[list[tuple[bytes, bytes]], bool]:
    """The events of these reads, and whether one was too large."""
    reader = EventStream(max_event_bytes=limit)
    found = [event for read in reads for event in reader.feed(read)]
    return found, reader.too_large


def by_the_book(body: bytes) -> list[tuple[bytes, bytes]]:
    """The standard's text read anew over a whole body, with none of the code under test."""
    *lines, _unended = re.split(rb"\r\n|\r|\n", body.removeprefix(BYTE_ORDER_MARK))
    found, held, name = [], [], b""
    for line in lines:
        field, value = re.fullmatch(rb"([^:]*):? ?(.*)", line).groups()
        if line == b"":
            if held:
                found.append((name, b"\n".join(held)))
            held, name = [], b""
        elif field == b"data":
            held.append(value)
        elif field == b"event":
            name = value
    return found


PIECES = [b"data", b"event", b":", b" ", b"\r", b"\n", b"\r\n", b"\n\n", b"x", b"data: y"]
BODIES = st.lists(st.sampled_from([BYTE_ORDER_MARK, *PIECES, *PIECES, *PIECES]), max_size=30)


@given(BODIES.map(b"".join), st.lists(st.integers(min_value=0, max_value=80), max_size=6))
@example(b"data: one\r\ndata: two\n\n", [10])
@example(b"data: one\r\n\r\ndata: two\n\n", [12, 13])
@example(b"data: one\rdata: two\n\n", [])
@example(b"data: one\r\rdata: two\n\n\ndata: three\n\n", [11, 22])
@example(BYTE_ORDER_MARK + b"data: one\n\n" + BYTE_ORDER_MARK + b"data: two\n\n", [2, 14])
@example(b"\n" + BYTE_ORDER_MARK + b"data: one\n\n", [1])
def test_any_cut_into_reads_gives_the_events_of_the_standard(body: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    reads = [body[start:end] for start, end in pairwise(edges)]
    bytewise = [body[at : at + 1] for at in range(len(body))]
    with_empty_ones = [part for read in reads for part in (read, b"")]
    for each in (reads, bytewise, with_empty_ones):
        assert events(*each) == (by_the_book(body), False)


@pytest.mark.parametrize("left", [b"data: one", b"data: one\n", b"data: one\r", b"data: one\r\n"])
def test_the_end_gives_the_event_that_lacks_its_blank_line_once(left: bytes) -> None:
    reader = EventStream(max_event_bytes=1000)
    assert reader.feed(left) == []
    assert reader.is_between is False
    assert reader.end() == [(b"", b"one")]
    assert reader.end() == []
    assert reader.is_between


# Limits: `data: 12345` has 11 bytes


def test_what_is_too_large_is_so_as_soon_as_it_is() -> None:
    # the lines of an event count together, comments too: 8 + 4 bytes
    assert events(b"data: 12\n: 34\n", limit=11) == ([], True)
    assert events(b"data: 12\n: 34", limit=11) == ([], True)
    assert events(b"x" * 11, limit=11) == ([], False)
    assert events(b"x" * 11, b"x", limit=11) == ([], True)
    # the events before it are read, and nothing behind it
    reads = b"data: 1\n\ndata: 123456\n\ndata: 2\n\n", b"data: 3\n\n"
    assert events(*reads, limit=11) == ([(b"", b"1")], True)
    # a long stream of small ones never is
    assert events(*[b"data: 1\n\n: ping\n\n"] * 100, limit=11) == ([(b"", b"1")] * 100, False)
