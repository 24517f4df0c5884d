"""What became of a request -> one line of JSON, as `toolkit workload --from` reads it; and a short way to a hit's. No clock, no file.

A line tells hashes of what was asked, never a key, and a prompt only where the user asked for it. A field that is not there is unknown;
those of ALWAYS are there nevertheless, as a reader may judge a file by its first line. What happened beside the requests is a line
with `event` and without `request_id`; a rejected request's own line has both.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

from toolkit.proxy.exchange import Served
from toolkit.proxy.told.counters import error_kind

_UNSEEN = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON lets through and a terminal obeys: DEL, the C1 controls, line ends, marks that turn the text round."""
_HALVES = re.compile("[\ud800-\udfff]")

OWN = frozenset({"ts", "request_id", "ttft_ms", "latency_ms"})
"""What differs from hit to hit."""
ALWAYS = frozenset({"team", "model", "status", "cache", "prompt_key", "request_key"})


def line(served: Served, *, prompt: str | None = None) -> bytes:
    """One request's line, with its newline. `prompt` only where the user asked for prompts in the log."""
    own = {"ts": round(served.ts, 6), "request_id": served.request_id}
    times = {"ttft_ms": _short(served.ttft_ms), "latency_ms": _short(served.latency_ms)}
    last = {} if prompt is None else {"prompt_text": prompt}
    return dumped(own | _known(times) | _rest(served) | last)


def event_line(ts: float, kind: str, told: Mapping[str, Any]) -> bytes:
    """A line for what is no request, e.g., `upstream_left`, `epoch_bumped`, `divergence`."""
    # `request_id` would make a request of it
    ours = ("event", "ts", "request_id")
    rest = {name: value for name, value in told.items() if name not in ours}
    return dumped({"event": kind, "ts": round(ts, 6), **rest})


class HitLine:
    """The line of all hits at once of one stored answer by one team: made once, then what differs is filled in.

    A fill takes 0.3 us, `line` 5 (CPython 3.11). The moment is whole milliseconds, as nginx's `$msec`: three digits more take
    another 0.15 us.
    """

    __slots__ = ("_form", "_is_stream")

    def __init__(self, served: Served) -> None:
        """`served` is one such hit; of its moment, id and times only whether there was a first token is looked at."""
        rest = dumped(_rest(served)).replace(b"%", b"%%")
        self._is_stream = served.ttft_ms is not None
        ttft = b'"ttft_ms":%.3f,' if self._is_stream else b""
        # the order of `line`, so that a log reads alike throughout
        self._form = b'{"ts":%.3f,"request_id":"%b",' + ttft + b'"latency_ms":%.3f,' + rest[1:]

    def __len__(self) -> int:
        """Bytes that it holds."""
        return len(self._form)

    def fill(self, ts: float, request_id: bytes, took_ms: float) -> bytes:
        """One hit's line. The id is of our own making, letters, digits and `-`: a client's would have to be escaped."""
        if self._is_stream:
            return self._form % (ts, request_id, took_ms, took_ms)
        return self._form % (ts, request_id, took_ms)


def dumped(fields: Mapping[str, Any]) -> bytes:
    """One line of JSON that a terminal shows and does not obey."""
    try:
        data = orjson.dumps(fields, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # half of a surrogate pair, a whole number of more than 64 bits, a name that is no text
        data = _dumped_slowly(fields)
    if data.isascii() and b"\x7f" not in data:
        return data
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode()).encode()


def _dumped_slowly(fields: Mapping[str, Any]) -> bytes:
    sound = {
        str(name): None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }
    text = json.dumps(sound, ensure_ascii=False, default=str, skipkeys=True)
    return _HALVES.sub("?", text).encode() + b"\n"


def _rest(served: Served) -> dict[str, Any]:
    """All but what differs from hit to hit."""
    told: dict[str, Any] = {
        "team": served.team or None,
        "method": served.method,
        "path": served.path or None,
        "endpoint": served.endpoint or None,
        "model": served.model,
        "stream": served.stream,
        "status": served.status,
        "cache": served.cache,
        "layer": served.layer,
        "bypass": served.bypass,
        "new": served.new,
        "stored": served.stored or None,
        "prompt_tokens": served.prompt_tokens,
        "completion_tokens": served.output_tokens,
        "cached_tokens": served.cached_tokens,
        "tpot_ms": _short(served.tpot_ms),
        "queue_ms": _short(served.queue_ms),
        "finish_reason": served.finish_reason,
        "upstream": served.upstream,
        "error_kind": error_kind(served),
        "left": served.left or None,
        "event": None if served.rejected is None else "rejection",
        "rejected": served.rejected,
        "retry_after_s": _short(served.retry_after_s),
        "body_bytes": served.body_bytes,
        "exact_key": served.exact_key,
        "request_key": served.request_key,
        "prompt_key": served.prompt_key,
    }
    notes = {name: value for name, value in served.notes.items() if name not in OWN}
    return {**notes, **_known(told)}


def _known(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if value is not None or name in ALWAYS}


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
