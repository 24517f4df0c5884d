"""Which headers go upstream and which come back, what a client's say about caching, and what ours say of an answer.

Both ways are allow-lists: what is not named here stops here. Nothing that a header says makes caching looser. It reads no clock.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import floor
from typing import Literal

from toolkit.proxy.exchange import Headers
from toolkit.quantities import seconds_of

TRACES = frozenset({b"traceparent", b"tracestate"})
"""W3C trace context: it changes no answer. `accept` may, so that a shared answer would depend on who asked first: it stays here,
and with it the client's user-agent, which is nobody's business upstream."""
MOST_VALUE = 512
"""W3C wants that much of `tracestate` propagated at least."""
NAME = b"toolkit"
"""How Cache-Status calls this cache."""
OWN = b"x-toolkit-cache"
"""Our own controls: `off`, `no-cache`, `no-store`, `ttl=30s`."""
FOREVER = 2**31
"""Seconds; RFC 9111 lets a cache take this for anything longer."""

_SAFE_ID = re.compile(rb"[A-Za-z0-9_.:+/=@-]{1,128}")
_SAFE_VALUE = re.compile(rb"[\t\x20-\x7e]*")
_WAIT = re.compile(rb"[0-9]{1,9}|[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9:]{8} GMT")
_DIRECTIVE = re.compile(rb'\s*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)(?:\s*=\s*("(?:[^"\\]|\\.)*"|[^,"]*))?')
_DIGITS = re.compile(r"[0-9]+")
_TOKEN = re.compile(r"[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*")

Fwd = Literal["bypass", "miss", "uri-miss", "request", "stale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a client wants of the cache; the default is nothing special."""

    no_cache: bool = False
    """No stored answer; this one may be stored."""
    no_store: bool = False
    """A stored answer may be used; this one is not stored."""
    only_if_cached: bool = False
    """A stored answer or none: 504."""
    off: bool = False
    """Neither read nor stored, nor joined."""
    max_age_s: float | None = None
    """No stored answer that is older."""
    min_fresh_s: float | None = None
    """No stored answer that ends sooner."""
    ttl_s: float | None = None
    """Stored for so long at most."""


NO_WISHES = Wishes()


