"""One call upstream and every request that waits for it (single-flight), and all calls: leaders, joiners, slots, retries, deadlines.

A call's way: `Calls.lead`, `admit` (slot or queue), `send` (to an upstream), `Call.received` for each read, `deliver` and `fill` (to
each client), `end`, `judge` (whole? then store it). `broke` instead of the answer tries another upstream or ends the call.

Everything here is a callback of the loop: an upstream's bytes are recorded and written to each client at once; there is a task
only while a connection is made. The answer is held once, by its recorder, and each client has a position in it. A call ends exactly
once, whatever ended it, and that gives back its slot; a stream is judged and stored after its clients have it.

While its upstream is being restarted, a call is held without a slot, up to the usual limits of waiting time and queue length. So
is a call whose upstream ended before a byte of its answer came.
"""

import asyncio
import json
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Final

from toolkit.proxy import headers as header_rules
from toolkit.proxy.admission import Admission, Place
from toolkit.proxy.client import SLICE_BYTES
from toolkit.proxy.config import MIB, Settings
from toolkit.proxy.errors import (
    JSON,
    TRIES_ANOTHER,
    Fault,
    FaultKind,
    Rejection,
    error_body,
    error_event,
    rejection_of,
    unknown_model,
)
from toolkit.proxy.responses.judge import COMPLETIONS
from toolkit.proxy.responses.recorder import Recorder
from toolkit.proxy.responses.transcode import ResponseFormat, convert, passes_through
from toolkit.proxy.upstream.connection import Exchange, Upstream, UpstreamConnection
from toolkit.proxy.upstream.routing import Outcome, Routing

if TYPE_CHECKING:
    from toolkit.proxy.cache.redis import Lease
    from toolkit.proxy.handler import Context, Handler
    from toolkit.proxy.headers import Headers

WINDOW_BYTES: Final = 4 * MIB
"""Of an answer that is too large to keep, so much is held for the slowest client; then the upstream is paused."""
BUSY: Final = frozenset({502, 503, 504})
"""Statuses after which another upstream is tried; a 500 is as likely the request's fault, and a 4xx certainly is."""
PROGRESS_S: Final = 0.1
"""`Routing.got_bytes` is called at most so often; at each read would be a waste."""
DYING_S: Final = 1.0
"""A second connection that is cut within this time after the first belongs to the same death of an upstream."""
RETRY_JITTER: Final = 0.1
"""Up to such a share is added to Retry-After, so that those who were refused together don't come back together."""
Piece = tuple[bytes, bytes, int]
"""Bytes of an answer, the same framed as an HTTP chunk, and the index of the part after them."""
HALF: Final = frozenset({"garbage", "no_finish"})
"""Errors (`Answer.error_kind`) that an answer cut in half shows."""
OUTCOMES: Final[Mapping[FaultKind, Outcome]] = {
    # for routing; what is not here says nothing about the upstream
    "connect": "refused",
    "tls": "refused",
    "cut": "cut",
    "garbage": "cut",
    "busy": "error",
    "stuck": "timeout",
    "timeout_gap": "cut",
    "timeout_connect": "timeout",
    "timeout_first_token": "timeout",
}


