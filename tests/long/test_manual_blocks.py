"""Every block of README and the manual that a reader can paste works, page after page, in one folder, against simulated servers.

What is changed on the way is said in CHANGED: ports that may be taken, times that a reader has and a test has not. The two commands
of `Set up` are run by `.ci/run` itself, byte for byte.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.manual import PAGES, ROOT, Block, blocks

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("manual")]

LONGEST_S = 120
"""For one block; those that wait for servers take most."""
PORTS = ("8000", "8001", "8002", "8501")
CHANGED = (
    # simulated servers ten times as fast; a speed that a block names itself stays
    (re.compile(r"\btoolkit sim fleet(?! --help| > )"), "toolkit sim fleet --time-scale 0.1"),
    (re.compile(r"--duration \d+[smh]"), "--duration 3s"),
    (re.compile(r"--window \d+[smh](?= *$)"), "--window 10s"),
    (re.compile(r"--interval \d+s"), "--interval 2s"),
    # a reader has none yet; here each block finds one
    (re.compile(r"\btoolkit example hosts\.txt"), "rm hosts.txt && toolkit example hosts.txt"),
    # the load comes from the servers' own machine, which a reader's must not
    (re.compile(r"\b(toolkit blast (?:hosts|prod)\.txt)"), r"\1 --non-neutral"),
    # its own port is anybody's here
    (re.compile(r"\btoolkit serve --sim gptq-int4"), "toolkit serve --sim gptq-int4 --port 8000"),
    # nine loads are minutes; test_sweep_ratios.py runs such a sweep whole
    (re.compile(r"(sweep quantizations --sim)"), r"\1 --dry-run"),
    (re.compile(r"\btoolkit demo --no-page"), "toolkit demo --no-page --seconds 12"),
    (re.compile(r"\btoolkit selftest *$", re.MULTILINE), "toolkit selftest --streams 1,10"),
)
FLEET = {"alice": "gptq-int4", "bob": "awq", "carol": "fp8"}
"""Who stands in `hosts.txt` (and in `prod.txt`), and of which personality."""
TEAMS = {"alice": "red", "bob": "blue", "carol": "blue"}
FILE = re.compile(r"# ([a-z-]+\.toml)\b")
"""A file that a page shows bears its name in its first line."""
ID = re.compile(r"\b[0-9a-f]{12}\b")


def to_run() -> list[Block]:
    return [
        each
        for page in PAGES
        for each in blocks(page)
        if each.is_shell and "not-run" not in each.notes
        # the others' are for who works on the code, and `.ci/run` does what they say
        if page not in {"CONTRIBUTING.md", "CHANGELOG.md"} and each.heading != "Set up"
    ]


class Reader:
    """Who reads the manual and pastes it, block for block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "data").mkdir()
        shutil.copy(ROOT / "data" / "sample.pcap", folder / "data" / "sample.pcap")
        for name in ("locustfiles", "dashboards"):
            (folder / name).symlink_to(ROOT / name)
        (folder / ".venv").symlink_to(sys.prefix)
        (folder / "home").mkdir()
        for block in (block for page in PAGES for block in blocks(page)):
            name = FILE.match(block.text) if block.info == "toml" else None
            if name:
                (folder / name[1]).write_text(block.text)
        self.ports: dict[str, str] = {}
        self.hosts = ""

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("TOOLKIT_")
        }
        path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return kept | {"PATH": path, "HOME": str(self.folder / "home"), "COLUMNS": "150"}

    def start(self, script: str) -> subprocess.Popen[str]:
        """In a process group of its own, which ends as a whole."""
        return subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def script_of(self, block: Block) -> str:
        """The block's, with what a test must change."""
        script = block.script
        for pattern, instead in CHANGED:
            script = pattern.sub(instead, script)
        for port in PORTS:
            script = re.sub(rf"\b{port}\b", lambda found: self.port(found[0]), script)
        if "proxy" in script and "--admin-port" not in script:
            script = script.replace("toolkit proxy", "toolkit proxy --admin-port 0")
        return self._with_ids(script, block.notes.get("ids"))

    def port(self, named: str) -> str:
        """A free one, the same for a name throughout."""
        if named not in self.ports:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.ports[named] = str(free.getsockname()[1])
        return self.ports[named]

    def _with_ids(self, script: str, verb: str | None) -> str:
        if verb is None:
            return script
        listed = subprocess.run(
            ["toolkit", "runs", "--verb", verb, "--json"],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        known = [json.loads(line)["run"] for line in listed.stdout.splitlines()]
        named = list(dict.fromkeys(ID.findall(script)))
        # the last that is named is the newest; ids of runs that the block makes itself are not known yet
        for old, new in zip(reversed(named), known, strict=False):
            script = script.replace(old, new)
        return script

    @contextmanager
    def server(self, personality: str) -> Iterator[None]:
        """A simulated server on the manual's port 8001, with clients where it is ill: diagnosing needs a load."""
        load = 32 if "_" in personality else 0
        speed = 0.05 if personality == "cold" else 0.1
        words = f"toolkit sim serve --port {self.port('8001')} --personality {personality}"
        with self.beside(f"exec {words} --time-scale {speed} --load {load}", "http://"):
            yield

    @contextmanager
    def beside(self, script: str, until: str) -> Iterator[list[str]]:
        """It runs meanwhile, and has printed `until`; what it prints is in the list."""
        process = self.start(script)
        printed: list[str] = []
        said = threading.Event()
        reading = threading.Thread(target=_read, args=(process, printed, until, said), daemon=True)
        reading.start()
        try:
            assert said.wait(LONGEST_S), f"{script}\nnever said `{until}`:\n{''.join(printed)}"
            assert any(until in line for line in printed), f"{script}\nended:\n{''.join(printed)}"
            yield printed
        finally:
            _interrupt(process)
            reading.join(10)
            process.stdout.close() if process.stdout else None


def _read(
    process: subprocess.Popen[str], printed: list[str], until: str, said: threading.Event
) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        printed.append(line)
        if until in line:
            said.set()
    said.set()  # ended without it


def _interrupt(process: subprocess.Popen[str]) -> None:
    """As Ctrl-C does it, to the whole group; whoever does not end by it is killed."""
    for sign, patience_s in ((signal.SIGINT, 45), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, sign)
            process.wait(patience_s)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
        else:
            break


def run(reader: Reader, block: Block, before: Block | None) -> str:
    """Paste one block; what it printed, or AssertionError."""
    with ExitStack() as around:
        for name in ("hosts.txt", "prod.txt"):
            (reader.folder / name).write_text(reader.hosts)
        beside = before if block.notes.get("beside") == "previous" else None
        for each in (beside, block):
            if each is not None and "server" in each.notes:
                around.enter_context(reader.server(each.notes["server"]))
        if beside is not None:
            around.enter_context(reader.beside(reader.script_of(beside), beside.notes["until"]))
        script = reader.script_of(block)
        if "until" in block.notes:
            with reader.beside(script, block.notes["until"]) as printed:
                pass
            return "".join(printed)
        return _whole(reader, block, script)


def _whole(reader: Reader, block: Block, script: str) -> str:
    process = reader.start(script)
    try:
        printed, _ = process.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        _interrupt(process)
        raise AssertionError(f"{script}\ntook longer than {LONGEST_S} s") from None
    expected = block.notes.get("exit", "0")
    told = f"{script}\nended with {process.returncode}:\n{printed}"
    assert expected in {"any", str(process.returncode)}, told
    return printed


Outcome = str | Exception
BLOCKS = to_run()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Each block's: in the manual's order, as later ones use what earlier ones made."""
    reader = Reader(tmp_path_factory.mktemp("reader"))
    known: dict[str, Outcome] = {}
    fleet = " ".join(dict.fromkeys(FLEET.values()))
    last = list(FLEET.values())[-1]
    with reader.beside(f"exec toolkit sim fleet {fleet} --time-scale 0.1", f"{last} ") as printed:
        urls = dict(line.split()[:2] for line in printed if "http://" in line)
        reader.hosts = "".join(
            f"{name} {urls[FLEET[name]]} team={team}\n" for name, team in TEAMS.items()
        )
        before: Block | None = None
        for block in BLOCKS:
            try:
                known[block.place] = run(reader, block, before)
            except (AssertionError, LookupError, OSError, subprocess.SubprocessError) as error:
                known[block.place] = error
            before = block
    return known


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_a_block_can_be_pasted(block: Block, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[block.place]
    if isinstance(outcome, Exception):
        raise outcome


@pytest.mark.parametrize(
    "block",
    [one for one in BLOCKS if one.column_titles and "columns" not in one.notes],
    ids=lambda block: block.name,
)
def test_a_table_that_is_shown_has_the_columns_that_are_printed(
    block: Block, outcomes: dict[str, Outcome]
) -> None:
    outcome = outcomes[block.place]
    if isinstance(outcome, Exception):
        pytest.fail("it could not be run")
    printed = {_words(line) for line in outcome.splitlines()}
    assert [line for line in block.column_titles if _words(line) not in printed] == []


def _words(line: str) -> str:
    return " ".join(line.split())
