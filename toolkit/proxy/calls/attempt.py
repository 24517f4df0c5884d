"""One call's way through the upstreams: ask one, read its answer into the call, ask another if nothing came yet.

It ends no call and gives back no slot: calls.py does, with what this returns. Cancelled, it closes the connection at once.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from toolkit.proxy.answers.recorder import Recorder
from toolkit.proxy.calls.call import Call, Told
from toolkit.proxy.calls.rejections import unknown_model
from toolkit.proxy.exchange import Job, Rejection
from toolkit.proxy.faults import FAULTS, TRIES_ANOTHER, Fault, FaultKind
from toolkit.proxy.settings import Settings
from toolkit.proxy.upstreams.routing import Outcome, Routing
from toolkit.proxy.upstreams.upstream import Answer, Upstream, UpstreamError

BUSY: Final = frozenset({502, 503, 504})
"""Another upstream may do better; a 500 is as likely the request's fault, and a 4xx certainly is."""
AFTER_END_S: Final = 0.05
"""How long the end of the HTTP body may come after the stream's last event before the connection is given up."""
PROGRESS_S: Final = 0.1
"""So often routing is told that bytes come; each read would be a waste."""
OUTCOMES: dict[FaultKind, Outcome] = {
    # for routing; what is not here says nothing about the upstream
    "connect": "refused",
    "tls": "refused",
    "cut": "cut",
    "garbage": "cut",
    "busy": "error",
    "timeout_gap": "cut",
    "timeout_connect": "timeout",
    "timeout_first_token": "timeout",
}


@dataclass(slots=True, kw_only=True, eq=False)
class Means:
    """What all calls need on their way; those that wait for room at an upstream wait here, first come, first served."""

    upstreams: Mapping[str, Upstream]
    routing: Routing
    settings: Settings
    event: Told
    """Told what no client's own record says; it may not wait."""
    clock: Callable[[], float]
    asked: Callable[[str, int], None] = field(default=lambda _name, _failed: None)
    """Told of each request as it is sent: to which upstream, and how many others failed before."""
    _waiting: deque[tuple[Call, asyncio.Future[str]]] = field(default_factory=deque)

    async def first(self, call: Call) -> str | None:
        """The upstream to ask, told that it is; waits while those that are well are full. None: there is none."""
        job = call.job
        name = self._choice(job, frozenset())
        if name is not None:
            self.routing.started(name, self.clock())
            return name
        if not self.routing.is_ready(job.model, self.clock()):
            return None
        turn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, turn))
        call.waits_for_room = True
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # it was its turn, and nobody is there to take it
                self.ended(turn.result(), "left")
            raise
        finally:
            call.waits_for_room = False

    def next(self, job: Job, tried: Sequence[str]) -> str | None:
        """Another upstream to ask; None: there is no other, or enough were tried. A fallback is no retry."""
        avoid = frozenset(tried)
        name = self._choice(job, avoid)
        if name is None or self._is_fallback(name):
            return name
        if sum(not self._is_fallback(each) for each in tried) <= self.settings.routing.retries:
            return name
        others = (each for each in self.upstreams if not self._is_fallback(each))
        return self._choice(job, avoid.union(others))

    def ended(self, name: str, outcome: Outcome) -> None:
        """A request there is over: somebody else may have its place."""
        self.routing.ended(name, outcome, self.clock())
        self.hand_out()

    def hand_out(self) -> None:
        """Send on those that waited for room, as far as there is some now; also when an upstream came back."""
        full: set[str | None] = set()
        still: deque[tuple[Call, asyncio.Future[str]]] = deque()
        while self._waiting:
            call, turn = self._waiting.popleft()
            model = call.job.model
            if turn.done():
                continue
            name = None if model in full else self._choice(call.job, frozenset())
            if name is None:
                full.add(model)
                still.append((call, turn))
            else:
                self.routing.started(name, self.clock())
                turn.set_result(name)
        self._waiting = still

    def _choice(self, job: Job, avoid: frozenset[str]) -> str | None:
        return self.routing.choose(job.model, job.prefix, self.clock(), avoid)

    def _is_fallback(self, name: str) -> bool:
        return self.upstreams[name].setting.fallback


