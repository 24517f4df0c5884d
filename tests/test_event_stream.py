"""Event streams: WHATWG's rules for lines and fields, whatever way the bytes were cut into reads."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.event_stream import EventStream

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def stream(limit: int = 1000) -> EventStream:
    return EventStream(max_event_bytes=limit)


def events(*reads: bytes) -> list[tuple[bytes, bytes]]:
    reader = stream()
    return [event for read in reads for event in reader.feed(read)]


def data(*reads: bytes) -> list[bytes]:
    return [data for _, data in events(*reads)]


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


def test_a_blank_line_ends_an_event():
    assert data(b"data: one\n\ndata: two\n\n") == [b"one", b"two"]
    assert data(b"data: one\n") == []


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_a_line_ends_at_lf_cr_or_both(end):
    assert data(b"data: one" + end + end + b"data: two" + end + end) == [b"one", b"two"]


def test_a_cr_and_its_lf_in_two_reads_are_one_line_end():
    assert data(b"data: one\r", b"\ndata: two\r", b"\n\r", b"\n") == [b"one\ntwo"]
    # the CR of the blank line completes the event: nobody waits for its LF
    assert data(b"data: one\r\n\r") == [b"one"]


def test_an_empty_read_between_a_cr_and_its_lf_changes_nothing():
    assert data(b"data: one\r", b"", b"\ndata: two\n\n") == [b"one\ntwo"]


def test_an_lf_after_a_read_that_ended_in_lf_is_a_line_end_of_its_own():
    assert data(b"data: one\n", b"\n") == [b"one"]


def test_an_event_may_come_over_many_reads():
    assert data(b"da", b"ta", b": o", b"ne", b"\n", b"\n") == [b"one"]


def test_a_read_that_looks_like_an_event_may_be_less():
    # the rest of another line; two lines; one whose blank line did not come
    assert data(b"da", b"data: one\n\n") == []
    assert data(b"data: one\rdata: two\n\n") == [b"one\ntwo"]
    assert data(b"data: one\n:") == []
    assert data(b"data: one\r\r", b"data: two\n\n", b"\ndata: three\n\n") == [
        b"one",
        b"two",
        b"three",
    ]


def test_many_events_may_come_in_one_read():
    assert data(b"data: 1\n\ndata: 2\n\ndata: 3\n\ndat", b"a: 4\n\n") == [b"1", b"2", b"3", b"4"]


def test_several_data_lines_are_one_event():
    assert data(b"data: one\ndata: two\ndata\n\n") == [b"one\ntwo\n"]


def test_only_one_space_after_the_colon_is_left_out():
    assert data(b"data:one\n\n", b"data:  one \n\n", b"data:\tone\n\n") == [
        b"one",
        b" one ",
        b"\tone",
    ]


def test_comments_unknown_fields_and_longer_names_are_ignored():
    assert data(b": ping\n\nid: 7\nretry: 10\ndatabase: x\n data: x\ndata: one\n:data: x\n\n") == [
        b"one"
    ]


def test_a_byte_order_mark_counts_for_nothing_at_the_start_alone():
    assert data(BYTE_ORDER_MARK[:2], BYTE_ORDER_MARK[2:] + b"data: one\n\n") == [b"one"]
    assert data(b"\n" + BYTE_ORDER_MARK + b"data: one\n\n") == []
    assert data(b"\n", BYTE_ORDER_MARK + b"data: one\n\n") == []
    assert data(b"data: one\n\n", BYTE_ORDER_MARK + b"data: two\n\n") == [b"one"]


def test_an_event_keeps_its_own_name_and_no_other_s():
    assert events(b"event: error\ndata: one\n\ndata: two\n\n") == [
        (b"error", b"one"),
        (b"", b"two"),
    ]
    # a name without data is no event, and names no later one
    assert events(b"event: error\n\ndata: two\n\n") == [(b"", b"two")]


def test_an_event_without_a_value_is_an_event():
    assert events(b"data:\n\n") == [(b"", b"")]


@pytest.mark.parametrize("left", [b"data: one", b"data: one\n", b"data: one\r", b"data: one\r\n"])
def test_the_end_gives_the_event_that_lacks_its_blank_line(left):
    reader = stream()
    assert reader.feed(left) == []
    assert reader.end() == [(b"", b"one")]
    assert reader.end() == []


def test_the_end_gives_no_event_twice():
    reader = stream()
    assert len(reader.feed(b"data: one\r\n\r\n")) == 1
    assert reader.end() == []


PIECES = [b"data", b"event", b":", b" ", b"\r", b"\n", b"\r\n", b"\n\n", b"x", b"data: y"]
bodies = st.tuples(
    st.sampled_from([b"", BYTE_ORDER_MARK]),
    st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join),
).map(b"".join)


@given(body=bodies, cuts=st.lists(st.integers(min_value=0, max_value=80), max_size=6))
def test_any_cut_into_reads_gives_the_events_of_the_standard(body, cuts):
    edges = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    reads = [body[start:end] for start, end in pairwise(edges)]
    assert events(*reads) == by_the_book(body)


@given(body=bodies)
def test_a_byte_at_a_time_gives_the_events_of_the_standard(body):
    assert events(*(body[at : at + 1] for at in range(len(body)))) == by_the_book(body)


# Limits: `data: 12345` has 11 bytes


@pytest.mark.parametrize("size", [1, 4, 13, 100])
def test_an_event_of_just_the_limit_is_read_and_one_above_is_not(size):
    for limit, found in ((11, [b"12345", b"6"]), (10, [])):
        reader, body, read = stream(limit), b"data: 12345\n\ndata: 6\n\n", []
        for at in range(0, len(body), size):
            read += [data for _, data in reader.feed(body[at : at + size])]
        assert read == found
        assert reader.too_large == (limit == 10)


def test_the_events_before_one_that_is_too_large_are_read():
    reader = stream(11)
    assert reader.feed(b"data: 1\n\ndata: 123456\n\ndata: 2\n\n") == [(b"", b"1")]
    assert reader.too_large
    assert reader.feed(b"data: 3\n\n") == []
    assert reader.end() == []


def test_the_lines_of_an_event_count_together():
    reader = stream(11)
    reader.feed(b"data: 12\n: 34\n")  # 8 + 4 bytes
    assert reader.too_large
    reader = stream(11)
    reader.feed(b"data: 12\n: 34")
    assert reader.too_large


def test_a_line_without_end_is_too_large_as_soon_as_it_is():
    reader = stream(11)
    reader.feed(b"x" * 11)
    assert not reader.too_large
    reader.feed(b"x")
    assert reader.too_large


def test_a_long_stream_of_small_events_is_never_too_large():
    reader = stream(11)
    assert sum(len(reader.feed(b"data: 1\n\n: ping\n\n")) for _ in range(100)) == 100
    assert not reader.too_large
