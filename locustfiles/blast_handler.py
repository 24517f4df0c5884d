"""One host in one run on one worker: who sends what to it, and what came of it. The users of a host share its handler.

A handler learns which model its host serves, hands out orders, has each sent over its user's own connection, and gives the
tallies and Locust how it ended. Canaries go beside the users, one at a time over a connection of their own, so that none
of them keeps a user from its ranked requests.
"""

import time
from typing import TYPE_CHECKING, Any, ClassVar

import gevent
import orjson
from blast_connection import HostAddress, LoadConnection, TimedRequest
from gevent.lock import BoundedSemaphore
from locust import FastHttpUser, task
from locust.exception import StopUser

from toolkit.bench.client import PAGE_TIMEOUT_S, PageError, read_models, tokenize_body, tokenized
from toolkit.bench.faults import hidden, without_key
from toolkit.bench.host_runner import LONGEST_PAUSE_S, PAUSE_S
from toolkit.bench.random_prompts import (
    CALIBRATION_S,
    INEXACT,
    NotCountedError,
    Words,
    calibration,
    read_lengths,
)
from toolkit.bench.request_record import Failure, RequestContext, request_record
from toolkit.bench.requests import PlannedRequest, choose_model, request_body
from toolkit.blast.pacing import HostPace
from toolkit.blast.script import Caller, CanarySampling, HostScript, Order
from toolkit.hosts import path_hint
from toolkit.protocol.completion import Answer
from toolkit.scout.tls_probe import WANTS_TLS, speaks_tls

if TYPE_CHECKING:
    from blast_run import Blast
    from blast_worker import WorkerRun

LEARN_EVERY_S = 1.0
"""A host that does not say what it serves is asked again after so long, by one user for all."""
RELEARN_EVERY_S = 5.0
"""After a `404`: its model may have been swapped."""
SHOT_EVERY_S = 5.0
"""At most one pair of canaries a host in so long is stored whole: all of them would fill a disk."""
OVERDUE_S = 1.0
"""A planned request that is so late, when nobody will send it any more, found all users busy: it counts against its host."""
SLOTS_OF_A_START = 10**9
"""Canaries' slots of one worker and start do not overlap with another's."""
FAULT_WORDS = {
    "connect": "connection error",
    "tls": "TLS error",
    "cut": "broken answer",
    "no_finish": "unfinished answer",
    "stream_error": "error inside a stream",
    "garbage": "unreadable answer",
    "too_large": "oversized answer",
    "not_sent": "unsent request",
}
"""What a kind of error is called in a sentence; others are plain enough: `timeout`, `http_500`."""
PAUSED_POLL_S = 0.05
"""How often a user looks whether it may send, while the worker lets nobody."""


class BlastError(Exception):
    """What Locust's own table shows of a failure: its kind alone, as sentences may differ in each answer."""


class BlastUser(FastHttpUser):
    """A user of one host: sends its next request and reads the answer, whenever its run lets users send.

    `user_class` makes a class for each host: Locust spreads users evenly over classes, and a slow host keeps only its own
    users busy.
    """

    abstract = True
    blast: "ClassVar[Blast]"
    address: ClassVar[HostAddress]

    def __init__(self, environment: Any) -> None:
        """Open no connection: the first request does."""
        super().__init__(environment)
        self.connection = LoadConnection(self.address)
        self.handler: HostHandler | None = None
        """Of the run in which it was started."""
        self.caller: Caller | None = None
        self.script: HostScript | None = None
        self.failures = 0
        """In a row."""
        self._is_counted = self._is_sending = self._stops_after_answer = False

    def on_start(self) -> None:
        """Count as one of the users that share the host's rate."""
        run = self.blast.run
        if run is not None:
            self.handler = run.handlers[self.address.host.name]
            self.handler.users += 1
            self._is_counted = True

    def on_stop(self) -> None:
        """Count no more, and close the connection."""
        self._leave()
        self.connection.close()

    def stop(self, force: bool = False) -> bool:
        """Stop, but let a request in flight finish: the server has counted it already, so its answer must count here."""
        if not self._is_sending:
            return bool(super().stop(force))
        # for Locust and for the host's rate the user is gone now; its greenlet ends itself after the answer
        self._stops_after_answer = True
        self._leave()
        self._group.discard(self._greenlet)
        return True

    def wait_time(self) -> float:
        """Think, or back off after failures; while nobody may send, only until the next look."""
        if self.handler is None or not self.handler.run.may_send:
            return PAUSED_POLL_S
        if self.failures > 1 and self.handler.plan.rate is None:
            # a host that refuses at once must not be hammered, nor cost the other hosts this processor
            return float(min(LONGEST_PAUSE_S, PAUSE_S * 2 ** min(self.failures - 2, 10)))
        return self.caller.pause_s() if self.caller else 0.0

    @task
    def send(self) -> None:
        """Wait for a planned moment, send one request and read its answer."""
        handler = self.handler
        if handler is None or not handler.run.may_send:
            return
        planned_s = handler.wait_for_slot()
        if not handler.run.may_send:  # the run may have ended during the wait
            return
        self._is_sending = True
        try:
            handler.run.track(lambda: handler.send_next(self, planned_s))
        finally:
            self._is_sending = False
        if self._stops_after_answer:
            raise StopUser

    def _leave(self) -> None:
        if self._is_counted and self.handler is not None:
            self._is_counted = False
            self.handler.users -= 1