class Call(Exchange):
    """A request upstream, and what became of it so far. Times are seconds of the proxy's monotonic clock."""

    # beyond 30 attributes each object has a table of its own, which grows four times while they are set
    __slots__ = (
        *("asked_s", "attempt_s", "calls", "ended_s", "ends_by_closing", "fault", "finished_early"),
        *("has_usage", "headers", "is_at_upstream", "is_begun", "is_held", "is_judged", "is_over"),
        *("keep_for", "key", "leader", "lease", "noted_s", "place", "queue_ms", "read_s"),
        *(
            "cut_s",
            "recorder",
            "retries",
            "sent_s",
            "shown_as",
            "status",
            "stored",
            "tried",
            "upstream",
        ),
        *("waiters", "waits_for_room", "_behind", "_freed", "_seen"),
    )

    def __init__(self, calls: "Calls", key: bytes | None, leader: "Context", now: float) -> None:
        self.connection = self.connecting = None
        self.calls = calls
        self.key = key
        """Equal requests find the call by it; None: none may join."""
        self.leader = leader
        """The request that is sent; the answer comes in its format."""
        self.has_usage = leader.format.usage or leader.usage_is_ours
        """The request asks the upstream for the usage."""
        self.keep_for: Context | None = None
        """The first waiting request whose answer may be stored."""
        self.waiters: dict[Context, None] = {}
        self.finished_early: list[Context] = []
        """Requests that were completely answered before `judge`; their records wait for it."""
        self.lease: Lease | None = None
        """From Redis: this call is made for all proxies."""
        self.asked_s = now
        self.place: Place | None = None
        """Its slot, or its place in the queue."""
        self.queue_ms: float | None = None
        """From the first byte of the leader's request until it got its slot; None before."""
        self.waits_for_room = False
        """It has a slot, but all healthy upstreams are full."""
        self.upstream: Upstream | None = None
        self.is_at_upstream = False
        """Routing counts it as in flight at `upstream`."""
        self.tried: list[str] = []
        self.retries = 0
        self.cut_s: float | None = None
        """When an upstream that is started again cut it off without an answer, if it may be asked once more."""
        self.sent_s: float | None = None
        """When it was first sent upstream. `attempt_s`: when last; `read_s`: the last read; `noted_s`: the last `got_bytes`."""
        self.attempt_s = self.read_s = self.noted_s = 0.0
        self.status = 0
        self.headers: Headers = ()
        """Those that clients may see."""
        self.recorder: Recorder | None = None
        """None until the answer's head came."""
        self.is_begun = False
        """Its first part came."""
        self.ends_by_closing = False
        self.shown_as: dict[ResponseFormat, tuple[str, bytes] | None] = {}
        """The whole answer converted to other formats, each made once for all who wait for it."""
        self.fault: Fault | None = None
        """Why there is no (whole) answer. An error page of the upstream is an answer, and no fault."""
        self.is_over = False
        """Nothing more comes."""
        self.ended_s = 0.0
        self.is_judged = self.stored = False
        self.is_held = False
        """The upstream is not read: a client is too far behind."""
        self._freed = self._seen = self._behind = 0
        """For `make_room`: how many parts all clients have, how many were counted, and the bytes of the parts between."""

    # --- from the upstream ---------------------------------------------------------------------------

    def received(self, connection: UpstreamConnection, data: bytes, is_whole: bool) -> None:
        """Record what one read brought and write it to every waiting client, in one write each."""
        calls, recorder, now = self.calls, self.recorder, self.calls.clock()
        if recorder is None:
            recorder = self._accepted(connection)
            if recorder is None:
                return
        self.read_s = now
        if now - self.noted_s >= PROGRESS_S and 200 <= self.status < 300:
            self.noted_s = now
            assert self.upstream is not None
            calls.routing.got_bytes(self.upstream.name, now)
        has_more = recorder.feed(data, now)
        if has_more and not self.is_begun:
            # from now on no other upstream is tried
            self.is_begun = True
            is_refused = self.status != 200 or recorder.forbidden is not None
            if is_refused:
                # those who wait get it; nobody joins any more
                calls.close(self)
            # another model than the client's answers, perhaps: not stored either
            if is_refused or (self.upstream and self.upstream.setting.model is not None):
                self.end_lease(is_stored=False)
        if is_whole or recorder.is_finished:
            if not is_whole:
                connection.let_go()
            self.connection = None
            self.end(None)
        elif has_more:
            if recorder.has_failed or recorder.too_large:
                calls.close(self)
                self.end_lease(is_stored=False)
            if recorder.is_stream or recorder.too_large:
                self.deliver()
            if recorder.too_large:
                self.make_room()

    def _accepted(self, connection: UpstreamConnection) -> Recorder | None:
        """The answer's head came: return a recorder for it, or None if another upstream is tried or no upstream has the model."""
        calls, leader = self.calls, self.leader
        assert self.upstream is not None
        status = self.status = connection.status
        if status in BUSY and calls.next(self) is not None:
            self.upstream.cancel(self)
            self.broke(Fault("busy"))
            return None
        if status == 404 and leader.model is not None:
            # its message names its own models only; the other upstreams have more
            served = calls.routing.served_instead(leader.model)
            if served:
                calls.attempt_ended(self, "ok")
                self.upstream.cancel(self)
                calls.reject(self, unknown_model(leader.model, served))
                return None
        self.headers = header_rules.back(connection.headers)
        self.ends_by_closing = connection.ends_by_closing
        content_type = dict(self.headers).get(b"content-type", b"")
        cache = calls.settings.cache
        forbidden = None
        if cache.obeys_upstream:
            forbidden = header_rules.forbids_storing(connection.headers)
        self.recorder = Recorder(
            status=status,
            content_type=content_type.decode("latin-1"),
            endpoint=leader.endpoint,
            has_usage=self.has_usage,
            sent_s=self.attempt_s,
            max_bytes=cache.max_answer_bytes,
            forbidden=forbidden,
        )
        return self.recorder

    def broke(self, fault: Fault) -> None:
        """The answer failed or broke off: try another upstream if no client got a byte yet, else end the call."""
        if self.is_over:
            return
        calls = self.calls
        calls.attempt_ended(self, OUTCOMES.get(fault.kind, "left"))
        if not self.is_begun:
            self.recorder = None
            if fault.kind in TRIES_ANOTHER and self.upstream is not None:
                other = calls.next(self)
                if other is not None:
                    names = {"upstream": self.upstream.name, "other": other}
                    calls.event("retry", {**names, "why": fault.kind})
                    self.retries += 1
                    calls.send(self, other)
                    return
            if calls.turned_back(self, fault):
                return
        self.end(fault)

    # --- the end -------------------------------------------------------------------------------------

    def end(self, fault: Fault | None, *, aborted: bool = False) -> None:
        """End it, once: give back slot and connection, then deliver the end to its clients, then judge and store.

        An answer that is not known to be whole is judged first, since clients must not take half of one for whole.
        """
        if self.is_over:
            return
        calls, recorder = self.calls, self.recorder
        self.is_over, self.ended_s = True, calls.clock()
        if recorder is not None and recorder.is_finished:
            fault = None
        self.fault = fault
        outcome: Outcome = "ok" if self.status < 500 else "error"
        if fault is not None or aborted:
            outcome = OUTCOMES.get(fault.kind, "left") if fault is not None else "left"
        if self.upstream is not None:
            calls.attempt_ended(self, outcome)
            if self.connection is not None or self.connecting is not None:
                self.upstream.cancel(self)
        calls.give_back(self)
        if recorder is not None and recorder.is_stream and recorder.is_finished and self.is_begun:
            self.deliver()
            asyncio.get_running_loop().call_soon(self.judge)
        else:
            self.judge(aborted=aborted)
            self.deliver()

    def judge(self, *, aborted: bool = False) -> None:
        """Decide what the answer was, store it if it is whole, and finish the records that waited for this."""
        if self.is_judged:
            return
        calls, recorder = self.calls, self.recorder
        if recorder is not None and not aborted:
            broken = None if self.fault is None else self.fault.message
            try:
                recorder.end(self.ended_s, broken=broken)
            except Exception as error:  # noqa: BLE001 (a bug in reading must not leave clients waiting)
                calls.event("fault", {"error": f"{type(error).__name__}: {error}"})
                self.fault = Fault("ours")
            else:
                answer, endpoint = recorder.answer, self.leader.endpoint
                is_completion = self.status == 200 and endpoint in COMPLETIONS
                if self.ends_by_closing and is_completion and answer and answer.error_kind in HALF:
                    # the server died, or a proxy in front of it: with our own length or last chunk half an answer would
                    # look whole
                    self.fault = self.fault or Fault("cut")
        if self.fault is not None:
            name = None if self.upstream is None else self.upstream.name
            what = {"kind": self.fault.kind, "upstream": name, "model": self.leader.model}
            clients = {"clients": len(self.waiters), "began": self.is_begun}
            calls.event("failed", {**what, **clients})
        elif recorder is not None and recorder.cached is not None and not aborted:
            try:
                calls.handler.store(self)
            except Exception as error:  # noqa: BLE001 (a full disk must not cost the client its answer)
                calls.event("keep_failed", {"error": f"{type(error).__name__}: {error}"})
        # only after it was stored: an equal request must find the answer or the call
        calls.close(self)
        if aborted and self.lease is not None:
            lease, self.lease = self.lease, None
            lease.release()
        elif self.lease is not None:
            self.end_lease(is_stored=self.stored)
        self.is_judged = True
        finished_early, self.finished_early = self.finished_early, []
        for context in finished_early:
            calls.handler.finish(context)

    def end_lease(self, *, is_stored: bool) -> None:
        """Give the lease back; other proxies learn whether there is a stored answer."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.end(is_stored=is_stored)

    def unwanted(self) -> None:
        """No other proxy waits for it any more."""
        if not self.waiters and not self.is_over:
            self.abort()

    def abort(self) -> None:
        """No client waits any more: close the upstream connection."""
        self.calls.close(self)
        self.end(None, aborted=True)
        name = None if self.upstream is None else self.upstream.name
        self.calls.event("aborted", {"upstream": name, "model": self.leader.model})

    # --- its clients ---------------------------------------------------------------------------------

    def join(self, context: "Context") -> None:
        """Add a waiting request."""
        self.waiters[context] = None
        context.call, context.position, context.sees_raw = self, 0, None
        if self.keep_for is None and context.decision.write:
            self.keep_for = context

    def leave(self, context: "Context") -> None:
        """Remove a waiting request; without any the call ends."""
        if context not in self.waiters:
            return
        del self.waiters[context]
        if self.is_over:
            return
        if self.waiters:
            if self.recorder is not None and self.recorder.too_large:
                self.make_room()
        elif self.lease is not None:
            self.lease.check()
        else:
            self.abort()

    def deliver(self) -> None:
        """Write to each waiting client what it does not have yet. An exception for one does not affect the others."""
        # what is written to several is joined and framed once
        pieces: dict[tuple[int, bool], Piece] | None = {} if len(self.waiters) > 1 else None
        for context in tuple(self.waiters):
            try:
                self.fill(context, pieces)
            except Exception as error:  # noqa: BLE001 (a client's fault is no other client's)
                self.calls.event("client_failed", {"error": f"{type(error).__name__}: {error}"})
                context.request.cut()

    def fill(self, context: "Context", pieces: dict[tuple[int, bool], Piece] | None = None) -> None:
        """Write to one client all there is, as far as it keeps up, and the end if that came. `pieces`: framed for others already."""
        request, recorder, fault = context.request, self.recorder, self.fault
        handler = self.calls.handler
        if request.is_over:
            return
        if fault is not None and request.status is None:
            headers = [*handler.headers(context, None), JSON]
            request.respond(fault.status, headers, error_body(fault.status, fault.message))
            return
        if recorder is None or not (self.is_begun or self.is_over):
            return
        if context.sees_raw is None:
            context.sees_raw = not 200 <= self.status < 300 or passes_through(
                self.leader.format, context.format, has_usage=self.has_usage
            )
        if not context.sees_raw:
            self._show(context, recorder)
            return
        if not (recorder.is_stream or recorder.too_large):
            if self.is_over:
                cached = recorder.cached
                body = b"".join(recorder.parts) if cached is None else cached.body
                request.respond(
                    self.status, handler.headers(context, self, recorder.content_type), body
                )
            return
        hides = recorder.is_stream and not context.format.usage
        parts = recorder.without_usage if hides else recorder.parts
        count = len(parts)
        while context.position < count and not request.is_paused and not request.is_over:
            first = context.position
            piece = None if pieces is None else pieces.get((first, hides))
            if piece is None:
                size, end = len(parts[first]), first + 1
                while end < count and size < SLICE_BYTES:
                    size += len(parts[end])
                    end += 1
                data = parts[first] if end == first + 1 else b"".join(parts[first:end])
                piece = data, b"%x\r\n%b\r\n" % (len(data), data), end
                if pieces is not None:
                    pieces[first, hides] = piece
            data, framed, context.position = piece
            if not data:
                continue
            has_token = recorder.first_token_at is not None and context.position == count
            if has_token and request.first_token_s is None:
                request.note_token()
            is_last = self.is_over and context.position == count and fault is None
            if request.status is None:
                request.on_writable = partial(self._refill, context)
                headers = handler.headers(context, self, recorder.content_type)
                request.begin(self.status, headers)
            request.write(data, framed, is_last=is_last)
        if not self.is_over or context.position < count or request.is_over:
            return
        if request.status is None:
            request.begin(self.status, handler.headers(context, self, recorder.content_type))
        if fault is None:
            request.write(b"", is_last=True)
        else:
            request.cut(error_event(fault.status, fault.message) if recorder.is_stream else b"")

    def _refill(self, context: "Context") -> None:
        """A client that had fallen behind reads again."""
        self.fill(context)
        if self.recorder is not None and self.recorder.too_large and not self.is_over:
            self.make_room()

    def _show(self, context: "Context", recorder: Recorder) -> None:
        """At the end, send the whole answer converted to this client's format; if it can't be, the client gets a call of its own."""
        if not self.is_over and not recorder.too_large:
            return
        shown = None
        if self.is_over:
            self.judge()
            if context.format not in self.shown_as:
                cached = recorder.cached
                shown = None if cached is None else convert(cached, context.format)
                self.shown_as[context.format] = shown
            shown = self.shown_as[context.format]
        if shown is None:
            self.leave(context)
            context.call = None
            self.calls.handler.forward_alone(context)
            return
        headers = self.calls.handler.headers(context, self, shown[0])
        context.request.respond(200, headers, shown[1], has_tokens=context.format.stream)

    def make_room(self) -> None:
        """Of an answer too large to keep, drop the parts that all clients have; if too much is left, pause the upstream."""
        recorder = self.recorder
        assert recorder is not None
        parts = recorder.parts
        self._behind += sum(map(len, parts[self._seen :]))
        self._seen = len(parts)
        places = [
            each.position for each in self.waiters if each.sees_raw and not each.request.is_over
        ]
        upto = min(places, default=self._seen)
        self._behind -= sum(map(len, parts[self._freed : upto]))
        for place in range(self._freed, upto):
            parts[place] = recorder.without_usage[place] = b""
        self._freed = max(self._freed, upto)
        if self.connection is None:
            return
        if self._behind > WINDOW_BYTES:
            self.is_held = True
            self.connection.pause()
        elif self.is_held:
            self.is_held, self.read_s = False, self.calls.clock()
            self.connection.resume()

    # --- deadlines -----------------------------------------------------------------------------------

    def overdue(self, now: float) -> FaultKind | None:
        """The deadline that it missed."""
        setting = self.calls.settings.admission
        if self.sent_s is None or self.is_over:
            return None
        if setting.whole_s is not None and now - self.sent_s >= setting.whole_s:
            return "timeout_whole"
        recorder = self.recorder
        if (
            not self.is_begun
            or recorder is None
            or (recorder.is_stream and recorder.first_token_at is None)
        ):
            # of a whole body nobody knows when its first token was made
            first_s = setting.first_token_s if self.leader.format.stream else None
            late = first_s is not None and now - self.attempt_s >= first_s
            return "timeout_first_token" if late else None
        gap_s = setting.token_gap_s
        if gap_s is None or self.is_held:
            return None
        return "timeout_gap" if now - self.read_s >= gap_s else None


class Calls:
    """The calls of one proxy; for one event loop. `tick` wants to be called ten times a second."""

    def __init__(
        self,
        handler: "Handler",
        *,
        upstreams: Mapping[str, Upstream],
        routing: Routing,
        admission: Admission,
        settings: Settings,
        event: Callable[[str, dict[str, object]], None],
        clock: Callable[[], float],
        asked: Callable[[str, int], None],
    ) -> None:
        """`asked` is called for each request that is sent, with the upstream and the number of failed tries before."""
        self.handler, self.upstreams, self.routing = handler, upstreams, routing
        self.admission, self.settings = admission, settings
        self.event, self.clock, self._asked = event, clock, asked
        self._open: dict[bytes, Call] = {}
        """Those that can be joined."""
        self._under_way: dict[Call, None] = {}
        """All that have not ended, also those that wait for a slot."""
        self._waiting: dict[Place, Call] = {}
        self._held: dict[Call, None] = {}
        """Those that wait for an upstream to be started, first come first."""
        self._for_room: deque[Call] = deque()
        self._is_empty = asyncio.Event()

    def __len__(self) -> int:
        """Calls under way, those that wait for a slot included."""
        return len(self._under_way)

    def held(self) -> Counter[str]:
        """How many wait for an upstream to be started, by team."""
        return Counter(call.leader.team.name for call in self._held)

    # --- who leads, who joins ------------------------------------------------------------------------

    def to_join(self, key: bytes) -> Call | None:
        """The call that an equal request would join, if there is one."""
        call = self._open.get(key)
        longest_s = self.settings.cache.longest_flight_s
        if call is not None and longest_s is not None and self.clock() - call.asked_s >= longest_s:
            # it may hang: newcomers do not join it any more
            self.close(call)
            return None
        return call

    def lead(self, context: "Context", key: bytes | None) -> Call:
        """Make a call for a request; equal requests join it by its key. `admit` sends it."""
        call = Call(self, key, context, self.clock())
        if key is not None:
            self._open[key] = call
        call.join(context)
        self._under_way[call] = None
        return call

    def close(self, call: Call) -> None:
        """Let nobody join any more; who waits goes on waiting."""
        if call.key is not None and self._open.get(call.key) is call:
            del self._open[call.key]

    # --- slots ---------------------------------------------------------------------------------------

    def admit(self, call: Call) -> None:
        """Send the call upstream, queue it, or turn it away."""
        leader, now = call.leader, self.clock()
        back_in_s = self.routing.back_in(leader.model, now)
        if back_in_s is not None:
            # a long last start is no reason to refuse at once: the next one may be quicker, with filled caches
            team, teams = leader.team.name, self.held()
            why_not = self.admission.may_wait(team, teams.total(), teams[team])
            if why_not is None and now >= leader.arrived_s + self.settings.admission.wait_s:
                why_not = rejection_of("restarting", team)
            if why_not is None:
                self._held[call] = None
            else:
                self.reject(call, replace(why_not, retry_after_s=back_in_s))
            return
        if leader.request.head.method != "POST":
            # it generates no tokens, e.g., the list of models: it needs no slot
            self._start(call, None)
            return
        got = self.admission.ask(
            leader.team.name,
            now,
            arrived_s=leader.arrived_s,
            priority=leader.team.priority,
            prompt_tokens=leader.prompt_tokens,
            output_tokens=leader.output_tokens,
        )
        if isinstance(got, Rejection):
            self.reject(call, got)
        elif got.waits:
            call.place = got
            self._waiting[got] = call
        else:
            self._start(call, got)

    def reject(self, call: Call, rejection: Rejection) -> None:
        """Turn the call away; its clients are answered in the next turn of the loop."""
        what = {"reason": rejection.reason, "team": call.leader.team.name}
        self.event("rejected", {**what, "clients": len(call.waiters)})
        call.is_over, call.ended_s = True, self.clock()
        self.close(call)
        self.give_back(call)
        call.is_judged = True
        call.end_lease(is_stored=False)
        asyncio.get_running_loop().call_soon(self._answer_rejected, call, rejection)

    def _answer_rejected(self, call: Call, rejection: Rejection) -> None:
        body = error_body(rejection.status, rejection.message, rejection.kind, rejection.param)
        for context in tuple(call.waiters):
            headers = [*self.handler.headers(context, None), JSON]
            wait_s = None
            if rejection.retry_after_s is not None:
                jitter = 1 + RETRY_JITTER * random.random()  # noqa: S311 (chance, not a secret)
                wait_s = max(1, ceil(rejection.retry_after_s * jitter))
                headers.append((b"retry-after", b"%d" % wait_s))
            context.rejection, context.retry_after_s = rejection, wait_s
            context.request.respond(rejection.status, headers, body)

    def give_back(self, call: Call) -> None:
        """Release what an ended call holds: its slot, its place in a queue."""
        self._under_way.pop(call, None)
        self._held.pop(call, None)
        call.waits_for_room = False
        if call.place is not None:
            self._waiting.pop(call.place, None)
            self.admission.release(call.place, self.clock())
            call.place = None
            if self._waiting:
                self._hand_out_slots()
        if not self._under_way:
            self._is_empty.set()

    def _hand_out_slots(self) -> None:
        for place, rejection in self.admission.due(self.clock()):
            call = self._waiting.pop(place)
            if rejection is None:
                self._start(call, place)
            else:
                self.reject(call, rejection)

    # --- upstreams -----------------------------------------------------------------------------------

    def _start(self, call: Call, slot: Place | None) -> None:
        """Choose an upstream and send it there; it waits while all healthy ones are full."""
        call.tried, call.place = [], slot
        if slot is not None:
            call.queue_ms = (slot.began_s - call.leader.arrived_s) * 1000
        name = self._choose(call, frozenset())
        if name is not None:
            self.send(call, name)
        elif self.routing.is_ready(call.leader.model, self.clock()):
            call.waits_for_room = True
            self._for_room.append(call)
        elif not self.turned_back(call, Fault("no_upstream")):
            # not now: `Handler.take` for this request may still be running
            asyncio.get_running_loop().call_soon(call.end, Fault("no_upstream"))

    def send(self, call: Call, name: str) -> None:
        """Send the call to this upstream."""
        now, leader = self.clock(), call.leader
        known, asked = leader.known, leader.request.head
        upstream = call.upstream = self.upstreams[name]
        call.tried.append(name)
        call.waits_for_room, call.is_at_upstream, call.recorder = False, True, None
        call.attempt_s = now
        call.sent_s = now if call.sent_s is None else call.sent_s
        self.routing.started(name, now)
        self._asked(name, call.retries)
        body = leader.body
        if upstream.setting.model is not None:
            body = with_model(body, upstream.setting.model)
        head = known.heads.get(name)
        if head is None:
            head = upstream.head(asked.method, asked.path, asked.query, known.forwarded)
            known.heads[name] = head
        upstream.ask(call, head, body)

    def _choose(self, call: Call, avoid: frozenset[str]) -> str | None:
        leader = call.leader
        return self.routing.choose(leader.model, leader.prefix, self.clock(), avoid)

    def next(self, call: Call) -> str | None:
        """The name of another upstream to try; None: there is none, or enough were tried. A fallback does not count as a retry."""
        avoid = frozenset(call.tried)
        name = self._choose(call, avoid)
        if name is None or self.upstreams[name].setting.fallback:
            return name
        no_fallbacks = {n for n, each in self.upstreams.items() if not each.setting.fallback}
        if len(avoid & no_fallbacks) <= self.settings.routing.retries:
            return name
        return self._choose(call, avoid | no_fallbacks)

    def attempt_ended(self, call: Call, outcome: Outcome) -> None:
        """Its request at the upstream is over: tell routing, and let a call that waits for room have its place."""
        if call.is_at_upstream and call.upstream is not None:
            call.is_at_upstream = False
            self.routing.ended(call.upstream.name, outcome, self.clock())
            if self._for_room:
                self._hand_out_room()

    def _hand_out_room(self) -> None:
        """Send calls that waited for room, as far as there is some now; also when an upstream came back."""
        full: set[str | None] = set()
        still: deque[Call] = deque()
        waiting, self._for_room = self._for_room, deque()
        for call in waiting:
            if call.is_over or not call.waits_for_room:
                continue
            name = None if call.leader.model in full else self._choose(call, frozenset())
            if name is None:
                full.add(call.leader.model)
                still.append(call)
            else:
                self.send(call, name)
        self._for_room = still + self._for_room

    def turned_back(self, call: Call, fault: Fault) -> bool:
        """Take care of a failed call of which no client got a byte, if it can wait for a restart, or if no upstream serves its model.

        True: it waits again or was rejected. False: the caller ends it.
        """
        routing, model = self.routing, call.leader.model
        if fault.kind not in {*TRIES_ANOTHER, "no_upstream"}:
            return False
        if model is not None and (served := routing.served_instead(model)):
            self.reject(call, unknown_model(model, served))
            return True
        is_cut, now = fault.kind == "cut", self.clock()
        if is_cut:
            # this very request may have crashed it: no endless retries. But one that dies closes its connections one by one, and
            # may take another in between (1 of 30 kills beside a busy machine): that is the same death.
            is_same_death = call.cut_s is not None and now < call.cut_s + DYING_S
            has_tries = is_same_death or call.retries < self.settings.routing.retries
            is_back_soon = call.upstream and routing.is_started_again(call.upstream.name)
            if not (is_back_soon and has_tries):
                return False
            if not is_same_death:
                call.retries += 1
                call.cut_s = now
        elif routing.back_in(model, now) is None:
            return False
        if call.place is not None:
            self.admission.release(call.place, now)
            call.place = None
            self._hand_out_slots()
        if is_cut:
            # sent with the next tick, when its death is known
            self._held[call] = None
        else:
            self.admit(call)
        return True

    # --- time ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Ten times a second: reject calls that waited too long, end those past a deadline, move those at stuck upstreams."""
        now, wait_s = self.clock(), self.settings.admission.wait_s
        for call in tuple(self._held):
            back_in_s = self.routing.back_in(call.leader.model, now)
            if back_in_s is None:
                del self._held[call]
                self.admit(call)
            elif now >= call.leader.arrived_s + wait_s:
                self.reject(call, rejection_of("restarting", call.leader.team.name, back_in_s))
        self._hand_out_slots()
        if self._for_room:
            self._hand_out_room()
        stuck = self.routing.given_up()
        for call in tuple(self._under_way):
            if call in self._held or call.is_over:
                continue
            is_waiting = call.is_at_upstream and not call.is_begun
            if (
                stuck
                and is_waiting
                and call.upstream
                and call.upstream.name in stuck
                and self.next(call)
            ):
                # not the call's end: this upstream stands still, and another doesn't
                call.upstream.cancel(call)
                call.broke(Fault("stuck"))
                continue
            kind = call.overdue(now)
            if kind is not None:
                call.end(Fault(kind))
            elif call.waits_for_room and now >= call.leader.arrived_s + wait_s:
                after_s = self.routing.back_in(call.leader.model, now)
                why = rejection_of("expired", call.leader.team.name, after_s)
                self.reject(call, replace(why, message="no upstream had room in time"))

    async def drain(self, wait_s: float) -> None:
        """Wait for the calls under way, then end those that are left."""
        for call in tuple(self._held):
            # the supervisor that restarts upstreams ends, too
            call.end(Fault("draining"))
        try:
            async with asyncio.timeout(wait_s):
                while self._under_way:
                    self._is_empty.clear()
                    await self._is_empty.wait()
        except TimeoutError:
            for call in tuple(self._under_way):
                call.end(Fault("draining"))
        # for what was left to the loop's next turn (call_soon)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def with_model(body: bytes, model: str) -> bytes:
    """The request asked of another model; a body that names none is left as it is."""
    try:
        fields = json.loads(body)
    except ValueError:
        return body
    if not isinstance(fields, dict) or "model" not in fields:
        return body
    # not orjson, which makes floats of integers beyond 64 bits
    return json.dumps({**fields, "model": model}).encode()
