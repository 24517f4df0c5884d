"""`toolkit board --serve`: its link says what was asked for, what it refuses, and how it ends."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolkit.cli import main
from toolkit.cli.leaderboard import page_url

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
WAIT_S = 60


def board(*words: str) -> Result:
    return CliRunner().invoke(main, ["board", "--serve", *words])


def test_every_address_is_reached_at_this_machine() -> None:
    assert page_url(8501, "0.0.0.0") == "http://127.0.0.1:8501"
    assert page_url(8501, "::") == "http://[::1]:8501"
    assert page_url(8501, "10.0.0.4") == "http://10.0.0.4:8501"


@pytest.mark.parametrize("word", ["--watch", "--json", "--csv", "--all"])
def test_what_a_page_cannot_do_is_a_wrong_command_line(word: str) -> None:
    result = board(word)
    assert result.exit_code == 2
    assert f"--serve is a page; leave {word} out" in result.stderr


@pytest.mark.parametrize(
    "words",
    [("--port", "8600"), ("--host", "0.0.0.0"), ("--title", "GPU Day"), ("--logo", "logo.svg")],
)
def test_where_a_page_is_served_goes_with_serve(words: tuple[str, str]) -> None:
    result = CliRunner().invoke(main, ["board", *words])
    assert result.exit_code == 2
    assert f"{words[0]} goes with --serve" in result.stderr


def test_a_taken_port_is_refused_with_the_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = board("--port", str(port))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Error: port {port} is taken\n\nHint: Leave `--port` out" in result.stderr


def test_a_logo_that_no_page_can_show_is_refused_before_the_page_starts(tmp_path: Path) -> None:
    (tmp_path / "logo.svg").write_text("no picture")
    for name, why in (("logo.svg", "is no PNG, JPEG or SVG picture"), ("none.png", "is no file")):
        result = board("--logo", str(tmp_path / name))
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"Error: `{tmp_path / name}` {why}\n")


def test_an_address_of_another_machine_is_refused_by_name() -> None:
    result = board("--host", "192.0.2.1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing can listen on `192.0.2.1`" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "asked", "query"),
    [
        (signal.SIGINT, (), "window=900s"),
        # at 1000.0 s since 1970 the last second that had ended is number 999
        (
            signal.SIGTERM,
            (
                *(
                    "--rank-by",
                    "p95",
                    "--window",
                    "5m",
                    "--honest",
                    "--skip-limited",
                    "--run",
                    "3f9c",
                ),
                *("--at", "1970-01-01T00:16:40+00:00"),
            ),
            "rank=p95&window=300s&honest=1&skip_limited=1&run=3f9c&t=999",
        ),
    ],
)
def test_its_one_line_is_the_link_and_a_signal_ends_it_in_order(
    number: signal.Signals, asked: tuple[str, ...], query: str, tmp_path: Path
) -> None:
    """Without a blast: the page waits for one, and says so. Its link says what was asked for, in the page's own words."""
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    words = [TOOLKIT, "board", "--serve", "--db", "nothing.db", *asked]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with (
        subprocess.Popen(words, **pipes, text=True, cwd=tmp_path, env=environ) as process,
        ExitStack() as ends,
    ):
        ends.callback(process.kill)
        assert process.stdout
        link = process.stdout.readline().strip()
        assert link.partition("/?")[2] == query
        with urllib.request.urlopen(link, timeout=WAIT_S) as answer:
            assert answer.status == 200
        process.send_signal(number)
        rest, told = process.communicate(timeout=WAIT_S)
    assert (process.returncode, rest) == (0, "")
    assert told == "The leaderboard starts, which takes some seconds ...\nCtrl-C ends it\n"
    assert list(tmp_path.iterdir()) == []
