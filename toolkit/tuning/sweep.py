"""Runs a sweep: serves one configuration after the other, warms it, loads it from outside, and keeps what came of it.

It starts processes (children.py) and writes the store; what it needs of other rooms is handed to it. Killed at any moment, it
goes on with the configuration that was under way: blast's run of it is resumed, on a server started anew at the same address.
"""

import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.records import Event
from toolkit.tuning.children import ChildCommand, end_left
from toolkit.tuning.configurations import Configuration, Serving, best, in_turn
from toolkit.tuning.figures import Figures, moved
from toolkit.tuning.metrics import meant
from toolkit.tuning.sweep_file import SweepPlan
from toolkit.tuning.sweep_results import measured_of
from toolkit.tuning.sweep_state import CellStatus, Kept, SweepCell
from toolkit.tuning.sweep_steps import (
    blast_words,
    host_name,
    sim_words,
    stack_of,
    stages,
    warm_words,
)
from toolkit.tuning.sweep_table import MeasuredConfiguration, table

READY_S: Mapping[str, float] = {"sim": 60.0, "serve": 7200.0}
"""Longest wait for the first answer; `toolkit serve` has limits of its own, and knows causes."""
WARM_S = 1800.0
LOAD_MORE_S = 180.0
"""Beyond its duration: Locust's start, and answers under way."""
LEAST_LEFT_S = 2
"""With less to go a resumed blast is as good as over."""
BLAST = re.compile(r"Blast `([0-9a-f]+)` (?:begins|resumes)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a sweep is given by the front door."""

    command: tuple[str, ...]
    """Before each command's words: the toolkit itself, on a leash, so that it ends with us."""
    folder: Path
    """For files of its own: stacks, hosts, what the children say."""
    database: Path
    impossible: Callable[[Configuration], str | None]
    """Why it cannot fit; None: nothing is known against it."""
    look: Callable[[str, str | None], Mapping[str, float]]
    """Address, name of the key's variable -> the server's counters now; empty where it tells none."""
    ask: Callable[[str, Serving], tuple[Figures, list[str]]]
    """Send the requests for JSON: what came of them, and notes."""
    say: Callable[[str], None]
    sim: bool = False


def warmed(lines: Sequence[str]) -> Figures:
    """What a warm-up told of the first token before and after it."""
    with contextlib.suppress(ValueError, IndexError, AttributeError):
        told = json.loads(lines[0])
        return {name: told.get(name) for name in ("cold_ttft_ms", "warm_ttft_ms")}
    return {}


def warm_error(lines: Sequence[str]) -> str | None:
    """Why a warm-up came to nothing, where it told."""
    with contextlib.suppress(ValueError, IndexError, AttributeError):
        error = json.loads(lines[0]).get("error")
        return None if error is None else str(error)
    return None


class Sweep:
    """One sweep, from where its state says it is."""

    def __init__(self, plan: SweepPlan, kept: Kept, tools: Tools) -> None:
        self._plan, self._kept, self._tools = plan, kept, tools
        self._state = kept.state
        self._children: list[ChildCommand] = []

    def run(self) -> tuple[MeasuredConfiguration, ...]:
        """Measure what is not measured yet; all that is known then. Children never outlive it."""
        self._tools.folder.mkdir(parents=True, exist_ok=True)
        self._clear_away()
        try:
            for configurations in self._stages():
                self._stage(configurations)
        finally:
            self._stop_all()
        self._kept.store.end_run(self._kept.run, ended_at=time.time(), client_ok=None)
        return self.known()

    def known(self) -> tuple[MeasuredConfiguration, ...]:
        """Each configuration with what is known of it so far."""
        return tuple(
            measured_of(one, self._plan, self._kept)
            for configurations in self._stages()
            for one in configurations
        )

    # --- stages and blocks -------------------------------------------------------------------------

    def _stages(self) -> Iterator[tuple[Configuration, ...]]:
        """One after the other: what the second is shows once the first is measured."""
        first = next(stages(self._plan))
        yield first
        if not (self._plan.configurations and self._plan.levers):
            return
        if self._state.base is None and self._is_measured(first):
            self._state.base = self._best(first)  # the next step writes it down
        base = next((one for one in first if one.name == self._state.base), None)
        if base is not None:
            yield from list(stages(self._plan, base))[1:]

    def _is_measured(self, configurations: Sequence[Configuration]) -> bool:
        """Whether nothing of them is left to do."""
        left_out = self._state.skipped.keys() | self._state.out.keys()
        cells = [
            self._state.cell(one.key, block)
            for block, one in in_turn(configurations, self._plan.blocks)
            if one.key not in left_out
        ]
        return all(cell is not None and cell.status != "under way" for cell in cells)

    def _best(self, first: Sequence[Configuration]) -> str | None:
        """The model that the levers start from."""
        rows = table([measured_of(one, self._plan, self._kept) for one in first], ())
        name = self._plan.look_at[0]
        return best(
            {row.name: row.figures.get(name) for row in rows},
            more_is_better=meant(name).more_is_better,
            names=[row.name for row in rows],
        )

    def _stage(self, configurations: Sequence[Configuration]) -> None:
        for one in configurations:
            why = None if one.key in self._state.skipped else self._tools.impossible(one)
            if why:
                self._state.skipped[one.key] = why
                self._kept.save()
                self._tools.say(f"{one.name}: skipped, {why}")
        for block, one in in_turn(configurations, self._plan.blocks):
            if one.key in self._state.skipped or one.key in self._state.out:
                continue
            cell = self._state.cell(one.key, block)
            if cell is None or cell.status == "under way":
                self._cell(one, block, cell)

    # --- one configuration in one block --------------------------------------------------------------

    def _cell(self, one: Configuration, block: int, before: SweepCell | None) -> None:
        cell = before or SweepCell(begun_at=time.time())
        self._state.cells[f"{one.key}/{block}"] = cell
        self._kept.save()
        self._find_run(one, cell)
        told = f"{one.name}, block {block} of {self._plan.blocks}"
        if cell.run and self._is_over(cell.run):
            self._tools.say(f"{told}: was measured in full before the sweep was cut off")
            self._end(cell, "measured")
            return
        self._tools.say(f"{told}: {'goes on' if before else 'begins'}")
        try:
            self._serve_and_load(one, block, cell)
        except ToolkitError as error:
            self._fail(one, cell, error.message)
        finally:
            self._stop_all()

    def _serve_and_load(self, one: Configuration, block: int, cell: SweepCell) -> None:
        began_s = time.monotonic()
        url, server = self._served(one, block)
        if server is not None:
            cell.start_s = round(time.monotonic() - began_s, 3)
        if cell.url not in (None, url):
            cell.run = None  # a blast goes on with the hosts that it had
        cell.url = url
        self._kept.save()
        self._warm(one, block, cell, server)
        before = self._tools.look(url, one.serving.key_env)
        self._load(one, block, cell, url)
        cell.figures |= moved(before, self._tools.look(url, one.serving.key_env))
        if self._plan.asking and one.serving.asked:
            figures, notes = self._tools.ask(url, one.serving)
            cell.figures |= figures
            cell.notes += notes
        if server is not None and server.code is not None:
            cell.notes.append(f"the server ended during the load: {server.failure().message}")
        self._end(cell, "measured")
        self._label(one, block, cell)

    def _served(self, one: Configuration, block: int) -> tuple[str, ChildCommand | None]:
        """Start it; its address once it answers."""
        serving = one.serving
        kind = serving.kind(sim=self._tools.sim)
        if kind == "url":
            return (serving.url or "").rstrip("/"), None
        port = self._port()
        if kind == "sim":
            words = sim_words(one, port)
        else:
            stack = self._file(one, block, "stack.toml")
            folder = str(self._file(one, block, "serve"))
            text = stack_of(
                one,
                port,
                users=self._plan.load.users,
                folder=folder,
                profile=self._profile(one),
                database=str(self._tools.database),
            )
            stack.write_text(text, encoding="utf-8")
            words = ["serve", str(stack)]
        server = self._child(words, f"{host_name(one)}-{one.stage}-{block}-server")
        return server.first_line(READY_S[kind or "sim"]).rstrip("/"), server

    def _warm(
        self, one: Configuration, block: int, cell: SweepCell, server: ChildCommand | None
    ) -> None:
        """`toolkit serve` warms its engines itself; everybody else is warmed from outside."""
        if not self._plan.warm or one.serving.kind(sim=self._tools.sim) == "serve":
            return
        hosts = self._hosts(one, block, cell.url or "")
        words = warm_words(hosts, self._profile(one), self._plan.load.users)
        child = self._child(words, f"{host_name(one)}-{one.stage}-{block}-warmup")
        if child.wait(WARM_S):
            why = warm_error(child.data()) or child.failure().message
            if server is not None and server.code is not None:
                raise server.failure()
            cell.notes.append(f"not warmed: {why}")
        cell.figures |= warmed(child.data())

    def _load(self, one: Configuration, block: int, cell: SweepCell, url: str) -> None:
        words = blast_words(
            self._plan,
            hosts=self._hosts(one, block, url),
            profile=self._profile(one),
            database=str(self._tools.database),
            resume=cell.run,
        )
        child = self._child(words, f"{host_name(one)}-{one.stage}-{block}-load")

        def note_run() -> None:
            if cell.run is None and (found := BLAST.search("\n".join(child.said()))):
                cell.run = found[1]
                self._kept.save()

        if child.wait(
            self._plan.load.duration_s + self._plan.load.timeout_s + LOAD_MORE_S, note_run
        ):
            self._refuse_nothing_answered(child)
            raise child.failure()

    def _hosts(self, one: Configuration, block: int, url: str) -> str:
        """A hosts file of this one server: where its key is named, which no command line holds."""
        hosts = self._file(one, block, "hosts.txt")
        key = f" api_key_env={one.serving.key_env}" if one.serving.key_env else ""
        hosts.write_text(f"{host_name(one)} {url}{key}\n", encoding="utf-8")
        return str(hosts)

    def _refuse_nothing_answered(self, child: ChildCommand) -> None:
        for line in child.said():
            if line.startswith("No host answered"):
                raise ToolkitError("it answered no request of the load")

    # --- what became of it ----------------------------------------------------------------------------

    def _end(self, cell: SweepCell, status: CellStatus) -> None:
        cell.status = status
        self._kept.save()

    def _fail(self, one: Configuration, cell: SweepCell, cause: str) -> None:
        """A configuration that never worked is not tried again in later blocks: a model's start takes minutes."""
        cell.cause = cause
        self._end(cell, "failed")
        worked = any(
            each.status == "measured"
            for key, each in self._state.cells.items()
            if key.rpartition("/")[0] == one.key
        )
        if not worked:
            self._state.out[one.key] = cause
            self._kept.save()
        self._tools.say(f"{one.name}: failed, {cause}")
        self._kept.tell(time.time(), f"{one.name}: failed, {cause}")

    def _label(self, one: Configuration, block: int, cell: SweepCell) -> None:
        """So that the blast's own run tells what it was."""
        text = f"sweep {self._kept.run}: {one.name}, block {block} of {self._plan.blocks}"
        if cell.run:
            self._kept.store.add_event(
                Event(run=cell.run, at=time.time(), kind="config", text=text)
            )
            self._kept.tell(time.time(), f"{one.name}, block {block}: run {cell.run}")

    def _find_run(self, one: Configuration, cell: SweepCell) -> None:
        """The blast of a cell that was cut off: it tells its name before its run is stored, and is written down after."""
        if cell.run and self._kept.store.run(cell.run) is None:
            cell.run = None
        if cell.run or cell.url is None:
            return
        for run in self._kept.store.runs(verb="blast", limit=3):
            hosts = self._kept.store.hosts_of(run.id).values()
            is_ours = any(host.url == cell.url and host.name == host_name(one) for host in hosts)
            if is_ours and run.started_at >= cell.begun_at:
                cell.run = run.id
                self._kept.save()
                return

    def _is_over(self, run_id: str) -> bool:
        """Whether so little of a blast is left that it need not go on."""
        under_load = {second.at_s for _, second in self._kept.store.loader_seconds(run_id)}
        return len(under_load) > self._plan.load.duration_s - LEAST_LEFT_S

    # --- processes and files ----------------------------------------------------------------------------

    def _child(self, words: Sequence[str], name: str) -> ChildCommand:
        child = ChildCommand([*self._tools.command, *words], folder=self._tools.folder, name=name)
        self._children.append(child)
        self._state.children.append(child.mark)
        self._kept.save()
        return child

    def _stop_all(self) -> None:
        """End the load before the server: what still asks would count its end as errors."""
        for child in reversed(self._children):
            child.stop()
        if self._children:
            self._children.clear()
            self._state.children.clear()
            self._kept.save()

    def _clear_away(self) -> None:
        left = end_left(self._state.children)
        if left:
            self._tools.say(f"Ended {left} process{'es' * (left > 1)} that a killed sweep had left")
        self._state.children.clear()
        self._kept.save()

    def _port(self) -> int:
        """The same for all of the sweep, so that a blast can go on; another one where somebody took it."""
        wanted = self._state.ports.get("server", 0)
        for port in (wanted, 0):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
                self._state.ports["server"] = int(probe.getsockname()[1])
                break
        self._kept.save()
        return self._state.ports["server"]

    def _file(self, one: Configuration, block: int, name: str) -> Path:
        return self._tools.folder / f"{host_name(one)}-{one.stage}-{block}-{name}"

    def _profile(self, one: Configuration) -> str:
        """The word for the prompts; those that stand in the sweep are written to a file of their own."""
        word = one.serving.profile or self._plan.profile
        text = dict(self._plan.profiles).get(word)
        if text is None:
            return word
        path = self._tools.folder / f"{word}.profile.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)
