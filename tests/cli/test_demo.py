"""`toolkit demo` as a newcomer meets it: once whole, and what it refuses, leaves and starts beside that."""

import errno
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result
from contract.harness.programs import free_port, gone

from toolkit.cli import demo as demo_verb
from toolkit.cli import leaderboard, main
from toolkit.cli.children import environment
from toolkit.cli.demo import CAST, DOWN_SHARE, FALL_SHARE, SWITCHER
from toolkit.errors import ToolkitError
from toolkit.sim.presets import PRESETS

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
SHORT = ("demo", "--seconds", "12")
JUDGED = ("demo", "--seconds", "24")
"""Long enough for the counters to be compared."""
WAIT_S = 60


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo's own folder is made below `files`, and the user stands in `home`."""
    for name in ("files", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "files"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TOOLKIT_DB", str(tmp_path / "home" / "mine.db"))
    monkeypatch.setenv("TOOLKIT_HOSTS", str(tmp_path / "home" / "mine.txt"))
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path


def demo(*words: str) -> Result:
    return CliRunner().invoke(main, ["demo", *words])


def started_in(folder: Path) -> list[psutil.Process]:
    """Processes that stand in a folder."""
    found = []
    for process in psutil.process_iter(["cwd", "status"]):
        if process.info["cwd"] and process.info["status"] != psutil.STATUS_ZOMBIE:
            here = Path(process.info["cwd"])
            if here == folder or folder in here.parents:
                found.append(process)
    return found


# --- the whole ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_plays_through_tells_the_true_story_and_leaves_nothing(tmp_path: Path) -> None:
    port = free_port()
    done = subprocess.run(
        [TOOLKIT, *JUDGED, "--port", str(port)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    told = done.stdout
    commands = re.findall(r"^   \$ toolkit (\w+) hosts\.txt", told, re.MULTILINE)
    assert commands == ["scout", "bench", "blast"]
    # of a file that is gone at the end nobody is told that it is kept
    assert "Kept in" not in told + done.stderr
    told = told.partition("What it means:")[2]
    # the cast's truth: a host that sends one token, one that remembers, one that fell for 2 s
    truths = {"erin": "cuts its answers short", "dave": "answers from a response cache"}
    # which of these two is ahead is decided by how busy this machine is
    first, second = sorted(truths, key=lambda name: f"   {name} leads" not in told)
    assert re.search(
        rf"^   {first} leads.* with .* RPS.*: it {truths[first]} \(", told, re.MULTILINE
    )
    assert re.search(rf"{second} \(rank [12]\) {truths[second]}", told)
    best = re.search(r"The best host whose own model does the work is (\w+)[, ]", told)
    assert best
    assert best[1] in {"alice", "bob", "carol", "frank", "grace"}
    assert re.search(
        r"frank restarted at \d\d:\d\d:\d\d.* and was down for [2-9] s: \d+% errors in the window",
        told,
    )
    assert f"The leaderboard answers at http://127.0.0.1:{port}/?window=12s" in told
    assert list((tmp_path / "files").iterdir()) == []
    assert list((tmp_path / "home").iterdir()) == []
    assert started_in(tmp_path / "files") == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_all_and_takes_its_files_along(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [TOOLKIT, *SHORT, "--no-page"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if "$ toolkit bench" in line:
                break
        assert started_in(tmp_path / "files")
        process.send_signal(number)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == code
    assert list((tmp_path / "files").iterdir()) == []
    assert started_in(tmp_path / "files") == []


@pytest.mark.slow
def test_a_kill_leaves_no_server_running(tmp_path: Path) -> None:
    with subprocess.Popen(
        [TOOLKIT, *SHORT, "--no-page"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if "$ toolkit bench" in line:
                break
        process.kill()
    assert gone(started_in(tmp_path / "files"))


# --- what is refused before anything begins -------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [("--seconds", "11"), ("--seconds", "x"), ("--port", "0"), ("--no-page", "--port", "1")],
)
def test_a_wrong_command_line_exits_with_2(words: tuple[str, ...]) -> None:
    assert demo(*words).exit_code == 2


def test_without_a_real_vllm_the_command_that_brings_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLKIT_VLLM_HOME", str(tmp_path / "nothing"))
    result = demo("--real", "--no-page")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"there is no real vLLM at `{tmp_path / 'nothing'}`" in result.stderr
    assert "tests/real/install_vllm.sh" in result.stderr


def test_the_usual_port_gives_way_when_it_is_taken_and_one_that_was_asked_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert leaderboard.page_port(None) == leaderboard.PORT
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = demo("--port", str(port))
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"port {port} is taken" in result.stderr
        monkeypatch.setattr(leaderboard, "PORT", port)
        assert leaderboard.page_port(None) not in (0, port)


def test_a_port_kept_for_root_is_not_said_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refused)
    result = demo("--port", "80")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: port 80 is kept for root\n\nHint: ")


def test_what_is_kept_is_said_to_be_and_the_rest_goes(capsys: pytest.CaptureFixture[str]) -> None:
    with demo_verb._folder(keep=True) as kept, demo_verb._folder(keep=False) as gone:
        assert kept.is_dir()
    assert kept.is_dir()
    assert not gone.exists()
    assert capsys.readouterr().out == (
        f"\n{gone} was deleted with all runs in it; --keep keeps it.\n"
        f"\nHosts file and database stay in {kept}\n"
    )


def test_without_a_folder_for_temporary_files_the_way_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    result = demo("--no-page")
    assert result.exit_code == 1
    assert "TMPDIR" in result.stderr


def test_a_package_without_its_page_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=r"leaderboard\.py` is not there") as caught:
        leaderboard.page_file(tmp_path)
    assert "pip install" in caught.value.hint


# --- the page on a terminal -----------------------------------------------------------------------------


@pytest.mark.slow
def test_on_a_terminal_the_page_is_served_until_an_interrupt(tmp_path: Path) -> None:
    port = free_port()
    code = (
        "from pathlib import Path; from toolkit.cli.demo import _show_page;"
        f"_show_page(Path({str(tmp_path / 'files')!r}), {port}, 30)"
    )
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", code]
    with (
        subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs) as process,
        ExitStack() as ends,
    ):
        ends.callback(process.kill)
        os.close(theirs)
        said = ""
        while "Ctrl-C ends it" not in said:
            said += os.read(ours, 4096).decode()
        assert f"http://127.0.0.1:{port}/?window=30s" in said
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=WAIT_S) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
    os.close(ours)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


# --- cast and times -------------------------------------------------------------------------------------


def test_the_cast_are_personalities_and_the_one_that_falls_can() -> None:
    assert set(CAST.values()) <= set(PRESETS)
    assert PRESETS[CAST[SWITCHER]]["later"]


@pytest.mark.parametrize("seconds", [12, 60, 601])
def test_the_last_window_holds_the_whole_downtime(seconds: int) -> None:
    window_s, fall_at_s, down_for_s = seconds // 2, seconds * FALL_SHARE, seconds * DOWN_SHARE
    # a second later than planned at both ends: a blast starts and stops within one
    assert fall_at_s > seconds + 1 - window_s
    assert fall_at_s + down_for_s + 1 < seconds


def test_the_commands_do_not_meet_the_users_own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMETHING", "else")
    found = environment(TOOLKIT_DB="x")
    assert (found["TOOLKIT_DB"], found["SOMETHING"]) == ("x", "else")
    assert "TOOLKIT_HOSTS" not in found
