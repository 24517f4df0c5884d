"""A body -> what it holds under its Content-Encoding, never more of it than is allowed: a few kilobytes may stand for gigabytes."""

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
ENDS_EARLY = "its encoding ends early"


class NotDecodedError(ValueError):
    """Its text says why."""


def decoded(body: bytes, encodings: str, limit: int) -> bytes:
    """The body without its encodings, `gzip` or `gzip, br` in the order in which they were applied.

    It never grows beyond the limit by more than tells it: a few kilobytes may stand for gigabytes.
    """
    names = [name.strip().lower() for name in encodings.split(",")]
    names = [name for name in names if name not in ("", "identity")]
    if len(names) > CODINGS:
        raise NotDecodedError(f"{len(names)} encodings one around the other")
    for name in reversed(names):
        decode = DECODERS.get(name)
        if decode is None:
            raise NotDecodedError("an encoding that is not known here")
        try:
            members, size = [], 0
            while True:
                plain, body = decode(body, limit - size)
                members.append(plain)
                size += len(plain)
                if not body or size > limit:
                    break
                if len(members) == MEMBERS:
                    raise NotDecodedError(f"it has more than {MEMBERS} members")
            body = b"".join(members)
        except (zlib.error, brotli.error, zstandard.ZstdError):
            raise NotDecodedError(f"it is not {name}") from None
        if len(body) > limit:
            raise NotDecodedError(f"it is longer than {limit:,} bytes")
    return body


# each decodes the first member to at most `limit` + 1 bytes, and returns what comes after it, too


def _gzip(body: bytes, limit: int, window: int = zlib.MAX_WBITS | 16) -> tuple[bytes, bytes]:
    stream = zlib.decompressobj(window)
    plain = stream.decompress(body, limit + 1)
    if not stream.eof and len(plain) <= limit:
        raise NotDecodedError(ENDS_EARLY)
    return plain, stream.unused_data


def _deflate(body: bytes, limit: int) -> tuple[bytes, bytes]:
    """RFC 9110 means zlib's format; some senders leave its header out."""
    try:
        plain, rest = _gzip(body, limit, zlib.MAX_WBITS)
    except zlib.error:
        plain, rest = _gzip(body, limit, -zlib.MAX_WBITS)
    if rest:
        raise NotDecodedError("bytes follow its encoding's end")
    return plain, b""


def _brotli(body: bytes, limit: int) -> tuple[bytes, bytes]:
    stream = brotli.Decompressor()
    plain: bytes = stream.process(body, output_buffer_limit=limit + 1)
    while len(plain) <= limit and not stream.is_finished():
        part = stream.process(b"", output_buffer_limit=limit + 1 - len(plain))
        if not part:
            raise NotDecodedError(ENDS_EARLY)
        plain += part
    return plain, b""


def _zstd(body: bytes, limit: int) -> tuple[bytes, bytes]:
    """Fed in small steps: a block of 4 bytes may stand for 128 KiB, and the decoder knows no limit."""
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
    raise NotDecodedError(ENDS_EARLY)


DECODERS: dict[str, Callable[[bytes, int], tuple[bytes, bytes]]] = {
    "br": _brotli,
    "deflate": _deflate,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "zstd": _zstd,
}
