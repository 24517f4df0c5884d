"""What connections throw, in words; and keys, which are in none of them."""

import errno
import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.http_exceptions import ContentEncodingError

from toolkit.bench.faults import FAULTS, failure, hidden, line

LIMITS = {"connect_s": 10.0, "whole_s": 120.0}
TO = ConnectionKey("10.0.0.4", 8000, True, True, None, None, None)
KEY = "sk-proj-0123456789abcdef"


def packed() -> Exception:
    """As aiohttp raises it: two wrappers around the cause."""
    outer, inner = aiohttp.ClientPayloadError("400"), ValueError("x")
    inner.__cause__ = ContentEncodingError("gzip")
    outer.__cause__ = inner
    return outer


def untrusted() -> Exception:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return aiohttp.ClientConnectorCertificateError(TO, error)


def unconnected(error: OSError) -> Exception:
    return aiohttp.ClientConnectorError(TO, error)


COMPRESSED = "the answer is compressed, which was not asked for, and cannot be unpacked"
CASES = [
    (aiohttp.ConnectionTimeoutError("x"), "connect", "no connection within 10 s"),
    (TimeoutError(), "timeout", "no whole answer within 120 s"),
    (unconnected(OSError(errno.ECONNREFUSED, "('x', 9)")), "connect", "no connection: connection refused"),
    (unconnected(OSError(errno.EMFILE, "x")), "connect",
     "no connection: this machine is out of open files; raise `ulimit -n`"),
    (unconnected(OSError(errno.EADDRNOTAVAIL, "x")), "connect",
     "no connection: this machine is out of ports towards that address"),
    # as uvloop raises it: without a number and without a word
    (unconnected(ConnectionResetError()), "connect", "no connection: connectionreseterror"),
    (aiohttp.ClientConnectorDNSError(TO, OSError(-2, "Name or service not known")), "connect",
     "no connection: the name does not resolve to an address"),
    (aiohttp.ClientConnectorSSLError(TO, ssl.SSLError(1, "x")), "tls", "TLS failed: no reason given"),
    (ssl.SSLError(1, "bad record"), "tls", "TLS failed: no reason given"),
    (untrusted(), "tls", "TLS certificate not trusted: self-signed certificate"),
    (aiohttp.ClientOSError(errno.ECONNRESET, "x"), "cut", "the connection broke: connection reset by peer"),
    (packed(), "garbage", COMPRESSED),
    (ValueError("odd"), "garbage", "odd"),
    (RuntimeError(), "garbage", "RuntimeError"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "kind", "sentence"), CASES, ids=lambda value: repr(value)[:40])
def test_each_fault_has_a_kind_and_a_sentence(error: Exception, kind: str, sentence: str) -> None:
    assert isinstance(error, FAULTS)
    told = failure(error, key=None, **LIMITS)
    assert (told.kind, told.error) == (kind, sentence)


def test_a_sentence_holds_no_key() -> None:
    assert failure(ValueError(f"no {KEY} here"), key=KEY, **LIMITS).error == "no *** here"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nothing", "nothing"),
        (f"{KEY} and {KEY}", "*** and ***"),
        (f"cut in {KEY[:10]}…", "cut in ***"),
        (f"cut in {KEY[:10]}", "cut in ***"),
        (f"cut in {KEY[:4]}", "cut in ***"),
        # three characters tell nothing, and may be anybody's
        (f"cut in {KEY[:3]}", f"cut in {KEY[:3]}"),
        (KEY[:10], "***"),
        ("", ""),
    ],
)
def test_a_key_is_hidden_whole_or_in_part(text: str, expected: str) -> None:
    assert hidden(text, KEY) == expected


def test_without_a_key_nothing_is_hidden() -> None:
    assert hidden("sk-proj", None) == "sk-proj"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("two\r\nlines\t here", "two lines here"),
        ("red \x1b[31m", "red ?[31m"),
        ("half \udcff", "half ?"),
        ("é", "é"),
        ("x" * 400, "x" * 300),
        (" " * 5000 + "late", ""),
    ],
)
def test_a_line_is_printable_and_short(text: str, expected: str) -> None:
    assert line(text) == expected
