"""One request's times and its answer -> its record. Pure arithmetic: the clock was read elsewhere."""

from dataclasses import dataclass, replace

from toolkit.bench.requests import PlannedRequest
from toolkit.protocol.completion import Answer
from toolkit.records import RequestRecord
from toolkit.stats import Sketch


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """What all requests to one host, at one level of one run, have in common."""

    run: str
    name: str
    url: str
    concurrency: int | None
    """None: open loop, in which latencies count from the planned send."""
    wall_offset_s: float
    """Wall clock - monotonic clock, read once a run: a step of the wall clock moves no request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why there is no answer."""

    kind: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What came back, if anything."""

    answer: Answer | None = None
    failure: Failure | None = None
    """What went wrong outside the answer; it counts before the answer's own fault."""
    status: int | None = None
    cache_status: str | None = None


def request_record(
    context: RequestContext,
    request: PlannedRequest,
    response: Response,
    *,
    planned_s: float,
    sent_s: float | None,
    ended_s: float | None,
) -> RequestRecord:
    """Put a request's facts together; times are seconds of the monotonic clock, `sent_s` None: it never left."""
    # in an open loop latencies count from the planned send, unless a timer's grain let it leave earlier
    start_s = planned_s
    if sent_s is not None:
        start_s = min(planned_s, sent_s) if context.concurrency is None else sent_s

    def ms(end_s: float | None, since_s: float = start_s) -> float | None:
        return None if end_s is None else (end_s - since_s) * 1000

    answer, failure = response.answer, response.failure
    if failure is None and answer is not None and not answer.ok:
        kind, error = answer.error_kind or "garbage", answer.error or "no reason given"
        failure = Failure(kind=kind, error=error)
    record = RequestRecord(
        run=context.run,
        name=context.name,
        url=context.url,
        slot=request.slot,
        kind=request.kind,
        pair=request.pair,
        prompt=request.prompt,
        concurrency=context.concurrency,
        stream=request.stream,
        max_tokens=request.max_tokens,
        ignore_eos=request.body.get("ignore_eos"),
        planned_at=planned_s + context.wall_offset_s,
        sent_at=None if sent_s is None else sent_s + context.wall_offset_s,
        send_lag_ms=ms(sent_s, planned_s),
        took_ms=ms(ended_s),
        ok=failure is None,
        error_kind=failure.kind if failure else None,
        error=failure.error if failure else None,
        status_code=response.status,
        cache_status=response.cache_status,
    )
    if answer is None:
        return record
    gaps = Sketch()
    for gap_s, tokens in answer.gaps:
        gaps.add(gap_s * 1000 / tokens)
    return replace(
        record,
        ttft_ms=ms(answer.first_token_at),
        ttft_visible_ms=ms(answer.first_visible_at),
        e2e_ms=ms(answer.e2e_end_at),
        tpot_ms=None if answer.tpot_s is None else answer.tpot_s * 1000,
        itl=gaps.to_bytes() if answer.gaps else None,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.output_tokens,
        output_tokens_estimated=answer.output_tokens_estimated,
        cached_tokens=answer.cached_tokens,
        token_chunks=answer.token_chunks,
        text_chars=answer.text_chars,
        text_hash=answer.text_hash,
        finish_reason=answer.finish_reason,
        model=answer.model,
        answer_id=answer.answer_id,
    )
