"""What is done when: the blast's listeners on Locust's events, in all of its modes.

    one process     start -> master.begin -> WorkerRun              stop -> it drains, finishes -> master.end
    master          start -> master.begin -> users with the plan    stop -> `toolkit_stop` to all -> master.end
    worker          first users -> WorkerRun                        `toolkit_stop`, stop, quit -> it drains, finishes

Locust's master waits half a second for its workers at the end, and cuts off what is under way. So all of this happens
before Locust's own stop, in its event `test_stopping`.
"""

import ctypes
import gc
import hmac
import logging
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import gevent
from blast_connection import HostAddress
from blast_dispatch import EvenDispatcher
from blast_handshake import answer_workers
from blast_master import Master, MasterStore, say
from blast_options import PROFILE, Early, end_with
from blast_worker import WorkerRun
from flask import Response, request
from gevent.event import Event
from locust import LoadTestShape
from locust.runners import MasterRunner, WorkerRunner

from toolkit.bench.tokenizer import words_by
from toolkit.blast import machine
from toolkit.blast.pacing import stage_at, users_for
from toolkit.blast.plan import WorkerPlan, plan_of
from toolkit.cli.catalog import profile_source
from toolkit.errors import ToolkitError
from toolkit.hosts import is_loopback
from toolkit.profiles import Phase
from toolkit.records import NOT_VALID, Host
from toolkit.units import counted

TALLIES, STOP = "toolkit_tallies", "toolkit_stop"
DRAIN_S = 30.0
"""How long a stop waits for answers under way, unless `--stop-timeout` or the requests' own is shorter."""
LAST_WORDS_S = 5.0
"""After that, for what the workers still have to report."""
PASSWORD = "TOOLKIT_WEB_PASSWORD"  # noqa: S105 (a variable's name)
PR_SET_PDEATHSIG = 1


