"""`toolkit impact` as a user meets it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.tallies import ALICE, BOB, RUN, S, second, tally

from toolkit.cli import main
from toolkit.records import Event
from toolkit.store import Store

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
    assert "--chart" in result.stderr


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
        (("--downtime", "5m", "--gain", "1e308"), "at most 1,000,000,000"),
        (("--downtime", "5m", "--png", "i.jpg"), "--chart writes a PNG"),
        (("--downtime", "5m", "--host", "alice"), "leave --downtime"),
        (("--run", "abc"), "add --host"),
        (("--downtime", "5m", "--at", "now"), "add --host"),
        (("--host", "alice", "--gain", "2"), "leave --downtime"),
        (("--downtime", "5m", "--all"), "--all goes with --host"),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_says_why(words: tuple[str, ...], said: str) -> None:
    result = impact(*words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_zero_errors_are_an_answer_and_not_a_default() -> None:
    told = json.loads(impact("--downtime", "5m", "--error-rps", "0", "--json").stdout)
    assert (told["peak_error_rate"], told["tainted_s"]) == (0, 0)


# --- of a run ---------------------------------------------------------------------------------------


@pytest.fixture
def blast() -> None:
    """Alice: 60 s of 10 a second, 30 s down with 5 errors a second, 60 s of 20. Bob: 10 a second, silent at 100 to 103."""
    spans = [(10, 0)] * 60 + [(0, 5)] * 30 + [(20, 0)] * 60
    tallies = [tally(S + at, ALICE, ok=ok, errors=bad) for at, (ok, bad) in enumerate(spans)]
    tallies += [tally(S + at, BOB, ok=10) for at in range(150) if not 100 <= at < 104]
    with Store.open("data/toolkit.db") as store:
        store.add_run(RUN)
        store.add_second(tallies, [second(S + at) for at in range(150)])
        store.add_event(Event(run=RUN.id, name="bob", url=BOB[1], at=S + 105.0, kind="restart"))
        store.end_run(RUN.id, ended_at=S + 150, client_ok=True)


def freeze(at_s: float) -> None:
    with Store.open("data/toolkit.db") as store:
        store.add_event(Event(run=RUN.id, at=at_s, kind="freeze"))


@pytest.mark.usefixtures("blast")
def test_the_worst_outage_of_the_newest_blast_is_reckoned_from_its_seconds() -> None:
    told = json.loads(impact("--host", "alice", "--window", "60s", "--json").stdout)
    assert list(told)[: len(KEYS)] == KEYS
    assert (told["run"], told["name"], told["is_over"]) == (RUN.id, "alice", True)
    assert (told["from_s"], told["to_s"], told["downtime_s"]) == (S + 60, S + 90, 30)
    # just back: 150 errors and 30 s * 10 answers; twice as fast: 2 (t - 30) = t
    assert told["peak_error_rate"] == pytest.approx(150 / 450)
    assert (told["rps"], told["error_rps"], told["gain"]) == (10, 5, 2)
    assert (told["tainted_s"], told["breakeven_s"]) == (90, 60)
    assert told["series"][-1] == {"t_s": 90, "error_rate": 0, "rps": 20}


@pytest.mark.usefixtures("blast")
def test_people_read_when_it_fell_and_what_it_had_won_by_the_end() -> None:
    lines = impact("--run", RUN.id, "--host", "alice", "--window", "60s").stdout.splitlines()
    assert lines[0].startswith("alice went down at ")
    assert lines[0].endswith(f", back after 30 s (run {RUN.id})")
    # 90 s after it fell: 60 s * 20 were answered, without the change 90 s * 10
    assert lines[-1] == (
        "1 min 30 s after it went down it had answered about 300 requests more than without "
        "the restart."
    )


@pytest.mark.usefixtures("blast")
def test_a_silence_beside_a_known_restart_is_one() -> None:
    told = json.loads(impact("--host", "bob", "--json").stdout)
    assert (told["from_s"], told["to_s"], told["restarted"]) == (S + 100, S + 104, True)
    assert (told["peak_error_rate"], told["tainted_s"]) == (0, 0)


@pytest.mark.usefixtures("blast")
def test_a_frozen_board_hides_an_outage_unless_its_owner_asks() -> None:
    freeze(S + 70.5)
    told = json.loads(impact("--host", "alice", "--json").stdout)
    assert (told["downtime_s"], told["is_over"]) == (11, False)  # seconds 60 to 70
    assert json.loads(impact("--host", "alice", "--json", "--all").stdout)["downtime_s"] == 30
    assert "not back 11 s later" in impact("--host", "alice").stdout
    freeze(S + 50.0)
    assert impact("--host", "alice").exit_code == 1


@pytest.mark.usefixtures("blast")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "carol"), "Its hosts: alice, bob"),
        (("--host", "alice", "--run", "nope"), f"The newest: {RUN.id}."),
    ],
)
def test_what_no_run_has_is_told_with_what_there_is(words: tuple[str, ...], said: str) -> None:
    result = impact(*words)
    assert result.exit_code == 1
    assert said in result.stderr


def test_a_host_that_was_never_down_is_told_what_an_outage_is() -> None:
    with Store.open("data/toolkit.db") as store:
        store.add_run(RUN)
        store.add_second([tally(ok=5)], [second()])
    result = impact("--host", "alice")
    assert result.exit_code == 1
    assert f"`alice` was never down in run `{RUN.id}`" in result.stderr


def test_without_a_blast_or_a_database_the_way_out_is_told() -> None:
    assert impact("--host", "alice").exit_code == 1
    with Store.open("data/toolkit.db"):
        pass
    assert "holds no blast yet" in impact("--host", "alice").stderr
