"""What a connection threw -> the kind of a failure, and one sentence about it. It knows aiohttp's exceptions and asks nobody.

Sentences go to a terminal and into the store: one printable line each, and never a key.
"""

import os
import ssl
from dataclasses import replace
from typing import Any

import aiohttp
from aiohttp.http_exceptions import ContentEncodingError

from toolkit.bench.request_record import Failure
from toolkit.records import RequestRecord
from toolkit.safe_text import printable
from toolkit.scout.problems import OURS, tls_problem

FAULTS = (aiohttp.ClientError, OSError, ValueError, RuntimeError)
"""What aiohttp and the event loops raise when the other side is at fault. TimeoutError is an OSError; a RuntimeError
comes of a connection that ends in the wrong moment."""

MOST_CHARACTERS = 300
QUOTED_FIELDS = ("error", "finish_reason", "model", "answer_id", "cache_status")
"""Fields of a record that hold the host's own words."""
LEAST_OF_A_KEY = 4
"""Fewer of a key's first characters tell nothing."""


def failure(error: BaseException, *, key: str | None, connect_s: float, whole_s: float) -> Failure:
    """Name one of FAULTS, the special ones first; `connect_s` and `whole_s` are the time limits that it may have met."""
    # aiohttp wraps a fault of compression in one or two others
    cause = error.__cause__
    while cause is not None and not isinstance(cause, ContentEncodingError):
        cause = cause.__cause__
    kind = "garbage"
    match cause or error:
        case aiohttp.ConnectionTimeoutError():
            kind, why = "connect", f"no connection within {connect_s:g} s"
        case TimeoutError():
            kind, why = "timeout", f"no whole answer within {whole_s:g} s"
        case aiohttp.ClientConnectorCertificateError(certificate_error=fault):
            why = getattr(fault, "verify_message", "") or str(fault)
            kind, why = "tls", f"TLS certificate not trusted: {why}"
        case aiohttp.ClientSSLError(os_error=tls_error) | (ssl.SSLError() as tls_error):
            kind, why = "tls", tls_problem(getattr(tls_error, "reason", None))
        case aiohttp.ClientConnectorDNSError(os_error=fault):
            why = OURS.get(fault.errno or 0) or "the name does not resolve to an address"
            kind, why = "connect", f"no connection: {why}"
        case aiohttp.ClientConnectorError(os_error=fault):
            kind, why = "connect", f"no connection: {reason(fault)}"
        case aiohttp.ServerDisconnectedError():
            kind, why = "cut", "the connection was closed before an answer came"
        case aiohttp.ClientPayloadError():
            kind, why = "cut", "the connection was closed in the middle of the answer"
        case OSError() as fault:
            kind, why = "cut", f"the connection broke: {reason(fault)}"
        case aiohttp.ClientResponseError(message=message):
            why = f"no HTTP answer: {message}"
        case ContentEncodingError():
            why = "the answer is compressed, which was not asked for, and cannot be unpacked"
        case _:
            why = str(error) or type(error).__name__
    return Failure(kind=kind, error=line(hidden(why, key)))


def hidden(text: str, key: str | None) -> str:
    """The text without the key, and without as much of it as was left when somebody cut the text."""
    if not key:
        return text
    text = text.replace(key, "***")
    end = text.removesuffix("…")
    for length in range(min(len(key), len(end)), LEAST_OF_A_KEY - 1, -1):
        if end.endswith(key[:length]):
            return f"{end[:-length]}***"
    return text


def without_key(record: RequestRecord, key: str | None) -> RequestRecord:
    """Take the key out of whatever the host repeats it in."""
    if not key:
        return record
    quoted = {name: text for name in QUOTED_FIELDS if (text := getattr(record, name))}
    clean: dict[str, Any] = {name: hidden(text, key) for name, text in quoted.items()}
    return record if clean == quoted else replace(record, **clean)


def line(text: str) -> str:
    """One printable line of bounded length: an escape sequence must not reach a terminal, nor half a character the store."""
    return printable(" ".join(text[: 4 * MOST_CHARACTERS].split()))[:MOST_CHARACTERS]


def reason(error: OSError) -> str:
    """Why, in the system's words; the event loop puts an address into its own: `Connect call failed ('127.0.0.1', 9)`."""
    if error.errno in OURS:
        return OURS[error.errno]
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error) or type(error).__name__).lower()
