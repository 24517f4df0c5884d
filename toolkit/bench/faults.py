"""What a connection threw -> the kind of a failure, and one sentence about it. It knows aiohttp's exceptions and asks nobody.

Sentences go to a terminal and into the store: one printable line each, and never a key.
"""

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from aiohttp.http_exceptions import ContentEncodingError

from toolkit.bench.shots import Failure
from toolkit.records import Shot
from toolkit.safe_text import printable
from toolkit.scout.problems import OURS, tls_problem

FAULTS = (aiohttp.ClientError, OSError, ValueError, RuntimeError)
"""What aiohttp and the event loops raise when the other side is at fault. TimeoutError is an OSError; a RuntimeError
comes of a connection that ends in the wrong moment."""

TOLD_CHARACTERS = 300
TOLD = ("error", "finish_reason", "model", "answer_id", "cache_status")
"""Fields of a Shot that hold the host's own words."""
LEAST_OF_A_KEY = 4
"""Fewer of a key's first characters tell nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """What a request may take, in seconds."""

    connect_s: float
    whole_s: float


def failure(error: BaseException, limits: Timeouts, key: str | None) -> Failure:
    """Tell one of FAULTS: the first of KINDS that it is."""
    error = _compressed(error) or error
    kind, told = next((kind, told) for types, kind, told in KINDS if isinstance(error, types))
    return Failure(kind=kind, error=line(hidden(told(error, limits), key)))


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


def without_key(timed: Shot, key: str | None) -> Shot:
    """Take the key out of whatever the host repeats it in."""
    if not key:
        return timed
    told = {name: text for name in TOLD if (text := getattr(timed, name))}
    clean: dict[str, Any] = {name: hidden(text, key) for name, text in told.items()}
    return timed if clean == told else replace(timed, **clean)


def line(text: str) -> str:
    """One printable line of bounded length: an escape sequence must not reach a terminal, nor half a character the store."""
    return printable(" ".join(text[: 4 * TOLD_CHARACTERS].split()))[:TOLD_CHARACTERS]


def _compressed(error: BaseException) -> BaseException | None:
    """The fault behind it, if that is a compression; aiohttp wraps it in one or two others."""
    cause = error.__cause__
    while cause is not None and not isinstance(cause, ContentEncodingError):
        cause = cause.__cause__
    return cause


def _late(_: BaseException, limits: Timeouts) -> str:
    return f"no whole answer within {limits.whole_s:g} s"


def _no_name(error: aiohttp.ClientConnectorDNSError, _: Timeouts) -> str:
    ours = OURS.get(error.os_error.errno or 0)
    return f"no connection: {ours or 'the name does not resolve to an address'}"


def _not_connected(error: aiohttp.ClientConnectorError, _: Timeouts) -> str:
    return f"no connection: {reason(error.os_error)}"


def reason(error: OSError) -> str:
    """Why, in the system's words; the event loop puts an address into its own: `Connect call failed ('127.0.0.1', 9)`."""
    if error.errno in OURS:
        return OURS[error.errno]
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error) or type(error).__name__).lower()


def _untrusted(error: aiohttp.ClientConnectorCertificateError, _: Timeouts) -> str:
    why = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
    return f"TLS certificate not trusted: {why}"


def _no_tls(error: BaseException, _: Timeouts) -> str:
    return tls_problem(getattr(getattr(error, "os_error", error), "reason", None))


def _no_http(error: aiohttp.ClientResponseError, _: Timeouts) -> str:
    return f"no HTTP answer: {error.message}"


def _as_told(error: BaseException, _: Timeouts) -> str:
    return str(error) or type(error).__name__


KINDS: tuple[tuple[type[BaseException], str, Callable[[Any, Timeouts], str]], ...] = (
    (
        aiohttp.ConnectionTimeoutError,
        "connect",
        lambda _, limits: f"no connection within {limits.connect_s:g} s",
    ),
    (TimeoutError, "timeout", _late),
    (aiohttp.ClientConnectorCertificateError, "tls", _untrusted),
    (aiohttp.ClientSSLError, "tls", _no_tls),
    (ssl.SSLError, "tls", _no_tls),
    (aiohttp.ClientConnectorDNSError, "connect", _no_name),
    (aiohttp.ClientConnectorError, "connect", _not_connected),
    (
        aiohttp.ServerDisconnectedError,
        "cut",
        lambda *_: "the connection was closed before an answer came",
    ),
    (
        aiohttp.ClientPayloadError,
        "cut",
        lambda *_: "the connection was closed in the middle of the answer",
    ),
    (OSError, "cut", lambda error, _: f"the connection broke: {reason(error)}"),
    (aiohttp.ClientResponseError, "garbage", _no_http),
    (
        ContentEncodingError,
        "garbage",
        lambda *_: "the answer is compressed, which was not asked for, and cannot be unpacked",
    ),
    (BaseException, "garbage", _as_told),
)
"""Type, kind and sentence of each failure, the special ones first."""
