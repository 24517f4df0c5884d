"""Runs a sweep: serves one configuration after the other, warms it, loads it from outside, and keeps what came of it.

It starts processes (children.py) and writes the store; what it needs of other packages is handed to it. What it has done so far
stands in the store as what its run says of itself, each step one transaction; what was measured stands in runs of its own, which
blast writes once a second. So, killed at any moment, it goes on with the configuration that was under way: blast's run of it is
found by its host, its address and its time, and resumed on a server started anew at the same address.
"""

import contextlib
import json
import math
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from toolkit.config_file import toml_text
from toolkit.errors import ToolkitError
from toolkit.hosts import one_host
from toolkit.records import Event, EventKind, Run
from toolkit.store import Store
from toolkit.tuning.children import ChildCommand, Mark, end_left
from toolkit.tuning.figures import (
    Figures,
    counted_seconds,
    counters_moved,
    figure,
    measured,
    metric,
)
from toolkit.tuning.sweep_file import Configuration, Kind, SweepPlan, around, models
from toolkit.tuning.sweep_table import Status, SweepRow
from toolkit.units import counted, span

VERB = "sweep"
FORM = 1
"""Of the state that is kept; another one is of another version."""
MOST_AT_ONCE = 64
START_S: dict[Kind, float | None] = {"sim": 1.0, "serve": None, "url": 0.0}
"""How long a start takes, where that is known: a model's is not, before it was started once."""
OVERHEAD_S = 4.0
"""Of a blast beside its load: 2.2 s to start Locust and 1.8 s for the last answers, measured with the simulator."""
READY_S: Mapping[str, float] = {"sim": 60.0, "serve": 7200.0}
"""Longest wait for the first answer; `toolkit serve` has limits of its own, and knows causes."""
WARM_S = 1800.0
LOAD_MORE_S = 180.0
"""Beyond its duration: Locust's start, and answers under way."""
LEAST_LEFT_S = 2
"""With less to go a resumed blast is as good as over."""


# --- what is kept --------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class SweepCell:
    """One configuration in one block."""

    status: Literal["under way", "measured", "failed"] = "under way"
    run: str | None = None
    """The blast's, once it is over."""
    begun_at: float = 0.0
    """Wall clock."""
    url: str | None = None
    start_s: float | None = None
    """From the command to the first answer; None: somebody else's server."""
    cause: str | None = None
    figures: Figures = field(default_factory=dict)
    """What tallies do not hold: of counters, of the warm-up and of requests for JSON."""
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class State:
    """All of it; what is left out and which model is the best one follow from the cells."""

    form: int = FORM
    cells: dict[str, SweepCell] = field(default_factory=dict)
    """By `stage/name/block`."""
    ports: dict[str, int] = field(default_factory=dict)
    children: list[Mark] = field(default_factory=list)
    """Processes that may be alive."""


def begin(store: Store, run: Run) -> None:
    """Write a new sweep down, of which nothing is done yet."""
    store.add_run(run)
    store.set_capture(run.id, asdict(State()))


def state_of(store: Store, run: str) -> State:
    """What a sweep that the store knows has done so far. Raises ToolkitError for one of another form."""
    hint = "Begin a new one; its runs stay, `toolkit runs` lists them"
    found = store.capture(run) or {}
    if found.get("form") != FORM:
        raise ToolkitError(f"sweep `{run}` was written by another version of the toolkit", hint)
    try:
        return TypeAdapter(State).validate_python(found)
    except ValidationError as error:
        raise ToolkitError(
            f"what sweep `{run}` had done so far is not as the toolkit writes it", hint
        ) from error


# --- what is run -----------------------------------------------------------------------------------------


def host_name(one: Configuration) -> str:
    """How the store and the board call it: hosts' names hold no blanks."""
    return re.sub(r"[^\w.+:-]+", "-", one.name).strip("-") or "configuration"


