"""The master's side of a blast: begins and ends runs, takes the workers' reports, and alone writes the database, once a second.

It runs where no users are (Locust's master) or beside them (a blast of one process). It judges nothing.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import gevent
from gevent.event import Event as Signal
from gevent.threadpool import ThreadPool

from toolkit.bench.random_prompts import read_lengths
from toolkit.blast.plan import LOAD_OPTIONS, WorkerPlan
from toolkit.blast.recorder import BlastRecorder
from toolkit.errors import ToolkitError
from toolkit.records import NOT_VALID, Event, EventKind, Host, Run
from toolkit.store import Store

VERB = "blast"
WRITE_AFTER_S = 0.35
"""After a second is over, unless all live workers reported it sooner."""
LIVE_S = 5.0
"""A worker that is silent for so long is not waited for."""
SIGN_OF_LIFE_S = 10.0
"""So often it is said that the last seconds still wait for a database that is locked."""
MOST_LIMITED_SHARE = 0.05
"""Of a run's seconds in which the load generator was the limit; past it the run says more of it than of the hosts."""

Given = TypeVar("Given")


class MasterStore:
    """The database, through one thread of its own: a write that waits for a lock holds up no answer."""

    def __init__(self, path: Path) -> None:
        """Raises ToolkitError when it cannot be used."""
        self._thread = ThreadPool(1)
        self._store: Store = self._returned(lambda: Store.open(path))

    def do(self, work: Callable[[Store], Given]) -> Given:
        """Have something done with the store. Raises ToolkitError."""
        return self._returned(lambda: work(self._store))

    def _returned(self, work: Callable[[], Given]) -> Given:
        """Do it in the thread, and raise here what it raises: gevent prints all that a thread raises itself."""

        def outcome() -> tuple[Given | None, Exception | None]:
            try:
                return work(), None
            except Exception as error:  # noqa: BLE001 (raised below)
                return None, error

        result, error = self._thread.apply(outcome)
        if error is not None:
            raise error
        return cast("Given", result)

    def close(self) -> None:
        """Close it, so that all of it is in one file."""
        with contextlib.suppress(ToolkitError):
            self.do(lambda store: store.close())


