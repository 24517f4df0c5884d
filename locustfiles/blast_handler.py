"""One host on one worker: who asks what, and what came of it. The users of a host share its handler.

A handler learns which model its host serves, hands out orders, has each sent over its user's own connection, and tells the
tallies and Locust how it ended. Canaries go beside the users, one at a time over a connection of their own, so that none
of them keeps a user from its ranked requests.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gevent
from blast_connection import HostAddress, LoadConnection, TimedRequest
from blast_plan import WorkerPlan
from gevent.lock import BoundedSemaphore

from toolkit.bench.client import PAGE_TIMEOUT_S, PageError, read_models
from toolkit.bench.faults import hidden, without_key
from toolkit.bench.host_runner import LONGEST_PAUSE_S, PAUSE_S
from toolkit.bench.request_record import Failure, RequestContext, request_record
from toolkit.bench.requests import PlannedRequest, choose_model
from toolkit.blast.canaries import CanarySampling
from toolkit.blast.pacing import HostPace
from toolkit.blast.script import Caller, HostScript, Order
from toolkit.blast.tallying import Tallying
from toolkit.protocol.completion import Answer
from toolkit.records import RequestRecord, ServedModel

LEARN_EVERY_S = 1.0
"""A host that does not tell what it serves is asked again after so long, by one user for all."""
RELEARN_EVERY_S = 5.0
"""After a `404`: its model may have been swapped."""
SHOT_EVERY_S = 5.0
"""At most one pair of canaries a host in so long is stored whole: all of them would fill a disk."""
OVERDUE_S = 1.0
"""A planned request that is so late, when nobody will send it any more, found all users busy: it counts against its host."""
SLOTS_OF_A_START = 10**9
"""Canaries' slots of one worker and start do not overlap with another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetting:
    """What all handlers of a worker share in one run."""

    plan: WorkerPlan
    users_per_host: Callable[[], int]
    """How many are wanted at all workers together, now."""
    worker: str
    worker_number: int
    wall_offset_s: float
    """Wall clock - monotonic clock, read once a run."""
    tallying: Tallying
    aside: Callable[[Callable[[], None]], None]
    """Has a request sent beside the users'."""
    keep: Callable[[RequestRecord], None]
    """Has a canary's shot stored."""
    fire: Callable[..., None]
    """Locust's request event."""
    say: Callable[[str], None]


class BlastError(Exception):
    """What Locust's own table shows of a failure: its kind alone, as sentences may differ in each answer."""


class UserSession:
    """One user's part of the handler: its own connection, and where it is in its script."""

    def __init__(self, place: HostAddress) -> None:
        self.connection = LoadConnection(place)
        self.caller: Caller | None = None
        self.script: HostScript | None = None
        self.failures = 0
        """In a row."""

    def pause_s(self, *, paced: bool) -> float:
        """How long this user waits before its next turn."""
        if self.failures > 1 and not paced:
            # a host that refuses at once must not be hammered, nor cost the other hosts this processor
            return float(min(LONGEST_PAUSE_S, PAUSE_S * 2 ** min(self.failures - 2, 10)))
        return self.caller.pause_s() if self.caller else 0.0


