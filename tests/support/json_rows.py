"""What each verb prints with `--json`, provoked: against simulated servers, a stored blast, a capture, the catalog.

    PYTHONPATH=tests python -m support.json_rows       prints the manual's table, made from what they print now

A row of the table is a kind of line; its name says the command, and behind a comma which line. `adds` says that the line has
the keys of the command's first row as well.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from support.blasted import blasted

from toolkit.cli import main
from toolkit.cli.sweep.table import print_objects
from toolkit.sim.app import serve_in_thread
from toolkit.tuning.sweep_file import SweepPlan
from toolkit.tuning.sweep_table import Compared, Moved, SweepRow

ROOT = Path(__file__).parents[2]
TOOLKIT = [sys.executable, "-m", "toolkit.cli"]
WAIT_S = 60
Tree = dict[str, "Tree | None"]
"""Keys; of each the keys of what is below it, where that is an object or a list of them."""
Rows = dict[str, list[dict[str, Any]]]
FREE = {"error_kinds", "flags", "statuses", "cached_by", "figures"}
"""Objects whose keys are names that came, not ours."""
STACK = '[proxy]\nport = 8000\n[[engine]]\nname = "a"\nmodel = "Qwen/Qwen2.5-7B-Instruct"\nport = 8001\n'


def objects(*words: str, code: int | None = 0) -> list[dict[str, Any]]:
    """What a verb prints with `--json`, in this process."""
    done = CliRunner().invoke(main, [*words, "--json"], catch_exceptions=False)
    assert code is None or done.exit_code == code, (words, done.exit_code, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def lines(*words: str) -> list[dict[str, Any]]:
    """What a verb prints that has no `--json` for it."""
    done = CliRunner().invoke(main, list(words), catch_exceptions=False)
    assert done.exit_code == 0, (words, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def provoked(folder: Path) -> Rows:
    """All rows. It works in the folder, which is empty."""
    with contextlib.chdir(folder):
        fast = {"time_scale": 0.02}
        with serve_in_thread("cached", **fast) as one, serve_in_thread("flaky", **fast) as two:
            Path("hosts.txt").write_text(f"alice {one.url}\nbob {two.url}\n")
            rows = _looked() | _benched(one.url)
        return rows | _stored() | _captured() | _planned() | _machine()


def _looked() -> Rows:
    found = objects("scout", "hosts.txt", "--interval", "50ms")
    return {
        "toolkit scout": [*objects("scout", "hosts.txt"), *found],
        "toolkit blast --dry-run": objects("blast", "hosts.txt", "--dry-run"),
        "toolkit diagnose": objects("diagnose", "hosts.txt", "--interval", "50ms"),
    }


def _benched(url: str) -> Rows:
    bench = (
        "bench",
        "hosts.txt",
        "--num-prompts",
        "50",
        "--max-concurrency",
        "25",
        "--goodput",
        "e2e:9s",
    )
    rungs = ("bench", url, "--sweep-concurrency", "1,2", "--num-prompts", "2")
    warm = ("warmup", "hosts.txt", "--concurrency", "1", "--rounds", "2", "--limit", "20s")
    # one of them fails now and then, which may be all that came of it
    found = {"toolkit bench": objects(*bench, code=None)}
    (run,) = [each["run"] for each in objects("runs", "--verb", "bench")]
    return found | {
        "toolkit bench --sweep-concurrency, adds": objects(*rungs),
        "toolkit warmup": objects(*warm, code=None),
        "toolkit compare": objects("compare", f"{run}:alice", f"{run}:bob"),
        "toolkit runs export --jsonl --shots": lines("runs", "export", run, "--jsonl", "--shots"),
    }


def _stored() -> Rows:
    # with an outage; in a file of its own, as the newest blast
    run = blasted(Path("stored.db"), hosts=6, seconds=300).id
    costs = ("--gpu-hour", "2", "--api-price", "0.15/0.60")
    db = ("--db", "stored.db")
    outage = objects("impact", "--host", "restarter", *db)
    told = objects("diagnose", f"{run}:restarter", *db)
    return {
        "toolkit board, and `toolkit blast` at its end": objects("board", *db),
        "toolkit board, before the first blast": objects("board", code=1),
        "toolkit runs": objects("runs", *db),
        "toolkit impact": objects("impact", "--downtime", "5m"),
        "toolkit impact --host, adds": outage,
        "toolkit report": [
            *objects("report", run, *db),
            *objects("report", f"{run}:restarter", *costs, *db),
        ],
        "toolkit diagnose": told,
        "toolkit runs export --jsonl --tallies": lines("runs", "export", run, "--jsonl", *db)[:50],
    }


def _captured() -> Rows:
    sample = str(ROOT / "data" / "sample.pcap")
    *requests, last = objects("capture", sample, "--full")
    *with_bodies, _ = objects("capture", sample, "--bodies", "--no-store")
    (run,) = [each["run"] for each in objects("runs", "--verb", "capture")]
    return {
        "toolkit capture": requests,
        "toolkit capture --bodies, adds": with_bodies,
        "toolkit capture, last line": [last],
        "toolkit workload": objects("workload", "--latency", "2s"),
        "toolkit runs export --jsonl --requests": lines("runs", "export", run, "--jsonl"),
    }


def _planned() -> Rows:
    plan = ("plan", "qwen2.5-7b", "--gpu", "l4")
    newest = [each["run"] for each in objects("runs", "--verb", "bench")][-1]
    usual = objects(*plan, "--prompt-tokens", "500", "--output-tokens", "50")
    rated = objects(
        *plan, "--run", newest, "--host", "alice", "--target-rps", "5",
        "--gpu-hour", "1.2", "--api-price", "0.15/0.60",
    )  # fmt: skip
    chained = objects(*plan, "--tokens", "300", "--calls", "300ms,300ms", "--idle", "430ms")
    known = objects("plan", "--list")
    Path("stack.toml").write_text(STACK)
    return {
        "toolkit plan": [*usual, *rated, *chained],
        "toolkit plan --kv-only, adds": objects(
            "plan", "qwen2.5-7b", "--kv-only", "--tokens", "8192", "--batch", "64"
        ),
        "toolkit plan --list, a model": [each for each in known if "gpu" not in each],
        "toolkit plan --list, a GPU": [each for each in known if "gpu" in each],
        "toolkit sweep": _swept()[:1],
        "toolkit sweep, last line": _swept()[1:],
        "toolkit sweep --list": objects("sweep", "--list"),
        "toolkit sweep --dry-run": objects("sweep", "quantizations", "--dry-run"),
        "toolkit deploy": objects("deploy", "systemd", "stack.toml", "--out", "out"),
        "toolkit sim list": objects("sim", "list"),
    }


def _swept() -> list[dict[str, Any]]:
    """A sweep takes half a minute for its first line: this one was not run, and only printed."""
    compared = Compared(metric="rps", difference=0.1, verdict="not shown")
    row = SweepRow(
        name="a", stage=1, lever="l", value="1", status="measured", blocks={1: {"rps": 1.0}}, runs=("r",),
        starts_s=(1.0,), against="b", compared=(compared,),
    )  # fmt: skip
    moved = Moved(
        lever="l", best="a", worst="b", factor=1.1, low=None, high=None, verdict="not shown"
    )
    plan = SweepPlan.__new__(SweepPlan)
    for name, value in {"name": "s", "look_at": ("rps",)}.items():
        object.__setattr__(plan, name, value)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        print_objects(plan, [row], [moved])
    return [json.loads(line) for line in said.getvalue().splitlines()]


def _machine() -> Rows:
    parts = objects("selftest", "--streams", "1", "--tokens", "2", "--interval", "1ms", code=None)
    by_part = {part["part"]: [part] for part in parts}
    dead = ("watchdog", "--url", "127.0.0.1:9", "--until-trouble", "--refused", "50ms")
    return {
        "toolkit preflight": objects("preflight", "--sim", "--port", "1", code=None),
        "toolkit selftest, a level": by_part["level"],
        "toolkit selftest, the rate": by_part["rate"],
        "toolkit selftest, last line": by_part["verdict"],
        "toolkit watchdog": _other(*dead, "--look", "50ms", "--no-store"),
        "toolkit serve status": _served(),
    }


def _other(*words: str) -> list[dict[str, Any]]:
    """In a process of its own, as it listens to signals."""
    done = subprocess.run(
        [*TOOLKIT, *words, "--json"], capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert done.stdout, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _served() -> list[dict[str, Any]]:
    """Of a stack that runs; a port that was free may be taken by another test meanwhile, so it is tried again."""
    words = [*TOOLKIT, "serve", "--sim", "gptq-int4", "--port", "0", "--no-preflight"]
    log = Path("serve.log")
    for _ in range(3):
        with (
            log.open("wb") as said,
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said) as running,
        ):
            assert running.stdout
            if running.stdout.readline():
                try:
                    return objects("serve", "status")
                finally:
                    running.terminate()
    raise AssertionError(log.read_text())


# --- as a table -----------------------------------------------------------------------------------------


def keys_of(told: Any) -> Tree | None:
    """The keys of a value and of all below it; None where it has none."""
    if isinstance(told, dict):
        return {key: {} if key in FREE else keys_of(value) for key, value in told.items()}
    if isinstance(told, list):
        trees = [tree for tree in map(keys_of, told) if tree is not None]
        return joined(trees) if trees else None
    return None


def joined(trees: Sequence[Tree]) -> Tree:
    """All keys of several trees, in the order in which they came."""
    found: Tree = {}
    for tree in trees:
        for key, below in tree.items():
            known = found.get(key)
            both = [each for each in (known, below) if each is not None]
            found[key] = joined(both) if both else None
    return found


def written(tree: Tree) -> str:
    """As a cell of the table: `key` `list`(`key` `key`) `map`{}."""
    words = []
    for key, below in tree.items():
        more = "" if below is None else f"({written(below)})" if below else "{}"
        words.append(f"`{key}`{more}")
    return " ".join(words)


def table(rows: Rows) -> str:
    """The manual's table."""
    told = ["| verb | keys |", "|---|---|"]
    for name, lines_of in rows.items():
        tree = joined([keys_of(line) or {} for line in lines_of])
        if name.endswith(", adds"):
            first = rows[" ".join(name.split(" ")[:2])][0]
            tree = {key: below for key, below in tree.items() if key not in first}
        command, comma, rest = name.partition(",")
        told.append(f"| `{command}`{comma}{rest} | {written(tree)} |")
    return "\n".join(told) + "\n"


if __name__ == "__main__":
    os.environ.pop("TOOLKIT_DB", None)
    place = Path(tempfile.mkdtemp())
    sys.stdout.write(table(provoked(place)))
    shutil.rmtree(place, ignore_errors=True)