async def answered(call: Call, means: Means, whole: Callable[[], None]) -> Fault | Rejection | None:
    """Ask until an upstream answers, and read all of its answer into the call. The fault, if there is none or it was cut.

    A rejection where nobody serves the model: in the words of the one that was asked, for all of them.
    `whole` is called with the last event's arrival: a client that goes away as soon as it has that comes too late to
    end the call, and what is left to read is of no answer.
    """
    tried: list[str] = []
    name = await means.first(call)
    if name is None:
        return Fault(kind="no_upstream", message=FAULTS["no_upstream"][1])
    while True:
        tried.append(name)
        means.asked(name, call.retries)
        try:
            fault = await _Attempt(call, means, name, tried).fault(whole)
        except _UnknownModelError:
            assert call.job.model is not None
            return unknown_model(call.job.model, means.routing.served_instead(call.job.model))
        if fault is None or call.recorder is not None or fault.kind not in TRIES_ANOTHER:
            return fault
        other = means.next(call.job, tried)
        if other is None:
            return fault
        call.retries += 1
        means.routing.started(other, means.clock())
        means.event("retry", {"upstream": name, "other": other, "why": fault.kind})
        name = other


class _Attempt:
    """One request at one upstream, which routing was told to have begun."""

    def __init__(self, call: Call, means: Means, name: str, tried: Sequence[str]) -> None:
        self._call, self._means, self._name, self._tried = call, means, name, tried
        self._upstream = means.upstreams[name]
        self._noted_s = 0.0
        now = means.clock()
        call.upstream, call.attempt_s, call.read_s = name, now, None
        call.sent_s = now if call.sent_s is None else call.sent_s
        call.is_fallback = self._upstream.setting.fallback
        call.other_model = self._upstream.setting.model

    async def fault(self, whole: Callable[[], None]) -> Fault | None:
        """Why there is no whole answer; None: it was read, or everybody left."""
        outcome: Outcome = "left"
        try:
            outcome = await self._outcome(whole)
        except UpstreamError as error:
            outcome = OUTCOMES.get(error.fault.kind, "left")
            return error.fault
        except asyncio.CancelledError:
            call = self._call
            if call.is_over or not call.turned_away:
                outcome = OUTCOMES.get(call.error.kind, "left") if call.error else "left"
                raise
            # not the call's end: this upstream stands still, and another doesn't
            call.turned_away = False
            outcome = "timeout"
            _uncancel()
            return Fault(kind="stuck", message=FAULTS["stuck"][1])
        except _UnknownModelError:
            outcome = "ok"
            raise
        finally:
            self._means.ended(self._name, outcome)
        return None

    async def _outcome(self, whole: Callable[[], None]) -> Outcome:
        call = self._call
        body = call.job.body
        if call.other_model is not None:
            body = with_model(body, call.other_model)
        answer = await self._upstream.ask(call.job, body)
        try:
            if answer.status in BUSY and self._means.next(call.job, self._tried) is not None:
                raise UpstreamError(Fault(kind="busy", message=FAULTS["busy"][1]))
            if answer.status == 404 and self._means.routing.served_instead(call.job.model):
                # it names its own models, and the others have some, too
                raise _UnknownModelError
            is_read = await self._is_read(answer, whole)
        finally:
            answer.close()
        if not is_read:
            return "left"
        return "ok" if answer.status < 500 else "error"

    async def _is_read(self, answer: Answer, whole: Callable[[], None]) -> bool:
        """Read an answer into the call, at the pace of its slowest client if it is too large to be kept.

        False: everybody left. Raises UpstreamError.
        """
        call, clock = self._call, self._means.clock
        recorder = self._recorder(answer)
        call.ends_by_closing = answer.ends_by_closing
        while data := await answer.read():
            now = call.read_s = clock()
            self._note_progress(answer, now)
            if recorder.feed(data, now):
                if call.recorder is None:
                    call.begin(answer.status, answer.headers, recorder)
                else:
                    call.grow()
            if recorder.is_finished:
                whole()
                await _drain(answer)
                return True
            if call.is_over:
                return False
            if await call.waited_for_room():
                call.read_s = clock()
        if call.recorder is None:
            call.begin(answer.status, answer.headers, recorder)
        return True

    def _recorder(self, answer: Answer) -> Recorder:
        call = self._call
        assert call.attempt_s is not None
        cache = self._means.settings.cache
        return Recorder(
            status=answer.status,
            content_type=answer.content_type,
            endpoint=call.job.endpoint,
            view=call.job.view,
            usage_is_ours=call.job.usage_is_ours,
            sent_s=call.attempt_s,
            max_bytes=cache.max_answer_bytes,
            forbidden=answer.forbids_storing if cache.obeys_upstream else None,
        )

    def _note_progress(self, answer: Answer, now: float) -> None:
        if now - self._noted_s >= PROGRESS_S and 200 <= answer.status < 300:
            self._noted_s = now
            self._means.routing.got_bytes(self._name, now)


class _UnknownModelError(Exception):
    """It says 404, and no upstream serves what was asked for."""


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


async def _drain(answer: Answer) -> None:
    """Read the rest of the HTTP body, which ends what has ended already, so that the connection can be used again."""
    try:
        async with asyncio.timeout(AFTER_END_S):
            while await answer.read():
                pass
    except (TimeoutError, UpstreamError):
        return


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
