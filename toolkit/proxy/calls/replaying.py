"""A stored answer -> one client: at once, or as a stream at a pace, on the loop's timers.

When each event is due is replay.plan's; this keeps to it. One timer a client, none while the client does not read, and none
once it left.
"""

import asyncio
from collections.abc import Callable

from toolkit.proxy.answers.replay import Mode, plan, tokens_by_event
from toolkit.proxy.answers.views import Shown
from toolkit.proxy.exchange import Headers, Reply
from toolkit.proxy.http.sending import SLICE_BYTES, Sending, Sent, with_type

TICK_S = 0.001
"""A loop's timers are no finer (uvloop counts whole ms), and recorded times neither: what is due so soon is due."""


def send_stored(
    reply: Reply,
    shown: Shown,
    *,
    status: int = 200,
    headers: Headers,
    mode: Mode,
    ended: Callable[[Sent], None],
    clock: Callable[[], float],
) -> None:
    """Send a stored answer; `headers` without content-type. `ended` is called once, whatever happens."""
    headers = with_type(headers, shown.content_type)
    is_stream = bool(shown.ends)
    if is_stream and mode != "instant":
        _Paced(reply, shown, mode, ended=ended, clock=clock).begin(status, headers)
    else:
        sending = Sending(reply, ended=ended, clock=clock)
        sending.whole(status, headers, shown.body, has_tokens=is_stream)


class _Paced:
    """A stored stream on its way. Times are the loop's."""

    __slots__ = (
        *("_began_s", "_body", "_due", "_ends", "_first_token", "_loop", "_next", "_sending"),
        *("_sent", "_steps", "_timer"),
    )

    def __init__(
        self,
        reply: Reply,
        shown: Shown,
        mode: Mode,
        *,
        ended: Callable[[Sent], None],
        clock: Callable[[], float],
    ) -> None:
        tokens = tokens_by_event(shown)
        self._sending = Sending(reply, ended=ended, left=self._stop, clock=clock)
        self._body, self._ends = shown.body, shown.ends
        self._steps = plan(shown.ms, tokens, mode)
        first = next((number for number, count in enumerate(tokens) if count), 0)
        self._first_token = shown.ends[first]
        """Bytes, up to the end of the first event with a token."""
        self._next = 0
        """The first step that is not due."""
        self._due = self._sent = 0
        """Bytes that may have gone by now, and those that have."""
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, status: int, headers: Headers) -> None:
        """Send the head and what is due at once."""
        self._sending.begin(status, headers, fill=self._fill)
        self._fill()

    def _fill(self) -> None:
        """Send what is due, as far as the client takes it, and come again when more is."""
        self._stop()
        self._look()
        sending = self._sending
        while self._sent < self._due and sending.can_write:
            last = min(self._due, self._sent + SLICE_BYTES)
            sending.write(self._body[self._sent : last])
            self._sent = last
            if last >= self._first_token:
                sending.note_token()
        if self._sent >= len(self._body):
            sending.end()
        elif sending.can_write:
            at = self._began_s + self._steps[self._next][0]
            self._timer = self._loop.call_at(at, self._fill)

    def _look(self) -> None:
        """What is due by now."""
        now_s = self._loop.time() - self._began_s + TICK_S
        while self._next < len(self._steps) and self._steps[self._next][0] <= now_s:
            self._due = self._ends[self._steps[self._next][1] - 1]
            self._next += 1

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