class Master:
    """Runs, one after the other, and what workers report of them."""

    def __init__(self, store: MasterStore, say: Callable[[str], None]) -> None:
        """`say` shows a person one sentence."""
        self.plan: WorkerPlan | None = None
        """Of the run that is on."""
        self._store = store
        self._say = say
        self._recorder = BlastRecorder(
            lambda *batch: store.do(lambda database: database.add_second(*batch)), say
        )
        self._last_s: dict[str, float] = {}
        """Worker -> when its last message of this run came; one that is done is not in it."""
        self._runs: set[str] = set()
        """Of this master."""
        self._reported: set[str] = set()
        """Workers that reported since the last write."""
        self._wall_offset_s = 0.0
        """Wall clock - monotonic clock, read once a run: a step of the wall clock moves no second."""
        self._news = Signal()
        self._all_done = Signal()
        self._phase: str | None = None
        """That is on, or with which the next run begins."""
        self._writer: gevent.Greenlet | None = None

    def close(self) -> None:
        """Close the database."""
        self._store.close()

    # --- a run ---------------------------------------------------------------------------------------

    def begin(
        self,
        plan: WorkerPlan,
        hosts: Sequence[Host],
        *,
        users: int,
        resumes: bool,
        options: Any,
        machines: Sequence[str],
        not_valid: str | None,
    ) -> WorkerPlan:
        """Store a run that begins, or goes on; its plan. Raises ToolkitError when it cannot go on.

        `machines` make the load; `not_valid`: why the run ranks nobody, if it does not.
        """
        now, run = time.time(), plan.run
        plan = replace(plan, users_per_host=max(1, users // len(hosts)))
        # as the command line gave it, without a key or a prompt's text: a run that goes on reads it
        settings = {option.field: getattr(plan, option.field) for option in LOAD_OPTIONS} | {
            "users": users,
            "users_per_host": plan.users_per_host,
            "spawn_rate": options.spawn_rate,
            "duration_s": options.run_time,
            "profile": plan.profile_name,
            "workers": plan.workers,
            "load_generator": list(machines),
            "non_neutral": not_valid,
        }
        what = f"profile {plan.profile_name}"
        if plan.input_len:
            what = f"random prompts of {read_lengths(plan.input_len)}"
        text = f"{what}, {plan.users_per_host} users a host"
        if plan.rate:
            text += f", {plan.rate:g} requests a second and host"

        def store(store: Store) -> int:
            earlier = 0
            if resumes:
                found = store.run(run)
                if found is not None and found.verb != VERB:
                    raise ToolkitError(
                        f"`{run}` is a run of `toolkit {found.verb}`", "Only a blast can go on"
                    )
                store.reopen_run(run)
                earlier = sum(event.kind == "resume" for _, event in store.events(run)) + 1
            else:
                store.add_run(Run(id=run, verb=VERB, started_at=now, settings=json.dumps(settings)))
            store.plan_hosts(run, hosts)
            kind: EventKind = "resume" if resumes else "start"
            store.add_event(Event(run=run, at=now, kind=kind, text=text))
            if not_valid:
                words = f"{NOT_VALID}: {not_valid}"
                store.add_event(Event(run=run, at=now, kind="mark", text=words))
            return earlier

        self.plan = plan = replace(plan, resumptions=self._store.do(store))
        self._wall_offset_s = time.time() - time.monotonic()
        self._runs.add(run)
        self._last_s.clear()
        if self._phase is not None:
            self.note("phase", self._phase)
        self._reported.clear()
        self._writer = gevent.spawn(self._write_often)
        return plan

    def end(self, wait_s: float) -> None:
        """Wait for the workers' last messages, store them, and close the run."""
        plan = self.plan
        if plan is None:
            return
        with contextlib.suppress(KeyboardInterrupt), gevent.Timeout(wait_s, False):
            while self._live():
                self._all_done.clear()
                self._all_done.wait(timeout=1.0)
        self.plan = self._phase = None
        now = self._wall()
        self._recorder.add_event(Event(run=plan.run, at=now, kind="stop", text=""))
        self._news.set()
        while self._writer is not None and not self._writer.dead:
            # a write that is under way is never cut off: nobody would know what became of it
            with contextlib.suppress(KeyboardInterrupt):
                self._writer.join()
        said_s = time.monotonic()
        # without a limit: what was measured is nowhere else, and whoever wants to lose it says so
        while not (self._recorder.write_out() and self._is_closed(plan.run, now)):
            if time.monotonic() - said_s > SIGN_OF_LIFE_S:
                said_s = time.monotonic()
                self._say("The last seconds still wait for the database; Ctrl-C gives them up")
            gevent.sleep(0.2)

    def hurry(self) -> None:
        """Wait for no worker any more."""
        self._last_s.clear()
        self._all_done.set()

    def note(self, kind: EventKind, text: str) -> None:
        """Store an event of the run that is on."""
        if self.plan is not None:
            event = Event(run=self.plan.run, at=self._wall(), kind=kind, text=text)
            self._recorder.add_event(event)

    def note_phase(self, name: str) -> None:
        """Store that a phase begins, unless it is on already."""
        if name != self._phase:
            self.note("phase", name)
        self._phase = name

    # --- messages ------------------------------------------------------------------------------------

    def take(self, message: Mapping[str, Any]) -> None:
        """Take a worker's message."""
        worker = message["worker"]
        if message["run"] not in self._runs:
            return  # an orphan of another master: its run may not even be in this database
        self._recorder.take(message, self._wall())
        if self.plan is None:
            gevent.spawn(self._recorder.write_out)
        if self.plan is None or message["run"] != self.plan.run:
            return
        self._reported.add(worker)
        if message["final"]:
            self._last_s.pop(worker, None)
        else:
            self._last_s[worker] = time.monotonic()
        if not self._live() - self._reported:
            self._news.set()
        if not self._live():
            self._all_done.set()

    def expect(self, worker: str) -> None:
        """Wait for this worker's last message at the end, though it has sent none so far."""
        self._last_s[worker] = time.monotonic()

    def _wall(self) -> float:
        return time.monotonic() + self._wall_offset_s

    def _live(self) -> set[str]:
        oldest_s = time.monotonic() - LIVE_S
        return {worker for worker, last_s in self._last_s.items() if last_s >= oldest_s}

    # --- writing -------------------------------------------------------------------------------------

    def _write_often(self) -> None:
        """Once a second, as soon as all live workers have reported the one that is over."""
        while self.plan is not None:
            at_s = self._wall()
            due_s = int(at_s - WRITE_AFTER_S) + 1 + WRITE_AFTER_S
            self._news.clear()
            self._news.wait(timeout=max(0.0, due_s - at_s))
            self._reported.clear()
            if self.plan is None:
                return
            try:
                self._recorder.write_out()
            except Exception as error:  # noqa: BLE001 (a mistake of ours must not end the writing)
                self._say(f"What was counted could not be stored and is kept: {error!r}")

    def _is_closed(self, run: str, ended_at: float) -> bool:
        def close(store: Store) -> None:
            seconds: dict[int, bool] = {}
            for _, second in store.loader_seconds(run):
                seconds[second.at_s] = seconds.get(second.at_s, False) or second.limited
            limited = sum(seconds.values())
            is_ok = limited <= MOST_LIMITED_SHARE * len(seconds) if seconds else None
            store.end_run(run, ended_at=ended_at, client_ok=is_ok)

        try:
            self._store.do(close)
        except ToolkitError:
            return False
        return True


def say(sentence: str) -> None:
    """Show a person, if one is there: a terminal that is gone must not keep the last seconds from being stored."""
    with contextlib.suppress(OSError, ValueError):
        print(sentence, file=sys.stderr, flush=True)
