"""`toolkit sweep` killed in the midst of a load and gone on with; what it measured, compared; and the watchdog by itself."""

import os
import signal
from pathlib import Path

from contract.harness.databases import is_sound, select
from contract.harness.programs import (
    TOOLKIT,
    Program,
    free_port,
    gone,
    rows,
    run,
    runs,
    toolkit,
    until,
)

SWEEP = """
look_at = ["output_tokens_per_s"]
blocks = 1
warm = false
[load]
users = 2
duration = "3s"
settle = "1s"
mix = 0
max_tokens = 8
[base]
settings = { time_scale = 0.1 }
[[configurations]]
name = "fp8"
sim = "fp8"
[[configurations]]
name = "gptq"
sim = "gptq-int4"
"""


def seconds_under_load(file: Path) -> int:
    """Of all blasts so far."""
    if not file.exists():
        return 0
    tables = {row["name"] for row in select(file, "SELECT name FROM sqlite_master")}
    return len(select(file, "SELECT 1 FROM loader_seconds")) if "loader_seconds" in tables else 0


def killed(program: Program) -> None:
    """kill -9 of the one process alone: whoever it had started must hear of it and go."""
    family = program.family()[1:]
    assert family
    program.process.kill()
    assert gone(family)


def test_a_sweep_that_was_killed_goes_on_and_measures_everything_once(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    file = tmp_path / "t.db"
    with toolkit("sweep", "sweep.toml", "--db", file, cwd=tmp_path) as sweep:
        until(lambda: seconds_under_load(file) >= 2)
        killed(sweep)
    assert is_sound(file)
    done = run("sweep", "--resume", "--db", file, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *told, summary = rows(done.stdout)
    assert [(each["name"], each["status"], each["blocks"]) for each in told] == [
        ("fp8", "measured", 1),
        ("gptq", "measured", 1),
    ]
    # every load that began is part of the table, and none was run twice
    listed = {
        each["run"]: each for each in rows(run("runs", "--db", file, "--json", cwd=tmp_path).stdout)
    }
    blasts = [name for each in told for name in each["runs"]]
    assert sorted(blasts) == sorted(n for n, each in listed.items() if each["verb"] == "blast")
    assert len(blasts) == 2
    # those under way at the kill had no answer, and of the other load none failed
    assert all(listed[name]["requests"] > 0 for name in blasts)
    assert min(listed[name]["errors"] for name in blasts) == 0
    (sweep_run,) = [name for name, each in listed.items() if each["verb"] == "sweep"]
    assert list(summary) == ["summary"]
    shown = run("sweep", "--show", sweep_run, "--db", file, "--json", cwd=tmp_path)
    assert rows(shown.stdout) == [*told, summary]
    assert run("sweep", "--resume", "--db", file, cwd=tmp_path).returncode != 0

    compared = rows(run("compare", *blasts, "--db", file, "--json", cwd=tmp_path).stdout)
    assert compared
    for each in compared:
        assert each.keys() >= {"metric", "a", "b", "difference", "low", "high", "verdict"}
    assert {each["metric"] for each in compared} >= {"output_tokens_per_s", "ttft_p95_ms"}


def test_a_watchdog_starts_an_engine_again_tells_it_and_leaves_nobody(tmp_path: Path) -> None:
    port = free_port()
    engine = (TOOLKIT, "sim", "serve", "--time-scale", 0.05, "--port", port)
    quick = ("--look", "100ms", "--backoff", "100ms", "--max-num-seqs", 1, "--no-store", "--json")
    with toolkit(
        "watchdog", "--url", f"127.0.0.1:{port}", *quick, "--", *engine, cwd=tmp_path
    ) as dog:
        dog.line(r"warm TTFT")
        before = dog.family()[1:]
        (served,) = [
            each
            for each in before
            if each.cmdline()[-1] == str(port) and "sim" in each.cmdline()[2:3]
        ]
        os.kill(served.pid, signal.SIGKILL)
        dog.line(r"back after")
        assert not runs(served.pid)
        family = dog.family()[1:]
        dog.end(signal.SIGTERM)
        assert gone(family)
        told = rows("\n".join(dog.out))
    assert {"name", "url", "at", "kind", "text"} <= set.intersection(*map(set, told))
    kinds = [each["kind"] for each in told]
    assert kinds.count("restart") == 1
    assert any(each["text"].startswith("back after") for each in told)
