"""What a body holds under its Content-Encoding: gzip, deflate, br, zstd, several of them one around the other.

It never grows a body beyond the limit it is given: a few kilobytes may stand for gigabytes.
"""

import zlib
from collections.abc import Callable

import brotli  # type: ignore[import-untyped]
import zstandard

CODINGS = 4
"""Encodings one around the other; nobody sends two, and each costs a body of the limit's size."""

WINDOW_BYTES = 8 * 1024 * 1024
"""Largest window of a zstd frame: its sender chooses it, the decoder allocates it, and RFC 9659 allows no more."""

MEMBERS = 16
"""Of one gzip or zstd body; each costs a copy of what follows it, and one of 20 bytes is a whole one."""


class NotDecodedError(ValueError):
    """Its text says why."""


def decoded(body: bytes, encodings: str, limit: int) -> bytes:
    """The body without its encodings, `gzip` or `gzip, br` in the order in which they were applied."""
    names = [name.strip().lower() for name in encodings.split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if len(names) > CODINGS:
        raise NotDecodedError(f"{len(names)} encodings one around the other")
    for name in reversed(names):
        decode = DECODERS.get(name)
        if decode is None:
            raise NotDecodedError("an encoding that is not known here")
        try:
            body = decode(body, limit)
        except (zlib.error, brotli.error, zstandard.ZstdError):
            raise NotDecodedError(f"it is not {name}") from None
        if len(body) > limit:
            raise NotDecodedError(f"it is longer than {limit:,} bytes")
    return body


def _inflate(body: bytes, limit: int, window: int) -> tuple[bytes, bytes]:
    """One member of at most `limit` + 1 bytes, and what comes after it."""
    stream = zlib.decompressobj(window)
    plain = stream.decompress(body, limit + 1)
    if not stream.eof and len(plain) <= limit:
        raise NotDecodedError("its encoding ends early")
    return plain, stream.unused_data


def _gzip(body: bytes, limit: int) -> bytes:
    return _members(body, limit, lambda data, room: _inflate(data, room, zlib.MAX_WBITS | 16))


def _members(body: bytes, limit: int, first: Callable[[bytes, int], tuple[bytes, bytes]]) -> bytes:
    """All members one after the other; more than `limit` bytes only by as much as tells it."""
    members: list[bytes] = []
    size = 0
    while True:
        plain, body = first(body, limit - size)
        members.append(plain)
        size += len(plain)
        if not body or size > limit:
            return b"".join(members)
        if len(members) == MEMBERS:
            raise NotDecodedError(f"it has more than {MEMBERS} members")


def _deflate(body: bytes, limit: int) -> bytes:
    """RFC 9110 means zlib's format; some senders leave its header out."""
    try:
        plain, rest = _inflate(body, limit, zlib.MAX_WBITS)
    except zlib.error:
        plain, rest = _inflate(body, limit, -zlib.MAX_WBITS)
    if rest:
        raise NotDecodedError("bytes follow its encoding's end")
    return plain


def _brotli(body: bytes, limit: int) -> bytes:
    stream = brotli.Decompressor()
    parts = [stream.process(body, output_buffer_limit=limit + 1)]
    size = len(parts[0])
    while size <= limit and not stream.is_finished():
        part = stream.process(b"", output_buffer_limit=limit + 1 - size)
        if not part:
            raise NotDecodedError("its encoding ends early")
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _zstd(body: bytes, limit: int) -> bytes:
    return _members(body, limit, _zstd_frame)


def _zstd_frame(body: bytes, limit: int) -> tuple[bytes, bytes]:
    """One frame, fed in small steps: a block of 4 bytes may stand for 128 KiB, and the decoder knows no limit."""
    stream = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj()
    parts: list[bytes] = []
    size = 0
    for start in range(0, len(body), 64):
        parts.append(stream.decompress(body[start : start + 64]))
        size += len(parts[-1])
        if stream.eof:
            return b"".join(parts), stream.unused_data + body[start + 64 :]
        if size > limit:
            return b"".join(parts), b""
    raise NotDecodedError("its encoding ends early")


DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "br": _brotli,
    "deflate": _deflate,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "zstd": _zstd,
}
