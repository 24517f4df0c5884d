"""HTTP requests cut out of packets -> the requests that everything else counts (Seen). Pure; equal bodies are read once.

A client appears only as what the given function makes of its address, a prompt's text only where it was asked for.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address

from toolkit.capture.records import HttpAnswer, HttpRequest
from toolkit.protocol.cache_status import says_hit
from toolkit.protocol.request import asked
from toolkit.records import Asked, Seen, SeenCache

REMEMBER_BYTES = 64 * 2**20
ENTRY_BYTES = 2048
"""What a remembered body costs beside its own bytes, its blocks and its text."""
MOST_OF_ALL = 8
"""A body that would take more than this part of the memory is read each time it comes."""
NO_ANSWER = HttpAnswer()


class Bodies:
    """Give it requests in any order; it remembers the bodies that came last, as many as fit."""

    def __init__(
        self,
        *,
        store_prompts: bool = False,
        client: Callable[[bytes], str],
        remember_bytes: int = REMEMBER_BYTES,
    ) -> None:
        self._store_prompts = store_prompts
        self._client = client
        self._limit = remember_bytes
        self._known: OrderedDict[tuple[str | None, bytes], tuple[Asked, int]] = OrderedDict()
        """By path and body, with the bytes that it takes; the longest unused first."""
        self._held = 0

    def seen(self, request: HttpRequest) -> Seen:
        """What one request was, its answer included where answers are followed."""
        answer, sent_at = request.answer or NO_ANSWER, request.ts_last
        return Seen(
            ts=request.ts,
            took_ms=(request.ts_last - request.ts) * 1e3,
            client=self._client(request.client),
            server=_server(request.server, request.server_port),
            method=request.method,
            path=request.path,
            asked=self._asked(request),
            damaged=request.damaged,
            problem=request.problem,
            in_flight=request.in_flight,
            status=answer.status,
            ttft_ms=_after(sent_at, answer.token_at),
            latency_ms=_after(sent_at, answer.last_at if answer.complete else None),
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            finish_reason=answer.finish_reason,
            cache=_cache(answer.cache_status),
        )

    def _asked(self, request: HttpRequest) -> Asked | None:
        body, path = request.body, request.path
        if request.damaged:
            return None
        if not body:
            if request.body_hash is None:
                return None
            # longer than the limit, or not decoded: its hash and length
            key = request.body_hash.hex()
            return Asked(exact_key=key, problem=request.problem, body_bytes=request.body_bytes)
        known = self._known.get((path, body))
        if known is not None:
            self._known.move_to_end((path, body))
            return known[0]
        read = asked(body, path=path, keep_text=self._store_prompts)
        chars = len(path or "") + len(read.prompt_text or "") + sum(map(len, read.options))
        # a character takes up to four bytes
        cost = ENTRY_BYTES + len(body) + len(read.prompt_blocks) + 4 * chars
        if cost * MOST_OF_ALL <= self._limit:
            self._known[path, body] = read, cost
            self._held += cost
            while self._held > self._limit:
                self._held -= self._known.popitem(last=False)[1][1]
        return read


def _after(sent_at: float, at: float | None) -> float | None:
    """Milliseconds from a request's last byte; None for an answer that did not wait for it."""
    return None if at is None or at < sent_at else (at - sent_at) * 1e3


@lru_cache(maxsize=256)
def _cache(header: str | None) -> SeenCache | None:
    """How a cache says that it served an answer (RFC 9211: `collapsed` waited for another request's)."""
    if header is None:
        return None
    if says_hit(header):
        return "hit"
    words = {word.strip().lower() for word in header.split(";")}
    return "coalesced" if words & {"collapsed", "collapsed=?1"} else "miss"


@lru_cache(maxsize=4096)
def _server(packed: bytes, port: int) -> str:
    """`10.0.0.4:8000` or `[::1]:8000`."""
    address = ip_address(packed)
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"
