"""The files of docs/examples/ do what they are there for, and a page that shows one shows it as it is."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.manual import MANUAL, ROOT, blocks, links

from toolkit.sim.app import SimThread, serve_in_thread

EXAMPLES = ROOT / "docs" / "examples"
KEYS = ("VLLM_API_KEY", "SPARE_KEY", "RED_KEY", "BLUE_KEY", "CAROL_KEY")
CHECKS = {
    "hosts.txt": "blast hosts.txt --dry-run",
    "proxy.toml": "proxy --config proxy.toml --check",
    "stack.toml": "serve stack.toml --check",
    "sweep.toml": "sweep sweep.toml --sim --dry-run",
    "profile.toml": "blast {url} --profile profile.toml --dry-run",
    "prompts.toml": "bench {url} --profile prompts.toml --num-prompts 4",
    "prompts.jsonl": "bench {url} --profile prompts.jsonl --num-prompts 4",
}
"""What a test does with a file; contest.sh and standings.py are run below."""
LONGEST_S = 110


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    return tmp_path / "examples"


@pytest.fixture(scope="module")
def server() -> Iterator[SimThread]:
    with serve_in_thread("gptq-int4", time_scale=0.01) as running:
        yield running


def run(*words: str, folder: Path, keys: str = "") -> str:
    """What it prints. `keys`: a text that names the variables with keys that it needs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOOLKIT_")}
    path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        words,
        cwd=folder,
        env=kept | {"PATH": path} | {key: f"of-{key}" for key in KEYS if key in keys},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", CHECKS)
def test_the_toolkit_takes_it(name: str, folder: Path, server: SimThread) -> None:
    words = CHECKS[name].format(url=server.url).split()
    run("toolkit", *words, folder=folder, keys=(folder / name).read_text())


@pytest.mark.slow
def test_the_contest_is_played_to_its_standings(folder: Path) -> None:
    printed = run("./contest.sh", "6", folder=folder)
    rows = [
        json.loads(line)
        for line in (folder / "contest" / "standings.jsonl").read_text().splitlines()
    ]
    assert {row["name"] for row in rows} == {"alice", "bob", "carol", "dave"}
    assert re.search(r"^ +1  dave +[\d.]+ requests/s", printed, re.MULTILINE)
    assert (folder / "contest" / "report.html").read_text().startswith("<!doctype html>")


def test_every_example_is_tried_and_listed() -> None:
    present = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert present == {*CHECKS, "contest.sh", "standings.py"}
    assert {f"examples/{name}" for name in present} <= set(links(ROOT / "docs" / "examples.md"))


def test_a_page_shows_an_example_as_it_is() -> None:
    shown = {}
    for block in (block for page in MANUAL for block in blocks(page)):
        named = re.match(r"# ([\w-]+\.(?:toml|txt))\b", block.text)
        if named:
            shown[named[1]] = block.text
            assert block.text == (EXAMPLES / named[1]).read_text(), block.place
    assert {name for name in CHECKS if name.endswith((".toml", ".txt"))} - {"sweep.toml"} == set(
        shown
    )
