"""One request's moments and its answer -> a Shot. Pure arithmetic: the clock was read elsewhere."""

from dataclasses import dataclass
from typing import Any

from toolkit.bench.asks import PlannedRequest
from toolkit.protocol.completion import Answer
from toolkit.records import Shot
from toolkit.stats import Sketch


@dataclass(frozen=True, slots=True, kw_only=True)
class ShotContext:
    """What all shots at one host, at one level of one run, have in common."""

    run: str
    name: str
    url: str
    concurrency: int | None
    """None: open loop, in which latencies count from the planned send."""
    wall_offset_s: float
    """Wall clock - monotonic clock, read once a run: a step of the wall clock moves no shot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """When things happened, seconds of the monotonic clock."""

    planned_s: float
    sent_s: float | None
    """None: it never left."""
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why there is no answer."""

    kind: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What came back, if anything."""

    answer: Answer | None = None
    failure: Failure | None = None
    """What went wrong outside the answer; it counts before the answer's own fault."""
    status: int | None = None
    cache_status: str | None = None


def shot(course: ShotContext, ask: PlannedRequest, moments: Moments, heard: Heard) -> Shot:
    """Put a request's facts together."""
    start_s = _start_s(course, moments)
    fault = heard.failure or _fault(heard.answer)
    return Shot(
        run=course.run,
        name=course.name,
        url=course.url,
        slot=ask.slot,
        kind=ask.kind,
        pair=ask.pair,
        prompt=ask.prompt,
        concurrency=course.concurrency,
        stream=ask.stream,
        max_tokens=ask.max_tokens,
        ignore_eos=ask.body.get("ignore_eos"),
        planned_at=moments.planned_s + course.wall_offset_s,
        sent_at=None if moments.sent_s is None else moments.sent_s + course.wall_offset_s,
        send_lag_ms=_ms(moments.planned_s, moments.sent_s),
        took_ms=_ms(start_s, moments.ended_s),
        ok=fault is None,
        error_kind=fault.kind if fault else None,
        error=fault.error if fault else None,
        status_code=heard.status,
        cache_status=heard.cache_status,
        **(_told(heard.answer, start_s) if heard.answer else {}),
    )


def _start_s(course: ShotContext, moments: Moments) -> float:
    """Where latencies count from: in an open loop the planned send, unless a timer's grain let it leave earlier."""
    if moments.sent_s is None:
        return moments.planned_s
    if course.concurrency is not None:
        return moments.sent_s
    return min(moments.planned_s, moments.sent_s)


def _fault(answer: Answer | None) -> Failure | None:
    if answer is None or answer.ok:
        return None
    return Failure(kind=answer.error_kind or "garbage", error=answer.error or "no reason given")


def _told(answer: Answer, start_s: float) -> dict[str, Any]:
    """What the answer itself says, in a Shot's words; latencies in milliseconds since `start_s`."""
    return {
        "ttft_ms": _ms(start_s, answer.first_token_at),
        "ttft_visible_ms": _ms(start_s, answer.first_visible_at),
        "e2e_ms": _ms(start_s, answer.last_token_at if answer.streamed else answer.ended_at),
        "tpot_ms": None if answer.tpot_s is None else answer.tpot_s * 1000,
        "itl": _gaps(answer),
        "prompt_tokens": answer.prompt_tokens,
        "output_tokens": answer.output_tokens,
        "output_tokens_estimated": answer.output_tokens_estimated,
        "cached_tokens": answer.cached_tokens,
        "token_chunks": answer.token_chunks,
        "text_chars": answer.text_chars,
        "text_hash": answer.text_hash,
        "finish_reason": answer.finish_reason,
        "model": answer.model,
        "answer_id": answer.answer_id,
    }


def _gaps(answer: Answer) -> bytes | None:
    if not answer.gaps:
        return None
    sketch = Sketch()
    for gap_s, tokens in answer.gaps:
        sketch.add(gap_s * 1000 / tokens)
    return sketch.to_bytes()


def _ms(start_s: float, end_s: float | None) -> float | None:
    return None if end_s is None else (end_s - start_s) * 1000
