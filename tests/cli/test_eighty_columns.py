"""Every verb that lists, as a terminal of 80 columns, a pipe, a pipe that closes and a machine without Unicode see it.

All cases print to one terminal, and to one pipe, one after the other; what is listed is stored, so that none waits.
"""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from support.blasted import blasted
from support.screens import received

from toolkit.cli import main

ROOT = Path(__file__).parents[2]
TOOLKIT = [sys.executable, "-m", "toolkit.cli"]
COLUMNS = 80
WAIT_S = 60
UNREACHED = "http://127.0.0.1:9"

CASES = (
    f"scout {UNREACHED}",
    "board",
    "board --honest --rank-by p95",
    "impact --downtime 5m --rps 10 --gain 1.3 --left 40m",
    "impact --host restarter",
    f"capture {ROOT}/data/sample.pcap --full --no-store",
    "workload",
    "plan --list",
    (
        "plan qwen2.5-7b --gpu l4 --prompt-tokens 500 --output-tokens 50 --seconds-per-request 5s"
        " --target-rps 10 --gpu-hour 1.2 --api-price 0.15/0.60"
    ),
    "plan qwen2.5-7b --gpu l4 --tokens 300 --calls 300ms,300ms --idle 430ms",
    "preflight --sim --port 1",
    "compare RUN:memory RUN:restarter",
    "diagnose RUN",
    "report RUN:memory --gpu-hour 2",
    "runs",
    "sweep --list",
    "sweep quantizations --dry-run",
    "sim list",
    f"blast {UNREACHED} --dry-run",
    f"mark {'x' * 8} lunch",
)
MAY_FAIL = ("scout", "preflight", "mark")
"""With exit code 1: nobody is up, this machine is unfit, nobody has that name. Their output must be fit to be read as well."""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("eighty columns")]


MARK = "=" * 9
"""Stands between two cases, with the exit code of the first."""
ONE_BY_ONE = f"""
import json, sys
from toolkit.cli import main
for words in json.loads(sys.argv[1]):
    code = 0
    try:
        main(words, prog_name="toolkit")
    except SystemExit as end:
        code = end.code
    sys.stderr.flush()
    print(flush=True)
    print("{MARK}", code or 0, flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a blast and a capture in its database."""
    here = tmp_path_factory.mktemp("eighty")
    (here / "data").mkdir()
    run = blasted(here / "data" / "toolkit.db", hosts=8, seconds=300).id
    (here / "run").write_text(run)
    words = ["capture", str(ROOT / "data" / "sample.pcap"), "--db", str(here / "data/toolkit.db")]
    assert CliRunner().invoke(main, words).exit_code == 0
    return here


def words(case: str, folder: Path) -> list[str]:
    return case.replace("RUN", (folder / "run").read_text()).split()


def all_cases(folder: Path) -> list[str]:
    lines = json.dumps([words(case, folder) for case in CASES])
    return [sys.executable, "-c", ONE_BY_ONE, lines]


def by_case(told: str) -> list[tuple[str, int, str]]:
    """Each case, its exit code, and what it printed."""
    parts = re.split(rf"{MARK} (\d+)\r?\n", told)
    assert len(parts) == 2 * len(CASES) + 1, told[-2000:]
    return [
        (case, int(parts[2 * at + 1]), parts[2 * at].removesuffix("\n").removesuffix("\r"))
        for at, case in enumerate(CASES)
    ]


def environment(**more: str) -> dict[str, str]:
    own = ("TOOLKIT_DB", "TOOLKIT_HOSTS", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    return {name: value for name, value in os.environ.items() if name not in own} | more


def test_a_terminal_of_eighty_columns_breaks_no_line_and_gets_no_colour(folder: Path) -> None:
    """One that does not tell its size by a variable."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, COLUMNS, 0, 0))
    environ = environment(NO_COLOR="1", TERM="xterm", LANG="C.UTF-8")
    with subprocess.Popen(
        all_cases(folder), stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environ
    ) as process:
        os.close(theirs)
        told = received(ours)
        process.wait(WAIT_S)
    os.close(ours)
    for case, code, seen in by_case(told):
        assert code == 0 or case.startswith(MAY_FAIL), seen
        assert "Traceback" not in seen
        # bold and dim are no colours, and stay
        assert not re.search(r"\x1b\[[0-9;]*(?<![0-9])(3[0-7]|4[0-7]|9[0-7]|38|48)[;m]", seen)
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
        lines = [line.rsplit("\r", 1)[-1] for line in plain.replace("\r\n", "\n").split("\n")]
        # a command is pasted whole, as in a hint, or as the last line of a plan
        whole = re.compile("Hint: |^vllm serve |^  toolkit ")
        wide = [line for line in lines if cell_len(line) > COLUMNS and not whole.search(line)]
        assert wide == [], case
        assert any(lines), case


def test_a_pipe_gets_plain_text_even_where_the_alphabet_is_ascii_and_colour_is_forced(
    folder: Path,
) -> None:
    environ = environment(
        LANG="C", LC_ALL="C", FORCE_COLOR="1", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0"
    )
    done = subprocess.run(
        all_cases(folder), capture_output=True, cwd=folder, env=environ, check=True, timeout=WAIT_S
    )
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"Traceback" not in done.stderr
    # click writes UTF-8 where the locale knows no better; rich a question mark
    for case, code, seen in by_case(done.stdout.decode()):
        assert code == 0 or case.startswith(MAY_FAIL), case
        assert seen or case.startswith("mark"), case


@pytest.mark.parametrize("case", ["board", "workload", "sim list", "runs --json"])
def test_a_pipe_that_closes_after_its_first_line_is_no_error_to_tell(
    case: str, folder: Path
) -> None:
    with subprocess.Popen(
        [*TOOLKIT, *words(case, folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment(),
    ) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline()
        process.stdout.close()
        told = process.stderr.read().decode()
        process.wait(WAIT_S)
    assert "Traceback" not in told
    assert "Broken pipe" not in told
    assert "BrokenPipe" not in told


def test_a_name_beyond_ascii_survives_a_screen_that_has_no_letters_for_it(tmp_path: Path) -> None:
    """In JSON by its escapes, in a table by a question mark, and never by a traceback."""
    (tmp_path / "hosts.txt").write_text(f"zoë {UNREACHED}\n", encoding="utf-8")
    environ = environment(LANG="C", LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    told = {}
    for more in ([], ["--json"]):
        done = subprocess.run(
            [*TOOLKIT, "scout", "hosts.txt", "--no-store", *more],
            capture_output=True, cwd=tmp_path, env=environ, check=False, timeout=WAIT_S,
        )  # fmt: skip
        assert done.returncode == 1
        assert b"Traceback" not in done.stderr
        told[bool(more)] = done.stdout.decode("ascii")
    assert "zo?" in told[False]
    assert json.loads(told[True])["name"] == "zoë"
