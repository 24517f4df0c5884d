"""A stored answer as bytes, and back. Bytes that were not written here, or are not whole, are no answer: None, never an error.

Layout: the version, a checksum over all that follows, one zstd frame that states its size. In the frame: how long its parts
are, the facts as JSON, the gaps between the events, their lengths, the body. Gaps and lengths lie in planes: first the lowest
byte of each, then the next one. They differ in little but the lowest, so the others pack to nothing.
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
"""Of all that stands here, the dictionary included, and in which order a machine writes the bytes of a number."""
LEVEL = 3
CHECKSUM_BYTES = 8
FIRST = len(VERSION) + CHECKSUM_BYTES
"""Where the frame begins."""
MOST_BYTES = 128 * 2**20
"""Of an unpacked answer: twice what `completion` reads. A frame that states more is not believed."""
PARTS = struct.Struct("<IIBB")
"""Bytes of the facts, number of events, bytes of a gap and of a length."""
WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}
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

DICTIONARY = (
    b'["completions",false,"application/json",null,false,0.0,"'
    b'["chat/completions",true,"text/event-stream; charset=utf-8",0,true,0.0,"'
    b'{"id":"cmpl-","object":"text_completion","created":1,"model":"","choices":[{"index":0,"text":"","logprobs":null,'
    b'"finish_reason":"stop","stop_reason":null,"prompt_token_ids":null,"token_ids":null,"prompt_logprobs":null,'
    b'"prompt_token_ids":null,"routed_experts":null}],"service_tier":null,'
    b'{"id":"chatcmpl-","object":"chat.completion","created":1,"model":"","choices":[{"index":0,"message":{"role":'
    b'"assistant","content":"","refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[{"id":'
    b'"chatcmpl-tool-","type":"function","function":{"name":"","arguments":"{\\""}}],"reasoning":null},"logprobs":null,'
    b'"finish_reason":"stop","stop_reason":null,"token_ids":null,"routed_experts":null}],"service_tier":null,'
    b'"system_fingerprint":"vllm-0.32.0-","usage":{"prompt_tokens":1,"total_tokens":1,"completion_tokens":1,'
    b'"prompt_tokens_details":null,"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,'
    b'"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
    b'data: {"id":"chatcmpl-","object":"chat.completion.chunk","created":1,"model":"","choices":[{"index":0,"delta":{"role":'
    b'"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}\n\n'
    b'"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
    b'"finish_reason":"length","stop_reason":null,"token_ids":null}]}\n\n"choices":[],"usage":{"prompt_tokens":1,'
    b'"total_tokens":1,"completion_tokens":1},"system_fingerprint":"vllm-0.32.0-"}\n\ndata: [DONE]\n\n'
)
"""What most answers say alike (vLLM 0.32): with it a whole body of 1.3 KB packs to 0.5 KB instead of 0.8."""
_KNOWN = zstandard.ZstdCompressionDict(DICTIONARY, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
_KNOWN.precompute_compress(level=LEVEL)

# one that is made anew takes 10 us and one in use must not be used twice, also not by another thread: who takes one out has it alone
_packers: list[zstandard.ZstdCompressor] = []
_unpackers: list[zstandard.ZstdDecompressor] = []


def pack(kept: Kept) -> bytes:
    """The bytes of an answer; ValueError for one that would not be unpacked: too large, or its events are out of order."""
    if len(kept.event_ms) != len(kept.event_ends):
        raise ValueError("events without times, or times without events")
    facts = json.dumps([getattr(kept, name) for name in FACTS], separators=(",", ":")).encode()
    gaps, gap_width = _planes(kept.event_ms)
    lengths, length_width = _planes(kept.event_ends)
    parts = PARTS.pack(len(facts), len(kept.event_ends), gap_width, length_width)
    whole = b"".join((parts, facts, gaps, lengths, kept.body))
    if len(whole) > MOST_BYTES:
        raise ValueError(f"an answer of {len(whole):,} bytes")
    frame = _pack(whole)
    return b"".join((VERSION, _checksum(frame), frame))


def unpack(data: bytes) -> Kept | None:
    """The answer that was packed; None for any other bytes."""
    frame = data[FIRST:]
    if not data.startswith(VERSION) or data[len(VERSION) : FIRST] != _checksum(frame):
        return None
    try:
        # one that doesn't state its size has the largest number there is
        if zstandard.get_frame_parameters(frame).content_size > MOST_BYTES:
            return None
        return _read(_unpack(frame))
    except (zstandard.ZstdError, struct.error, orjson.JSONDecodeError):
        return None


def _pack(whole: bytes) -> bytes:
    try:
        packer = _packers.pop()
    except IndexError:
        packer = zstandard.ZstdCompressor(level=LEVEL, dict_data=_KNOWN)
    frame = packer.compress(whole)
    _packers.append(packer)
    return frame


def _unpack(frame: bytes) -> bytes:
    try:
        unpacker = _unpackers.pop()
    except IndexError:
        unpacker = zstandard.ZstdDecompressor(dict_data=_KNOWN)
    try:
        return unpacker.decompress(frame, allow_extra_data=False)
    finally:
        _unpackers.append(unpacker)


def _read(whole: bytes) -> Kept | None:
    facts_bytes, events, gap_width, length_width = PARTS.unpack_from(whole)
    gaps_at = PARTS.size + facts_bytes
    lengths_at = gaps_at + events * gap_width
    body_at = lengths_at + events * length_width
    if body_at > len(whole) or gap_width not in WIDTHS or length_width not in WIDTHS:
        return None
    facts = _facts(whole[PARTS.size : gaps_at])
    ends = tuple(accumulate(_numbers(whole[lengths_at:body_at], length_width)))
    if facts is None or not _fits(facts, ends, len(whole) - body_at):
        return None
    return Kept(
        body=whole[body_at:],
        event_ends=ends,
        event_ms=tuple(accumulate(_numbers(whole[gaps_at:lengths_at], gap_width))),
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
    return ends[-1] == body_bytes if ends else not facts["streamed"]


def _planes(numbers: tuple[int, ...]) -> tuple[bytes, int]:
    """The steps from each number to the next by planes, as narrow as all fit; and how many bytes one has."""
    steps = list(map(sub, numbers, (0, *numbers)))
    if steps and min(steps) < 0:
        raise ValueError("events that run backwards")
    most = max(steps, default=0)
    width = next(width for width in WIDTHS if most < 1 << 8 * width)
    raw = array(WIDTHS[width], steps).tobytes()
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