class Blast:
    """One process's part in a blast."""

    def __init__(self, early: Early, addresses: Sequence[HostAddress]) -> None:
        self.run: WorkerRun | None = None
        """That is on in this process, where it has users."""
        self._early, self._addresses = early, addresses
        self._master: Master | None = None
        self._is_ending = False
        self._has_ended = Event()
        self._resumed = self._named = False
        self._local_hosts: dict[str, Sequence[tuple[str, str]]] = {}
        """Machine -> the hosts that are on it, name and address."""
        self._marked: set[tuple[str, str]] = set()
        """Those for which the run that is on is marked."""

    def listen(self, events: Any) -> None:
        """Have Locust call when something happens."""
        # a user that ended by itself while the last answers were awaited is no error; Locust would log a line for each
        ended = "While stopping users, we encountered a user that didn't have proper args"
        logging.getLogger("locust.runners").addFilter(
            lambda record: not str(record.msg).startswith(ended)
        )
        events.init.add_listener(self._init)
        events.test_start.add_listener(self._test_start)
        events.test_stopping.add_listener(self._test_stopping)
        events.heartbeat_received.add_listener(lambda **_: self.run and self.run.master_lives())

    # --- the beginning -------------------------------------------------------------------------------

    def _init(self, environment: Any, runner: Any, web_ui: Any = None, **_: Any) -> None:
        self._environment, self._runner = environment, runner
        options = environment.parsed_options
        self._options = options
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # Ctrl-C interrupts the main greenlet, from where Locust shuts down, and no user in the midst of an answer
            main = gevent.getcurrent()
            gevent.signal_handler(signal.SIGINT, gevent.kill, main, KeyboardInterrupt)
        if isinstance(runner, WorkerRunner):
            runner.register_message(STOP, lambda **_: self._finish(), concurrent=True)
            if self._early.options.processes:
                # forked by the master, it ends in order when that is killed, and loads no host that nobody writes down
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
            # before Locust says goodbye to the master: it would count this worker out before its last words came
            environment.events.quitting.add_listener(lambda **_: runner.stop())
            return
        try:
            plan = self._plan(vars(options))
            master = self._master = Master(MasterStore(Path(options.db)), say)
        except ToolkitError as error:
            end_with(error)
        runner.register_message(TALLIES, lambda msg, **_: master.take(msg.data))
        environment.events.quit.add_listener(lambda **_: master.close())
        runner.start, self._locusts_start = self._start, runner.start
        environment.dispatcher_class = EvenDispatcher
        if isinstance(runner, MasterRunner):
            # a dead worker's users go on elsewhere, or hosts would no longer have the same number
            options.enable_rebalancing = True
            hosts = len(self._early.hosts)
            answer_workers(runner, self._early.hosts_hash, hosts, self._note_local_hosts)
        if web_ui is not None:
            _require_password(web_ui)
            web_ui.app.before_request(self._refuse_form)
        hosts = ", ".join(host.name for host in self._early.hosts)
        count = len(self._early.hosts)
        say(f"Blast of {counted(count, 'host')}: {hosts}")
        how = f"{plan.rate:g} requests a second and host" if plan.rate else "closed loop"
        say(
            f"Profile {plan.profile_name}, {how}, {plan.canary_share:.3g} of the requests are canaries;"
            f" database {options.db}"
        )
        say(
            "The hosts' /metrics are looked at by `toolkit scout --watch` beside it, not from here."
        )

    def _plan(self, said: Mapping[str, Any], profile: str | None = None) -> WorkerPlan:
        """What the options and the web form say. Raises ToolkitError."""
        # Locust's own --profile knows no variable of ours
        word = profile or self._environment.profile or self._early.options.profile or PROFILE
        plan = plan_of(said, profile_source(word), self._early.hosts_hash)
        if plan.tokenizer and plan.input_len:
            words = words_by(plan.tokenizer, plan.input_len, plan.endpoint)
            plan = replace(plan, words=words.words, tokens_around=words.around)
        return plan

    def _note_local_hosts(self, name: str, found: Sequence[tuple[str, str]]) -> None:
        """Note which hosts are on a worker's machine; a worker that comes late spoils a run that is on."""
        # two machines may have one name, and a worker greets until it is answered
        known = self._local_hosts.get(name, ())
        self._local_hosts[name] = list(dict.fromkeys((*known, *found)))
        new = [each for each in found if each not in self._marked]
        if new and self._master is not None:
            self._marked.update(new)
            self._master.note("mark", f"{NOT_VALID}: {machine.sentence(new)}")

    def _refuse_form(self) -> Any:
        """Answer a web form that makes no sense, before Locust acts on it."""
        from flask import jsonify, request  # noqa: PLC0415 (Locust has it; a headless run needs none)

        if request.method != "POST" or not request.path.endswith("/swarm"):
            return None
        host = request.form.get("host", "").strip()
        known = {one.url for one in self._early.hosts} | {self._early.options.host}
        fault = None
        if host and (len(self._early.hosts) > 1 or host.rstrip("/") not in known):
            fault = "The hosts come from the list; leave `Host` empty"
        try:
            self._plan(vars(self._options) | request.form.to_dict(), request.form.get("profile"))
        except ToolkitError as error:
            fault = fault or f"{error.message}. {error.hint}"
        return jsonify({"success": False, "message": fault, "host": ""}) if fault else None

    def _start(
        self,
        user_count: int,
        spawn_rate: float,
        wait: bool = False,
        user_classes: Any = None,
    ) -> None:
        """Instead of the runner's own: round the users, and begin a run where none is on."""
        if self._is_ending:
            return
        runner = self._runner
        hosts = [one.address.host for one in user_classes or runner.user_classes]
        if user_count == 0 or user_count < runner.user_count:
            users = user_count // len(hosts) * len(hosts)
        else:
            users, sentence = users_for(user_count, len(hosts))
            if sentence:
                say(sentence)
        is_idle = self._master is not None and self._master.plan is None
        # a master without workers says so itself, and no run begins
        if is_idle and runner.worker_count:
            try:
                self._begin(hosts, users)
            except ToolkitError as error:
                say(f"Error: {error.message}" + (f"\n\nHint: {error.hint}" if error.hint else ""))
                self._environment.process_exit_code = 1
                if self._options.headless:
                    gevent.spawn(runner.quit)
                return
        self._options.toolkit_users_per_host = users // len(hosts)
        self._locusts_start(users, spawn_rate, wait=wait, user_classes=user_classes)

    def _begin(self, hosts: Sequence[Host], users: int) -> None:
        """Begin a run, or go on with one, and tell the workers its plan. Raises ToolkitError."""
        master, options, runner = self._master, self._options, self._runner
        assert master is not None
        plan = self._plan(vars(options))
        is_alone = not isinstance(runner, MasterRunner)
        workers = [runner.client_id] if is_alone else [one.id for one in runner.clients.ready]

        # the machines that make the load, which Locust's ids begin with, and the hosts that stand on them
        machines = sorted({client_id.rpartition("_")[0] for client_id in workers})
        not_valid = options.non_neutral
        self._marked = set()
        if not_valid is None:
            own = socket.gethostname()
            if own in machines and own not in self._local_hosts:
                self._local_hosts[own] = machine.local_hosts(hosts)
            here = dict.fromkeys(
                found for name in machines for found in self._local_hosts.get(name, ())
            )
            self._marked.update(here)
            not_valid = machine.sentence(list(here)) if here else None
            if not_valid:
                say(f"Not valid for ranking: {not_valid}; the run is marked as such")

        resumes = bool(options.resume) and not self._resumed
        if resumes:
            run, self._resumed = options.resume, True
        else:
            run = (None if self._named else options.run) or uuid4().hex[:12]
            self._named = True
        plan = master.begin(
            replace(plan, run=run, workers=runner.worker_count),
            hosts,
            users=users,
            resumes=resumes,
            options=options,
            machines=machines,
            not_valid=not_valid or None,
        )
        options.toolkit_plan = asdict(plan)
        for client_id in workers:
            master.expect(self._name(client_id))
        say(f"Run {plan.run}: {plan.users_per_host} users a host, {users} together")

    def _name(self, client_id: str) -> str:
        """How tallies call a worker: its number, and what tells it from those of other masters."""
        if isinstance(self._runner, MasterRunner):
            number = self._runner.get_worker_index(client_id)
        else:
            number = max(0, self._runner.worker_index)
        return f"{number}-{client_id[-8:]}"

    def _test_start(self, **_: Any) -> None:
        """Users are about to come, here or at the workers."""
        runner = self._runner
        options = runner.environment.parsed_options
        sent = getattr(options, "toolkit_plan", None)
        if isinstance(runner, MasterRunner) or sent is None:
            return
        plan = WorkerPlan(**sent)
        if plan.hosts_hash != self._early.hosts_hash:
            say("Error: this worker's list of hosts is not the master's; it sends nothing")
            runner.environment.process_exit_code = 1
            gevent.spawn(runner.quit)
            return
        self._finish_run()
        self.run = WorkerRun(
            plan,
            self._addresses,
            name=self._name(runner.client_id),
            number=max(0, runner.worker_index),
            has_master=isinstance(runner, WorkerRunner),
            # wanted now: a master sends it with each change
            users_per_host=lambda: int(runner.environment.parsed_options.toolkit_users_per_host),
            send=lambda message: runner.send_message(TALLIES, message),
            fire=runner.environment.events.request.fire,
            say=say,
        )
        # what lives now lives long: the collector need not look at it again in the midst of an answer
        gc.collect()
        gc.freeze()

    # --- the end -------------------------------------------------------------------------------------

    def _test_stopping(self, **_: Any) -> None:
        """Locust is about to stop: first let what is under way be answered, and all of it be stored."""
        if self._is_ending:  # Ctrl-C while it ends
            if self.run is not None:
                self.run.hurry()
            if self._master is not None:
                self._master.hurry()
            self._has_ended.wait(LAST_WORDS_S)
            return
        self._is_ending = True
        self._has_ended.clear()
        try:
            if self._master is None:
                self._finish()
                return
            if isinstance(self._runner, MasterRunner):
                self._runner.send_message(STOP, None)
            else:
                self._finish()
            self._master.end(self._drain_s() + LAST_WORDS_S)
        finally:
            self._is_ending = False
            self._has_ended.set()

    def _finish(self) -> None:
        """Let this process's users have their answers, and send the last of its run."""
        limit_s, run = self._drain_s(), self.run
        if run is not None:
            if run.under_way:
                say(f"Waiting up to {limit_s:g} s for {run.under_way} answers; Ctrl-C leaves them")
            run.drain(limit_s)
        self._finish_run()

    def _finish_run(self) -> None:
        run, self.run = self.run, None
        if run is not None:
            run.finish()

    def _drain_s(self) -> float:
        given = self._environment.stop_timeout
        return float(min(given or DRAIN_S, self._options.request_timeout or DRAIN_S))

    def note_phase(self, name: str) -> None:
        """A phase of the profile is on."""
        if self._master is not None:
            self._master.note_phase(name)


