"""`toolkit impact` as a user meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolkit.cli import main

KEYS = "downtime_s window_s peak_error_rate tainted_s breakeven_s series".split()
CONTEST = ("--downtime", "5m", "--window", "15m", "--rps", "10", "--error-rps", "5.31645569620253")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_DB", raising=False)


def impact(*words: str) -> Result:
    return CliRunner().invoke(main, ["impact", *words], catch_exceptions=False)


# --- planned ----------------------------------------------------------------------------------------


def test_json_has_the_promised_keys_first_and_the_contests_figures() -> None:
    result = impact(*CONTEST, "--gain", "1.3", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    assert list(told)[: len(KEYS)] == KEYS
    # 300 * 0.5316 r / (600 r + 300 * 0.5316 r) = 0.21; 1.3 * 300 / 0.3 = 1300
    assert told["peak_error_rate"] == pytest.approx(0.21)
    assert (told["tainted_s"], told["breakeven_s"]) == (1200, pytest.approx(1300))
    assert [list(each)[:2] for each in told["series"][:2]] == [["t_s", "error_rate"]] * 2
    assert len(told["series"]) == 1201


def test_the_table_names_each_turn_and_ends_with_a_decision() -> None:
    result = impact(*CONTEST, "--gain", "1.3", "--left", "40m")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["5", "min", "is", "back", "21.0%", "6.67", "-3,000"] in rows
    assert ["21", "min", "40", "s", "paid", "back", "0.0%", "13", "0"] in rows
    # 2,100 s of 13 less 2,400 s of 10
    assert result.stdout.splitlines()[-1] == (
        "Do it: after 40 min it has answered 3,300 requests more."
    )
    assert "\x1b" not in result.stdout


def test_without_an_error_rate_as_many_fail_as_were_answered() -> None:
    told = json.loads(impact("--downtime", "5m", "--json").stdout)
    assert told["peak_error_rate"] == pytest.approx(1 / 3)  # 5 of 15 minutes
    assert told["breakeven_s"] is None


def test_a_png_is_drawn_beside_whatever_else_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "no such thing")
    result = impact(*CONTEST, "--json", "--png", "new/i.png")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == "Picture: new/i.png\n"
    assert Path("new/i.png").read_bytes()[:4] == b"\x89PNG"


def test_a_png_that_cannot_be_written_is_told_with_a_hint() -> None:
    Path("file").write_text("")
    result = impact(*CONTEST, "--png", "file/i.png")
    assert result.exit_code == 1
    assert "Error: the picture `file/i.png` cannot be written" in result.stderr
    assert "--png" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--downtime 5m"),
        (("--downtime", "5"), "no duration"),
        (("--downtime", "2d"), "a day at most"),
        (("--downtime", "5m", "--window", "25h"), "a day at most"),
        (("--downtime", "5m", "--rps", "0"), "--rps must be above 0"),
        (("--downtime", "5m", "--rps", "nan"), "--rps must be above 0"),
        (("--downtime", "5m", "--error-rps", "-1"), "--error-rps must be 0 or above"),
        (("--downtime", "5m", "--gain", "inf"), "--gain must be above 0"),
        (("--downtime", "5m", "--png", "i.jpg"), "--png writes a PNG"),
        (("--downtime", "5m", "--host", "alice"), "leave --downtime"),
        (("--run", "abc"), "add --host"),
        (("--downtime", "5m", "--at", "now"), "add --host"),
        (("--host", "alice", "--gain", "2"), "leave --downtime"),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_says_why(words: tuple[str, ...], said: str) -> None:
    result = impact(*words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_zero_errors_are_an_answer_and_not_a_default() -> None:
    told = json.loads(impact("--downtime", "5m", "--error-rps", "0", "--json").stdout)
    assert (told["peak_error_rate"], told["tainted_s"]) == (0, 0)


def test_help_needs_no_drawing_library() -> None:
    code = (
        "import sys; from toolkit.cli.impact import command;"
        "print([name for name in ('matplotlib', 'rich', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert done.stdout == "[]\n"
