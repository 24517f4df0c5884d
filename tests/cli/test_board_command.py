"""What `toolkit board` prints, writes and refuses."""

import csv
import hashlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support import prepared
from support.blasted import blasted

from toolkit.board.ranking import FORMULA, TIES
from toolkit.cli import main
from toolkit.records import Event, Run
from toolkit.store import Store

KEYS = (
    "rank name url score rps output_tokens_per_s ttft_p50_ms ttft_p95_ms p50_ms p95_ms error_rate ok errors"
    " hit_share tied rank_change verdicts window_s at"
).split()
SECONDS = 300
TOOLKIT = str(Path(sys.executable).with_name("toolkit"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """A blast of eight hosts over five minutes; restarter is down in seconds 120 to 169."""
    path = tmp_path_factory.mktemp("board") / "toolkit.db"
    return path, blasted(path, hosts=8, seconds=SECONDS)


@pytest.fixture
def run(made: tuple[Path, Run]) -> Run:
    return made[1]


@pytest.fixture
def database(made: tuple[Path, Run], tmp_path: Path) -> Path:
    """A copy that a test may write."""
    path = tmp_path / "toolkit.db"
    path.write_bytes(made[0].read_bytes())
    return path


def board(database: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["board", *words, "--db", str(database)])


def rows(database: Path, *words: str) -> list[dict[str, Any]]:
    told = board(database, *words, "--json")
    assert told.exit_code == 0, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]


def moment(run: Run, second: float) -> str:
    return datetime.fromtimestamp(run.started_at + second, UTC).isoformat()


def test_json_has_the_fixed_keys_first_and_every_host(database: Path) -> None:
    told = rows(database)
    assert {each["name"] for each in told} == {
        *("memory", "one-token", "told-cache", "restarter", "dead"),
        *("plain-05", "plain-06", "plain-07"),
    }
    assert all(key in each for each in told for key in KEYS)
    assert list(told[0])[:13] == KEYS[:13]
    assert [each["rank"] for each in told] == sorted(each["rank"] for each in told)
    assert (told[-1]["name"], told[-1]["ok"], told[-1]["p95_ms"]) == ("dead", 0, None)


def test_json_agrees_with_the_stored_tallies(database: Path, run: Run) -> None:
    with Store.open_readonly(database) as store:
        sums = store.tally_sums(run.id)
    for each in rows(database, "--window", "1h"):
        stored = sums[each["name"], each["url"], "ranked"]
        assert (each["ok"], each["errors"]) == (stored.ok, stored.errors)
        assert each["rps"] == pytest.approx(stored.ok / each["elapsed_s"])


def test_the_table_names_hosts_formula_ties_and_evidence(database: Path, run: Run) -> None:
    told = board(database, "--rank-by", "score").stdout
    assert f"run {run.id}, first 5 min (of a window of 15 min)" in told
    assert FORMULA in told
    # in a pipe a sentence is one line
    assert TIES in told
    assert "response cache (high)  told-cache: " in told
    assert "truncated output (medium)  one-token: " in told
    assert "downtime  restarter: 50 s of the " in told
    assert "down  dead: nothing was answered in the window" in told
    assert "restarter: mark swapped to GPTQ" in told
    # three seconds are marked in the fixture
    assert "The load generator was the limit in 3 s of the window" in told


def test_an_honest_board_lists_who_is_left_out_and_why(database: Path) -> None:
    told = rows(database, "--honest")
    left_out = {each["name"]: each["verdicts"] for each in told if each["left_out"]}
    assert {each["name"] for each in told if each["rank"] is None} == left_out.keys()
    assert [each["code"] for each in left_out["dead"]] == ["not_judged"]
    shown = board(database, "--honest").stdout
    assert "left out  one-token: for truncated output" in shown
    (line,) = (line for line in shown.splitlines() if line.endswith(": it was not judged"))
    named = line.removeprefix("left out  ").partition(":")[0].split(", ")
    assert set(named) == left_out.keys() - {"one-token"}


def test_a_moment_of_the_past_is_the_window_that_ended_then(database: Path, run: Run) -> None:
    (dead,) = (r for r in rows(database, "--at", moment(run, 60)) if r["name"] == "dead")
    # the last second that had ended then
    assert (dead["at"], dead["elapsed_s"]) == (int(run.started_at) + 59, 60)


def test_limited_seconds_can_be_left_out(database: Path) -> None:
    told = rows(database, "--skip-limited")[0]
    assert (told["limited_s"], told["elapsed_s"] - told["counted_s"]) == (3, 3)


def test_csv_has_a_line_a_host(database: Path) -> None:
    told = list(csv.DictReader(io.StringIO(board(database, "--csv").stdout)))
    assert [each["name"] for each in told] == [each["name"] for each in rows(database)]
    assert told[0]["verdicts"] == "response_cache"
    assert told[-1]["p95_ms"] == ""


# freeze and reveal


def test_a_frozen_board_stops_for_all_but_its_owner(database: Path, run: Run) -> None:
    told = board(database, "freeze", "--at", moment(run, 100))
    # freeze has options of its own
    assert told.exit_code == 0, told.stderr
    assert f"Frozen: the board of run {run.id} shows nothing past " in told.stderr
    start_s = int(run.started_at)
    assert {each["at"] for each in rows(database)} == {start_s + 100}
    assert {each["at"] for each in rows(database, "--at", moment(run, 250))} == {start_s + 100}
    assert rows(database, "--all")[0]["at"] >= start_s + SECONDS - 1
    assert "frozen at" in board(database).stdout
    assert "swapped to GPTQ" not in board(database).stdout
    assert "swapped to GPTQ" in board(database, "--all").stdout
    assert board(database, "reveal").exit_code == 0
    assert rows(database)[0]["at"] >= start_s + SECONDS - 1


def test_a_board_is_not_frozen_later_than_it_is_and_not_revealed_twice(
    database: Path, run: Run
) -> None:
    board(database, "freeze", "--at", moment(run, 100))
    told = board(database, "freeze", "--at", moment(run, 200))
    assert told.exit_code == 1
    assert "is frozen at" in told.stderr
    assert board(database, "freeze", "--at", moment(run, 50)).exit_code == 0
    board(database, "reveal")
    told = board(database, "reveal")
    assert (told.exit_code, told.stderr) == (
        1,
        f"Error: the board of run `{run.id}` is not frozen\n\nHint: Nothing is to be done; another run is named by `--run`\n",
    )


@pytest.mark.parametrize("pace", [("--by-key",), ("--every", "1h")])
def test_a_freeze_during_a_reveal_hides_no_less_than_the_freeze_before_it(
    database: Path, run: Run, pace: tuple[str, ...]
) -> None:
    board(database, "freeze", "--at", moment(run, 100))
    board(database, "reveal", *pace)
    told = board(database, "freeze", "--at", moment(run, 200))
    assert told.exit_code == 0, told.stderr
    assert "the freeze before it holds again" in told.stderr
    assert {each["at"] for each in rows(database)} == {int(run.started_at) + 100}


def kinds(database: Path, run: Run) -> list[str]:
    with Store.open_readonly(database) as store:
        return [event.kind for _, event in store.events(run.id)]


def test_a_reveal_by_key_prints_the_presenters_link_alone_and_each_next_uncovers_a_place(
    database: Path, run: Run
) -> None:
    board(database, "freeze", "--at", moment(run, 100))
    told = board(database, "reveal", "--by-key", "--rank-by", "p95")
    assert told.exit_code == 0, told.stderr
    link = re.fullmatch(r"http://127\.0\.0\.1:8501/\?kiosk=1&presenter=([\w-]{22})\n", told.stdout)
    assert link
    with Store.open_readonly(database) as store:
        noted = next(event for _, event in store.events(run.id) if event.kind == "reveal")
    assert link[1] not in noted.text
    assert json.loads(noted.text)["presenter"] == hashlib.sha256(link[1].encode()).hexdigest()
    # the last by latency is dead, which has none; the first is the one that answers from memory
    in_order = [each["name"] for each in rows(database, "--rank-by", "p95", "--window", "15m")]
    said = []
    while (told := board(database, "reveal", "--next")).exit_code == 0:
        said.append(told.stderr)
    assert [line.split(",")[0] for line in said] == [
        f"Place {place}: {in_order[place - 1]}" for place in range(8, 0, -1)
    ]
    assert told.stderr.startswith(f"Error: no place of run `{run.id}` is covered\n")
    # the steps are the pages' business: no list of what happened has them, nor what the event keeps
    shown = board(database, "--window", "24h").stdout
    assert "uncover" not in shown
    assert "presenter" not in shown


def test_a_presenters_keys_work_in_the_terminal_too(database: Path, run: Run) -> None:
    board(database, "freeze", "--at", moment(run, 100))
    words = [TOOLKIT, "board", "reveal", "--by-key", "--db", str(database)]
    ours, theirs = pty.openpty()
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = ""
        # space, Enter, the arrows, a clicker's Page Down; others do nothing, and q leaves
        for count, key in enumerate(("x ", "\r", "\x1b[C", "\x1b[5~\x1b[B", "\x1b[6~", "q"), 1):
            wanted = "`q` leaves" if count == 1 else f"Place {10 - count}: "
            while wanted not in said:
                said += os.read(ours, 4096).decode()
            os.write(ours, key.encode())
        assert process.wait(60) == 0
    os.close(ours)
    assert kinds(database, run).count("uncover") == 5
    told = board(database, "reveal", "--next")
    assert told.stderr.startswith("Place 3: ")


def test_a_reveals_pace_is_the_organizers(database: Path, run: Run) -> None:
    board(database, "freeze", "--at", moment(run, 100))
    told = board(database, "reveal", "--every", "10s", "--honest", "--top", "5")
    assert "Pages uncover a place every 10 s, the last one first" in told.stderr
    with Store.open_readonly(database) as store:
        noted = next(event for _, event in store.events(run.id) if event.kind == "reveal")
    assert json.loads(noted.text) == {
        "every_s": 10,
        "rank_by": "rps",
        "honest": True,
        "skip_limited": False,
        "window_s": None,
        "top": 5,
        "presenter": None,
    }


# refusals


def test_a_database_without_a_blast_says_how_to_feed_it(tmp_path: Path) -> None:
    path = tmp_path / "toolkit.db"
    Store.open(path).close()
    for words in ((), ("freeze",), ("reveal",)):
        told = board(path, *words)
        assert told.exit_code == 1
        assert told.stderr.startswith(f"Error: `{path}` holds no blast yet\n")
        assert "toolkit blast" in told.stderr


@pytest.mark.parametrize(
    ("fills", "there", "keys", "step"),
    [
        ([prepared.scouted], "5 snapshots of 4 hosts", (5, 4, 0, 0), "bench hosts.txt"),
        ([prepared.benched], "1 bench", (0, 0, 1, 0), "blast hosts.txt --duration 15m"),
        ([prepared.captured], "1 capture", (0, 0, 0, 1), "scout hosts.txt"),
        (
            [prepared.scouted, prepared.benched, prepared.captured],
            "5 snapshots of 4 hosts, 1 bench and 1 capture",
            (5, 4, 1, 1),
            "blast hosts.txt --duration 15m",
        ),
    ],
)
def test_without_a_blast_it_says_what_there_is_and_what_comes_next(
    tmp_path: Path,
    fills: list[Callable[[Path], None]],
    there: str,
    keys: tuple[int, ...],
    step: str,
) -> None:
    path = tmp_path / "toolkit.db"
    for fill in fills:
        fill(path)
    told = board(path)
    assert (told.exit_code, told.stdout) == (1, "")
    assert told.stderr.startswith(f"Error: `{path}` holds no blast yet, only {there}\n")
    assert f"`toolkit {step} --db {path}` comes next" in told.stderr
    told = board(path, "--json")
    assert told.exit_code == 1
    names = ("blasts", "snapshots", "hosts", "benches", "captures", "next")
    values = (0, *keys, f"toolkit {step} --db {path}")
    assert json.loads(told.stdout) == dict(zip(names, values, strict=True))


def test_a_run_that_is_not_there_is_told_with_those_that_are(database: Path, run: Run) -> None:
    told = board(database, "--run", "nope")
    assert told.exit_code == 1
    assert f"has no run `nope`\n\nHint: The newest: {run.id}." in told.stderr


def test_a_moment_before_the_run_is_an_error(database: Path, run: Run) -> None:
    told = board(database, "--run", run.id, "--at", moment(run, -10))
    assert told.exit_code == 1
    assert f"the run `{run.id}` began only at " in told.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--json", "--csv"),
        ("--watch", "--csv"),
        ("--watch", "--at", "14:32"),
        ("--count", "2"),
        ("--window", "25h"),
        ("--rank-by", "luck"),
        ("--window", "15"),
        ("thaw",),
        ("--window", "5m", "freeze"),
        ("reveal", "--by-key", "--every", "5s"),
        ("reveal", "--next", "--honest"),
        ("reveal", "--window", "25h"),
    ],
)
def test_a_wrong_command_line_is_refused(database: Path, words: tuple[str, ...]) -> None:
    assert board(database, *words).exit_code == 2


