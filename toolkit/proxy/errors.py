"""Errors, in fixed lists: faults of calls upstream, rejections of requests, and their JSON. Pure.

A kind or reason is a metric's label, so there is none but these. No message holds any of a request, nor an address.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

JSON: Final = (b"content-type", b"application/json")

# --- calls upstream that fail --------------------------------------------------------------------------

FaultKind = Literal[
    "connect",
    "tls",
    "cut",
    "garbage",
    "busy",
    "stuck",
    "no_upstream",
    "timeout_connect",
    "timeout_first_token",
    "timeout_gap",
    "timeout_whole",
    "draining",
    "ours",
]

FAULTS: Final[dict[FaultKind, tuple[int, str]]] = {
    # kind: (status while nothing was sent yet, what it is)
    "connect": (502, "no connection to the upstream"),
    "tls": (502, "a connection without the TLS that was asked for"),
    "cut": (502, "the upstream's connection ended before the answer did"),
    "garbage": (502, "what came is no HTTP"),
    "busy": (503, "the upstream is busy"),
    "stuck": (504, "the upstream stands still"),
    "no_upstream": (503, "no upstream can be asked"),
    "timeout_connect": (504, "no connection to the upstream in time"),
    "timeout_first_token": (504, "the first token did not come in time"),
    "timeout_gap": (504, "the answer stood still for too long"),
    "timeout_whole": (504, "the whole answer took too long"),
    "draining": (503, "the proxy is shutting down"),
    "ours": (500, "a fault of the proxy's own, or of its machine"),
}
"""Each kind of a call's error. What an upstream answers by itself, a 500 too, is its answer and no error of the call."""

TRIES_ANOTHER: Final = frozenset(
    {"connect", "tls", "cut", "garbage", "busy", "stuck", "timeout_connect"}
)
"""Faults before the first byte after which another upstream is asked. Not a deadline of ours: the client's time is used up,
and a prompt that one engine can't digest would be handed round."""


class Fault(Exception):  # noqa: N818 (as a rule it is handed on, and raised to who waits for a page)
    """Why a call upstream ended without its whole answer."""

    def __init__(self, kind: FaultKind, message: str | None = None) -> None:
        """`message`: one sentence for the client that names no address; None: in the words of its kind."""
        # `status`: what a client gets to whom nothing was sent yet
        self.kind, (self.status, words) = kind, FAULTS[kind]
        self.message = message or words
        super().__init__(self.message)


# --- requests that are turned away ---------------------------------------------------------------------

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
"""`..._too_slow`: the queue can't be served before its deadline, so it never waited; `..._expired`: it waited until then."""
WORDS = {
    "queue_full": "the queue of {whose} is full",
    "too_slow": "the queue of {whose} can't be served in time",
    "expired": "no slot of {whose} became free in time",
    "no_upstream": "no upstream can be asked",
    "restarting": "the engine is being started again",
    "draining": "the proxy is about to stop",
}
"""Of those that are rejected with 429 for a team's limit, else with 503."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A boundary that was held: the request was not served, and nothing failed."""

    reason: Reason
    """A metric's label."""
    status: int
    """429: the team's limit. 503: the system's. 400, 404, 413: what was asked."""
    message: str
    retry_after_s: float | None = None
    kind: str | None = None
    """The error's `type`; None: by its status."""
    param: str | None = None
    """Which field of the request it is about."""


def rejection_of(reason: Reason, team: str, after_s: float | None = None) -> Rejection:
    """A rejection in its own words, with the time after which to ask again where one is known."""
    is_teams = reason.startswith("team_")
    whose = f"team `{team}`" if is_teams else "the system"
    text = WORDS[reason.removeprefix("team_")].format(whose=whose)
    status = 429 if is_teams else 503
    return Rejection(reason=reason, status=status, message=text, retry_after_s=after_s)


def unknown_model(model: str, served: Sequence[str]) -> Rejection:
    """As vLLM says it (0.32)."""
    text = f"The model `{model}` does not exist. Valid aliases: {', '.join(served)}."
    return Rejection(
        reason="unknown_model", status=404, message=text, kind="NotFoundError", param="model"
    )


# --- in the form that OpenAI's clients read ------------------------------------------------------------

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    502: "upstream_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(
    status: int, message: str, type_: str | None = None, param: str | None = None
) -> bytes:
    """A whole body, e.g., `{"error": {"message": "The queue is full", "type": "overloaded_error", ...}}`."""
    kind = KINDS.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    # orjson refuses half a surrogate pair, and an error must not fail
    error = {"message": message, "type": type_ or kind, "param": param, "code": status}
    return json.dumps({"error": error}).encode()


def error_event(status: int, message: str) -> bytes:
    """The same as an event, for a stream that has begun: clients of OpenAI's raise it."""
    return b"data: " + error_body(status, message) + b"\n\n"
