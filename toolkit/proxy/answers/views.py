"""How a client wants to see an answer, and one stored answer in that view: as it came, without its usage, or in the other mode.

None means that it can't be shown so without losing or inventing something; the request is then a miss.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from toolkit.proxy.answers.assembly import assembled
from toolkit.proxy.answers.chunks import streamed
from toolkit.proxy.exchange import Kept, View

CROSSING = frozenset({"chat/completions", "completions"})
"""Endpoints whose answers are shown in the other mode, too."""
TOLD_BY_PATH = frozenset({"generate", "api/chat", "api/generate"})
"""Endpoints whose mode stands in the path, or is a stream unless told otherwise."""
STREAM_OPTIONS = frozenset({"include_usage", "continuous_usage_stats"})
ONE_MODE = ("prompt_logprobs", "kv_transfer_params", "ec_transfer_params")
"""Fields whose answer only a whole body tells (vLLM 0.32)."""
TOOLS = ("tools", "functions")
USAGE = b'"usage":{', b'"usage": {'
"""The beginning of a usage in an event; in a text its quotes would be escaped."""
FINISH = b'"finish_reason":"'
FINGERPRINT = b'"system_fingerprint":"'
JSON_TYPE = "application/json"
STREAM_TYPE = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An answer in a client's view."""

    content_type: str
    body: bytes
    ends: tuple[int, ...] = ()
    """Where each event ends; empty for a whole body."""
    ms: tuple[int, ...] = ()
    """When each is due at the original pace; of a stream made of a whole body all at its end."""


def view(fields: dict[str, Any], endpoint: str) -> View | None:
    """The view that a body asks for; None: one that we don't know, so that its answer must not be shared with any other view."""
    stream = fields.get("stream")
    options = fields.get("stream_options")
    if endpoint in TOLD_BY_PATH or type(stream) not in (bool, type(None)):
        return None
    crosses = _crosses(fields, endpoint)
    if options is None:
        return View(stream=bool(stream), crosses=crosses)
    if not stream or type(options) is not dict or not options.keys() <= STREAM_OPTIONS:
        return None
    if endpoint not in CROSSING or not all(
        type(told) in (bool, type(None)) for told in options.values()
    ):
        return None
    usage = bool(options.get("include_usage"))
    continuous = usage and bool(options.get("continuous_usage_stats"))
    return View(stream=True, usage=usage, continuous_usage=continuous, crosses=crosses)


def _crosses(fields: dict[str, Any], endpoint: str) -> Literal["always", "uncut", "never"]:
    """An echo brings the prompt's own logprobs in a whole body only; and of calls cut off, a whole body has the raw text."""
    is_one_mode = any(fields.get(name) is not None for name in ONE_MODE) or bool(fields.get("echo"))
    if endpoint not in CROSSING or is_one_mode:
        return "never"
    return "uncut" if any(fields.get(name) for name in TOOLS) else "always"


def can_join(leads: View, wants: View, endpoint: str, *, has_usage: bool) -> bool:
    """Whether a call that was sent for one view will serve a request that wants another one; `has_usage`: it asked for it."""
    if leads.stream and wants.stream:
        return leads.continuous_usage == wants.continuous_usage and has_usage >= wants.usage
    if not leads.stream and not wants.stream:
        return True
    if endpoint not in CROSSING or wants.crosses == "never":
        return False
    return has_usage if leads.stream else not wants.continuous_usage


def shown(kept: Kept, view: View) -> Shown | None:
    """A stored answer in a view; None if it can't be shown so."""
    if kept.streamed and view.stream:
        return _stream(kept, view)
    if kept.streamed == view.stream:
        return Shown(content_type=kept.content_type, body=kept.body)
    if kept.endpoint not in CROSSING or view.crosses == "never":
        return None
    return _as_stream(kept, view) if view.stream else _as_whole(kept, view)


def _as_whole(kept: Kept, view: View) -> Shown | None:
    body, ends = kept.body, kept.event_ends
    events = (body[first:end] for first, end in zip((0, *ends), ends, strict=False))
    whole = assembled(events, kept.endpoint, uncut=view.crosses == "uncut")
    return None if whole is None else Shown(content_type=JSON_TYPE, body=whole)


def _as_stream(kept: Kept, view: View) -> Shown | None:
    if view.continuous_usage:
        return None
    uncut = view.crosses == "uncut"
    events = streamed(kept.body, kept.endpoint, usage=view.usage, uncut=uncut)
    if events is None:
        return None
    due = max(0, round(kept.latency_ms or 0))
    return Shown(
        content_type=STREAM_TYPE,
        body=b"".join(events),
        ends=tuple(accumulate(map(len, events))),
        ms=(due,) * len(events),
    )


def _stream(kept: Kept, view: View) -> Shown | None:
    """A stream as it came, or without the event that tells the usage."""
    place = kept.usage_event
    if kept.endpoint in CROSSING:
        if view.usage and place is None:
            return None
        if not (_is_continuous(kept) if view.continuous_usage else _is_plain(kept)):
            return None
        if place is not None and not view.usage:
            return _without_usage(kept, place)
    return Shown(
        content_type=kept.content_type, body=kept.body, ends=kept.event_ends, ms=kept.event_ms
    )


def _is_continuous(kept: Kept) -> bool:
    """Each event has a usage, but for the last one, which is `[DONE]`."""
    usages = sum(map(kept.body.count, USAGE))
    return usages == len(kept.event_ends) - 1


def _is_plain(kept: Kept) -> bool:
    """No event has a usage but the one that has no choice: a server that tells it in each event tells it in the first."""
    first = 0 if kept.usage_event == 0 else kept.event_ends[0]
    return all(kept.body.find(usage, 0, first) < 0 for usage in USAGE)


def _without_usage(kept: Kept, place: int) -> Shown:
    """A stream without that event; what vLLM tells there beside the usage, it tells where a choice ends if there is no usage."""
    body, ends, ms = kept.body, kept.event_ends, kept.event_ms
    first, end = ends[place - 1] if place else 0, ends[place]
    shorter = [*ends[:place], *(later - (end - first) for later in ends[place + 1 :])]
    told = _fingerprint(body[first:end])
    body = body[:first] + body[end:]
    if told:
        body = _with_fingerprint(body, shorter, told)
    return Shown(
        content_type=kept.content_type,
        body=body,
        ends=tuple(shorter),
        ms=ms[:place] + ms[place + 1 :],
    )


def _fingerprint(event: bytes) -> bytes:
    """The member `system_fingerprint` of an event, with a comma before it; empty if there is none, or one to be unescaped."""
    start = event.find(FINGERPRINT)
    end = event.find(b'"', start + len(FINGERPRINT))
    told = event[start : end + 1]
    return b"," + told if start >= 0 and end >= 0 and b"\\" not in told else b""


def _with_fingerprint(body: bytes, ends: list[int], told: bytes) -> bytes:
    """The same events; those that end a choice tell it. `ends` is moved along."""
    at = len(body)
    # from the end: that is where they mostly are, and looking backwards takes 3.6 us in 25 KB instead of 8.6
    while (at := body.rfind(FINISH, 0, at)) >= 0:
        number = bisect_right(ends, at)
        first, brace = ends[number - 1] if number else 0, body.rfind(b"}", at, ends[number])
        is_last = body[brace : ends[number]].strip() == b"}"
        if is_last and body.find(FINGERPRINT, first, brace) < 0:
            body = body[:brace] + told + body[brace:]
            ends[number:] = [later + len(told) for later in ends[number:]]
        at = first
    return body
