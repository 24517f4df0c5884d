"""A stored answer: as a record, as the bytes that memory, file and Redis hold, and ready to be sent. Pure.

Bytes that were not written here, or are not whole, are no answer: None, never an error. Layout: the version, a checksum over all that
follows, one zstd frame that states its size. In the frame: the facts as one line of JSON, the body. The version before this one held
more of a stream's events, which is skipped.
"""

import struct
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from operator import attrgetter
from threading import Lock
from typing import get_args, get_type_hints

import orjson
import zstandard

from toolkit.proxy.headers import age, cache_status
from toolkit.proxy.telemetry.access_log import HitLine
from toolkit.proxy.telemetry.metrics import Served, Tally
from toolkit.records import Asked

VERSION = b"\x02"
"""Of all that stands here, the dictionary included."""
EARLIER = (b"\x01", b"\x81")
"""Little and big machines' own order of bytes; what differs by it is skipped."""
EARLIER_PARTS = struct.Struct("<IIBB")
"""Its frames began with the bytes of the facts, the number of events, and the bytes of two numbers for each, between facts and body."""
LEVEL = 3
CHECKSUM_BYTES = 8
FIRST = len(VERSION) + CHECKSUM_BYTES
"""Where the frame begins."""
MOST_BYTES = 128 * 2**20
"""Of an unpacked answer: twice what `completion` reads. A frame that states more is not believed."""
OVERHEAD_BYTES = 900
"""Of a hot entry beside its body, its head and the request it answers: objects, numbers, the log's template (sys.getsizeof, CPython 3.11)."""
JOINED_BYTES = 8192
"""A larger body goes beside its head, not copied behind it."""

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

# made once, as that takes 10 us; two threads that use one at a time would spoil an answer
_alone = Lock()
_PACKER = zstandard.ZstdCompressor(level=LEVEL, dict_data=_KNOWN)
_UNPACKER = zstandard.ZstdDecompressor(dict_data=_KNOWN)


@dataclass(slots=True, kw_only=True)
class CachedResponse:
    """One complete answer as the upstream gave it, to be shown again. Nobody changes it once it is stored."""

    endpoint: str
    """protocol.request.endpoint, e.g., `chat/completions`."""
    streamed: bool
    content_type: str
    body: bytes
    """A whole body, or the stream's events byte for byte, one after the other."""
    stored_at: float = 0.0
    """Wall clock, seconds since 1970."""
    model: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    ttft_ms: float | None = None
    """None for a whole body."""
    latency_ms: float | None = None


FACTS = {
    name: get_args(kind) or (kind,)
    for name, kind in get_type_hints(CachedResponse).items()
    if name != "body"
}
"""What stands in the JSON, in this order, and what it may be."""
_facts_of = attrgetter(*FACTS)


def pack(response: CachedResponse) -> bytes:
    """The bytes of an answer; ValueError for one too large to be unpacked."""
    facts = orjson.dumps(_facts_of(response))
    whole = b"%b\n%b" % (facts, response.body)
    if len(whole) > MOST_BYTES:
        raise ValueError(f"an answer of {len(whole):,} bytes")
    with _alone:
        frame = _PACKER.compress(whole)
    return b"".join((VERSION, _checksum(frame), frame))


def unpack(data: bytes) -> CachedResponse | None:
    """The answer that was packed; None for any other bytes."""
    version, frame = data[: len(VERSION)], data[FIRST:]
    if version != VERSION and version not in EARLIER:
        return None
    if data[len(VERSION) : FIRST] != _checksum(frame):
        return None
    try:
        # one that doesn't state its size has the largest number there is
        if zstandard.get_frame_parameters(frame).content_size > MOST_BYTES:
            return None
        with _alone:
            whole = _UNPACKER.decompress(frame, allow_extra_data=False)
        if version == VERSION:
            line, _, body = whole.partition(b"\n")
            facts = orjson.loads(line)
        else:
            line_bytes, events, *widths = EARLIER_PARTS.unpack_from(whole)
            body_at = EARLIER_PARTS.size + line_bytes + events * sum(widths)
            if body_at > len(whole):
                return None
            body = whole[body_at:]
            facts = orjson.loads(whole[EARLIER_PARTS.size :][:line_bytes])
            if isinstance(facts, list):
                del facts[3:5]  # where a stream's usage was
    except (zstandard.ZstdError, struct.error, orjson.JSONDecodeError):
        return None
    if not isinstance(facts, list) or len(facts) != len(FACTS):
        return None
    if any(type(fact) not in kinds for fact, kinds in zip(facts, FACTS.values(), strict=True)):
        return None
    return CachedResponse(body=body, **dict(zip(FACTS, facts, strict=True)))


def _checksum(frame: bytes) -> bytes:
    return blake2b(frame, digest_size=CHECKSUM_BYTES).digest()


@dataclass(slots=True, kw_only=True, eq=False)
class HotEntry:
    """One form of one stored answer, for one team, ready to be sent to whoever sends the very same bytes again: all but the age and the id."""

    key: bytes
    stored: bytes
    """What the cache holds, to see whether that is still it."""
    body: bytes
    content_type: bytes
    stored_at: float
    ends_at: float
    served: Served
    """Such a hit, to be copied."""
    asked: Asked | None
    tally: Tally
    line: HitLine = field(init=False)
    prompt_tokens: int = field(init=False)
    output_tokens: int = field(init=False)
    _head: bytes = b""
    _second: int = -1

    def __post_init__(self) -> None:
        self.line = HitLine(self.served)
        self.prompt_tokens = self.served.prompt_tokens or 0
        self.output_tokens = self.served.output_tokens or 0

    @property
    def weight(self) -> int:
        """Bytes that it takes, the request's own not counted; its body is held a second time, beside the stored one."""
        return len(self.body) + len(self.content_type) + len(self.line) + OVERHEAD_BYTES

    def head(self, second: int, date: bytes) -> bytes:
        """Everything before the request's id. `second`: of the wall clock; `date`: that second's header line."""
        if second != self._second:
            self._second = second
            ttl_s = None if self.ends_at == inf else max(0.0, self.ends_at - second)
            self._head = (
                b"HTTP/1.1 200 OK\r\n%bcontent-type: %b\r\ncontent-length: %d\r\n"
                b"cache-status: %b\r\nage: %b\r\nx-request-id: "
            ) % (
                date,
                self.content_type,
                len(self.body),
                cache_status(ttl_s=ttl_s),
                age(self.stored_at, second),
            )
        return self._head
