"""Which headers go upstream and which come back, what a client's say about caching, and what ours say of an answer.

Both ways are allow-lists: what is not named here stops here. Nothing that a header says makes caching looser. It reads no clock.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf
from typing import Any

from toolkit.units import seconds_of

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case."""

TRACES = frozenset({b"traceparent", b"tracestate"})
"""W3C trace context: it changes no answer. `accept` may, so that a shared answer would depend on who asked first: it stays here,
and with it the client's user-agent, which is none of the upstream's business."""
JSON = b"application/json"
NAME = b"toolkit"
"""How Cache-Status calls this cache."""
OWN = b"x-toolkit-cache"
"""Our own controls: `off`, `no-cache`, `no-store`, `ttl=30s`."""
FOREVER = 2**31
"""Seconds; RFC 9111 lets a cache take this for anything longer."""

_SAFE_ID = re.compile(rb"[A-Za-z0-9_.:+/=@-]{1,128}")
_SAFE_VALUE = re.compile(rb"[\t\x20-\x7e]{1,512}")
"""Visible ASCII; W3C wants 512 bytes of `tracestate` propagated at least."""
_WAIT = re.compile(rb"[0-9]{1,9}|[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} GMT")
_DIRECTIVE = re.compile(rb'\s*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)(?:\s*=\s*("(?:[^"\\]|\\.)*"|[^,"]*))?')
_DIGITS = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheControl:
    """What a client wants of the cache; the default is nothing special."""

    no_cache: bool = False
    """No stored answer; this one may be stored."""
    no_store: bool = False
    """A stored answer may be used; this one is not stored. Both: nor is a call under way joined."""
    only_if_cached: bool = False
    """A stored answer or none: 504."""
    max_age_s: float = inf
    """No stored answer that is older."""
    min_fresh_s: float = 0.0
    """No stored answer that ends sooner."""
    ttl_s: float = inf
    """Stored for so long at most."""


NO_CACHE_CONTROL = CacheControl()


