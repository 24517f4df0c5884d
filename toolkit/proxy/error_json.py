"""Errors of our own, in the form that OpenAI's clients read. Pure; it never tells what a request held."""

import json

CONTENT_TYPE = (b"content-type", b"application/json")

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    502: "upstream_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def kind(status: int) -> str:
    """The error's `type`: OpenAI's name for a status."""
    return KINDS.get(status) or ("invalid_request_error" if status < 500 else "api_error")


def error_body(
    status: int, message: str, type_: str | None = None, param: str | None = None
) -> bytes:
    """A whole body, e.g., `{"error": {"message": "The queue is full", "type": "overloaded_error", ...}}`."""
    # orjson refuses half a surrogate pair, and an error must not fail
    error = {"message": message, "type": type_ or kind(status), "param": param, "code": status}
    return json.dumps({"error": error}).encode()


def error_event(status: int, message: str) -> bytes:
    """The same as an event, for a stream that has begun: clients of OpenAI's raise it."""
    return b"data: " + error_body(status, message) + b"\n\n"
