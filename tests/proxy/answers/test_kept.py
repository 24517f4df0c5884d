"""A stored answer as bytes: what goes in comes out, and nothing else does."""

import random
from dataclasses import fields, replace
from hashlib import blake2b
from itertools import accumulate

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.pairs import NAMES, kept_stream, kept_whole

from toolkit.proxy.answers import kept as layout
from toolkit.proxy.answers.kept import DICTIONARY, FACTS, MOST_BYTES, VERSION, pack, unpack
from toolkit.proxy.exchange import Kept

WORDS = st.text(max_size=20)
COUNTS = st.none() | st.integers(0, 2**40)
TIMES = st.none() | st.floats(0, 1e12)
STEPS = st.lists(
    st.tuples(st.binary(max_size=300), st.integers(0, 10**12)), min_size=1, max_size=40
)


@st.composite
def answers(draw: st.DrawFn) -> Kept:
    streamed = draw(st.booleans())
    steps = draw(STEPS)
    events = [event for event, _ in steps]
    return Kept(
        endpoint=draw(WORDS),
        streamed=streamed,
        content_type=draw(WORDS),
        body=b"".join(events),
        event_ends=tuple(accumulate(map(len, events))) if streamed else (),
        event_ms=tuple(accumulate(gap for _, gap in steps)) if streamed else (),
        usage_event=draw(st.integers(0, len(steps) - 1)) if streamed else None,
        usage_was_ours=draw(st.booleans()),
        stored_at=draw(st.floats(0, 1e12)),
        model=draw(st.none() | WORDS),
        prompt_tokens=draw(COUNTS),
        output_tokens=draw(COUNTS),
        finish_reason=draw(st.none() | WORDS),
        ttft_ms=draw(TIMES),
        latency_ms=draw(TIMES),
    )


@given(kept=answers())
def test_what_was_packed_comes_out_equal(kept):
    assert unpack(pack(kept)) == kept


@pytest.mark.parametrize("name", NAMES)
def test_recorded_answers_come_out_equal_and_smaller(name):
    for kept in (kept_stream(name), kept_whole(name)):
        packed = pack(kept)
        assert unpack(packed) == kept
        assert len(packed) < len(kept.body)


def test_every_fact_of_an_answer_is_packed():
    parts = {"body", "event_ends", "event_ms"}
    assert {field.name for field in fields(Kept)} == parts | FACTS.keys()


def test_a_streamed_token_takes_at_most_ten_bytes():
    """128 tokens in 25 KB, as vLLM 0.32 streams them, with the jitter of a real server."""
    chance = random.Random(6)
    syllables = ["ka", "lo", "mi", "ren", "sta", "the", "ing", " of", " a", "ter", " in", "ly"]
    head = b'data: {"id":"chatcmpl-9995ad952b19a28e","object":"chat.completion.chunk","created":1795201144,'
    events = [
        head + b'"model":"tiny","choices":[{"index":0,"delta":{"content":"%b"},"logprobs":null,'
        b'"finish_reason":null}]}\n\n' % "".join(chance.choices(syllables, k=2)).encode()
        for _ in range(128)
    ]
    waits = [chance.uniform(21, 29) for _ in events]
    kept = replace(
        kept_stream("chat"),
        body=b"".join(events),
        event_ends=tuple(accumulate(map(len, events))),
        event_ms=tuple(map(round, accumulate(waits))),
        usage_event=None,
    )
    assert 24_000 < len(kept.body) < 26_000
    assert len(pack(kept)) <= 10 * 128
    # and of these, when each came takes at most a byte and a half
    still = replace(kept, event_ms=(0,) * 128)
    assert len(pack(kept)) - len(pack(still)) <= 1.5 * 128


# --- bytes of another origin ----------------------------------------------------------------------


def test_every_flipped_bit_is_noticed():
    packed = pack(kept_stream("text"))
    for place in range(len(packed)):
        for bit in (1, 128):
            spoilt = bytearray(packed)
            spoilt[place] ^= bit
            assert unpack(bytes(spoilt)) is None


def test_every_cut_and_every_addition_is_noticed():
    packed = pack(kept_stream("text"))
    assert all(unpack(packed[:length]) is None for length in range(len(packed)))
    assert unpack(packed + b"\0") is None
    assert unpack(packed + packed) is None
    assert unpack(b"\0" + packed) is None


@given(data=st.binary(max_size=400))
def test_any_bytes_are_no_answer(data):
    assert unpack(data) is None


