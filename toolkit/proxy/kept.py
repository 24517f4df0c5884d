"""A stored answer as bytes, and back. Bytes that were not written here, or are not whole, are no answer: None, never an error.

Layout: the version, a checksum over all that follows, one zstd frame that states its size. In the frame: how long its parts
are, the facts as JSON, when the events came, how long they are, and the body. Times and lengths are kept in planes: first the
lowest byte of each, then the next one. They change little from event to event but in the lowest, so the rest packs to nothing.
"""

import json
import struct
import sys
from array import array
from collections.abc import Iterable
from hashlib import blake2b
from itertools import accumulate
from operator import sub
from typing import Any

import orjson
import zstandard

from toolkit.proxy.exchange import Kept

VERSION = b"\x01" if sys.byteorder == "little" else b"\x81"
"""Of the layout, and in which order its machine writes the bytes of a number; bytes of another one are not read."""
LEVEL = 3
CHECKSUM_BYTES = 8
FIRST = 1 + CHECKSUM_BYTES
"""Where the frame begins."""
MOST_BYTES = 128 * 2**20
"""Of an unpacked answer: twice what `completion` reads. A frame that states more is not believed."""
PARTS = struct.Struct("<IIBB")
"""Bytes of the facts, number of events, bytes of a time and of a length."""
WIDTHS = {1: "b", 2: "h", 4: "i", 8: "q"}
"""Bytes of a number -> its array's type code."""
TEXT, COUNT, NUMBER = (str, type(None)), (int, type(None)), (float, int, type(None))
FACTS: dict[str, tuple[type, ...]] = {
    "endpoint": (str,),
    "streamed": (bool,),
    "content_type": (str,),
    "usage_event": COUNT,
    "usage_was_ours": (bool,),
    "stored_at": (float, int),
    "model": TEXT,
    "prompt_tokens": COUNT,
    "output_tokens": COUNT,
    "finish_reason": TEXT,
    "ttft_ms": NUMBER,
    "latency_ms": NUMBER,
}
"""Fields of Kept that stand in the JSON, in this order, and what they may be."""


def pack(kept: Kept) -> bytes:
    """The bytes of an answer; ValueError if it is larger than what would be unpacked again."""
    facts = json.dumps([getattr(kept, name) for name in FACTS], separators=(",", ":")).encode()
    times, time_width = _planes(_steps(kept.event_ms))
    lengths, length_width = _planes(_steps(kept.event_ends))
    parts = PARTS.pack(len(facts), len(kept.event_ends), time_width, length_width)
    whole = b"".join((parts, facts, times, lengths, kept.body))
    if len(whole) > MOST_BYTES:
        raise ValueError(f"an answer of {len(whole):,} bytes")
    frame = zstandard.ZstdCompressor(level=LEVEL).compress(whole)
    return b"".join((VERSION, _checksum(frame), frame))


def unpack(data: bytes) -> Kept | None:
    """The answer that was packed; None for any other bytes."""
    frame = data[FIRST:]
    if data[:1] != VERSION or data[1:FIRST] != _checksum(frame):
        return None
    try:
        size = zstandard.get_frame_parameters(frame).content_size
        if size > MOST_BYTES:  # unknown is the largest number there is
            return None
        whole = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
        return _read(whole)
    except (zstandard.ZstdError, struct.error, orjson.JSONDecodeError, ValueError):
        return None


def _read(whole: bytes) -> Kept | None:
    facts_bytes, events, time_width, length_width = PARTS.unpack_from(whole)
    times_at = PARTS.size + facts_bytes
    lengths_at = times_at + events * time_width
    body_at = lengths_at + events * length_width
    if body_at > len(whole) or time_width not in WIDTHS or length_width not in WIDTHS:
        return None
    facts = _facts(whole[PARTS.size : times_at])
    ends = tuple(accumulate(_numbers(whole[lengths_at:body_at], length_width)))
    if facts is None or not _fits(facts, ends, len(whole) - body_at):
        return None
    return Kept(
        body=whole[body_at:],
        event_ends=ends,
        event_ms=tuple(accumulate(_numbers(whole[times_at:lengths_at], time_width))),
        **facts,
    )


def _facts(data: bytes) -> dict[str, Any] | None:
    values = orjson.loads(data)
    if type(values) is not list or len(values) != len(FACTS):
        return None
    for value, kinds in zip(values, FACTS.values(), strict=True):
        if type(value) not in kinds:
            return None
    return dict(zip(FACTS, values, strict=True))


def _fits(facts: dict[str, Any], ends: tuple[int, ...], body_bytes: int) -> bool:
    """Whether the events make up the body."""
    usage_event = facts["usage_event"]
    if usage_event is not None and not 0 <= usage_event < len(ends):
        return False
    if not facts["streamed"]:
        return not ends
    return bool(ends) and ends[-1] == body_bytes and list(ends) == sorted(ends) and ends[0] >= 0


def _steps(numbers: tuple[int, ...]) -> list[int]:
    return list(map(sub, numbers, (0, *numbers)))


def _planes(numbers: list[int]) -> tuple[bytes, int]:
    """Numbers by planes, each as narrow as all fit; and how many bytes that is."""
    most = max(map(abs, numbers), default=0)
    width = next(width for width in WIDTHS if most < 1 << (8 * width - 1))
    raw = array(WIDTHS[width], numbers).tobytes()
    return b"".join(raw[plane::width] for plane in range(width)), width


def _numbers(planes: bytes, width: int) -> Iterable[int]:
    numbers = array(WIDTHS[width])
    raw, count = bytearray(len(planes)), len(planes) // width
    for plane in range(width):
        raw[plane::width] = planes[plane * count : (plane + 1) * count]
    numbers.frombytes(raw)
    return numbers


def _checksum(frame: bytes) -> bytes:
    return blake2b(frame, digest_size=CHECKSUM_BYTES).digest()