def user_class(address: HostAddress, blast: "Blast") -> type[BlastUser]:
    """The class of a host's users; its name is the host's, and Locust shows it."""
    host = address.host
    fields = {"address": address, "blast": blast, "host": host.url, "weight": 1, "abstract": False}
    return type(host.name, (BlastUser,), fields)


class HostHandler:
    """Chooses, sends and counts the requests of one host's users in one run."""

    def __init__(self, address: HostAddress, run: "WorkerRun") -> None:
        self.host, self.run, self.plan = address.host, run, run.plan
        self.users = 0
        """At work on this worker."""
        self._address = address
        self._script: HostScript | None = None
        self._model: str | None = None
        self._scripts = self._callers = 0
        self._learn_at_s = 0.0
        self._learning, self._turnstile = BoundedSemaphore(1), BoundedSemaphore(1)
        self._fault = Failure(kind="connect", error="it was not asked yet")
        self._can_tokenize = True
        self._shown_faults: set[str] = set()
        self._keeping = CanarySampling(SHOT_EVERY_S * self.plan.workers)
        self._canary_connection = LoadConnection(address)
        self._canary_is_out = False
        self._pace: HostPace | None = None
        self._paced_for = (0, 0)
        self._context = RequestContext(
            run=self.plan.run,
            name=self.host.name,
            url=self.host.url,
            concurrency=None if self.plan.rate else self.plan.users_per_host,
            wall_offset_s=run.wall_offset_s,
        )

    # --- an open loop --------------------------------------------------------------------------------

    def wait_for_slot(self) -> float:
        """When the next request is planned; returns at that moment. In a closed loop that is now."""
        if self.plan.rate is None:
            return time.monotonic()
        # one user waits for the next slot and the others for it, so that no slot is held by one who is stopped
        with self._turnstile:
            wanted = self.users, self.run.users_per_host()
            if self._pace is None or self._paced_for != wanted:
                self.charge(OVERDUE_S)
                # this worker's share of the host's rate is its share of the host's users
                own_rate = self.plan.rate * max(1, self.users) / max(1, *wanted)
                start_s = time.monotonic() + (1 / own_rate if self._pace is not None else 0.0)
                self._pace, self._paced_for = HostPace(own_rate, start_s=start_s), wanted
            self.charge()
            due_s = self._pace.claim()
            gevent.sleep(max(0.0, due_s - time.monotonic()))
        return due_s

    def charge(self, patience_s: float | None = None) -> None:
        """Count the planned requests that no user could send in time.

        By default in half of the time that their answers may take: what is sent later has no fair chance, and a host
        that is behind for good would be sent requests that are given up at once.
        """
        if self._pace is None:
            return
        if patience_s is None:
            patience_s = self.plan.request_timeout_s / 2
        now_s = time.monotonic()
        for due_s in self._pace.missed(now_s, patience_s):
            fault = Failure(kind="not_sent", error=f"no user was free for {patience_s:g} s")
            self._count_failure(fault, None, now_s - due_s)

    def skip(self) -> None:
        """Forget the slots up to now: it was not the host that kept them from being sent."""
        if self._pace is not None:
            self._pace.go_on_at(time.monotonic())

    # --- what to send --------------------------------------------------------------------------------

    def send_next(self, user: BlastUser, planned_s: float) -> None:
        """Choose a user's next request, send it, and count what came of it."""
        if self._script is None:
            with self._learning:  # one user for all of this host's
                if self._script is None and time.monotonic() >= self._learn_at_s:
                    self._learn()
                    self._learn_at_s = time.monotonic() + LEARN_EVERY_S
        script = self._script
        if script is None:
            user.failures += 1
            self._count_failure(self._fault, None, time.monotonic() - planned_s)
            return
        if user.caller is None or user.script is not script:
            user.script, user.caller = script, script.caller(self._callers)
            self._callers += 1
        caller, order = user.caller, user.caller.next()

        # the canary that is due goes first, unless one is under way: a slow one is waited for, and the others are fewer
        canary = None if self._canary_is_out else script.canary()
        if canary is not None:

            def send_canary() -> None:
                try:
                    if self._send(canary, self._canary_connection, time.monotonic()):
                        script.answered(canary)
                finally:
                    self._canary_is_out = False

            self._canary_is_out = True
            self.run.track_in_background(send_canary)

        answer = self._send(order, user.connection, planned_s)
        user.failures = 0 if answer is not None else user.failures + 1
        caller.done(order, None if answer is None else answer.text)

    def _learn(self) -> None:
        """Learn which model to ask for, and write its script."""
        plan = self.plan
        page = self._address.page("/v1/models", PAGE_TIMEOUT_S)
        try:
            served = () if isinstance(page, Failure) or page[0] != 200 else read_models(page[1])
        except PageError:
            served = ()
        chosen = choose_model(served, listed=self.host.model, wanted=plan.model)
        # what is not listed is asked for all the same: the host's own refusal is what counts then
        model = chosen.model or plan.model or self.host.model
        words = None
        if model is not None and model != self._model and plan.input_len:
            words = self._learn_words(model, plan.input_len)
            if words is None:
                return
        if model is not None and model != self._model:
            self._model = model
            start = plan.resumptions * 100 + self._scripts
            self._scripts += 1
            self._script = HostScript(
                plan.profile,
                model=model,
                nonce=f"{plan.run} {start} {self.run.name} {self.host.url}",
                seed=self.run.number,
                canary_share=plan.canary_share,
                stream_share=plan.stream_share,
                max_tokens=plan.max_tokens,
                endpoint=plan.endpoint,
                input_len=plan.input_len,
                output_len=plan.output_len,
                words=words,
                first_slot=(self.run.number * 100_000 + start) * SLOTS_OF_A_START,
            )
        elif isinstance(page, Failure):
            wants_tls = page.kind in ("cut", "garbage") and speaks_tls(self.host.url)
            self._fault = Failure(kind="tls", error=WANTS_TLS) if wants_tls else page
        else:
            kind = "garbage" if page[0] == 200 else f"http_{page[0]}"
            error = f"`/v1/models` answered {page[0]} and lists no model"
            if page[0] == 400 and b"HTTPS" in page[1]:
                kind, error = "tls", WANTS_TLS
            elif page[0] == 404:
                error += path_hint(self.host.url)
            self._fault = Failure(kind=kind, error=error)

    def _learn_words(self, model: str, input_len: str) -> Words | None:
        """What prompts of the wanted lengths are made of here; None: not known yet, or none are possible, as `_fault` says."""
        plan = self.plan
        if plan.words:
            return Words(words=tuple(plan.words), around=plan.tokens_around, is_exact=True)
        lengths = read_lengths(input_len)
        assert lengths is not None, "the plan was checked"
        steps, end_s = calibration(lengths), time.monotonic() + CALIBRATION_S
        try:
            text = next(steps)
            while True:
                try:
                    count = self._prompt_tokens(model, text) if time.monotonic() < end_s else None
                except NotCountedError as error:
                    text = steps.throw(error)
                else:
                    text = steps.send(count)
        except StopIteration as end:
            words: Words = end.value
        except NotCountedError:
            # it is down, perhaps for a moment: prompts of another length than others' would stay so all the run
            return None
        if refusal := words.refusal(lengths):
            self._fault = Failure(kind="not_sent", error=refusal)
            return None
        if not words.is_exact:
            self.run.say(f"Warning: {self.host.name}: {INEXACT}")
        return words

    def _prompt_tokens(self, model: str, text: str) -> int | None:
        """How many tokens a prompt that says this has here: as `/tokenize` counts, else as `usage` tells.

        None: it answers, and tells no number. Raises NotCountedError where it does not answer; `_fault` says why.
        """
        said, endpoint = ({"role": "user", "content": text},), self.plan.endpoint
        if self._can_tokenize:
            body = tokenize_body(model, said, endpoint)
            page = self._address.page("/tokenize", PAGE_TIMEOUT_S, body)
            count = None if isinstance(page, Failure) else tokenized(*page)
            if count is not None:
                return count
        asked = request_body(model, said, False, 1, None, endpoint=endpoint)
        wait_s = min(self.plan.request_timeout_s, CALIBRATION_S)
        timed = LoadConnection(self._address).ask(
            orjson.dumps(asked), time.monotonic() + wait_s, wait_s, endpoint
        )
        answer, fault = timed.response.answer, timed.response.failure
        if fault or answer is None or not answer.ok:
            kind, error = (answer.error_kind, answer.error) if answer else (None, None)
            self._fault = fault or Failure(kind=kind or "garbage", error=error or "no reason given")
            raise NotCountedError(self._fault.error)
        # it may have been down a moment; this says that it is up, and has no such page
        self._can_tokenize = False
        return answer.prompt_tokens

    # --- what came of it -----------------------------------------------------------------------------

    def _send(self, order: Order, connection: LoadConnection, planned_s: float) -> Answer | None:
        """Send one request, count what came of it, and return its answer if it is ok."""
        plan = self.plan
        timed = connection.ask(
            order.body, planned_s + plan.request_timeout_s, plan.request_timeout_s, plan.endpoint
        )
        start_s = min(planned_s, timed.sent_s) if plan.rate else timed.sent_s
        fault = timed.response.failure
        answer = None if fault else timed.response.answer
        if fault:
            self._count_failure(fault, order, timed.ended_s - start_s)
            now_s = time.monotonic()
            is_due = now_s >= self._learn_at_s and not self._learning.locked()
            if timed.response.status == 404 and is_due:
                # another model may be served now; meanwhile the others ask for the old one
                self._learn_at_s = now_s + RELEARN_EVERY_S
                with self._learning:
                    self._learn()
        elif answer:
            end_s, first_s = answer.e2e_end_at, answer.first_token_at
            e2e_ms = None if end_s is None else (end_s - start_s) * 1000
            self.run.tallying.add(
                (self.host.name, self.host.url),
                # now, and not when it ended: a second that was handed out takes nothing more
                self.run.wall(),
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
            self._show_locust(took_ms, timed.bytes, None)
        if order.kind != "ranked":
            self._keep_canary(order, timed, planned_s)
        return answer

    def _count_failure(self, fault: Failure, order: Order | None, took_s: float) -> None:
        """Count a failure; `order` is None for a request that was due and could not even be made."""
        self.run.tallying.add(
            (self.host.name, self.host.url),
            self.run.wall(),
            kind=order.kind if order else "ranked",
            prompt=order.prompt if order else "",
            repeats=False,
            ok=False,
            error_kind=fault.kind,
        )
        if fault.kind not in self._shown_faults:
            self._shown_faults.add(fault.kind)
            error = hidden(fault.error, self._address.key)
            self.run.say(
                f"{self.host.name}: first {FAULT_WORDS.get(fault.kind, fault.kind)}: {error}"
            )
        self._show_locust(max(0.0, took_s) * 1000, 0, BlastError(fault.kind))

    def _show_locust(self, took_ms: float, size: int, error: Exception | None) -> None:
        self.run.fire(
            request_type="POST",
            name=self.host.name,
            response_time=took_ms,
            response_length=size,
            exception=error,
            context={},
        )

    def _keep_canary(self, order: Order, timed: TimedRequest, planned_s: float) -> None:
        """Have now and then a pair stored whole: verdicts are made of shots."""
        slot, pair = order.slot or 0, order.pair
        if order.kind == "unique":
            is_kept = self._keeping.begins(slot, time.monotonic())
        else:
            is_kept = self._keeping.completes(pair or 0)
        if not is_kept:
            return
        request = PlannedRequest(
            slot=slot,
            kind="twin" if order.kind == "twin" else "unique",
            pair=pair,
            prompt=order.prompt,
            body={},
            stream=order.stream,
            max_tokens=order.max_tokens,
        )
        record = request_record(
            self._context,
            request,
            timed.response,
            planned_s=planned_s,
            sent_s=timed.sent_s,
            ended_s=timed.ended_s,
        )
        self.run.tallying.add_shot(without_key(record, self._address.key))
