"""Real Locust processes for tests: start them, stop them, and hold what they stored against what the servers counted."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.records import Run, Sums
from toolkit.store import Store

LOCUSTFILE = Path(__file__).parents[2] / "locustfiles" / "blast.py"
DATABASE = "toolkit.db"
HOSTS = "hosts.txt"
NOT_OURS = ("TOOLKIT_", "LOCUST_")
"""Variables of whoever runs the tests must not reach what is tested."""
PATIENCE_S = 60.0
BEGUN = " users a host, "
"""Stands in what a blast says when its users are about to come."""
CAST = {
    "fp8": ("fp8", {"time_scale": 0.1}),
    "gptq-int4": ("gptq-int4", {"time_scale": 0.1}),
}
"""Two honest servers that answer quickly, yet not as fast as a CPU can ask."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What a server says it did, or what was stored of it."""

    requests: int
    prompt_tokens: int
    output_tokens: int

    def since(self, before: "Counted") -> "Counted":
        return Counted(
            self.requests - before.requests,
            self.prompt_tokens - before.prompt_tokens,
            self.output_tokens - before.output_tokens,
        )


def command(*words: str) -> list[str]:
    """A Locust with our file, quiet but for what it must say."""
    return [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--only-summary", *words]


def headless(*words: str) -> list[str]:
    """The same without a web page; exit code 0 although hosts fail."""
    return command("--headless", "--exit-code-on-error", "0", "-r", "100", *words)


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
    return kept | more


class Started(subprocess.Popen[str]):
    """A process and those it forks; none of them outlives the block that started it, whatever went wrong there."""

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        if self.stdout is not None:
            self.stdout.close()


def start(folder: Path, words: list[str], **variables: str) -> Started:
    """Start one in its own folder and process group, as a shell does."""
    return Started(
        words,
        cwd=folder,
        env=environment(TOOLKIT_DB=DATABASE, **variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(folder: Path, words: list[str], *, code: int = 0, **variables: str) -> str:
    """Run one to its end; all it said."""
    with start(folder, words, **variables) as running:
        said, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == code, said
    return said


def wait_for(running: Started, words: str) -> str:
    """Read what a process says until it says this; all up to there."""
    assert running.stdout is not None
    said = ""
    give_up = threading.Timer(PATIENCE_S, running.kill)
    give_up.start()
    try:
        for line in running.stdout:
            said += line
            if words in line:
                return said
    finally:
        give_up.cancel()
    raise AssertionError(f"it ended without `{words}`:\n{said}")


def requests_kept(folder: Path, *, besides: str = "") -> int:
    """Of all runs but one."""
    with Store.open_readonly(folder / DATABASE) as store:
        runs = [run.id for run in store.runs(verb="blast") if run.id != besides]
    return sum(each.requests for run in runs for each in stored(folder, run).values())


def urls_in(hosts: str) -> dict[str, str]:
    """Name -> URL of a hosts file's text."""
    return {line.split()[0]: line.split()[1] for line in hosts.splitlines() if line.strip()}


def counted(url: str) -> Counted:
    """Read a server's own counters, without the toolkit; an aborted request is none."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as page:
        lines = [line for line in page.read().decode().splitlines() if not line.startswith("#")]
    return Counted(
        requests=_total(lines, "vllm:request_success_total", without='"abort"'),
        prompt_tokens=_total(lines, "vllm:prompt_tokens_total"),
        output_tokens=_total(lines, "vllm:generation_tokens_total"),
    )


def _total(lines: list[str], name: str, without: str = "\n") -> int:
    found = [line for line in lines if line.partition("{")[0] == name and without not in line]
    return sum(int(float(line.split()[-1])) for line in found)


def counted_everywhere(urls: Mapping[str, str]) -> dict[str, Counted]:
    return {name: counted(url) for name, url in urls.items()}


def newest(folder: Path) -> Run:
    with Store.open_readonly(folder / DATABASE) as store:
        return store.runs(verb="blast")[0]


def stored(folder: Path, run_id: str | None = None) -> dict[str, Counted]:
    """What the tallies of a run add up to, ranked ones and canaries together, by host."""
    sums: dict[str, list[Sums]] = {}
    for (name, _, _), each in all_sums(folder, run_id).items():
        sums.setdefault(name, []).append(each)
    return {
        name: Counted(
            sum(one.ok for one in each),
            sum(one.prompt_tokens for one in each),
            sum(one.output_tokens for one in each),
        )
        for name, each in sums.items()
    }


def all_sums(folder: Path, run_id: str | None = None) -> dict[tuple[str, str, str], Sums]:
    with Store.open_readonly(folder / DATABASE) as store:
        return dict(store.tally_sums(run_id or store.runs(verb="blast")[0].id))


def errors(folder: Path) -> dict[str, dict[str, int]]:
    """Host -> kind -> how many, of the newest run."""
    found: dict[str, dict[str, int]] = {}
    with Store.open_readonly(folder / DATABASE) as store:
        for tally in store.tallies(store.runs(verb="blast")[0].id):
            kinds = found.setdefault(tally.name, {})
            for each in tally.error_kinds:
                kinds[each.kind] = kinds.get(each.kind, 0) + each.count
    return found


def settings(run: Run) -> dict[str, Any]:
    return dict(json.loads(run.settings))
