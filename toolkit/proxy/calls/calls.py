"""All calls upstream that are under way: who leads and who joins, who gets a slot, and how each call ends.

It opens no connection itself (attempt.py, upstream.py) and stores nothing: a whole answer goes to the function that it is
given. Each call ends here exactly once, whatever ended it, and that gives back its slot and its flight.

A call for an upstream that is being started again is held, without a slot, as long as it may wait for one and as far as there are
places in the queue. So is one that the upstream's end cut off before a byte of its answer came.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from toolkit.proxy.answers.recorder import COMPLETIONS
from toolkit.proxy.calls.admission import Admission, Slot, Waiting, ask_of
from toolkit.proxy.calls.attempt import Means, answered
from toolkit.proxy.calls.call import Call, Listener
from toolkit.proxy.calls.flights import Flights
from toolkit.proxy.calls.rejections import rejection_of, unknown_model
from toolkit.proxy.exchange import Job, Kept, Rejection
from toolkit.proxy.faults import FAULTS, TRIES_ANOTHER, Fault, FaultKind
from toolkit.proxy.upstreams.upstream import SAFE

HALF: Final = frozenset({"garbage", "no_finish"})
"""Kinds of an answer's error that half an answer has."""
Keep = Callable[[bytes, Job, Kept], None]


