"""What a request's Served says of its answer, from what was sent, from the call and from what was stored. Pure."""

from toolkit.proxy.calls.call import Call
from toolkit.proxy.exchange import Kept, Served
from toolkit.proxy.http.sending import Sent


def note_sent(served: Served, sent: Sent, taken_s: float) -> None:
    """Times and end; `taken_s`: when the request was whole, by the same clock."""
    served.status, served.left = sent.status, sent.left
    if sent.first_token_s is not None:
        served.ttft_ms = (sent.first_token_s - taken_s) * 1000
    if sent.status is not None:
        served.latency_ms = (sent.end_s - taken_s) * 1000
    if sent.fault is not None:
        served.error_kind = sent.fault.kind
    if sent.rejection is not None:
        served.rejected = sent.rejection.reason
        served.retry_after_s = sent.retry_after_s


def note_kept(served: Served, kept: Kept) -> None:
    """What a stored answer holds."""
    served.status = 200
    served.prompt_tokens, served.output_tokens = kept.prompt_tokens, kept.output_tokens
    served.finish_reason = kept.finish_reason


def note_call(served: Served, call: Call, *, was_shared: bool) -> None:
    """What the call brought. What it cost, a slot and an upstream's work, is told of who led it alone."""
    served.upstream = call.upstream
    if call.is_fallback:
        served.notes["fallback"] = True
    recorded = call.recorded
    answer = recorded.answer if recorded is not None else None
    if answer is not None:
        served.prompt_tokens, served.output_tokens = answer.prompt_tokens, answer.output_tokens
        served.finish_reason = answer.finish_reason
        if served.error_kind is None and served.status == 200:
            served.error_kind = answer.error_kind
    elif recorded is not None and recorded.kept is not None:
        served.prompt_tokens = recorded.kept.prompt_tokens
        served.output_tokens = recorded.kept.output_tokens
        served.finish_reason = recorded.kept.finish_reason
    if was_shared:
        return
    served.queue_ms, served.stored = call.queue_ms, call.stored
    if answer is not None:
        served.cached_tokens = answer.cached_tokens
        served.tpot_ms = None if answer.tpot_s is None else answer.tpot_s * 1000
    if call.retries:
        served.notes["retries"] = call.retries