def forward(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The client's headers that may go upstream: what the body is, a trace. Of equal names the first.

    What `Connection` nominates stays here like any hop-by-hop header, a traceparent included; but not what the body is: without that
    a call fails, for all who joined it.
    """
    traces = TRACES - nominated(headers)
    found = _allowed(headers, {b"content-type": _SAFE_VALUE} | dict.fromkeys(traces, _SAFE_VALUE))
    if is_json(headers):
        found[b"content-type"] = JSON
    return list(found.items())


def back(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The upstream's headers that may go to a client, or into the cache: what the body is, and how long to wait.

    Framing, cookies, dates, limits of our own key and where it was answered are not the client's.
    """
    return list(_allowed(headers, {b"content-type": _SAFE_VALUE, b"retry-after": _WAIT}).items())


def _allowed(headers: Headers, names: Mapping[bytes, re.Pattern[bytes]]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in names and name not in found and names[name].fullmatch(value) and value.strip():
            found[name] = value.strip()
    return found


def forbids_storing(headers: Headers) -> str | None:
    """What of an upstream's headers forbids a shared cache to store its answer (RFC 9111), e.g., `cache-control: private`.

    Not `no-cache`: it asks for revalidation, and servers of event streams send it to keep middle men from buffering them.
    """
    for name, value in headers:
        if name == b"cache-control":
            for directive, _ in _directives(value):
                if directive in ("no-store", "private"):
                    return f"cache-control: {directive}"
        elif name == b"vary" and b"*" in (each.strip() for each in value.split(b",")):
            return "vary: *"
    return None


def is_json(headers: Headers) -> bool:
    """Whether a body is said to be JSON, and once: of two headers a server may believe the other one."""
    return _content_type(headers).partition(b";")[0].strip() == JSON


def is_form(headers: Headers) -> bool:
    """Whether a body is said, once, to be a form with files."""
    return _content_type(headers).startswith(b"multipart/form-data;")


def _content_type(headers: Headers) -> bytes:
    types = [value for name, value in headers if name == b"content-type"]
    return types[0].lower() if len(types) == 1 else b""


def request_id(headers: Headers) -> str | None:
    """The client's own id for its request, if it is safe to repeat anywhere."""
    for name, value in headers:
        if name == b"x-request-id" and _SAFE_ID.fullmatch(value):
            return value.decode("ascii")
    return None


def cache_control(headers: Headers) -> CacheControl:
    """What `Cache-Control` and `X-Toolkit-Cache` ask for, the stricter of the two.

    A directive that is not known is ignored. A number that can't be read counts as the strictest one: 0 for max-age, as RFC 9111
    advises; a word of our own that is not known counts as `off`.
    """
    found: dict[str, Any] = {}

    def at_most(name: str, seconds: float | None) -> None:
        found[name] = min(found.get(name, inf), 0.0 if seconds is None else seconds)

    for name, value in headers:
        if name not in (b"cache-control", OWN):
            continue
        for word, argument in _directives(value):
            seconds = _seconds(argument)
            if word in ("no-cache", "no-store") or (word == "only-if-cached" and name != OWN):
                found[word.replace("-", "_")] = True
            elif name == OWN and word == "ttl":
                at_most("ttl_s", seconds_of(argument) if seconds is None else seconds)
            elif name == OWN and word != "on":
                found |= {"no_cache": True, "no_store": True}
            elif word == "max-age":
                at_most("max_age_s", seconds)
            elif word == "min-fresh":
                fresh = inf if seconds is None else seconds
                found["min_fresh_s"] = max(found.get("min_fresh_s", 0.0), fresh)
            # `max-stale` and the like would make it looser
    return CacheControl(**found) if found else NO_CACHE_CONTROL


def cache_status(
    *,
    fwd: str | None = None,
    fwd_status: int | None = None,
    ttl_s: float | None = None,
    stored: bool = False,
    collapsed: bool = False,
    detail: str | None = None,
) -> bytes:
    """The value of `Cache-Status` (RFC 9211), e.g., `toolkit; hit; ttl=59` or `toolkit; fwd=miss; fwd-status=200; stored`.

    `fwd`: why it was asked upstream; None: it is a hit. `ttl_s`: how long it stays fresh, negative where it is stale. `collapsed`: it
    joined a call under way. `detail`: a token.
    """
    parts = [NAME, b"hit" if fwd is None else b"fwd=" + fwd.encode()]
    if fwd_status is not None:
        parts.append(b"fwd-status=%d" % fwd_status)
    if ttl_s is not None:
        parts.append(b"ttl=%d" % floor(max(-FOREVER, min(FOREVER, ttl_s))))
    if stored:
        parts.append(b"stored")
    if collapsed:
        parts.append(b"collapsed")
    if detail is not None:
        parts.append(b"detail=" + detail.encode())
    return b"; ".join(parts)


def age(stored_at: float, now: float) -> bytes:
    """The value of `Age`: whole seconds since it was stored; 0 if a clock was set back meanwhile."""
    return b"%d" % floor(max(0, min(FOREVER, now - stored_at)))


def nominated(headers: Headers) -> frozenset[bytes]:
    """Names of headers that `Connection` keeps from being passed on."""
    said = b",".join(value for name, value in headers if name == b"connection")
    return frozenset(word.strip().lower() for word in said.split(b","))


def _directives(value: bytes) -> Sequence[tuple[str, str]]:
    """`a, b=1, c="x,y"` -> names in lower case, each with its argument or nothing; what is neither has no name."""
    found, place = [], 0
    while place < len(value):
        match = _DIRECTIVE.match(value, place)
        if match is not None:
            name, argument = match.group(1), match.group(2) or b""
            text = argument.decode("latin-1").strip()
            if text.startswith('"'):
                text = re.sub(r"\\(.)", r"\1", text[1:-1])
            found.append((name.decode("ascii").lower(), text))
            place = match.end()
        comma = value.find(b",", place)
        end = len(value) if comma < 0 else comma
        if value[place:end].strip():
            found.append(("", ""))
        place = end + 1
    return found


def _seconds(text: str) -> float | None:
    """RFC 9111's delta-seconds; anything from 2^31 on is for ever."""
    if not _DIGITS.fullmatch(text):
        return None
    return float(FOREVER) if len(text) > 10 else float(min(int(text), FOREVER))