class HostHandler:
    """Chooses, sends and counts the requests of one host's users."""

    def __init__(self, place: HostAddress) -> None:
        self.place = place
        self.host = place.host
        self.users = 0
        """At work on this worker."""
        self._key = (place.host.name, place.host.url)
        self._setting: RunSetting | None = None
        self._learning = BoundedSemaphore(1)
        self._turnstile = BoundedSemaphore(1)
        self._canary_wire = LoadConnection(place)
        self._canary_is_out = False

    def open(self, setting: RunSetting) -> None:
        """Begin a run."""
        plan = setting.plan
        self._setting = setting
        self._script: HostScript | None = None
        self._model: str | None = None
        self._starts = self._numbers = 0
        self._learn_at_s = 0.0
        self._fault = Failure(kind="connect", error="it was not asked yet")
        self._told: set[str] = set()
        self._keeping = CanarySampling(SHOT_EVERY_S * plan.workers)
        self._canary_is_out = False
        self._pace: HostPace | None = None
        self._paced_for = (0, 0)
        self._context = RequestContext(
            run=plan.run,
            name=self.host.name,
            url=self.host.url,
            concurrency=None if plan.rate else plan.users_per_host,
            wall_offset_s=setting.wall_offset_s,
        )

    def wait_for_slot(self) -> float:
        """When the next request is planned; returns at that moment. In a closed loop that is now."""
        plan = self._now().plan
        if plan.rate is None:
            return time.monotonic()
        # one user waits for the next slot and the others for it, so that no slot is held by one who is stopped
        with self._turnstile:
            wanted = self.users, self._now().users_per_host()
            if self._pace is None or self._paced_for != wanted:
                self.charge(OVERDUE_S)
                # this worker's share of the host's rate is its share of the host's users
                own_rate = plan.rate * max(1, self.users) / max(1, *wanted)
                start_s = time.monotonic() + (1 / own_rate if self._pace is not None else 0.0)
                self._pace, self._paced_for = HostPace(own_rate, start_s=start_s), wanted
            self.charge()
            due_s = self._pace.claim()
            gevent.sleep(max(0.0, due_s - time.monotonic()))
        return due_s

    def send_next(self, session: UserSession, planned_s: float) -> None:
        """Choose a user's next request, send it, and count what came of it."""
        setting = self._now()  # the run's, though the answer may outlive it
        caller = self._caller(session)
        if caller is None:
            session.failures += 1
            self._count_error(setting, self._fault, None, time.monotonic() - planned_s)
            return
        order = caller.next()
        self._send_canary(setting, session.script)
        answer = self._ask(setting, order, session.connection, planned_s)
        session.failures = 0 if answer is not None else session.failures + 1
        caller.done(order, None if answer is None else answer.text)

    def _send_canary(self, setting: RunSetting, script: HostScript | None) -> None:
        """Send the canary that is due, unless one is under way: a slow one is waited for, and the others are fewer."""
        if script is None or self._canary_is_out:
            return
        order = script.canary()
        if order is None:
            return

        def turn() -> None:
            try:
                if self._ask(setting, order, self._canary_wire, time.monotonic()) is not None:
                    script.answered(order)
            finally:
                self._canary_is_out = False

        self._canary_is_out = True
        setting.aside(turn)

    def _ask(
        self, setting: RunSetting, order: Order, wire: LoadConnection, planned_s: float
    ) -> Answer | None:
        """Send one request, count what came of it, and return its answer if it is ok."""
        plan = setting.plan
        timed = wire.ask(order.body, planned_s + plan.timeout_s, plan.timeout_s)
        start_s = min(planned_s, timed.sent_s) if plan.rate else timed.sent_s
        answer, fault = timed.response.answer, _fault(timed)
        if fault is None and answer is not None:
            self._count(setting, order, timed, answer, start_s)
        else:
            answer = None
            self._count_error(setting, fault, order, timed.ended_s - start_s)
            now_s = time.monotonic()
            is_due = now_s >= self._learn_at_s and not self._learning.locked()
            if timed.response.status == 404 and is_due:
                # another model may be served now; meanwhile the others ask for the old one
                self._learn_at_s = now_s + RELEARN_EVERY_S
                with self._learning:
                    self._learn()
        if order.kind != "ranked":
            self._keep_canary(setting, order, timed, planned_s)
        return answer

    def charge(self, patience_s: float | None = None) -> None:
        """Count the planned requests that no user could send in time.

        By default in half of the time that their answers may take: what is sent later has no fair chance, and a host
        that is behind for good would be sent requests that are given up at once.
        """
        setting = self._now()
        if self._pace is not None:
            if patience_s is None:
                patience_s = setting.plan.timeout_s / 2
            now_s = time.monotonic()
            for due_s in self._pace.missed(now_s, patience_s):
                busy = f"no user was free for {patience_s:g} s"
                fault = Failure(kind="not_sent", error=busy)
                self._count_error(setting, fault, None, now_s - due_s)

    @property
    def is_paced(self) -> bool:
        """Whether requests leave at planned moments, an open loop."""
        return self._setting is not None and self._setting.plan.rate is not None

    def skip(self) -> None:
        """Forget the slots up to now: it was not the host that kept them from being sent."""
        if self._pace is not None:
            self._pace.go_on_at(time.monotonic())

    def _now(self) -> RunSetting:
        assert self._setting is not None, "a handler serves nobody before a run begins"
        return self._setting

    # --- what to ask ---------------------------------------------------------------------------------

    def _caller(self, session: UserSession) -> Caller | None:
        """The user's caller on the script of now; None: nobody knows what to ask for."""
        if self._script is None:
            with self._learning:  # one user for all of this host's
                if self._script is None and time.monotonic() >= self._learn_at_s:
                    self._learn()
                    self._learn_at_s = time.monotonic() + LEARN_EVERY_S
        script = self._script
        if script is not None and session.script is not script:
            session.script, session.caller = script, script.caller(self._numbers)
            self._numbers += 1
        return session.caller if script is not None else None

    def _learn(self) -> None:
        """Learn which model to ask for, and write its script."""
        setting, wire = self._now(), LoadConnection(self.place)
        plan, number = setting.plan, setting.worker_number
        page = wire.page("/v1/models", PAGE_TIMEOUT_S)
        wire.close()
        served = _served(page)
        chosen = choose_model(served, listed=self.host.model, wanted=plan.model)
        # what is not listed is asked for all the same: the host's own refusal is what counts then
        model = chosen.model or plan.model or self.host.model
        if model is not None and model != self._model:
            self._model = model
            start = plan.resumptions * 100 + self._starts
            self._starts += 1
            self._script = HostScript(
                plan.profile,
                model=model,
                nonce=f"{plan.run} {start} {setting.worker} {self.host.url}",
                seed=number,
                canary_share=plan.canary_share,
                stream_share=plan.stream_share,
                max_tokens=plan.max_tokens,
                first_slot=(number * 100_000 + start) * SLOTS_OF_A_START,
            )
        elif isinstance(page, Failure):
            self._fault = page
        else:
            kind = "garbage" if page[0] == 200 else f"http_{page[0]}"
            told = f"`/v1/models` answered {page[0]} and lists no model"
            self._fault = Failure(kind=kind, error=told)

    # --- what came of it -----------------------------------------------------------------------------

    def _count(
        self,
        setting: RunSetting,
        order: Order,
        timed: TimedRequest,
        answer: Answer,
        start_s: float,
    ) -> None:
        end_s, first_s = answer.e2e_end_at, answer.first_token_at
        e2e_ms = None if end_s is None else (end_s - start_s) * 1000
        setting.tallying.add(
            self._key,
            # now, and not when it ended: a second that was handed out takes nothing more
            time.monotonic() + setting.wall_offset_s,
            kind=order.kind,
            prompt=order.prompt,
            repeats=order.repeats,
            ok=True,
            streamed=answer.streamed,
            ttft_ms=None if first_s is None else (first_s - start_s) * 1000,
            e2e_ms=e2e_ms,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            output_tokens_estimated=answer.output_tokens_estimated,
            cache_status=timed.response.cache_status,
        )
        took_ms = (timed.ended_s - start_s) * 1000 if e2e_ms is None else e2e_ms
        self._tell_locust(setting, took_ms, timed.bytes, None)

    def _count_error(
        self, setting: RunSetting, fault: Failure | None, order: Order | None, took_s: float
    ) -> None:
        """Count a failure; `order` is None for a request that was due and could not even be made."""
        fault = fault or Failure(kind="garbage", error="no reason given")
        setting.tallying.add(
            self._key,
            time.monotonic() + setting.wall_offset_s,
            kind=order.kind if order else "ranked",
            prompt=order.prompt if order else "",
            repeats=False,
            ok=False,
            error_kind=fault.kind,
        )
        if fault.kind not in self._told:
            self._told.add(fault.kind)
            told = hidden(fault.error, self.place.key)
            setting.say(f"{self.host.name}: the first `{fault.kind}`: {told}")
        self._tell_locust(setting, max(0.0, took_s) * 1000, 0, BlastError(fault.kind))

    def _tell_locust(
        self, setting: RunSetting, took_ms: float, size: int, error: Exception | None
    ) -> None:
        setting.fire(
            request_type="POST",
            name=self.host.name,
            response_time=took_ms,
            response_length=size,
            exception=error,
            context={},
        )

    def _keep_canary(
        self, setting: RunSetting, order: Order, timed: TimedRequest, planned_s: float
    ) -> None:
        """Have now and then a pair stored whole: verdicts are made of shots."""
        if order.kind == "unique":
            is_kept = self._keeping.begins(order.slot or 0, time.monotonic())
        else:
            is_kept = self._keeping.completes(order.pair or 0)
        if not is_kept:
            return
        ask = PlannedRequest(
            slot=order.slot or 0,
            kind="twin" if order.kind == "twin" else "unique",
            pair=order.pair,
            prompt=order.prompt,
            body={},
            stream=order.stream,
            max_tokens=order.max_tokens,
        )
        record = request_record(
            self._context,
            ask,
            timed.response,
            planned_s=planned_s,
            sent_s=timed.sent_s,
            ended_s=timed.ended_s,
        )
        setting.keep(without_key(record, self.place.key))


def _served(page: tuple[int, bytes] | Failure) -> tuple[ServedModel, ...]:
    if isinstance(page, Failure) or page[0] != 200:
        return ()
    try:
        return read_models(page[1])
    except PageError:
        return ()


def _fault(timed: TimedRequest) -> Failure | None:
    """Why a request is not ok; None: it is."""
    answer: Any = timed.response.answer
    if timed.response.failure is not None or (answer is not None and answer.ok):
        return timed.response.failure
    if answer is None:
        return Failure(kind="garbage", error="no answer")
    return Failure(kind=answer.error_kind or "garbage", error=answer.error or "no reason given")
