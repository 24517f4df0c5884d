"""What takes its time on a large database or file does so below a sign of life: nobody wonders whether the toolkit hangs."""

import importlib
import io
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.blasted import STARTED_AT, blasted

from toolkit.cli import main
from toolkit.cli.waiting import NAME
from toolkit.store import Store

STORE, FEED = "toolkit.store:Store", "toolkit.board.feed:Feed"
SLOW = {
    "runs": (f"{STORE}.content",),
    "runs export RUN": (f"{STORE}.tallies",),
    "runs merge other.db": (f"{STORE}.content", f"{STORE}.copy_run"),
    "runs prune --keep 1 --yes": (
        *(f"{STORE}.content", f"{STORE}.remove_run"),
        f"{STORE}.shrink",
    ),
    "compare RUN:memory OTHER:memory": (f"{STORE}.tallies", "toolkit.tuning.compare:compare"),
    "impact --host restarter": (f"{STORE}.tallies",),
    "board": (f"{FEED}.board",),
    "board --watch --count 1": (f"{FEED}.board",),
    "diagnose RUN": (f"{STORE}.tallies", f"{FEED}.board"),
    "plan qwen2.5-7b --gpu l4 --run RUN --host memory": (f"{STORE}.tallies",),
    "report RUN --html report.html": (
        *(f"{STORE}.tallies", f"{FEED}.board"),
        "toolkit.tuning.pages:report_page",
    ),
    "workload --from bodies.jsonl --html report.html --profile made.toml": (
        *("toolkit.cli.workload.sources:from_files", "toolkit.workload:summarise"),
        *("toolkit.workload.page:page", "toolkit.workload:synthesis"),
    ),
    "workload --from bodies.jsonl --export mooncake": ("toolkit.workload.exports:export",),
    "scout 127.0.0.1:9 --json --no-store": ("toolkit.scout.watch:HostWatch.run",),
    "preflight --sim": ("toolkit.serving.preflight.checks:checks",),
}
"""By the command line, what of it was seen to take more than 2 s on two hours of 20 hosts, on 300 MB of a file, or on a
machine with GPUs and a vLLM. Each is named where it is looked up, `module:name`."""


class Terminal(io.StringIO):
    """Standard error, with somebody who looks at it."""

    def isatty(self) -> bool:
        return True


def watched(work: Callable[..., object], seen: list[bool]) -> Callable[..., object]:
    def wrapper(*words: object, **options: object) -> object:
        seen.append(any(thread.name == NAME for thread in threading.enumerate()))
        return work(*words, **options)

    return wrapper


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blasts in one database, one in another, and bodies of requests."""
    folder = tmp_path_factory.mktemp("made")
    blasted(folder / "t.db", hosts=6, seconds=120)
    blasted(folder / "t.db", hosts=6, seconds=120, started_at=STARTED_AT + 500, seed=1)
    blasted(folder / "other.db", hosts=1, seconds=5, started_at=STARTED_AT + 1000)
    body = '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}\n'
    (folder / "bodies.jsonl").write_text(body * 5)
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The blasts' ids; all files lie in this test's own folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLKIT_DB", "t.db")
    with Store.open_readonly("t.db") as store:
        second, first = store.runs()
    return {"RUN": first.id, "OTHER": second.id}


@pytest.mark.parametrize(
    ("line", "stderr"),
    [*((line, Terminal) for line in SLOW), ("board", io.StringIO), ("impact --host restarter", io.StringIO)],
)  # fmt: skip
def test_what_takes_long_runs_below_a_sign_of_life_on_a_terminal_and_in_a_pipe(
    line: str,
    stderr: type[io.StringIO],
    runs: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = line.split()
    for name, run in runs.items():
        words = [word.replace(name, run) for word in words]
    seen: dict[str, list[bool]] = {place: [] for place in SLOW[line]}
    for place, calls in seen.items():
        module, _, path = place.partition(":")
        *owners, name = path.split(".")
        owner: object = importlib.import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        monkeypatch.setattr(owner, name, watched(getattr(owner, name), calls))
    monkeypatch.setattr(sys, "stderr", stderr())
    # a machine of tests need not be fit, which `preflight` exits for
    with suppress(SystemExit):
        main(words, standalone_mode=False)
    for place, calls in seen.items():
        assert calls, f"{place} was not called"
        assert all(calls), place