def shape_class(phases: Sequence[Phase], hosts: int, blast: Blast) -> type[LoadTestShape]:
    """A profile's phases as the class of Locust's load shape, which takes `hosts` hosts through them."""

    def tick(self: Any) -> tuple[int, float] | None:
        stage = stage_at(phases, self.get_run_time())
        if stage is None:
            return None
        blast.note_phase(stage.name)
        return stage.users * hosts, stage.spawn_rate * hosts

    fields = {"tick": tick, "abstract": False, "__doc__": "The profile's phases."}
    return type("Phases", (LoadTestShape,), fields)


def _require_password(web_ui: Any) -> None:
    """Of whoever opens the page, unless it is on this machine alone: who opens it can load all hosts."""
    if is_loopback(web_ui.host):
        return
    password = os.environ.get(PASSWORD, "").encode()
    if not password:
        end_with(
            ToolkitError(
                f"everybody who reaches `{web_ui.host or '*'}` could start a load from the web page",
                f"Set {PASSWORD}, which the page asks for then, or leave --web-host out: it is on this machine alone",
            )
        )

    def ask() -> Response | None:
        given = request.authorization
        word = (given.password or "").encode() if given is not None else b""
        if hmac.compare_digest(word, password):
            return None
        return Response("A password is needed.\n", 401, {"WWW-Authenticate": 'Basic realm="blast"'})

    web_ui.app.before_request(ask)
