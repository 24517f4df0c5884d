"""Bytes of a `text/event-stream` body -> its events: WHATWG's event stream parsing, and nothing of what they mean.

No socket, no clock. It is fed reads of any size; a line ends at LF, CR or CRLF, whichever way it is cut into reads.
"""

import re

DATA = b"data: "
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LAST_LINE_ENDS = b"\n\n"
BLANK_LINE = re.compile(rb"(?:\r\n?+|\n){2}")
"""The end of a line and the end of an empty one; a CRLF is one end, never two."""

Event = tuple[bytes, bytes]
"""Its name (empty: none was sent) and its data lines, joined by LF. `id` and `retry` are for browsers."""


def event_ends(data: bytes) -> list[int]:
    """Where each event ends that is whole in these bytes, which begin with one; its blank line is part of it."""
    if b"\r" in data:
        return [found.end() for found in BLANK_LINE.finditer(data)]
    ends = []
    at = 0
    while (at := data.find(LAST_LINE_ENDS, at)) >= 0:
        at += len(LAST_LINE_ENDS)
        ends.append(at)
    return ends


class EventStream:
    """Feed it reads in order; each gives the events that it completed."""

    __slots__ = "is_between too_large _after_cr _data _held _limit _name _partial _started".split()

    def __init__(self, *, max_event_bytes: int) -> None:
        self.too_large = False
        """An event has more bytes than allowed, comments and ignored fields included; nothing is read after it."""
        self.is_between = True
        """What comes next begins an event: nothing of one is held."""
        self._limit = max_event_bytes
        self._partial = bytearray()
        """The last line as far as it came."""
        self._data: list[bytes] = []
        self._name = b""
        self._held = 0
        """Bytes of the lines since the last blank one."""
        self._after_cr = False
        self._started = False

    def feed(self, data: bytes) -> list[Event]:
        """Return the events whose blank line is among these bytes."""
        line_end = len(data) - len(LAST_LINE_ENDS)
        is_whole = self.is_between and data.startswith(DATA) and data.endswith(LAST_LINE_ENDS)
        if is_whole and data.find(b"\n") == line_end <= self._limit and b"\r" not in data:
            # one line and its blank one, as nearly every read of a calm stream: 0.6 us instead of 0.9
            self._started = True
            return [(b"", data[6:-2])]
        if self._after_cr and data:
            # a CR ends its line at once, and an LF that follows is part of it
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        last = lines.pop()
        if lines and self._partial:
            self._partial += lines[0]
            lines[0] = bytes(self._partial)
            self._partial.clear()
        if lines and not self._started:
            self._started = True
            lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        events: list[Event] = []
        for line in lines:
            self._held += len(line)
            if self._held > self._limit:
                break
            if line.startswith(DATA):
                self._data.append(line[6:])
            elif line:
                # a comment starts with the colon, its field is empty
                field, _, value = line.partition(b":")
                if field == b"data":
                    self._data.append(value)
                elif field == b"event":
                    self._name = value.removeprefix(b" ")
            else:
                if self._data:
                    events.append((self._name, b"\n".join(self._data)))
                    self._data.clear()
                self._name = b""
                self._held = 0
        self._partial += last
        # without a blank line nothing else would stop a line, or a row of comments, from filling the memory
        held = self._held + len(self._partial)
        self.too_large = held > self._limit
        self.is_between = not (held or self._after_cr)
        return events

    def end(self) -> list[Event]:
        """Return the event that the end of the body left without its blank line."""
        return self.feed(LAST_LINE_ENDS)
