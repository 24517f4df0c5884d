"""What the parts of a capture hand each other: requests with their answers, limits, and what was lost.

It holds values only; it never reads a packet and never decides.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
"""Flags of a TCP segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBounds:
    """How much memory a capture may hold on to, whatever arrives."""

    body_bytes: int = 16 * 1024 * 1024
    """Of one request; of a longer one the hash and length are kept, not the bytes."""
    header_bytes: int = 256 * 1024
    """Of one request's head; a longer one is unparsed."""
    stash_bytes: int = 4 * 1024 * 1024
    """Bytes of one direction of a connection that wait for one that is missing."""
    stash_segments: int = 4096
    stash_s: float = 2.0
    """How long they wait, by the packets' own clock."""
    total_bytes: int = 512 * 1024 * 1024
    """All unfinished requests and stashes together; beyond it the connection longest quiet is given up."""
    flows: int = 200_000
    """Connections followed at once; beyond it the one longest quiet is given up."""
    idle_s: float = 600.0
    """A connection quiet for so long, by the packets' own clock, is over: an answer may take minutes."""
    fragments_bytes: int = 4 * 1024 * 1024
    """IP fragments that wait for their packet's others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFilter:
    """Which packets count, how far they are followed, and what that may take."""

    ports: Collection[int]
    """Of servers."""
    follow_answers: bool = False
    limits: MemoryBounds = MemoryBounds()


@dataclass(slots=True, kw_only=True)
class Losses:
    """What did not become a whole request, by class; counted up by whoever sees it."""

    kernel_drops: int = 0
    """Frames that the kernel had no room for."""
    app_drops: int = 0
    """Whole requests that we read and then had no room for."""
    gaps: int = 0
    """Holes in streams of bytes, declared as such, and how many bytes they hid as far as that is known."""
    gap_bytes: int = 0
    truncated: int = 0
    """Frames that were cut when they were captured (snaplen)."""
    encrypted: int = 0
    """Connections that speak TLS."""
    unparsed: int = 0
    """Stretches of bytes that were no HTTP/1 request."""
    http2: int = 0
    """Connections that speak HTTP/2; in `unparsed` too."""
    fragments: int = 0
    """IP packets of which fragments are missing."""
    damaged_frames: int = 0
    """Frames that hold no whole TCP header where one should be."""
    gave_up: int = 0
    """Connections let go for want of room."""
    frames: int = 0
    """Frames looked at, as much as the source can tell."""
    segments: int = 0
    """Of these, TCP segments on the ports watched."""
    other_ports: Counter[int] = field(default_factory=Counter)
    """Where HTTP requests went as long as there were no such segments."""
    notes: list[str] = field(default_factory=list)
    """What a person should know of the files that were read, in full sentences without a stop."""


@dataclass(slots=True, kw_only=True)
class HttpAnswer:
    """What was seen of one answer; times by the packets' clock."""

    status: int | None = None
    first_at: float | None = None
    """First byte of its status line."""
    token_at: float | None = None
    """First chunk of a stream that carries a token; None without streaming."""
    last_at: float | None = None
    complete: bool = False
    stream: bool = False
    """It came as server-sent events."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    cache_status: str | None = None
    """`Cache-Status` or `X-Cache` header, as sent."""
    damaged: bool = False


@dataclass(slots=True, kw_only=True)
class HttpRequest:
    """One HTTP request cut out of a connection; of its head only what stands here outlives the parser."""

    ts: float
    """Its first byte's."""
    ts_last: float
    client: bytes
    """Packed IP address, 4 or 16 bytes."""
    client_port: int
    server: bytes
    server_port: int
    method: str | None = None
    path: str | None = None
    """Target as sent, absolute form reduced to its path, without the query string."""
    body: bytes | None = None
    """Decoded (chunks, Content-Encoding). None: damaged, none was sent, or longer than the limit."""
    body_bytes: int = 0
    """Decoded length, of what was seen."""
    body_hash: bytes | None = None
    """Only of a body beyond the limit: BLAKE2b-128 of all of it."""
    problem: str | None = None
    """Why it is damaged or its body is not here, e.g., `1,448 bytes lost`."""
    damaged: bool = False
    in_flight: int | None = None
    """Requests to the same server (address and port) unanswered when it arrived; only when answers are followed."""
    answer: HttpAnswer | None = None
