"""Which answer belongs to which request, and how many requests a server had before it when one arrived.

On one connection answers come in the order of the requests (HTTP/1.1). It reads no bytes.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from toolkit.capture.answers import AnswerReader
from toolkit.capture.records import HttpAnswer, HttpRequest

if TYPE_CHECKING:
    from toolkit.capture.http import Requests

ANSWER_BYTES = 8192
"""What an unanswered request costs beside its body: its answer's tail."""
PIPELINED = 128
"""Unanswered requests of one connection; clients have one, load generators that pipeline some tens."""
SERVERS = 65_536
"""Of which it is remembered that they speak."""


class InFlight:
    """Unanswered requests by server, address and port."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._heard: set[bytes] = set()

    def hear(self, server: bytes) -> None:
        """Note that the capture holds what this server sends."""
        if len(self._heard) < SERVERS:
            self._heard.add(server)

    def is_known(self, server: bytes) -> bool:
        """Whether it can be told which of its requests are unanswered: not where only clients were captured."""
        return server in self._heard

    def add(self, server: bytes) -> int:
        """Count one more; how many there were before it."""
        before = self._counts.get(server, 0)
        self._counts[server] = before + 1
        return before

    def remove(self, server: bytes) -> None:
        """One is answered, or never will be."""
        left = self._counts[server] - 1
        if left:
            self._counts[server] = left
        else:
            del self._counts[server]


class Pairs:
    """The requests of one connection that wait for their answers; also the reader of the server's bytes."""

    __slots__ = (
        "_answers",
        "_deliver",
        "_early",
        "_in_flight",
        "_is_heard",
        "_server",
        "_waiting",
        "held",
        "requests",
    )

    def __init__(
        self, deliver: Callable[[HttpRequest], None], key: bytes, in_flight: InFlight
    ) -> None:
        self._deliver, self._in_flight = deliver, in_flight
        address = (len(key) - 4) // 2
        self._server = key[address : 2 * address] + key[-2:]
        self.requests: Requests
        self._waiting: deque[HttpRequest] = deque()
        self._early: HttpAnswer | None = None
        """An answer that came before its request was whole, e.g., a refusal."""
        self._answers = AnswerReader(self._answered)
        self._is_heard = False
        self.held = 0
        """Bytes of the bodies of unanswered requests."""

    def asked(self, request: HttpRequest) -> None:
        """A request is whole, or as whole as it will be."""
        request.in_flight = self._in_flight.add(self._server)
        self._waiting.append(request)
        self.held += ANSWER_BYTES + (len(request.body) if request.body else 0)
        if len(self._waiting) > PIPELINED:
            self._give_up()
        early, self._early = self._early, None
        if early is None:
            self._answers.asked(request.method, request.ts_last)
        else:
            self._answered(early)

    def _answered(self, answer: HttpAnswer) -> None:
        if not self._waiting:
            if not self.requests.between:
                self._early = answer
            return
        request = self._waiting[0]
        request.answer = answer
        self._release()

    def _release(self) -> None:
        request = self._waiting.popleft()
        self._in_flight.remove(self._server)
        if not self._in_flight.is_known(self._server):
            request.in_flight = None
        self.held -= ANSWER_BYTES + (len(request.body) if request.body else 0)
        self._deliver(request)

    def _give_up(self) -> None:
        """The server's half is not captured, or no longer: nobody waits for it."""
        last = self._waiting.pop()
        while self._waiting:
            self._release()
        self._waiting.append(last)
        self._answers = AnswerReader(self._answered)

    # --- the server's bytes -----------------------------------------------------------------------

    def data(self, ts: float, data: bytes) -> None:
        """Read the server's next bytes."""
        if not self._is_heard:
            self.begin()
        self._answers.data(ts, data)

    def gap(self, ts: float, missing: int | None) -> None:
        """Bytes of the server are missing."""
        self._answers.gap(ts, missing)

    def starts(self, data: bytes) -> bool:  # noqa: ARG002 - answers find their own beginning
        """Whether a segment can be read without what came before it."""
        return True

    def begin(self) -> None:
        """The server speaks, be it only to take the connection."""
        self._is_heard = True
        self._in_flight.hear(self._server)

    @property
    def between(self) -> bool:
        """Whether no request waits."""
        return not self._waiting

    def end(self, ts: float) -> None:
        """No further answer comes; the requests go out as they are."""
        self._answers.end(ts)
        while self._waiting:
            self._release()