def forward(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The client's headers that may go upstream: what the body is, an id, a trace. Of equal names the first.

    What `Connection` nominates stays here like any hop-by-hop header, a traceparent included; but not what the body is: without that
    a call fails, for all who joined it.
    """
    nominated = _nominated(headers)
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in found:
            continue
        if name == b"content-type":
            kept: bytes | None = b"application/json" if _is_json(value) else _safe(value)
        elif name in nominated:
            continue
        elif name == b"x-request-id":
            kept = _safe_id(value)
        else:
            kept = _safe(value) if name in TRACES else None
        if kept:
            found[name] = kept
    return list(found.items())


def back(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The upstream's headers that may go to a client, or into the cache: what the body is, and how long to wait.

    Framing, cookies, dates, limits of our own key and where it was answered are not the client's.
    """
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in found:
            continue
        if name == b"content-type" and (kept := _safe(value)):
            found[name] = kept
        elif name == b"retry-after" and _WAIT.fullmatch(value):
            found[name] = value
    return list(found.items())


def forbids_storing(headers: Headers) -> str | None:
    """What of an upstream's headers forbids a shared cache to store its answer (RFC 9111), e.g., `cache-control: private`.

    Not `no-cache`: it asks for revalidation, and servers of event streams send it to keep middle men from buffering them.
    """
    for name, value in headers:
        if name == b"cache-control":
            for told, _ in _directives(value):
                if told in ("no-store", "private"):
                    return f"cache-control: {told}"
        elif name == b"vary" and b"*" in (each.strip() for each in value.split(b",")):
            return "vary: *"
    return None


def is_json(headers: Headers) -> bool:
    """Whether a body is said to be JSON, and once: of two headers a server may believe the other one."""
    told = [value for name, value in headers if name == b"content-type"]
    return len(told) == 1 and _is_json(told[0])


def is_form(headers: Headers) -> bool:
    """Whether a body is said, once, to be a form with files."""
    told = [value for name, value in headers if name == b"content-type"]
    return len(told) == 1 and told[0].lower().startswith(b"multipart/form-data;")


def request_id(headers: Headers) -> str | None:
    """The client's own id for its request, if it is safe to repeat anywhere."""
    for name, value in headers:
        if name == b"x-request-id" and _SAFE_ID.fullmatch(value):
            return value.decode("ascii")
    return None


def wishes(headers: Headers) -> Wishes:
    """What `Cache-Control` and `X-Toolkit-Cache` ask for, the stricter of the two.

    A directive that is not known is ignored. A number that can't be read counts as the strictest one: 0 for max-age, as RFC 9111
    advises; a word of our own that is not known counts as `off`.
    """
    said: dict[str, bool] = {}
    limits: dict[str, float] = {}
    for name, value in headers:
        if name == b"cache-control":
            _hear_standard(value, said, limits)
        elif name == OWN:
            _hear_own(value, said, limits)
    if not said and not limits:
        return NO_WISHES
    return Wishes(
        no_cache="no_cache" in said,
        no_store="no_store" in said,
        only_if_cached="only_if_cached" in said,
        off="off" in said,
        max_age_s=limits.get("max_age_s"),
        min_fresh_s=limits.get("min_fresh_s"),
        ttl_s=limits.get("ttl_s"),
    )


def cache_status(
    *,
    hit: bool = False,
    fwd: Fwd | None = None,
    fwd_status: int | None = None,
    ttl_s: float | None = None,
    stored: bool = False,
    collapsed: bool = False,
    key: str | None = None,
    detail: str | None = None,
) -> bytes:
    """The value of `Cache-Status` (RFC 9211), e.g., `toolkit; hit; ttl=59` or `toolkit; fwd=miss; fwd-status=200; stored`.

    `ttl_s`: how long it stays fresh, negative where it is stale. `collapsed`: it joined a call under way, or began one that others
    joined. `key`: a tag, see `key_tag`; `detail`: a word or a few.
    """
    assert hit != (fwd is not None), "an answer is a hit or was fetched"
    parts = [NAME]
    if hit:
        parts.append(b"hit")
    if fwd is not None:
        parts.append(b"fwd=" + fwd.encode())
    if fwd_status is not None:
        parts.append(b"fwd-status=%d" % fwd_status)
    if ttl_s is not None:
        parts.append(b"ttl=%d" % floor(max(-FOREVER, min(FOREVER, ttl_s))))
    if stored:
        parts.append(b"stored")
    if collapsed:
        parts.append(b"collapsed")
    if key is not None:
        parts.append(b"key=" + _string(key))
    if detail is not None:
        parts.append(b"detail=" + _item(detail))
    return b"; ".join(parts)


def key_tag(key: bytes, secret: bytes) -> str:
    """A short tag for a cache key, to tell one from another without telling the key: 10 hexadecimal digits.

    The key holds the tenant, so that two tenants have two tags for one request; nobody without the secret can try keys out.
    """
    return blake2b(key, key=secret[:64], digest_size=5, person=b"tag").hexdigest()


def age(stored_at: float, now: float) -> bytes:
    """The value of `Age`: whole seconds since it was stored; 0 if a clock was set back meanwhile."""
    return b"%d" % floor(max(0, min(FOREVER, now - stored_at)))


def _nominated(headers: Headers) -> frozenset[bytes]:
    words = [
        word.strip().lower()
        for name, value in headers
        if name == b"connection"
        for word in value.split(b",")
    ]
    return frozenset(words)


def _is_json(value: bytes) -> bool:
    return value.partition(b";")[0].strip().lower() == b"application/json"


def _safe(value: bytes) -> bytes | None:
    """A value of visible ASCII; None: it stays here."""
    fits = len(value) <= MOST_VALUE and _SAFE_VALUE.fullmatch(value)
    return value.strip() if fits else None


def _safe_id(value: bytes) -> bytes | None:
    return value if _SAFE_ID.fullmatch(value) else None


def _hear_standard(value: bytes, said: dict[str, bool], limits: dict[str, float]) -> None:
    """Take in a `Cache-Control` field. `max-stale` and the like would make it looser: they go unheard."""
    for name, argument in _directives(value):
        if name in ("no-cache", "no-store", "only-if-cached"):
            said[name.replace("-", "_")] = True
        elif name == "max-age":
            _limit(limits, "max_age_s", _seconds(argument))
        elif name == "min-fresh":
            fresh = _seconds(argument)
            limits["min_fresh_s"] = max(
                limits.get("min_fresh_s", 0.0), float("inf") if fresh is None else fresh
            )


def _hear_own(value: bytes, said: dict[str, bool], limits: dict[str, float]) -> None:
    for name, argument in _directives(value):
        if name == "ttl":
            ttl_s = _seconds(argument)
            _limit(limits, "ttl_s", seconds_of(argument) if ttl_s is None else ttl_s)
        elif name in ("no-cache", "no-store"):
            said[name.replace("-", "_")] = True
        elif name != "on":
            said["off"] = True


def _limit(limits: dict[str, float], name: str, seconds: float | None) -> None:
    """The lower one counts; None could not be read, and counts as none at all."""
    told = 0.0 if seconds is None else seconds
    limits[name] = min(limits.get(name, told), told)


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


def _item(text: str) -> bytes:
    """A token where it may be one, else a string (RFC 8941)."""
    return text.encode() if _TOKEN.fullmatch(text) else _string(text)


def _string(text: str) -> bytes:
    plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    return b'"' + plain.replace("\\", "\\\\").replace('"', '\\"').encode() + b'"'
