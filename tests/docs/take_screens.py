"""Take what each verb shows on a terminal again, by hand: `python tests/docs/take_screens.py [WIDTH]...`, some minutes. It needs tmux.

Every verb's main output, of a simulated contest, in a real terminal of 80 and of 120 columns, as text: docs/screens/80.txt and 120.txt.
"""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCREENS = ROOT / "docs" / "screens"
WIDTHS = (80, 120)
ROWS = 400
"""So that nothing scrolls away."""
FLEET = "alice=gptq-int4 bob=awq carol=fp8 dave=cached erin=first-token grace=flaky"
LONGEST_S = 300.0
PORT = 8041
FIRST = (
    "scout",
    "scout alice bob --interval 2s",
    "bench --num-prompts 32",
    "bench --only team=red --sweep-concurrency 1,2,4",
    "blast --dry-run",
    "blast --duration 30s --window 30s --users 24 --canaries 10 --non-neutral",
)
STORED = (
    "board",
    "board --honest --rank-by p95",
    "mark alice 'AWQ goes, GPTQ comes'",
    "impact --downtime 5m --rps 10 --gain 1.3 --left 40m",
    "runs",
    "compare BLAST:alice BLAST:bob",
    "report BLAST:alice --gpu-hour 2",
    "diagnose BLAST:alice",
    "diagnose bob --interval 3s",
    "scout --history alice",
    f"capture {ROOT}/data/sample.pcap --full",
    "workload",
    "plan qwen2.5-7b --gpu l4",
    "plan --list",
    "preflight --sim",
    "warmup alice --sweep-concurrency 1,2,4",
    "sweep --list",
    "sweep quantizations --dry-run",
    "sweep quantizations --sim --duration 6s --blocks 1",
    "selftest --streams 1,10",
    "sim list",
)


class Terminals:
    """Terminals of tmux's, in a folder; each shows one command and is read when that is over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tmux = ["tmux", "-L", f"screens-{os.getpid()}"]
        self._count = 0

    def start(self, words: str, width: int) -> str:
        """Begin a command of the toolkit; the terminal's name."""
        self._count += 1
        name = f"screen{self._count}"
        over = shlex.quote(str(self.folder / f"{name}.over"))
        line = f"{shlex.quote(sys.executable)} -m toolkit.cli {words}; echo > {over}; sleep {LONGEST_S}"
        size = ["-x", str(width), "-y", str(ROWS)]
        place = ["-d", "-s", name, "-c", str(self.folder)]
        path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
        subprocess.run([*self._tmux, "new-session", *place, *size, "-e", path, line], check=True)
        return name

    def read(self, name: str) -> str:
        """What it shows now."""
        words = [*self._tmux, "capture-pane", "-p", "-t", name]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.rstrip()

    def until(self, name: str, words: str | None = None) -> str:
        """What it shows when its command is over, or when these words stand there."""
        give_up_s = time.monotonic() + LONGEST_S
        while time.monotonic() < give_up_s:
            shown = self.read(name)
            if (words and words in shown) or (self.folder / f"{name}.over").exists():
                return self.read(name)
            time.sleep(0.2)
        raise TimeoutError(f"{name} shows after {LONGEST_S:.0f} s:\n{self.read(name)}")

    def interrupt(self, name: str) -> None:
        """Press Ctrl-C."""
        subprocess.run([*self._tmux, "send-keys", "-t", name, "C-c"], check=True)

    def close(self) -> None:
        """End all of them."""
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)


@contextlib.contextmanager
def contest() -> Iterator[Terminals]:
    """A fleet that serves, and a folder with its hosts file, in two teams."""
    with tempfile.TemporaryDirectory(prefix="screens-") as name:
        folder = Path(name)
        words = [
            sys.executable,
            "-m",
            "toolkit.cli",
            "sim",
            "fleet",
            *FLEET.split(),
            "--out",
            "fleet.txt",
        ]
        fleet = subprocess.Popen(
            [*words, "--time-scale", "0.25"], cwd=folder, stdout=subprocess.DEVNULL
        )
        terminals = Terminals(folder)
        try:
            while not (folder / "fleet.txt").exists():
                time.sleep(0.1)
            lines = (folder / "fleet.txt").read_text().splitlines()
            teams = [
                f"{line} team={'red' if at % 2 else 'blue'}" for at, line in enumerate(lines, 1)
            ]
            (folder / "hosts.txt").write_text("\n".join([*teams, ""]))
            yield terminals
        finally:
            terminals.close()
            fleet.terminate()
            fleet.wait()


def screens(terminals: Terminals, width: int) -> Iterator[tuple[str, str]]:
    """Each command with what a terminal of this width shows when it is over."""

    def shown(words: str) -> tuple[str, str]:
        return words, terminals.until(terminals.start(words, width))

    yield from map(shown, FIRST)
    listed = subprocess.run(
        [sys.executable, "-m", "toolkit.cli", "runs", "--verb", "blast", "--json"],
        check=True, capture_output=True, text=True, cwd=terminals.folder,
    ).stdout  # fmt: skip
    blast = json.loads(listed.splitlines()[0])["run"]
    yield from (shown(words.replace("BLAST", blast)) for words in STORED)

    # two that serve until they are ended
    words = f"serve --sim awq --port {PORT}"
    serve = terminals.start(words, width)
    yield words, terminals.until(serve, "Ready:")
    yield shown("serve status")
    terminals.interrupt(serve)
    terminals.until(serve)
    words = f"proxy --upstream http://127.0.0.1:{PORT + 1} --port {PORT}"
    proxy = terminals.start(words, width)
    yield words, terminals.until(proxy, "Ready")
    terminals.interrupt(proxy)
    terminals.until(proxy)
    yield shown("demo --seconds 20 --no-page")


def main() -> None:
    """Show all of it at each width."""
    if shutil.which("tmux") is None:
        sys.exit("tmux is missing: `sudo apt install tmux`")
    SCREENS.mkdir(exist_ok=True)
    for width in map(int, sys.argv[1:] or WIDTHS):
        with contest() as terminals, (SCREENS / f"{width}.txt").open("w") as file:
            for words, seen in screens(terminals, width):
                plain = seen.replace(f"{ROOT}/", "").replace(str(Path.home()), "~")
                command = words.replace(f"{ROOT}/", "")
                file.write(f"$ toolkit {command}\n{plain}\n\n\n")
                print(width, command, flush=True)


if __name__ == "__main__":
    main()
