"""Bytes of a `text/event-stream` body -> its events: WHATWG's event stream parsing, and nothing of what they mean.

No socket, no clock. It is fed reads of any size; a line ends at LF, CR or CRLF, whichever way it is cut into reads.
"""

DATA = b"data: "
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LAST_LINE_ENDS = b"\n\n"

Event = tuple[bytes, bytes]
"""Its name (empty: none was sent) and its data lines, joined by LF. `id` and `retry` are for browsers."""


class EventStream:
    """Feed it reads in order; each gives the events that it completed."""

    __slots__ = (
        "_after_cr",
        "_data",
        "_held",
        "_limit",
        "_name",
        "_partial",
        "_started",
        "too_large",
    )

    def __init__(self, *, max_event_bytes: int) -> None:
        self.too_large = False
        """An event has more bytes than allowed, comments and ignored fields included; nothing is read after it."""
        self._limit = max_event_bytes
        self._partial = bytearray()
        """The last line as far as it came."""
        self._data: list[bytes] = []
        self._name = b""
        self._held = 0
        """Bytes of the lines since the last blank one."""
        self._after_cr = False
        self._started = False

    @property
    def is_between(self) -> bool:
        """What comes next begins an event: nothing of one is held."""
        return not (self._held or self._partial or self._after_cr)

    def feed(self, data: bytes) -> list[Event]:
        """Return the events whose blank line is among these bytes."""
        line = len(data) - len(LAST_LINE_ENDS)
        is_between = not (self._held or self._partial)
        is_whole = is_between and data.startswith(DATA) and data.endswith(LAST_LINE_ENDS)
        if is_whole and data.find(b"\n") == line <= self._limit and b"\r" not in data:
            # one line and its blank one, as nearly every read of a calm stream: 0.6 us instead of 0.9
            self._started = True
            return [(b"", data[6:-2])]
        if self._after_cr or b"\r" in data:
            data = self._with_newlines(data)
        lines = data.split(b"\n")
        last = lines.pop()
        if lines and self._partial:
            self._partial += lines[0]
            lines[0] = bytes(self._partial)
            self._partial.clear()
        if lines and not self._started:
            self._started = True
            lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        events = self._events(lines)
        if last:
            self._partial += last
        # without a blank line nothing else would stop a line, or a row of comments, from filling the memory
        self.too_large = self._held + len(self._partial) > self._limit
        return events

    def end(self) -> list[Event]:
        """Return the event that the end of the body left without its blank line."""
        return self.feed(LAST_LINE_ENDS)

    def _events(self, lines: list[bytes]) -> list[Event]:
        events: list[Event] = []
        for line in lines:
            self._held += len(line)
            if self._held > self._limit:
                break
            if line.startswith(DATA):
                self._data.append(line[6:])
            elif line:
                self._take_field(line)
            else:
                if self._data:
                    whole = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    events.append((self._name, whole))
                    self._data.clear()
                self._name = b""
                self._held = 0
        return events

    def _take_field(self, line: bytes) -> None:
        """Keep `data` and `event`; a line that starts with a colon is a comment, its field is empty."""
        field, _, value = line.partition(b":")
        if field == b"data":
            # one with the space that is left out was taken as it came
            self._data.append(value)
        elif field == b"event":
            self._name = value.removeprefix(b" ")

    def _with_newlines(self, data: bytes) -> bytes:
        """The same lines ended by LF alone; a CR ends its line at once, and an LF that follows is part of it."""
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        self._after_cr = self._after_cr or data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