class Calls:
    """The calls of one proxy; for one event loop. `tick` wants to be called ten times a second.

    `keep` stores an answer; it may not wait.
    """

    def __init__(
        self, means: Means, *, flights: Flights[bytes, Call], admission: Admission, keep: Keep
    ) -> None:
        self._means, self._flights = means, flights
        self._admission, self._keep = admission, keep
        self._clock, self._event, self._limits = means.clock, means.event, means.settings.admission
        self._under_way: dict[Call, None] = {}
        """Those that wait for a slot, too."""
        self._waiting: dict[Waiting, Call] = {}
        self._held: dict[Call, None] = {}
        """Those that wait for an upstream to be started, first come first."""
        self._tasks: dict[Call, asyncio.Task[None]] = {}
        """Until the connection is given back, which may be a moment after the call's end."""
        self._empty = asyncio.Event()

    def __len__(self) -> int:
        """Calls under way, those that wait for a slot included."""
        return len(self._under_way)

    def held(self) -> Counter[str]:
        """How many wait for an upstream to be started, by team."""
        return Counter(call.job.team for call in self._held)

    # --- clients -------------------------------------------------------------------------------------

    def under_way(self, key: bytes) -> Call | None:
        """The call that an equal request would join, if there is one."""
        flight = self._flights.open_at(key)
        return None if flight is None else flight.cargo

    def ask(self, key: bytes | None, job: Job, listener: Listener) -> tuple[Call, bool]:
        """The call that answers a request, and whether it was made for it; None as a key: nobody else may join.

        The listener is not called before this returns. A call that has begun tells a joiner only what comes from now on:
        the beginning is in its recorder.
        """
        if key is not None:
            flight, leads = self._flights.begin(key, self._clock())
            if not leads:
                call = flight.cargo
                assert call is not None, "a flight without its call"
                self._board(call, job, listener)
                return call, False
        call = Call(
            key=key, job=job, flights=self._flights, told=self._event, asked_s=self._clock()
        )
        if key is not None:
            call.flight, flight.cargo = flight, call
        self._board(call, job, listener)
        self._under_way[call] = None
        try:
            self._admit(call)
        except BaseException:
            # nobody may join a call that nobody makes
            self._close(call, ok=False)
            raise
        return call, True

    def leave(self, call: Call, listener: Listener) -> None:
        """A client goes away; the last one ends the call. Nothing happens if it is not aboard, or the call is over."""
        if listener not in call.aboard:
            return
        del call.aboard[listener]
        flight = call.flight
        is_last = not call.aboard if flight is None else self._flights.leave(flight)
        if call.is_over:
            return
        if is_last:
            self._end(call, None)
            self._event("aborted", {"upstream": call.upstream, "model": call.job.model})
        else:
            call.moved()

    def stay_for(self, call: Call, listener: Listener) -> None:
        """Have a call go on for somebody who is no client of this process, until that one leaves, too."""
        call.aboard[listener] = None
        call.for_others = listener
        if call.flight is not None:
            call.flight.aboard += 1

    @staticmethod
    def _board(call: Call, job: Job, listener: Listener) -> None:
        call.aboard[listener] = None
        if call.kept_for is None and job.is_cacheable:
            call.kept_for = job

    # --- slots ---------------------------------------------------------------------------------------

    def _admit(self, call: Call) -> None:
        back_in_s = self._means.routing.back_in(call.job.model, self._clock())
        if back_in_s is not None:
            self._hold(call, back_in_s)
            return
        if call.job.method in SAFE:
            # it asks for no token, e.g., for the list of models: it need not wait behind those that do
            self._start(call)
            return
        got = self._admission.ask(ask_of(call.job), self._clock())
        if isinstance(got, Rejection):
            self._reject(call, got)
        elif isinstance(got, Waiting):
            call.waiting = got
            self._waiting[got] = call
        else:
            self._seat(call, got)

    def _hold(self, call: Call, back_in_s: float) -> None:
        """Have it wait for an upstream that is being started, or say when to come again.

        How long the last start took refuses nobody at once: the next one may find its caches filled.
        """
        job = call.job
        teams = self.held()
        why_not = self._admission.may_wait(job.team, teams.total(), teams[job.team])
        if why_not is None and self._clock() >= job.arrived_s + self._limits.wait_s:
            why_not = rejection_of("restarting", job.team)
        if why_not is None:
            self._held[call] = None
        else:
            why_not = replace(why_not, retry_after_s=back_in_s)
            self._reject(call, self._admission.refuse(why_not, job.team))

    def _go_on_held(self) -> None:
        """Admit those whose upstream is back, and reject those that waited in vain."""
        now = self._clock()
        for call in tuple(self._held):
            back_in_s = self._means.routing.back_in(call.job.model, now)
            if back_in_s is None:
                del self._held[call]
                self._admit(call)
            elif now >= call.job.arrived_s + self._limits.wait_s:
                why = rejection_of("restarting", call.job.team, back_in_s)
                self._reject(call, self._admission.refuse(why, call.job.team))

    def _seat(self, call: Call, slot: Slot) -> None:
        call.slot, call.waiting, call.queue_ms = slot, None, slot.waited_s * 1000
        self._start(call)

    def _start(self, call: Call) -> None:
        task = asyncio.get_running_loop().create_task(self._run(call))
        self._tasks[call] = task
        task.add_done_callback(partial(self._forget, call))

    def _forget(self, call: Call, task: "asyncio.Task[None]") -> None:
        # a call that was held has another one by now, perhaps
        if self._tasks.get(call) is task:
            del self._tasks[call]
        self._look_whether_empty()

    def _reject(self, call: Call, rejection: Rejection) -> None:
        """Nobody is told yet: the one who asks does not know of the call so far."""
        call.rejection, call.waiting = rejection, None
        told = {"reason": rejection.reason, "team": call.job.team, "clients": call.clients}
        self._close(call, ok=False)
        task = self._tasks.get(call)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self._event("rejected", told)
        asyncio.get_running_loop().call_soon(self._tell_rejected, call, rejection)

    @staticmethod
    def _tell_rejected(call: Call, rejection: Rejection) -> None:
        call.tell(lambda listener: listener.rejected(rejection))
        call.aboard.clear()

    def _hand_out_slots(self) -> None:
        due = self._admission.due(self._clock())
        for waiting, slot in due.served:
            self._seat(self._waiting.pop(waiting), slot)
        for waiting, rejection in due.rejected:
            self._reject(self._waiting.pop(waiting), rejection)

    # --- the call itself -----------------------------------------------------------------------------

    async def _run(self, call: Call) -> None:
        try:
            fault = await answered(call, self._means, lambda: self._end(call, None))
        except asyncio.CancelledError:
            # by _end, which has told everything; or by the loop's own end
            if not call.is_over:
                self._end(call, _fault("draining"))
            raise
        except Exception as error:  # noqa: BLE001 (a fault of ours must not leave its clients waiting)
            self._event("fault", {"error": f"{type(error).__name__}: {error}"})
            fault = _fault("ours")
        if isinstance(fault, Rejection):
            self._reject(call, self._admission.refuse(fault, call.job.team))
        elif fault is None or call.is_over or not self._is_turned_back(call, fault):
            self._end(call, fault)

    def _is_turned_back(self, call: Call, fault: Fault) -> bool:
        """Whether a call of which nothing came is not over: its upstream is started again, or nobody serves its model."""
        routing, job = self._means.routing, call.job
        if call.recorder is not None or fault.kind not in {*TRIES_ANOTHER, "no_upstream"}:
            return False
        if job.model is not None and (served := routing.served_instead(job.model)):
            self._reject(call, self._admission.refuse(unknown_model(job.model, served), job.team))
            return True
        if fault.kind == "cut":
            # it may have been this request that ended it: not again and again
            has_tries = call.retries < self._means.settings.routing.retries
            if not (call.upstream and routing.is_started_again(call.upstream) and has_tries):
                return False
            call.retries += 1
        elif routing.back_in(job.model, self._clock()) is None:
            return False
        if call.slot is not None:
            self._admission.release(call.slot, self._clock())
            call.slot = None
            self._hand_out_slots()
        self._admit(call)
        return True

    def _end(self, call: Call, fault: Fault | None) -> None:
        """End a call, once: what it was, what it stored, its slot, its flight, and then its clients."""
        if call.is_over:
            return
        call.error = fault = self._record(call, fault)
        if fault is None:
            self._store(call)
        else:
            told = {"kind": fault.kind, "upstream": call.upstream, "model": call.job.model}
            self._event(
                "failed", told | {"clients": call.clients, "began": call.status is not None}
            )
        self._close(call, ok=fault is None)
        task = self._tasks.get(call)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        call.tell(lambda listener: listener.ended(call))
        # who leaves from now on leaves nothing; and a cycle of references less
        call.aboard.clear()

    def _record(self, call: Call, fault: Fault | None) -> Fault | None:
        """What its answer was, and what is wrong with the call: nothing, once the last event was there."""
        recorder = call.recorder
        if recorder is None or not (call.aboard or recorder.is_finished):
            return fault
        fault = None if recorder.is_finished else fault
        try:
            call.recorded = recorder.end(self._clock(), broken=fault.message if fault else None)
        except Exception as error:  # noqa: BLE001 (the slot must be given back whatever an answer holds)
            self._event("fault", {"error": f"{type(error).__name__}: {error}"})
            return _fault("ours")
        return _fault("cut") if fault is None and _looks_cut(call) else fault

    def _store(self, call: Call) -> None:
        kept = call.recorded.kept if call.recorded else None
        if kept is None or call.key is None or call.kept_for is None or self._is_strangers(call):
            return
        try:
            self._keep(call.key, call.kept_for, kept)
        except Exception as error:  # noqa: BLE001 (a full disk must not cost the client its answer)
            self._event("keep_failed", {"error": f"{type(error).__name__}: {error}"})
        else:
            call.stored = True

    def _is_strangers(self, call: Call) -> bool:
        """Whether another model answered, or one that nobody watches: its changes would begin no new generation."""
        if call.other_model:
            return True
        upstream = self._means.upstreams.get(call.upstream or "")
        return call.is_fallback and not (upstream and upstream.setting.is_watched)

    def _close(self, call: Call, *, ok: bool) -> None:
        """Give back what it holds."""
        call.is_over, call.ended_s = True, self._clock()
        del self._under_way[call]
        self._held.pop(call, None)
        if call.flight is not None:
            self._flights.finish(call.flight, ok=ok)
            # nobody joins any more, and a cycle less keeps no answer waiting for the collector
            call.flight.cargo = None
        if call.waiting is not None:
            del self._waiting[call.waiting]
            self._admission.cancel(call.waiting)
            call.waiting = None
        if call.slot is not None:
            self._admission.release(call.slot, call.ended_s)
            call.slot = None
            self._hand_out_slots()
        self._look_whether_empty()

    # --- time ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Reject who waited too long, end what missed a deadline, give up upstreams that stand still; ten times a second."""
        self._go_on_held()
        self._hand_out_slots()
        self._means.hand_out()
        self._turn_away()
        now = self._clock()
        for call in tuple(self._under_way):
            if call in self._held:
                continue
            kind = call.overdue(self._limits, now)
            if kind is not None:
                self._end(call, _fault(kind))
            elif call.waits_for_room and now >= call.job.arrived_s + self._limits.wait_s:
                after_s = self._means.routing.back_in(call.job.model, now)
                why = rejection_of("expired", call.job.team, after_s)
                why = replace(why, message="no upstream had room in time")
                self._reject(call, self._admission.refuse(why, call.job.team))

    def _turn_away(self) -> None:
        """Ask elsewhere what was asked where nothing moves any more, if nothing of its answer came and there is another."""
        stuck = self._means.routing.given_up()
        if not stuck:
            return
        for call in tuple(self._under_way):
            task = self._tasks.get(call)
            if task is None or call.upstream not in stuck or call.recorder is not None:
                continue
            if self._means.next(call.job, [call.upstream]) is not None:
                call.turned_away = True
                task.cancel()

    async def drain(self, wait_s: float) -> None:
        """Wait for the calls under way, then abort those that are left; returns when every connection is given back."""
        for call in tuple(self._held):
            # whoever starts upstreams ends, too
            self._end(call, _fault("draining"))
        try:
            async with asyncio.timeout(wait_s):
                await self._until_empty()
        except TimeoutError:
            for call in tuple(self._under_way):
                self._end(call, _fault("draining"))
            await self._until_empty()

    async def _until_empty(self) -> None:
        while self._under_way or self._tasks:
            self._empty.clear()
            await self._empty.wait()

    def _look_whether_empty(self) -> None:
        if not (self._under_way or self._tasks):
            self._empty.set()


def _looks_cut(call: Call) -> bool:
    """Whether a completion that ends with its connection is none: then a server died, or a proxy before it did.

    Passed on with a length or a last chunk of ours, half an answer would look whole.
    """
    assert call.recorded is not None
    if not call.ends_by_closing or call.status != 200 or call.job.endpoint not in COMPLETIONS:
        return False
    answer = call.recorded.answer
    return answer is not None and answer.error_kind in HALF


def _fault(kind: FaultKind) -> Fault:
    return Fault(kind=kind, message=FAULTS[kind][1])
