"""An answer that is ready to be sent to whoever sends the very same bytes again: all but the second, the age and the id is made.

It knows no request's meaning, reads no clock and counts nothing.
"""

from math import inf

from toolkit.proxy.exchange import Served
from toolkit.proxy.headers import age, cache_status
from toolkit.proxy.told.counters import Tally
from toolkit.proxy.told.log_lines import HitLine
from toolkit.records import Asked

OVERHEAD_BYTES = 900
"""Of one beside its body, its head and the request it answers: objects, numbers, the log's template (sys.getsizeof, CPython 3.11)."""
JOINED_BYTES = 8192
"""A larger body goes beside its head, not copied behind it."""


class Ready:
    """One view of one stored answer, for one team."""

    __slots__ = (
        *(
            "asked",
            "body",
            "key",
            "line",
            "output_tokens",
            "prompt_tokens",
            "served",
            "size",
            "stored",
            "tally",
        ),
        *("_ends_at", "_fields", "_head", "_second", "_stored_at"),
    )

    def __init__(
        self,
        *,
        key: bytes,
        stored: bytes,
        body: bytes,
        content_type: bytes,
        stored_at: float,
        ends_at: float,
        served: Served,
        asked: Asked | None,
        tally: Tally,
    ) -> None:
        """`stored`: what the cache holds, to see whether that is still it; `served`: such a hit, to be copied."""
        self.key, self.stored, self.body = key, stored, body
        self.served, self.asked = served, asked
        self.tally, self.line = tally, HitLine(served)
        self.size = len(body)
        self.prompt_tokens = served.prompt_tokens or 0
        self.output_tokens = served.output_tokens or 0
        self._stored_at, self._ends_at = stored_at, ends_at
        self._fields = b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type, len(body))
        self._head = b""
        self._second = -1

    @property
    def weight(self) -> int:
        """Bytes that it takes, the request's own not counted; its body is held a second time, beside the stored one."""
        return len(self.body) + len(self._fields) + len(self.line) + OVERHEAD_BYTES

    def head(self, second: int, date: bytes) -> bytes:
        """Everything before the request's id. `second`: of the wall clock; `date`: that second's header line."""
        if second != self._second:
            self._second = second
            ttl_s = None if self._ends_at == inf else max(0.0, self._ends_at - second)
            self._head = b"HTTP/1.1 200 OK\r\n%b%bcache-status: %b\r\nage: %b\r\nx-request-id: " % (
                date,
                self._fields,
                cache_status(hit=True, ttl_s=ttl_s),
                age(self._stored_at, second),
            )
        return self._head
