"""What the parts of the proxy hand one another: a request, how its answer is to look, a stored answer, what was served.

Records and interfaces only: nothing here decides, waits or writes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from toolkit.completion import Answer
from toolkit.records import SeenCache

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case."""

Layer = Literal["memory", "disk", "redis"]


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One whole request of a client, framed without doubt."""

    method: str
    path: str
    """As it was sent, without the query."""
    query: str = ""
    headers: Headers = ()
    body: bytes = b""
    keeps_alive: bool = True
    peer: str = ""
    """The client's address; for limits and the log."""
    arrived_s: float = 0.0
    """Monotonic clock, when its first byte was read: what waits before it is understood counts as waiting, too."""
    raw: bytes | None = None
    """The very bytes, where it came in one read with nothing before or after it; else None."""

    def header(self, name: bytes) -> bytes | None:
        """The first header of a name in lower case."""
        return next((value for each, value in self.headers if each == name), None)


class Reply(Protocol):
    """The way back to one client. What is written after the client left goes nowhere, without an error."""

    request: Request
    is_gone: bool
    """The client left before the end of its answer."""
    is_paused: bool
    """The client does not read as fast as is written: write no more until `on_writable`."""
    on_writable: Callable[[], None] | None
    on_gone: Callable[[], None] | None
    """Called once, if the client leaves before the end."""

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Answer in one go; content-length, date and connection are added."""

    def begin(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        """Begin an answer; without a length it is chunked (for HTTP/1.0: ended by closing)."""

    def write(self, data: bytes) -> None:
        """Send a part of the body."""

    def end(self) -> None:
        """The body is complete."""

    def abort(self) -> None:
        """The answer can't be completed: close, so that the client sees that it was cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """How a client wants to see an answer; one stored answer serves several."""

    stream: bool = False
    usage: bool = False
    """`stream_options.include_usage`: a last event with the usage."""
    continuous_usage: bool = False
    """`stream_options.continuous_usage_stats`: the usage so far in each event (vLLM)."""
    crosses: Literal["always", "uncut", "never"] = "always"
    """Whether an answer to this request may be shown in the other mode than it came in; `uncut`: unless its length ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One complete answer as the upstream gave it, to be shown again."""

    endpoint: str
    """request_body.endpoint, e.g., `chat/completions`."""
    streamed: bool
    content_type: str
    body: bytes
    """A whole body, or the stream's events byte for byte, one after the other."""
    event_ends: tuple[int, ...] = ()
    """Where each event of a stream ends in `body`."""
    event_ms: tuple[int, ...] = ()
    """When each came, in whole ms since the request was sent upstream."""
    usage_event: int | None = None
    """Which event holds the usage and no choice."""
    usage_was_ours: bool = False
    """The client did not ask for that event; the proxy did."""
    stored_at: float = 0.0
    """Wall clock, seconds since 1970."""
    model: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    ttft_ms: float | None = None
    """None for a whole body."""
    latency_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """How one call upstream ended."""

    answer: Answer | None
    """None: there was no HTTP answer, or one of an endpoint without completions."""
    kept: Kept | None
    """None: it must not be stored."""
    why_not: str | None = None
    """Why it is not stored, e.g., `status 500`, `cut`, `no finish reason`, `larger than 16 MiB`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A boundary that was held: the request was not served, and nothing failed."""

    reason: str
    """One of REJECTIONS in rejections.py, a metric's label."""
    status: int
    """429: the team's limit. 503: the system's. 400, 404, 413: what was asked."""
    message: str
    retry_after_s: float | None = None
    kind: str | None = None
    """The error's `type`; None: by its status."""
    param: str | None = None
    """Which field of the request it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is sent upstream for a request, or for all equal ones at once."""

    path: str
    query: str = ""
    method: str = "POST"
    body: bytes
    headers: Headers = ()
    """Those of the client's that may go upstream, and no other."""
    endpoint: str = ""
    model: str | None = None
    """As asked for."""
    team: str = ""
    view: View = View()
    usage_is_ours: bool = False
    """`include_usage` was added for the proxy's own sake."""
    priority: int = 0
    """Higher goes first."""
    arrived_s: float = 0.0
    prompt_tokens: int | None = None
    """An estimate, for limits."""
    output_tokens: int | None = None
    """The most it may write, where it says so."""
    prefix: int | None = None
    """Hash of the prompt's beginning, where upstreams are chosen by it."""
    is_cacheable: bool = True
    ttl_s: float | None = None
    """How long its answer may be stored; None: without end."""
    tenant: str = ""
    """Among whom its answer is shared."""


@dataclass(slots=True, kw_only=True)
class Served:
    """What became of one request: a line of the log, the counters, a row of the store."""

    ts: float
    """Wall clock, when its first byte was read."""
    request_id: str = ""
    team: str = ""
    method: str = "POST"
    path: str = ""
    endpoint: str = ""
    model: str | None = None
    stream: bool | None = None
    status: int | None = None
    """None: the client left before one was known."""
    cache: SeenCache | None = None
    """None: caching was not wanted or not possible."""
    layer: Layer | None = None
    """Where a hit was found."""
    bypass: str | None = None
    """Why the cache was not asked, e.g., `no-store`, `sampled`, `off`."""
    new: bool | None = None
    """No equal request was seen before."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_ms: float | None = None
    """From the request's last byte to the first token sent to the client."""
    tpot_ms: float | None = None
    latency_ms: float | None = None
    queue_ms: float | None = None
    """Waiting for a slot, from the request's first byte; None where none was needed."""
    finish_reason: str | None = None
    upstream: str | None = None
    error_kind: str | None = None
    """None: all is well, a rejection included."""
    rejected: str | None = None
    """The reason of a rejection."""
    retry_after_s: float | None = None
    stored: bool = False
    left: bool = False
    """The client left before the end."""
    body_bytes: int = 0
    exact_key: str | None = None
    request_key: str | None = None
    prompt_key: str | None = None
    notes: dict[str, object] = field(default_factory=dict)
    """What only some requests have, e.g., `retries`, `fallback`."""
