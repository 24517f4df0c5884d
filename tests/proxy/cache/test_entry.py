"""A stored answer as bytes: what goes in comes out, also of the version before this one, and nothing else does; and one ready to be sent."""

import json
import random
from dataclasses import replace
from hashlib import blake2b
from math import inf
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.pairs import kept_stream

from toolkit.proxy.cache.entry import (
    DICTIONARY,
    FACTS,
    VERSION,
    CachedResponse,
    HotEntry,
    pack,
    unpack,
)
from toolkit.proxy.telemetry.metrics import Served, Tally

WORDS = st.text(max_size=20)
COUNTS = st.none() | st.integers(0, 2**40)
TIMES = st.none() | st.floats(0, 1e12)


@given(
    response=st.builds(
        CachedResponse,
        endpoint=WORDS,
        streamed=st.booleans(),
        content_type=WORDS,
        body=st.binary(max_size=3000),
        stored_at=st.floats(0, 1e12),
        model=st.none() | WORDS,
        prompt_tokens=COUNTS,
        output_tokens=COUNTS,
        finish_reason=st.none() | WORDS,
        ttft_ms=TIMES,
        latency_ms=TIMES,
    )
)
def test_what_was_packed_comes_out_equal(response: CachedResponse) -> None:
    assert unpack(pack(response)) == response


def test_a_streamed_token_takes_at_most_ten_bytes() -> None:
    """128 tokens in 25 KB, as vLLM 0.32 streams them."""
    chance = random.Random(6)
    syllables = ["ka", "lo", "mi", "ren", "sta", "the", "ing", " of", " a", "ter", " in", "ly"]
    head = b'data: {"id":"chatcmpl-9995ad952b19a28e","object":"chat.completion.chunk","created":1795201144,'
    events = [
        head + b'"model":"tiny","choices":[{"index":0,"delta":{"content":"%b"},"logprobs":null,'
        b'"finish_reason":null}]}\n\n' % "".join(chance.choices(syllables, k=2)).encode()
        for _ in range(128)
    ]
    response = replace(kept_stream("chat"), body=b"".join(events))
    assert 24_000 < len(response.body) < 26_000
    assert len(pack(response)) <= 10 * 128


# --- bytes of another origin ----------------------------------------------------------------------


def test_every_flipped_bit_is_noticed() -> None:
    packed = pack(kept_stream("text"))
    for place in range(len(packed)):
        for bit in (1, 128):
            spoilt = bytearray(packed)
            spoilt[place] ^= bit
            assert unpack(bytes(spoilt)) is None


def signed(frame: bytes, version: bytes = VERSION) -> bytes:
    """A frame of our choice with the right version and checksum."""
    return version + blake2b(frame, digest_size=8).digest() + frame


def forged(whole: bytes, version: bytes = VERSION, **how: Any) -> bytes:
    """What would be unpacked to these bytes."""
    known = zstandard.ZstdCompressionDict(DICTIONARY, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return signed(zstandard.ZstdCompressor(dict_data=known, **how).compress(whole), version)


def whole_of(response: CachedResponse, **changed: object) -> bytes:
    facts = {name: getattr(response, name) for name in FACTS} | changed
    return json.dumps(list(facts.values())).encode() + b"\n" + response.body


@given(data=st.binary(max_size=400))
def test_any_bytes_are_no_answer(data: bytes) -> None:
    for version in (VERSION, b"\x01", b"\x81"):
        assert unpack(data) is None
        assert unpack(signed(data, version)) is None
        assert unpack(forged(data, version)) is None


def test_a_forged_answer_would_be_read_if_it_were_right() -> None:
    response = kept_stream("text")
    assert unpack(forged(whole_of(response))) == response


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ("streamed", 1),
        ("endpoint", None),
        ("stored_at", "now"),
        ("stored_at", True),
        ("ttft_ms", "1"),
        ("output_tokens", 1.5),
        ("more", 1),
    ],
)
def test_facts_of_another_kind_are_no_answer(changed: str, value: object) -> None:
    assert unpack(forged(whole_of(kept_stream("text"), **{changed: value}))) is None


def test_a_frame_that_promises_too_much_or_does_not_say_is_not_unpacked() -> None:
    """A megabyte of nothing packs to 50 bytes; what it states to be is all that is looked at."""
    bomb = zstandard.ZstdCompressor().compress(b"\0" * 2**20)
    # the same frame with the size that it states made 2^62: 4 bytes of magic, the descriptor, the size
    huge = bomb[:4] + bytes([0xE0]) + b"\0" * 7 + b"\x40" + bomb[9:]
    assert zstandard.get_frame_parameters(huge).content_size == 2**62
    assert unpack(signed(huge)) is None
    response = kept_stream("text")
    assert unpack(forged(whole_of(response), write_content_size=False)) is None


def test_another_dictionary_needs_another_version() -> None:
    """Answers that lie in files were packed with it, the earlier ones, too: change it together with VERSION, and keep this one."""
    digest = blake2b(DICTIONARY, digest_size=8).hexdigest()
    assert (VERSION, digest) == (b"\x02", "8589c31afca90501")


# --- ready to be sent ------------------------------------------------------------------------------


@pytest.mark.parametrize(("ends_at", "left"), [(1100.5, "; ttl=80"), (1000.0, "; ttl=0"), (inf, "")])  # fmt: skip
def test_a_hot_entry_s_head_is_of_its_second(ends_at: float, left: str) -> None:
    entry = HotEntry(
        key=b"k",
        stored=b"s",
        body=b"{}",
        content_type=b"application/json",
        stored_at=1000.2,
        ends_at=ends_at,
        served=Served(ts=1000.0, status=200, prompt_tokens=7),
        asked=None,
        tally=Tally("red", "tiny", "chat/completions", stream=False),
    )
    assert (entry.prompt_tokens, entry.output_tokens) == (7, 0)
    entry.head(1001, b"date: before\r\n")
    assert entry.head(1020, b"date: then\r\n").decode() == (
        "HTTP/1.1 200 OK\r\ndate: then\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"
        f"cache-status: toolkit; hit{left}\r\nage: 19\r\nx-request-id: "
    )
    assert entry.weight > 900 + 2
