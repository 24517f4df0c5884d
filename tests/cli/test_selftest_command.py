"""`toolkit selftest` as a user meets it."""

import json
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result
from contract.harness.programs import gone

from toolkit.bench import selftest
from toolkit.cli import main

QUICK = ("--tokens", "3", "--interval", "1ms")
LEVEL_KEYS = (
    "part streams requests errors tokens ttft_delay_p50_ms ttft_delay_p99_ms ttft_delay_mean_ms"
    " token_delay_p50_ms itl_error_p50_ms itl_error_p99_ms cpu_us_per_event server_late_p99_ms"
).split()


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["selftest", *words], catch_exceptions=False)


def objects(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(autouse=True)
def short_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """750 tokens without pauses instead of 45,000, which take 2 s of CPU."""
    monkeypatch.setattr(selftest, "unpaced", partial(selftest.unpaced, tokens=5))


@pytest.fixture
def easy_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not fail tests of what is printed."""
    for name in ("MOST_P50_MS", "MOST_P99_MS", "MOST_MEAN_MS"):
        monkeypatch.setattr(selftest, name, 1e9)


@pytest.mark.usefixtures("easy_bars")
def test_each_level_is_one_object_and_the_verdict_is_the_last() -> None:
    result = run("--streams", "1,2", *QUICK, "--json")
    assert result.exit_code == 0
    one, two, rate, verdict = objects(result.stdout)
    assert set(LEVEL_KEYS) <= set(one)
    assert [one["part"], two["part"], rate["part"]] == ["level", "level", "rate"]
    assert [one["streams"], two["streams"]] == [1, 2]
    assert [one["tokens"], two["tokens"]] == [9, 18]  # three answers of three tokens a stream
    assert one["ttft_delay_p50_ms"] > 0
    assert one["ttft_delay_p99_ms"] is None  # of three answers
    assert rate["events_per_cpu_s"] > 0
    assert verdict == {"part": "verdict", "fit": True, "fit_up_to_streams": 2, "faults": []}


@pytest.mark.usefixtures("easy_bars")
def test_the_table_ends_with_a_plain_sentence() -> None:
    result = run("--streams", "1,2", *QUICK)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["streams", "answers", "TTFT"]
    assert [line.split()[:2] for line in lines[2:4]] == [["1", "3/3"], ["2", "6/6"]]
    assert any(
        re.fullmatch(
            r"Without pauses, with 50 streams, one core reads [0-9,]+ events a second\.", line
        )
        for line in lines
    )
    assert lines[-1] == "The clock is fit up to 2 streams."
    assert "\x1b" not in result.stdout


def test_a_clock_that_is_not_fit_is_exit_one_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selftest, "MOST_P50_MS", 0.0)  # nothing is read the moment it was sent
    result = run("--streams", "1", *QUICK)
    assert result.exit_code == 1
    said = result.stdout.splitlines()[-1]
    assert said.startswith("The clock is not fit: at 1 stream the client added ")
    assert "to TTFT at p50, over 0 ms" in said
    told = objects(run("--streams", "1", *QUICK, "--json").stdout)[-1]
    assert (told["fit"], told["fit_up_to_streams"]) == (False, None)
    assert told["faults"][0].startswith("at 1 stream the client added ")


@pytest.mark.parametrize(
    "words",
    [
        ("--streams", "0"),
        ("--streams", "1,,2"),
        ("--streams", "many"),
        ("--streams", "10001"),
        ("--tokens", "1"),
        ("--interval", "10"),
    ],
)
def test_a_wrong_command_line_exits_with_2(words: tuple[str, ...]) -> None:
    assert run(*words).exit_code == 2


def test_ctrl_c_keeps_what_was_measured_and_leaves_nothing_running() -> None:
    toolkit = str(Path(sys.executable).with_name("toolkit"))
    # 3 answers of half a second; of ten streams the last begins after 18 intervals, 9 s
    words = ["--streams", "1,10", "--tokens", "2", "--interval", "500ms", "--json"]
    with subprocess.Popen(
        [toolkit, "selftest", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert json.loads(process.stdout.readline())["part"] == "level"
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "")
    assert [each["part"] for each in objects(rest)] == ["verdict"]
    assert family
    assert gone(family)


def test_closed_standard_files_are_no_reason_to_fail() -> None:
    toolkit = str(Path(sys.executable).with_name("toolkit"))
    words = [toolkit, "selftest", "--streams", "1", "--tokens", "2"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words],
        capture_output=True,
        timeout=60,
        check=False,
    )
    # 1: this machine's clock is not fit just now; -6 would be an abort
    assert done.returncode in (0, 1), done.stderr
