"""A real sweep killed with SIGKILL at moments nobody chose, and gone on with, until it is over: nothing measured is lost, nobody is left.

Two simulated configurations in two blocks, four loads of 4 s. What is counted is told by the store: every blast that began is part of the sweep's
table in the end, and no configuration was loaded twice in one block.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from toolkit.store import Store
from toolkit.tuning.sweep import state_of

ROUNDS = {"short": 1, "full": 12}[os.environ.get("TOOLKIT_LONG", "short")]
PROGRAM = [sys.executable, "-c", "from toolkit.cli import main; main()"]
SWEEP = """
look_at = ["output_tokens_per_s"]
blocks = 2
warm = false
[load]
users = 4
duration = "6s"
settle = "1s"
mix = 0
max_tokens = 16
[base]
settings = { time_scale = 0.1 }
[[configurations]]
name = "fp8"
sim = "fp8"
[[configurations]]
name = "gptq"
sim = "gptq-int4"
"""
LATEST_KILL_S = 25.0

pytestmark = pytest.mark.timeout(600 + 120 * ROUNDS)


def start(folder: Path, *words: str) -> "subprocess.Popen[bytes]":
    with (folder / "said.txt").open("ab") as said:
        return subprocess.Popen(
            [*PROGRAM, "sweep", *words, "--db", "t.db"], cwd=folder, stdout=said, stderr=said
        )


def left(folder: Path) -> list[str]:
    """Processes that work in this sweep's name."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        told = process.info
        if told["cwd"] == str(folder) and told["status"] != psutil.STATUS_ZOMBIE:
            found.append(" ".join(told["cmdline"] or [])[:120])
    return found


def until_nobody_is_left(folder: Path) -> None:
    end = time.monotonic() + 90
    while left(folder):
        assert time.monotonic() < end, left(folder)
        time.sleep(0.1)


def newest(folder: Path) -> str:
    with Store.open_readonly(folder / "t.db") as store:
        return store.runs(verb="sweep", limit=1)[0].id


def test_killed_again_and_again_it_measures_everything_once(tmp_path: Path) -> None:
    chance = random.Random(7)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    sweep = start(tmp_path, "sweep.toml")
    for _ in range(ROUNDS):
        time.sleep(chance.uniform(4.0, LATEST_KILL_S))
        is_over = sweep.poll() is not None
        sweep.kill()
        sweep.wait()
        if is_over:
            break
        # what it had started hears of its end and goes, without anybody's help
        until_nobody_is_left(tmp_path)
        sweep = start(tmp_path, "--resume")
    assert sweep.wait(300) == 0, (tmp_path / "said.txt").read_text()
    until_nobody_is_left(tmp_path)
    check(tmp_path)


def check(folder: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "sweep", "--show", newest(folder), "--json", "--db", "t.db"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    *rows, _ = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["name"], row["status"], row["blocks"]) for row in rows] == [
        ("fp8", "measured", 2),
        ("gptq", "measured", 2),
    ]
    with Store.open_readonly(folder / "t.db") as store:
        blasts = {run.id for run in store.runs(verb="blast")}
        assert blasts == {run for row in rows for run in row["runs"]}
        cells = state_of(store, newest(folder)).cells.values()
        assert all(cell.status == "measured" for cell in cells)
        for run in blasts:
            under_load = {second.at_s for _, second in store.loader_seconds(run)}
            assert len(under_load) >= 5


def test_an_orderly_end_keeps_all_and_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    sweep = start(tmp_path, "sweep.toml")
    end = time.monotonic() + 60
    while len(left(tmp_path)) < 2:
        assert time.monotonic() < end, "it has started nothing"
        time.sleep(0.1)
    time.sleep(4)
    sweep.send_signal(signal.SIGTERM)
    assert sweep.wait(90) == 130
    until_nobody_is_left(tmp_path)
    assert f"toolkit sweep --resume {newest(tmp_path)}" in (tmp_path / "said.txt").read_text()
