"""Take the manual's pictures of the lab report and of the workload page again, by hand: `python tests/docs/take_pictures.py`, some minutes.

A real stack of `toolkit serve` in front of a simulated engine, restarted once, then loaded by two teams, one of which has few slots; the
pages are those of its run and of its proxy's log, in a real Chromium. It rewrites docs/pictures/report.png and docs/pictures/workload.png.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from contract.harness.browser import chromium
from playwright.sync_api import Browser

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
BIN = Path(sys.prefix) / "bin"
PORT = 8040
URL = f"http://127.0.0.1:{PORT}"
KEYS = {"RED_KEY": "red-key", "BLUE_KEY": "blue-key"}
STACK = f"""\
[[engine]]
name = "gptq"
kind = "sim"
model = "gptq-int4"

[proxy]
port = {PORT}

[proxy.tell]
log = "requests.jsonl"

[[proxy.team]]
name = "red"
key_env = "RED_KEY"
concurrency = 15
queue = 2

[[proxy.team]]
name = "blue"
key_env = "BLUE_KEY"
"""
PROFILE = """\
summary = "A help desk: a few questions that all ask, and as many that nobody asked before"
stream_share = 0.7
max_tokens = 200
unique_share = 0.35
shared_prefix = "desk"

[passages]
desk = "You are the help desk of a tram museum. Opening hours are ten to five, on Mondays closed. Trams leave at eleven, one and three."

[[prompts]]
text = "When do you open?"
weight = 6.0

[[prompts]]
text = "What does a ticket cost?"
weight = 4.0

[[prompts]]
text = "When does the next tram leave?"
weight = 2.0

[[prompts]]
text = "I lost an umbrella last week. Where could it be?"

[[prompts]]
text = "May I bring my dog, and is there a place for a pram? We come with two children, and one of them is in a wheelchair."
"""
LOAD = "--non-neutral --no-scout --profile desk.toml --duration 80s".split()
RED = "--users 64 --rate 12 --canaries 2".split()
BLUE = "--users 2 --rate 1 --canaries 0 --db blue.db".split()
REPORT = "--log requests.jsonl --gpu-hour 2.00 --api-price 0.15/0.60 --call-key-env RED_KEY".split()


class Desk:
    """A folder in which all of it happens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | KEYS | {"PATH": path, "TOOLKIT_DB": "desk.db"}
        (folder / "stack.toml").write_text(STACK)
        (folder / "desk.toml").write_text(PROFILE)
        for name, key in (("red", "RED_KEY"), ("blue", "BLUE_KEY")):
            (folder / f"{name}.txt").write_text(f"gptq {URL} api_key_env={key}\n")

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Begin one command."""
        return subprocess.Popen(
            [BIN / "toolkit", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def said(self, *words: str) -> str:
        """What a command prints; its failure ends this, too."""
        with self.start(*words) as process:
            out, _ = process.communicate()
        if process.returncode:
            sys.exit(f"Error: `toolkit {' '.join(words)}` ended with {process.returncode}")
        return out

    def is_up(self) -> bool:
        """Whether clients are let in."""
        with self.start("serve", "status", "--json") as process:
            out, _ = process.communicate()
        return '"up"' in out

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """The stack, from warm to ended."""
        serve = self.start("serve", "stack.toml", "--no-preflight")
        try:
            while not self.is_up():
                time.sleep(1)
            yield
        finally:
            self.said("serve", "stop")
            serve.wait()


def picture(browser: Browser, page: Path, name: str) -> None:
    """The top of a page as a reader's window shows it."""
    tab = browser.new_page(viewport={"width": 1100, "height": 1000}, color_scheme="light")
    tab.goto(page.as_uri())
    tab.screenshot(path=PICTURES / name)
    print(f"{name}: {(PICTURES / name).stat().st_size:,} bytes")


def main() -> None:
    """Serve, load, report, look."""
    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(Path(folder))
        with desk.serving():
            desk.said("serve", "restart")
            with desk.start("blast", "blue.txt", *LOAD, *BLUE):
                desk.said("blast", "red.txt", *LOAD, *RED)
            listed = desk.said("runs", "--verb", "blast", "--json").splitlines()
            run = json.loads(listed[0])["run"]
            desk.said("report", run, "--html", "report.html", "--call", URL, *REPORT)
        limit = ("--max-model-len", "8192")
        desk.said("workload", "--from", "requests.jsonl", "--html", "workload.html", *limit)
        with chromium() as browser:
            picture(browser, desk.folder / "report.html", "report.png")
            picture(browser, desk.folder / "workload.html", "workload.png")


if __name__ == "__main__":
    main()
