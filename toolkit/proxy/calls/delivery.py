"""A call under way -> what one client sees of it, at the client's own speed: events live, or the whole at its end.

It writes to the client's Reply when the call or the client moves, and waits for nothing by itself. The answer's events are
held once, by the call's recorder; a client is a position in them.
"""

from collections.abc import Callable
from math import ceil

from toolkit.proxy.answers.recorder import Recorder
from toolkit.proxy.answers.usage_left_out import left_out, upto
from toolkit.proxy.answers.views import shown
from toolkit.proxy.calls.call import Call
from toolkit.proxy.error_json import CONTENT_TYPE, error_body, error_event
from toolkit.proxy.exchange import Headers, Rejection, Reply, View
from toolkit.proxy.http.sending import SLICE_BYTES, Sending, Sent, with_type

RETRY_JITTER = 0.1
"""Up to such a share is added to Retry-After, so that those who were refused together don't come back together."""


def fits(led: View, view: View, *, usage_is_ours: bool) -> bool:
    """Whether what a call led in one view brings can be passed on as it is in another, but for the event with the usage."""
    if not led.stream or not view.stream:
        return led.stream == view.stream
    has_usage = led.usage or usage_is_ours
    return led.continuous_usage == view.continuous_usage and (has_usage or not view.usage)


def retry_after(seconds: float, share: float) -> int:
    """What a client is told to wait, in whole seconds; `share`, from 0 to 1, of RETRY_JITTER is added."""
    return max(1, ceil(seconds * (1 + RETRY_JITTER * share)))


def _is_live(recorder: Recorder) -> bool:
    """Whether its parts are passed on as they come."""
    return recorder.is_stream or recorder.too_large


def _no_headers(_: Call | None) -> Headers:
    return ()


def _nothing(*_: object) -> None:
    pass