def warm_levels(users: int) -> list[int]:
    """Requests at once, doubling as far as the load goes, and never past 64: what it will not ask need not be warm."""
    most = min(users, MOST_AT_ONCE)
    return [*(level for level in (1, 2, 4, 8, 16, 32) if level < most), most]


def estimate_s(
    plan: SweepPlan, configurations: Sequence[Configuration], *, sim: bool
) -> float | None:
    """How long all blocks of these take; None: nobody knows how long a start takes."""
    total = 0.0
    for one in configurations:
        kind = one.serving.kind(sim=sim)
        start_s = plan.load.start_s if plan.load.start_s is not None else START_S[kind or "sim"]
        if start_s is None:
            return None
        total += start_s + plan.load.duration_s + OVERHEAD_S
    return total * plan.blocks


# --- the sweep -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a sweep is given by the command line."""

    command: tuple[str, ...]
    """Before each command's words: the toolkit itself, so that it ends with us."""
    folder: Path
    """For files of its own: stacks, hosts, what the children print."""
    database: Path
    impossible: Callable[[Configuration], str | None]
    """Why it cannot fit; None: nothing is known against it."""
    say: Callable[[str], None]
    """Prints a sentence."""
    show_step: Callable[[str], None] = lambda _: None
    """Shows what is done now."""
    sim: bool = False


