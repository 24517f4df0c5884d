"""`toolkit deploy` on many stacks for the price of one start, and what it wrote; promtool, nginx and systemd-analyze, which read it."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from contract.harness.programs import run

LAB = """
[[engine]]
name = "qwen"
model = "Qwen/Qwen2.5-7B-Instruct"
served_name = "q"
gpus = "0"
port = 8101
spare_port = 8102
[engine.flags]
max-num-seqs = 64
[[engine]]
name = "big"
model = "B"
served_name = "b"
gpus = "1"
host = "::1"
port = 8105
spare_port = "none"
key_env = "BIG_KEY"
team = "red"
[proxy]
port = 8000
admin_port = 8002
[proxy.cache]
redis_env = "REDIS_URL"
"""
"""One engine in two places, one behind a key, the proxy with a Redis: what site_series.py has the numbers of."""


TWO = """
[[engine]]
name = "qwen"
model = "Qwen/Qwen2.5-7B-Instruct"
gpus = "0,1"
port = 8001
key_env = "QWEN_KEY"
ready = "20m"
[engine.flags]
tensor-parallel-size = 2
max-num-seqs = 64
[[engine]]
name = "Coder_7B"
model = "Qwen/Qwen2.5-Coder-7B"
served_name = '''a$b "} or vector(9)\\'''
gpus = "2"
port = 8003
env = { WORD = "$(HOME) ${HOME} 50%" }
[proxy]
port = 8000
admin_port = 8005
drain = "45s"
[proxy.admission]
concurrency = 48
[[proxy.team]]
name = "red"
key_env = "RED_KEY"
[proxy.cache]
ttl = "10m"
redis_env = "CACHE_REDIS"
[proxy.tell]
log = "requests.jsonl"
"""
"""Two engines, on two GPUs and on one, with words that mean something to those who read the files; a team, a Redis, a log."""


@dataclass(frozen=True)
class Deployed:
    """One call: how it ended, what it said, where its files are."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def files(self) -> set[str]:
        found = (each for each in self.folder.rglob("*") if each.is_file())
        return {str(each.relative_to(self.folder)) for each in found}

    @property
    def steps(self) -> list[str]:
        """What is to be done next, in order."""
        return [line[2:] for line in self.err.split("\n") if line.startswith("  ")]

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def document(self, name: str) -> Any:
        """Of a YAML file with one."""
        return yaml.safe_load(self.text(name))

    def objects(self) -> list[Any]:
        """Of Kubernetes, and of its autoscalers."""
        files = sorted(name for name in self.files if name.endswith(".yaml"))
        files.remove("scaling/prometheus-adapter.yaml") if len(files) > 4 else None
        return [
            each
            for name in files
            for each in yaml.safe_load_all(self.text(name))
            if each is not None
        ]

    def object(self, kind: str, name: str) -> Any:
        (found,) = (
            each
            for each in self.objects()
            if each["kind"] == kind and each["metadata"]["name"] == name
        )
        return found


def deploy_each(
    folder: Path, cases: Mapping[str, Sequence[str]], env: Mapping[str, str] | None = None
) -> dict[str, Deployed]:
    """Name -> what `toolkit deploy KIND contest.toml --out out WORDS...` did; a case is the kind, the stack's text, and further words."""
    done = {}
    for name, (kind, text, *words) in cases.items():
        place = folder / name
        place.mkdir(parents=True)
        (place / "contest.toml").write_text(text)
        ended = run("deploy", kind, "contest.toml", "--out", "out", *words, cwd=place, env=env)
        done[name] = Deployed(ended.returncode, ended.stdout, ended.stderr, place / "out")
    return done


def program(name: str, package: str) -> str:
    """Its file; without one the test is skipped, which fails a run in CI (tests/conftest.py)."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        pytest.skip(f"no {name}: apt-get install --no-install-recommends {package}")
    return found


def promtool(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [program("promtool", "prometheus"), *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


Course = tuple[Mapping[str, str], Sequence[Mapping[str, Any]]]
"""Series, and what queries say of them."""


def rules_test(
    folder: Path,
    courses: Sequence[Course],
    *,
    alerts: Sequence[Mapping[str, Any]] = (),
    step: str = "30s",
) -> str:
    """What `promtool test rules` has to say of queries' values and of whole alerts; nothing: all held."""
    told = {
        "rule_files": ["rules/recording.yml", "rules/alerts.yml"],
        "evaluation_interval": step,
        # as promtool has it they run in any order, and an alert may see a recorded series one step late
        "group_eval_order": ["engines", "proxy", "engine alerts", "proxy alerts"],
        "tests": [
            {
                "interval": step,
                "input_series": [{"series": name, "values": v} for name, v in series.items()],
                "promql_expr_test": list(checks),
                "alert_rule_test": list(alerts),
            }
            for series, checks in courses
        ],
    }
    file = folder / "test.yml"
    file.write_text(json.dumps(told))
    found = promtool("test", "rules", file)
    return "" if found.returncode == 0 else found.stdout + found.stderr
