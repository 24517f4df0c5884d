"""How `toolkit blast` ends: by Ctrl-C, by a load that dies, and how it goes on from there."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from contract.harness.databases import select
from contract.harness.programs import Program, gone, rows, run, toolkit, until
from support import sim_fleet

pytestmark = pytest.mark.slow
LONG = ("--duration", "10m", "--users", "2", "--max-tokens", "8", "--non-neutral", "--no-scout")
HOW = "--non-neutral --no-scout --db t.db"


@pytest.fixture(scope="module")
def fleet() -> Iterator[str]:
    with sim_fleet.running({"quick": ("gptq-int4", {"time_scale": 0.02})}) as hosts:
        yield hosts


class Blast:
    """A blast that runs in a folder, past its first answer and its mark."""

    def __init__(self, folder: Path, running: Program) -> None:
        self.folder, self.running = folder, running
        running.line("^Blast `.*` begins: ")
        until(lambda: self.counted() and self.column("SELECT 1 FROM events WHERE kind = 'mark'"))
        # the process that makes the load is the verb's only child
        (self.load,) = psutil.Process(running.process.pid).children()
        self.family = [self.load, *self.load.children(recursive=True)]

    def column(self, query: str) -> list[Any]:
        return [next(iter(row.values())) for row in select(self.folder / "t.db", query)]

    def counted(self) -> int:
        return sum(self.column("SELECT ok FROM tallies WHERE kind = 'ranked'"))


@contextmanager
def blasting(folder: Path, fleet: str, *words: str) -> Iterator[Blast]:
    (folder / "hosts.txt").write_text(fleet)
    temporary = {"TMPDIR": str(folder)}
    words = ("blast", *LONG, "--db", "t.db", *words)
    with toolkit(*words, cwd=folder, env=temporary) as running:
        yield Blast(folder, running)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_load_cleanly_and_shows_what_was_counted(
    tmp_path: Path, fleet: str, number: signal.Signals
) -> None:
    with blasting(tmp_path, fleet, "--json") as blast:
        assert blast.running.end(number) == 130, blast.running.text
        assert gone(blast.family)
        (shown,) = rows("\n".join(blast.running.out))
        assert shown["ok"] == blast.counted()
        (run_id,) = blast.column("SELECT id FROM runs WHERE ended_at IS NOT NULL")
        errors = blast.running.err
        assert errors[-1] == f"Stopped; go on with `toolkit blast --resume {run_id} {HOW}`"
        assert any(line.startswith("Stopping: ") for line in errors)
        again = f"toolkit board --run {run_id} --db t.db"
        assert f"Kept in `t.db`; `{again}` shows these standings again" in errors
        assert "KeyboardInterrupt" not in blast.running.text
    assert {file.name.partition("-")[0] for file in tmp_path.iterdir()} == {"hosts.txt", "t.db"}


def test_a_second_interrupt_quits_at_once_and_leaves_no_process_and_no_file(
    tmp_path: Path, fleet: str
) -> None:
    with blasting(tmp_path, fleet, "--processes", "2") as blast:
        assert len(blast.family) == 3
        blast.load.send_signal(signal.SIGSTOP)  # or it would have ended by the first one already
        blast.running.process.send_signal(signal.SIGINT)
        blast.running.line("^Stopping: ")
        assert blast.running.end() == 130
        assert blast.running.out == []
        assert gone(blast.family)
    assert {file.name.partition("-")[0] for file in tmp_path.iterdir()} == {"hosts.txt", "t.db"}


def test_a_load_that_is_killed_is_an_error_and_its_run_goes_on(tmp_path: Path, fleet: str) -> None:
    with blasting(tmp_path, fleet, "--processes", "2", "--json") as blast:
        os.kill(blast.load.pid, signal.SIGKILL)
        assert blast.running.wait() == 1
        assert gone(blast.family)
        (run_id,) = blast.column("SELECT id FROM runs WHERE ended_at IS NULL")
        command = f"toolkit blast --resume {run_id} {HOW}"
        assert blast.running.err[-3:] == [
            f"Error: the load of run `{run_id}` was killed by SIGKILL; what it had counted up to then is kept",
            "",
            f"Hint: Go on with `{command}`",
        ]
        (shown,) = rows("\n".join(blast.running.out))
        assert shown["ok"] == blast.counted()

        done = run(*command.split()[1:], "--duration", "2s", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith(f"Blast `{run_id}` resumes: 2 users on one host, 0:02\n")
        assert rows(done.stdout)[0]["ok"] == blast.counted() > shown["ok"]
        kinds = blast.column("SELECT kind FROM events ORDER BY id")
        assert kinds == ["start", "mark", "resume", "mark", "stop"]
        assert blast.column("SELECT ended_at IS NOT NULL FROM runs") == [1]


def test_a_verb_that_is_killed_takes_its_load_along_cleanly(tmp_path: Path, fleet: str) -> None:
    with blasting(tmp_path, fleet) as blast:
        blast.running.process.kill()
        assert gone(blast.family)
        assert blast.column("SELECT ended_at IS NOT NULL FROM runs") == [1]
        assert blast.column("SELECT kind FROM events ORDER BY id")[-1] == "stop"
