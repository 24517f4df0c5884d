"""Why a request may be turned away, with which status and which words. A boundary that was held, not a failure."""

from collections.abc import Sequence
from typing import Literal, get_args

from toolkit.proxy.exchange import Rejection

Reason = Literal[
    "prompt_too_long",
    "output_too_long",
    "team_queue_full",
    "team_too_slow",
    "team_expired",
    "queue_full",
    "too_slow",
    "expired",
    "no_upstream",
    "restarting",
    "unknown_model",
    "draining",
]
REJECTIONS: tuple[Reason, ...] = get_args(Reason)
"""`..._too_slow`: the queue can't be served before its deadline, so it never waited; `..._expired`: it waited until then. The
last four are told by who knows of upstreams and of stopping."""
STATUS: dict[Reason, int] = {
    "prompt_too_long": 413,
    "output_too_long": 400,
    "team_queue_full": 429,
    "team_too_slow": 429,
    "team_expired": 429,
    "queue_full": 503,
    "too_slow": 503,
    "expired": 503,
    "no_upstream": 503,
    "restarting": 503,
    "unknown_model": 404,
    "draining": 503,
}
WORDS = {
    "queue_full": "the queue of {whose} is full",
    "too_slow": "the queue of {whose} can't be served in time",
    "expired": "no slot of {whose} became free in time",
    "no_upstream": "no upstream can be asked",
    "restarting": "the engine is being started again",
    "unknown_model": "the model does not exist",
    "draining": "the proxy is about to stop",
}


def rejection_of(reason: Reason, team: str, after_s: float | None = None) -> Rejection:
    """A rejection in its own words, with the time after which to ask again where one is known."""
    whose = f"team `{team}`" if reason.startswith("team_") else "the system"
    text = WORDS[reason.removeprefix("team_")].format(whose=whose)
    return Rejection(reason=reason, status=STATUS[reason], message=text, retry_after_s=after_s)


def unknown_model(model: str, served: Sequence[str]) -> Rejection:
    """As vLLM says it (0.32)."""
    return Rejection(
        reason="unknown_model",
        status=STATUS["unknown_model"],
        message=f"The model `{model}` does not exist. Valid aliases: {', '.join(served)}.",
        kind="NotFoundError",
        param="model",
    )


def too_long(
    *,
    prompt_tokens: int | None,
    output_tokens: int | None,
    most_prompt: int | None,
    most_output: int | None,
) -> Rejection | None:
    """Why a request asks for more than it may; what is unknown or unlimited passes."""
    if most_prompt is not None and prompt_tokens is not None and prompt_tokens > most_prompt:
        text = f"the prompt has about {prompt_tokens:,} tokens, allowed are {most_prompt:,}"
        return Rejection(reason="prompt_too_long", status=413, message=text)
    if most_output is not None and output_tokens is not None and output_tokens > most_output:
        text = f"{output_tokens:,} output tokens are asked for, allowed are {most_output:,}"
        return Rejection(reason="output_too_long", status=400, message=text)
    return None