class Live:
    """One client of a call. Its owner calls `join` right after Calls.ask; the call does the rest.

    `headers`: those of an answer of the call's, or, for None, of an error of ours; without content-type. `left` is called
    when this client needs the call no more before that is over. `ended` is called once, whatever happens, or `again` in
    its place: the answer is there, but not in this client's view, and nothing was sent; a call of its own can give it.
    """

    __slots__ = (
        *("_again", "_call", "_ended", "_headers", "_jitter", "_left", "_next", "_sending"),
        "_view",
    )

    def __init__(
        self,
        reply: Reply,
        view: View,
        *,
        headers: Callable[[Call | None], Headers],
        ended: Callable[[Sent], None],
        left: Callable[[], None],
        again: Callable[[], None],
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self._sending = Sending(reply, ended=self._end, left=left, clock=clock)
        self._view, self._headers, self._jitter = view, headers, jitter
        self._ended, self._left, self._again = ended, left, again
        self._call: Call | None = None
        self._next = 0
        """The first part of the answer that was not written."""

    # --- what the call tells ---------------------------------------------------------------------

    def join(self, call: Call) -> None:
        """Take what the call has brought so far; what comes, comes."""
        self._call = call
        if self._sending.reply.is_gone:
            self._sending.leave()
        elif call.rejection is not None:
            self.rejected(call.rejection)
        elif call.is_over:
            self.ended(call)
        elif call.recorder is not None:
            self.grew(call)

    @property
    def taken(self) -> int | None:
        """The first part that was not written; None: this client waits for the end, and holds nobody back."""
        call = self._call
        waits = self._sending.is_over or call is None or not self._sees_raw(call)
        return None if waits else self._next

    def began(self, call: Call) -> None:
        """Nothing yet: the head goes out with the first part, so that until then an error has a status of its own."""

    def grew(self, call: Call) -> None:
        """Write what is new, if this client sees it live."""
        if self._sending.is_over or call.recorder is None:
            return
        self._call = call
        if not self._sees_raw(call):
            if call.recorder.too_large:
                self._ask_again()
        elif _is_live(call.recorder):
            self._go_on()

    def ended(self, call: Call) -> None:
        """Write the rest, or the whole, or what went wrong."""
        if self._sending.is_over:
            return
        self._call = call
        try:
            self._complete(call)
        except Exception:
            self._sending.fail()
            raise

    def _complete(self, call: Call) -> None:
        if call.error is not None and self._sending.status is None:
            fault = call.error
            body = error_body(fault.status, fault.message)
            self._sending.refuse(fault.status, self._own_headers(), body, fault=fault)
        elif not self._sees_raw(call):
            self._show(call)
        elif call.recorder is not None and _is_live(call.recorder):
            self._go_on()
        else:
            self._pass_on(call)

    def rejected(self, rejection: Rejection) -> None:
        """Tell of a boundary that was held, and when it is worth to come again."""
        if self._sending.is_over:
            return
        wait_s, headers = None, self._own_headers()
        if rejection.retry_after_s is not None:
            wait_s = retry_after(rejection.retry_after_s, self._jitter())
            headers.append((b"retry-after", b"%d" % wait_s))
        body = error_body(rejection.status, rejection.message, rejection.kind, rejection.param)
        self._sending.refuse(
            rejection.status, headers, body, rejection=rejection, retry_after_s=wait_s
        )

    # --- what the client gets --------------------------------------------------------------------

    def _sees_raw(self, call: Call) -> bool:
        """Whether this client gets what the call brings as it is: an error has but one view."""
        if call.status is not None and not 200 <= call.status < 300:
            return True
        return fits(call.led_by_view, self._view, usage_is_ours=call.job.usage_is_ours)

    def _go_on(self) -> None:
        """Write as much as there is and the client takes; a fault is told by whoever called, and ends the answer."""
        try:
            self._write()
        except Exception:
            self._sending.fail()
            raise

    def _write(self) -> None:
        call, sending = self._call, self._sending
        assert call is not None
        assert call.recorder is not None
        recorder = call.recorder
        last = self._upto(call, recorder)
        if sending.status is None and (self._next < last or call.is_over):
            assert call.status is not None
            sending.begin(call.status, self._headers_of(call), fill=self._go_on)
        while self._next < last and sending.can_write:
            sending.write(self._part(recorder, last))
            if recorder.first_token_at is not None and last == len(recorder.events):
                sending.note_token()
        call.moved()
        if call.is_over and self._next == last:
            self._finish(call)

    def _upto(self, call: Call, recorder: Recorder) -> int:
        """Up to which part may be written."""
        has_usage = call.job.usage_is_ours or call.led_by_view.usage
        if recorder.is_stream and has_usage and not (self._view.usage or call.is_over):
            return upto(recorder)
        return len(recorder.events)

    def _part(self, recorder: Recorder, end: int) -> bytes:
        """The next events, as many as are written at a time, but for the usage that this client did not ask for."""
        events, first = recorder.events, self._next
        size, last = 0, first
        # the event with the usage stays with the one before it
        while last < end and (size < SLICE_BYTES or last == recorder.usage_event):
            size += len(events[last])
            last += 1
        self._next = last
        if not self._view.usage:
            return left_out(recorder, first, last)
        return events[first] if last == first + 1 else b"".join(events[first:last])

    def _finish(self, call: Call) -> None:
        """All was written that there is: the end, or what went wrong in place of one."""
        fault = call.error
        if fault is None:
            self._sending.end()
        else:
            is_stream = call.recorder is not None and call.recorder.is_stream
            last = error_event(fault.status, fault.message) if is_stream else b""
            self._sending.cut(last, fault)

    def _pass_on(self, call: Call) -> None:
        """Send the whole as it came."""
        assert call.status is not None
        assert call.recorder is not None
        kept = call.recorded.kept if call.recorded is not None else None
        # one body for all who get it
        body = b"".join(call.recorder.events) if kept is None else kept.body
        self._sending.whole(call.status, self._headers_of(call), body)

    def _show(self, call: Call) -> None:
        """Send the whole in this client's view, if it was stored and loses nothing by it."""
        assert call.status is not None
        if self._view not in call.shown_as:
            kept = call.recorded.kept if call.recorded is not None else None
            call.shown_as[self._view] = None if kept is None else shown(kept, self._view)
        mine = call.shown_as[self._view]
        if mine is None:
            self._ask_again()
            return
        headers = with_type(self._headers(call), mine.content_type)
        self._sending.whole(call.status, headers, mine.body, has_tokens=self._view.stream)

    def _ask_again(self) -> None:
        self._sending.drop()
        left, again = self._left, self._again
        self._let_go()
        left()
        again()

    def _end(self, sent: Sent) -> None:
        ended = self._ended
        self._let_go()
        ended(sent)

    def _let_go(self) -> None:
        """Hold on to nothing: the answer is as large as all that is left, and its owner holds this client in turn."""
        self._call = None
        self._headers, self._ended = _no_headers, _nothing
        self._left = self._again = _nothing

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        return [*self._headers(None), CONTENT_TYPE]

    def _headers_of(self, call: Call) -> Headers:
        assert call.recorder is not None
        return with_type(self._headers(call), call.recorder.content_type)