def dictionary() -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(DICTIONARY, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def forged(whole: bytes) -> bytes:
    """Bytes with the right version and checksum around a frame of our choice."""
    return signed(zstandard.ZstdCompressor(dict_data=dictionary()).compress(whole))


def signed(frame: bytes) -> bytes:
    return VERSION + blake2b(frame, digest_size=8).digest() + frame


def opened(packed: bytes) -> bytes:
    """What is in the frame of a packed answer."""
    return zstandard.ZstdDecompressor(dict_data=dictionary()).decompress(packed[9:])


@given(data=st.binary(max_size=200))
def test_any_frame_is_no_answer(data):
    assert unpack(forged(data)) is None
    assert unpack(signed(data)) is None


@given(place=st.integers(0, 400), value=st.integers(0, 255))
def test_any_byte_in_the_frame_changed_is_no_error(place, value):
    whole = bytearray(opened(pack(kept_stream("text"))))
    whole[place % 400] = value
    found = unpack(forged(bytes(whole)))
    # facts and text may be others then, but what they are and what they measure fits
    if found is not None:
        assert found.event_ends[-1] == len(found.body)
        assert len(found.event_ends) == len(found.event_ms)
        assert all(type(getattr(found, name)) in kinds for name, kinds in FACTS.items())
        assert unpack(pack(found)) == found


@pytest.mark.parametrize(
    ("place", "value"),
    [
        # bytes of the facts, number of events, width of a gap and of a length
        *[(0, b"\xff\xff\xff\xff"), (4, b"\xff\xff\xff\xff"), (4, b"\0\0\0\0")],
        *[(8, b"\0"), (8, b"\3"), (8, b"\xff"), (9, b"\0"), (9, b"\3"), (9, b"\xff")],
    ],
)
def test_parts_of_another_length_are_no_answer(place, value):
    whole = bytearray(opened(pack(kept_stream("text"))))
    whole[place : place + len(value)] = value
    assert unpack(forged(bytes(whole))) is None


def test_a_forged_answer_would_be_read_if_it_were_right():
    kept = kept_stream("text")
    assert unpack(forged(opened(pack(kept)))) == kept
    assert opened(pack(kept)).endswith(kept.body)


def test_a_frame_that_promises_too_much_is_not_unpacked():
    """A megabyte of nothing packs to 50 bytes; what it states to be is all that is looked at."""
    bomb = zstandard.ZstdCompressor().compress(b"\0" * 2**20)
    assert unpack(signed(bomb)) is None
    # the same frame with the size that it states made 2^62: 4 bytes of magic, the descriptor, the size
    assert zstandard.get_frame_parameters(bomb).content_size == 2**20
    huge = bomb[:4] + bytes([0xE0]) + b"\0" * 7 + b"\x40" + bomb[9:]
    assert zstandard.get_frame_parameters(huge).content_size == 2**62
    assert unpack(signed(huge)) is None


def test_a_frame_that_does_not_state_its_size_is_not_unpacked():
    kept = kept_stream("text")
    for states, found in ((True, kept), (False, None)):
        packer = zstandard.ZstdCompressor(write_content_size=states)
        assert unpack(signed(packer.compress(opened(pack(kept))))) == found


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ("usage_event", 99),
        ("usage_event", -1),
        ("usage_event", True),
        ("streamed", 1),
        ("endpoint", None),
        ("stored_at", "now"),
        ("ttft_ms", "1"),
        ("output_tokens", 1.5),
    ],
)
def test_facts_of_another_kind_are_no_answer(changed, value):
    kept = replace(kept_stream("text"), **{changed: value})
    assert unpack(pack(kept)) is None


def test_events_that_do_not_make_up_the_body_are_no_answer():
    kept = kept_stream("text")
    assert unpack(pack(replace(kept, body=kept.body + b"x"))) is None
    assert unpack(pack(replace(kept, event_ends=(), event_ms=(), usage_event=None))) is None


def test_what_could_not_be_unpacked_is_not_packed(monkeypatch):
    kept = kept_stream("text")
    with pytest.raises(ValueError, match="backwards"):
        pack(replace(kept, event_ms=tuple(reversed(range(len(kept.event_ends))))))
    with pytest.raises(ValueError, match="times"):
        pack(replace(kept, event_ms=kept.event_ms[1:]))
    assert MOST_BYTES == 134_217_728
    monkeypatch.setattr(layout, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="an answer of"):
        pack(kept)


def test_another_dictionary_needs_another_version():
    """Answers that lie in files were packed with it: change it together with VERSION, and then this digest."""
    digest = blake2b(DICTIONARY, digest_size=8).hexdigest()
    assert (VERSION, digest) in {(b"\x01", "8589c31afca90501"), (b"\x81", "8589c31afca90501")}
