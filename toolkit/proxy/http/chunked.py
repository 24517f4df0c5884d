"""A chunked body, byte by byte wherever it was split -> the body, where it ends, or what is wrong with it.

No socket, no clock. Chunk extensions and trailers are passed over, within limits; nothing is repaired.
"""

import re

LINE_BYTES = 256
"""Of a chunk's size with its extensions."""
TRAILER_BYTES = 8 * 1024
FREE_CHUNKS = 4_096
SMALLEST_MEAN_BYTES = 16
"""Of a chunk beyond those that are free: each costs a turn of the loop below, whatever it holds."""

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})(?:[ \t]*;[\t\x20-\x7e]*)?\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n")


class ChunkedBody:
    """One body; `fault` is a reason of `framing.REASONS`."""

    __slots__ = (
        "_chunks",
        "_limit",
        "_line",
        "_needs",
        "_read",
        "_trailer_bytes",
        "body",
        "fault",
        "is_whole",
    )

    def __init__(self, limit_bytes: int) -> None:
        self.body = bytearray()
        self.fault: str | None = None
        self.is_whole = False
        self._limit = limit_bytes
        self._line = b""
        self._needs = 0
        self._chunks = 0
        self._trailer_bytes = 0
        self._read = ChunkedBody._read_size

    def feed(self, data: bytes) -> int:
        """How many of these bytes are this body's; all, unless it ended."""
        at = 0
        while at < len(data) and not self.is_whole and self.fault is None:
            at = self._read(self, data, at)
        return at

    def _read_size(self, data: bytes, at: int) -> int:
        line, at = self._line_of(data, at)
        if line is None:
            return at
        found = _SIZE.fullmatch(line)
        if found is None:
            self.fault = "framing"
            return at
        self._needs = int(found[1], 16)
        self._chunks += 1
        if len(self.body) + self._needs > self._limit:
            self.fault = "body_bytes"
        elif self._chunks > FREE_CHUNKS + len(self.body) // SMALLEST_MEAN_BYTES:
            self.fault = "chunks"
        self._read = ChunkedBody._read_data if self._needs else ChunkedBody._read_trailer
        return at

    def _read_data(self, data: bytes, at: int) -> int:
        part = data[at : at + self._needs]
        self.body += part
        self._needs -= len(part)
        if not self._needs:
            self._read = ChunkedBody._read_end
        return at + len(part)

    def _read_end(self, data: bytes, at: int) -> int:
        part = data[at : at + 2 - len(self._line)]
        self._line += part
        if not b"\r\n".startswith(self._line):
            self.fault = "framing"
        elif len(self._line) == 2:
            self._line = b""
            self._read = ChunkedBody._read_size
        return at + len(part)

    def _read_trailer(self, data: bytes, at: int) -> int:
        line, at = self._line_of(data, at)
        if line is None:
            return at
        self._trailer_bytes += len(line)
        if line == b"\r\n":
            self.is_whole = True
        elif self._trailer_bytes > TRAILER_BYTES:
            self.fault = "header_bytes"
        elif not _TRAILER.fullmatch(line):
            self.fault = "framing"
        return at

    def _line_of(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """A whole line with its end, where it came, and how far was read."""
        limit = LINE_BYTES - len(self._line)
        end = data.find(b"\n", at, at + limit)
        if end >= 0:
            line, self._line = self._line + data[at : end + 1], b""
            return line, end + 1
        if len(data) - at >= limit:
            self.fault = "framing"
        self._line += data[at : at + limit]
        return None, len(data)
