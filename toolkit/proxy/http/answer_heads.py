"""The bytes before an answer's body. No clock, no socket."""

from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from toolkit.proxy.exchange import Headers

OURS: Final = frozenset(
    (
        b"connection",
        b"content-length",
        b"date",
        b"keep-alive",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Framing is the front's: a header of one of these names in an answer is left out, and the front's own stands there."""
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
CLOSE: Final = b"connection: close\r\n"
KEEP: Final = b"connection: keep-alive\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"

_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_BREAKS: Final = bytes.maketrans(b"\r\n\0", b"   ")


def date_line(second: int) -> bytes:
    """The Date header of a whole second since 1970, with its line end."""
    return f"date: {formatdate(second, usegmt=True)}\r\n".encode()


def answer_head(
    status: int, headers: Headers, *, date: bytes, body: bytes = b"", connection: bytes = b""
) -> bytes:
    """An answer's first line and headers; `body` and `connection` are the lines that frame it."""
    parts = [_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, date]
    parts += [_line(name, value) for name, value in headers if name not in OURS]
    parts += [body, connection, b"\r\n"]
    return b"".join(parts)


def has_body(status: int) -> bool:
    """Whether an answer of this status may have a body at all (RFC 9110, 6.4.1)."""
    return status >= 200 and status not in (204, 304)


def _line(name: bytes, value: bytes) -> bytes:
    line = b"%b: %b" % (name, value)
    # a break inside would end the header: whoever wrote the value would write the answer
    if b"\n" in line or b"\r" in line or b"\0" in line:
        line = line.translate(_BREAKS)
    return line + b"\r\n"
