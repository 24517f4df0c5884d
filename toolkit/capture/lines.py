"""One captured request as one line of JSON: what `--json` prints and `--jsonl` writes.

The first keys are promised, in this order; unknown is null. A body stands in a line only where it is handed in.
"""

import base64
import json
from typing import Any, NamedTuple

import orjson

from toolkit.records import Asked, Seen

PREVIEW_CHARS = 80
NOTHING_ASKED = Asked(exact_key="", body_bytes=0)


class NumberedRequest(NamedTuple):
    """One request, and what it was in the order of arrival."""

    seen: Seen
    new: bool | None
    """Whether its prompt came for the first time; None: it has none, or that is not known any more."""
    unique_so_far: int
    """Different prompts up to here, this one included."""
    body: bytes | None = None
    """Only where the user asked to see bodies."""


def line(arrived: NumberedRequest, *, with_body: bool = False) -> bytes:
    """One object and a newline."""
    told = as_object(arrived)
    if with_body:
        told["body"] = None
        if arrived.body is not None:
            # what is no UTF-8 stands there in full as base64, too
            told["body"] = arrived.body.decode(errors="replace")
            if told["body"].encode() != arrived.body:
                told["body_base64"] = base64.b64encode(arrived.body).decode()
    try:
        return orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # a lone surrogate, or an integer beyond 64 bits: JSON has both, orjson has not
        return json.dumps(told).encode() + b"\n"


def as_object(arrived: NumberedRequest) -> dict[str, Any]:
    """The object, without the body; the promised keys come first."""
    seen = arrived.seen
    asked = seen.asked or NOTHING_ASKED
    text = asked.prompt_text
    return {
        "ts": seen.ts,
        "client": seen.client,
        "method": seen.method,
        "path": seen.path,
        "model": asked.model,
        "stream": asked.stream,
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "prompt_key": asked.prompt_key,
        "exact_key": asked.exact_key or None,
        "new": arrived.new,
        "unique_so_far": arrived.unique_so_far,
        "prompt_chars": asked.prompt_chars,
        "prompt_preview": None if text is None else text[:PREVIEW_CHARS],
        "damaged": seen.damaged,
        "request_key": asked.request_key,
        "server": seen.server,
        "took_ms": seen.took_ms,
        "problem": seen.problem or asked.problem,
        "status": seen.status,
        "ttft_ms": seen.ttft_ms,
        "latency_ms": seen.latency_ms,
        # by the answer's usage; else by the request, where its prompt came as token ids
        "prompt_tokens": asked.prompt_tokens if seen.prompt_tokens is None else seen.prompt_tokens,
        "cached_tokens": seen.cached_tokens,
        "output_tokens": seen.output_tokens,
        "finish_reason": seen.finish_reason,
        "in_flight": seen.in_flight,
        "body_bytes": None if seen.asked is None else asked.body_bytes,
        "top_p": asked.top_p,
        "n": asked.n,
        "seed": asked.seed,
        "options": None if seen.asked is None else asked.options,
        "messages": asked.messages,
        "images": None if seen.asked is None else asked.images,
    }