class Sweep:
    """One sweep of the store, from where its state says it is."""

    def __init__(self, plan: SweepPlan, store: Store, run: str, tools: Tools) -> None:
        """Raises ToolkitError where the state is of another form."""
        self._plan, self._store, self._run, self._tools = plan, store, run, tools
        self.state = state_of(store, run)
        self._children: list[ChildCommand] = []

    def run(self) -> tuple[SweepRow, ...]:
        """Measure what is not measured yet; all that is known then. Children never outlive it."""
        state, say = self.state, self._tools.say
        self._tools.folder.mkdir(parents=True, exist_ok=True)
        left = end_left(state.children)
        if left:
            say(f"Ended {left} process{'es' * (left > 1)} that a killed sweep had left")
        state.children.clear()
        self._save()
        try:
            for configurations in self._stages():
                possible = []
                for one in configurations:
                    if why := self._tools.impossible(one):
                        say(f"{one.name}: skipped, {why}")
                    else:
                        possible.append(one)
                # A B C, A B C ...: each block holds all of them, so what drifts meanwhile meets all alike
                for block in range(1, self._plan.blocks + 1):
                    for one in possible:
                        cell = self._cells(one).get(block)
                        is_open = cell is None or cell.status == "under way"
                        if is_open and not self._never_worked(one):
                            self._measure(one, block, cell)
        finally:
            self._stop_children()
        self._store.end_run(self._run, ended_at=time.time(), client_ok=None)
        return self.known()

    def known(self) -> tuple[SweepRow, ...]:
        """Each configuration with what is known of it so far."""
        return tuple(self._row(one) for stage in self._stages() for one in stage)

    def _cells(self, one: Configuration) -> dict[int, SweepCell]:
        """By their block, counted from 1: those that were begun."""
        blocks = range(1, self._plan.blocks + 1)
        found = {block: self.state.cells.get(f"{one.key}/{block}") for block in blocks}
        return {block: cell for block, cell in found.items() if cell is not None}

    def _never_worked(self, one: Configuration) -> bool:
        """Then it is not tried again in later blocks: a model's start takes minutes."""
        statuses = {cell.status for cell in self._cells(one).values()}
        return "failed" in statuses and "measured" not in statuses

    def _stages(self) -> Iterator[tuple[Configuration, ...]]:
        """One after the other: what the second is shows once the first is measured, and the best of it is known."""
        plan = self._plan
        first = models(plan)
        if first:
            yield first
        if not plan.levers:
            return
        if not first:
            yield around(plan, None)
            return
        name, values = plan.look_at[0], dict[Configuration, float]()
        for one in first:
            over = [cell for cell in self._cells(one).values() if cell.status != "under way"]
            is_left_out = self._never_worked(one) or self._tools.impossible(one)
            if len(over) < plan.blocks and not is_left_out:
                return
            if (value := self._row(one).figure(name)) is not None:
                values[one] = value
        pick = max if metric(name).more_is_better else min
        if values:  # the first of equals
            yield around(plan, pick(values, key=values.__getitem__))

    def _blast_of(self, one: Configuration, cell: SweepCell) -> str | None:
        """The blast that loaded it: of its name and its address, begun after it; None: there is none yet."""
        for run in self._store.runs(verb="blast"):
            if run.started_at < cell.begun_at:
                break
            hosts = self._store.hosts_of(run.id).values()
            if any((each.url, each.name) == (cell.url, host_name(one)) for each in hosts):
                return run.id
        return None

    def _row(self, one: Configuration) -> SweepRow:
        """All that is known of one configuration so far: its blasts, as figures a block, and what there is to say of them."""
        cells, store, load = self._cells(one), self._store, self._plan.load
        done = {block: cell for block, cell in cells.items() if cell.status == "measured"}
        failed = {block: cell.cause for block, cell in cells.items() if cell.status == "failed"}
        runs = {
            block: self._blast_of(one, cell) if cell.status == "under way" else cell.run
            for block, cell in cells.items()
        }

        status: Status = "measured" if done else "failed" if failed else "not begun"
        cause = None if done else next(iter(failed.values()), None)
        if not cells and (why := self._tools.impossible(one)):
            status, cause = "skipped", why

        blocks, limited = {}, []
        for block, cell in done.items():
            if cell.run is None:
                continue
            tallies = store.tallies(cell.run)
            loader = [second for _, second in store.loader_seconds(cell.run)]
            slowest_ms = measured(tallies, {tally.at_s for tally in tallies})["e2e_p95_ms"] or 0.0
            seconds = counted_seconds(
                loader,
                [event for _, event in store.events(cell.run)],
                settle_s=load.settle_s,
                duration_s=load.duration_s,
                drain_s=math.ceil(slowest_ms / 1000),
            )
            blocks[block] = measured(tallies, seconds, store.shots(cell.run)) | cell.figures
            if places := {second.at_s for second in loader if second.limited}:
                limited.append(len(places))

        notes = [note for cell in cells.values() for note in cell.notes]
        if status == "measured":
            notes += [f"block {block} failed: {why}" for block, why in failed.items()]
        notes = list(dict.fromkeys(notes))
        # an engine that speculates, and found nothing to: then no share of it was accepted either
        drafts = [cell.figures.get("spec_drafts") for cell in done.values()]
        if drafts and not any(drafts) and None not in drafts:
            notes.append("nothing was drafted under this load, so that no acceptance is known")
        if limited:
            notes.append(
                f"the load generator was the limit in {sum(limited):,} s of {counted(len(limited), 'block')}"
            )
        return SweepRow(
            name=one.name,
            stage=one.stage,
            lever=one.lever,
            value=one.value,
            status=status,
            cause=cause,
            blocks=blocks,
            runs=tuple(run for run in runs.values() if run),
            starts_s=tuple(cell.start_s for cell in done.values() if cell.start_s is not None),
            notes=tuple(notes),
        )

    def _measure(self, one: Configuration, block: int, before: SweepCell | None) -> None:
        """One configuration in one block, or the rest of it."""
        store, say = self._store, self._tools.say
        place = f"{one.name}, block {block} of {self._plan.blocks}"
        cell = self.state.cells[f"{one.key}/{block}"] = before or SweepCell(begun_at=time.time())
        self._save()
        try:
            run = self._blast_of(one, cell) if before else None
            under_load = {second.at_s for _, second in store.loader_seconds(run)} if run else ()
            if len(under_load) > self._plan.load.duration_s - LEAST_LEFT_S:
                say(f"{place}: was measured in full before the sweep was cut off")
                cell.status, cell.run = "measured", run
                return
            say(f"{place}: {'goes on' if before else 'begins'}")
            self._serve_and_load(one, cell, place, f"{host_name(one)}-{one.stage}-{block}")
        except ToolkitError as error:
            cell.status, cell.cause, cell.run = "failed", error.message, self._blast_of(one, cell)
            say(f"{one.name}: failed, {error.message}")
            self._event(self._run, "mark", f"{one.name}: failed, {error.message}")
        else:
            cell.status, cell.run = "measured", self._blast_of(one, cell)
            # before the events: a database that refuses them costs no measurement
            self._save()
            name = self._plan.look_at[0]
            value = self._row(one).blocks.get(block, {}).get(name)
            say(f"{place}: measured, {metric(name).title} {figure(name, value)}")
            if cell.run:  # so that the blast's own run says what it was
                self._event(cell.run, "config", f"sweep {self._run}: {place}")
                self._event(self._run, "mark", f"{one.name}, block {block}: run {cell.run}")
        finally:
            self._save()
            self._stop_children()

    def _serve_and_load(self, one: Configuration, cell: SweepCell, place: str, name: str) -> None:
        """Its files bear the name, `place` says which one it is. Raises ToolkitError with the cause where it does not start, or answers nothing."""
        # httpx: 0.07 s, which no `--show` has to wait for
        from toolkit.tuning.servers import counters_of, invalid_json  # noqa: PLC0415

        plan, tools, serving = self._plan, self._tools, one.serving
        kind = serving.kind(sim=tools.sim)
        # the word for the prompts; those that stand in the sweep are written to a file of their own
        profile = serving.profile or plan.profile
        text = dict(plan.profiles).get(profile)
        if text is not None:
            path = tools.folder / f"{profile}.profile.toml"
            path.write_text(text, encoding="utf-8")
            profile = str(path)

        server = None
        if kind == "url":
            cell.url = one_host(serving.url or "").url
        else:
            tools.show_step(f"{place}: starting its server")
            began_s = time.monotonic()
            server = self._start_server(one, name, profile)
            cell.url = server.first_line(READY_S[kind or "sim"]).rstrip("/")
            cell.start_s = round(time.monotonic() - began_s, 3)
        self._save()

        # a hosts file of this one server: where its key is named, which no command line holds
        hosts = tools.folder / f"{name}-hosts.txt"
        key_env = f" api_key_env={serving.key_env}" if serving.key_env else ""
        hosts.write_text(f"{host_name(one)} {cell.url}{key_env}\n", encoding="utf-8")

        # `toolkit serve` warms its engines itself; everybody else is warmed from outside
        if plan.warm and kind != "serve":
            tools.show_step(f"{place}: warming up")
            levels = ",".join(map(str, warm_levels(plan.load.users)))
            words = ["warmup", str(hosts), "--profile", profile, "--concurrency", levels, "--json"]
            warmup = self._child(words, f"{name}-warmup")
            has_failed = warmup.wait(WARM_S) != 0
            warmed: dict[str, Any] = {}
            with contextlib.suppress(ValueError, IndexError):
                line = json.loads(warmup.data()[0])
                warmed = line if isinstance(line, dict) else {}
            if has_failed:
                if server is not None and server.code is not None:
                    raise server.failure()
                cell.notes.append(f"not warmed: {warmed.get('error') or warmup.failure().message}")
            if warmed:
                cell.figures |= {key: warmed.get(key) for key in ("cold_ttft_ms", "warm_ttft_ms")}

        counters = counters_of(cell.url, serving.key_env)
        # a blast that was cut off with us goes on, with the host that it had
        tools.show_step(f"{place}: under load for {span(plan.load.duration_s)}")
        words = self._blast_words(str(hosts), profile, resume=self._blast_of(one, cell))
        load = self._child(words, f"{name}-load")
        if load.wait(plan.load.duration_s + plan.load.timeout_s + LOAD_MORE_S):
            if any(line.startswith("No host answered") for line in load.messages()):
                raise ToolkitError("it answered no request of the load")
            raise load.failure()
        cell.figures |= counters_moved(counters, counters_of(cell.url, serving.key_env))
        if plan.asking and serving.asked:
            tools.show_step(f"{place}: asked for JSON")
            figures, notes = invalid_json(plan.asking, cell.url, serving)
            cell.figures |= figures
            cell.notes += notes
        if server is not None and server.code is not None:
            cell.notes.append(f"the server ended during the load: {server.failure().message}")

    def _start_server(self, one: Configuration, name: str, profile: str) -> ChildCommand:
        """Start its server, at the same port for all of the sweep, so that a blast can go on."""
        tools, serving = self._tools, one.serving
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.state.ports.get("server", 0)))
            except OSError:  # somebody took it
                probe.bind(("127.0.0.1", 0))
            port = self.state.ports["server"] = int(probe.getsockname()[1])
        if serving.kind(sim=tools.sim) == "sim":
            words = ["sim", "serve", "--personality", serving.sim or "", "--port", str(port)]
            for key, value in serving.settings:
                words += ["--set", f"{key}={value}"]
            return self._child(words, f"{name}-server")

        # an engine's name knows fewer letters than a host's
        letters = re.sub(r"[^A-Za-z0-9_.-]+", "-", host_name(one))
        engine: dict[str, Any] = {"name": letters[:63].strip("-._") or "engine", "port": port}
        if serving.tiny:
            engine["kind"] = "tiny"
        for key in ("model", "served_name", "gpus", "key_env", "vllm"):
            if (value := getattr(serving, key)) is not None:
                engine[key] = value
        for key in ("flags", "env"):
            if pairs := getattr(serving, key):
                engine[key] = dict(pairs)
        stack = {
            "folder": str(tools.folder / f"{name}-serve"),
            "database": str(tools.database),
            # a response cache before the engine would answer for all configurations alike
            "proxy": False,
            "warm": {"profile": profile, "concurrency": warm_levels(self._plan.load.users)},
            "engine": [engine],
        }
        file = tools.folder / f"{name}-stack.toml"
        file.write_text(toml_text(stack), encoding="utf-8")
        return self._child(["serve", str(file)], f"{name}-server")

    def _blast_words(self, hosts: str, profile: str, *, resume: str | None) -> list[str]:
        """Load it as the evaluator would. It may run on the served machine: blast finds out, and marks the run."""
        load = self._plan.load
        options: dict[str, object] = {
            "--profile": profile,
            "--users": load.users,
            # users that come at once would go on in step: answers end in waves, which a window cuts anywhere
            "--spawn-rate": f"{load.users / load.settle_s:g}",
            "--canaries": f"{load.canaries:g}",
            "--timeout": f"{load.timeout_s:g}s",
            "--processes": load.processes,
            "--rate": load.rate,
            "--mix": load.mix,
            "--max-tokens": load.max_tokens,
            "--resume": resume,
            "--duration": None if resume else f"{load.duration_s:g}s",
            "--db": self._tools.database,
        }
        given = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
        return ["blast", hosts, *given, "--non-neutral", "--json"]

    def _child(self, words: Sequence[str], name: str) -> ChildCommand:
        child = ChildCommand([*self._tools.command, *words], folder=self._tools.folder, name=name)
        self._children.append(child)
        self.state.children.append(child.mark)
        self._save()
        return child

    def _stop_children(self) -> None:
        """End the load before the server: what is still in flight would count its end as errors."""
        for child in reversed(self._children):
            child.stop()
        if self._children:
            self._children.clear()
            self.state.children.clear()
            self._save()

    def _save(self) -> None:
        """Write the state down; it is on disk then."""
        self._store.set_capture(self._run, asdict(self.state))

    def _event(self, run: str, kind: EventKind, text: str) -> None:
        self._store.add_event(Event(run=run, at=time.time(), kind=kind, text=text))