# watching


def test_watching_outlives_a_missing_a_replaced_and_an_empty_database(
    made: tuple[Path, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "toolkit.db"

    def happen(_: float) -> None:
        """What becomes of the file between two looks."""
        step = next(steps)
        if step == "empty":
            Store.open(path).close()
        elif step == "replaced":
            path.unlink()
            path.write_bytes(made[0].read_bytes())
        elif step == "gone":
            path.unlink()

    steps = iter(["empty", "replaced", "same", "gone"])
    monkeypatch.setattr("toolkit.cli.board.watch.time.sleep", happen)
    told = board(path, "--watch", "--count", "5", "--json")
    assert told.exit_code == 0
    assert [line.split(" ", 1)[1][:22] for line in told.stderr.splitlines()] == [
        "does not exist. `toolk",
        "holds no blast yet. Ma",
        "does not exist; this i",
    ]
    # once: the second look at the same file saw nothing new
    assert len(told.stdout.splitlines()) == 8


def test_watching_follows_a_run_that_grows_and_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "toolkit.db"
    first = blasted(path, hosts=5, seconds=30, ended=False)
    later: list[Run] = []

    def happen(_: float) -> None:
        if not later:
            later.append(
                blasted(path, hosts=5, seconds=20, seed=1, started_at=first.started_at + 99)
            )

    monkeypatch.setattr("toolkit.cli.board.watch.time.sleep", happen)
    told = [
        json.loads(line)
        for line in board(path, "--watch", "--count", "3", "--json").stdout.splitlines()
    ]
    assert list(dict.fromkeys(each["run"] for each in told)) == [first.id, later[0].id]


def test_a_note_about_no_host_is_shown_without_one(database: Path, run: Run) -> None:
    with Store.open(database) as store:
        store.add_event(Event(run=run.id, at=run.started_at + 30, kind="mark", text="lunch"))
    assert "  mark lunch\n" in board(database).stdout
