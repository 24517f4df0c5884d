"""`toolkit runs` as a user meets it: the list and export."""

import csv
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.blasted import blasted
from support.tallies import ALICE, BOB, RUN, S, second, shot, sketch, tally

from toolkit.cli.runs import command
from toolkit.errors import ToolkitError
from toolkit.records import ErrorCount, Host, Run
from toolkit.store import Store

DB = "data/toolkit.db"
BENCH = Run(id="bbbbbbbbbbbb", verb="bench", started_at=S - 500.5)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_DB", raising=False)


@pytest.fixture
def two_runs() -> None:
    """A bench of one host that ended, and later a blast of two that was cut off."""
    with Store.open(DB) as store:
        store.add_run(BENCH)
        store.add_shots(
            [
                shot(S - 500.0, run=BENCH.id, ok=True, itl=sketch(10, 10, 20), e2e_ms=100.5),
                shot(S - 499.0, run=BENCH.id, slot=1, error_kind="timeout", error="a, b"),
            ]
        )
        store.end_run(BENCH.id, ended_at=S - 497.0, client_ok=True)
        store.add_run(RUN)
        store.plan_hosts(RUN.id, [Host(name=name, url=url) for name, url in (ALICE, BOB)])
        kinds = (ErrorCount(kind="http_500", count=1), ErrorCount(kind="timeout", count=2))
        told = tally(S + 61, ok=4, errors=3, error_kinds=kinds, e2e=sketch(1, 2, 3, 400))
        store.add_second(
            [tally(S, BOB, ok=2), told, tally(S - 1, ok=1, kind="canary")],
            [second(S + 64)],
            [shot(S + 1.0)],
        )


def runs(*words: str) -> Result:
    return CliRunner().invoke(command, list(words))


def said(*words: str) -> str:
    result = runs(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def refused(*words: str) -> ToolkitError:
    error = runs(*words).exception
    assert isinstance(error, ToolkitError), error
    return error


# --- The list -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_runs")
def test_all_runs_are_listed_the_last_begun_first() -> None:
    blast, bench = [json.loads(line) for line in said("--json").splitlines()]
    assert blast == {
        "run": RUN.id,
        "verb": "blast",
        "state": "cut",
        "started_at": S + 0.25,
        "ended_at": None,
        "took_s": 63.75,  # to the last second that its loader told, S + 64
        "hosts": 2,
        "requests": 10,  # 2 + 4 + 3 + 1
        "errors": 3,
        "client_ok": None,
    }
    assert (bench["run"], bench["state"], bench["took_s"]) == (BENCH.id, "ended", 3.5)
    assert (bench["hosts"], bench["requests"], bench["errors"]) == (1, 2, 1)
    assert bench["client_ok"] is True


@pytest.mark.usefixtures("two_runs")
def test_the_table_says_the_same_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        lines = said().splitlines()
    finally:
        monkeypatch.undo()
        time.tzset()
    titles, _, blast, bench = lines
    assert titles.split() == "run verb began took hosts requests errors client ok".split()
    # 1,750,000,000 s are 20,254 days and 54,400 s: 15:06:40 on 2025-06-15
    assert "2025-06-15 15:06:40" in blast
    assert "0:01:04, cut off" in blast
    assert bench.split()[:6] == [BENCH.id, "bench", "2025-06-15", "14:58:19", "3.5", "s"]
    assert bench.split()[6:] == ["1", "2", "1", "yes"]


def test_a_run_that_wrote_lately_is_still_on() -> None:
    now = time.time()
    with Store.open(DB) as store:
        store.add_run(Run(id="begun", verb="bench", started_at=now - 10))
        store.add_run(Run(id="silent", verb="bench", started_at=now - 100))
        store.add_run(Run(id="busy", verb="blast", started_at=now - 100))
        store.add_second(seconds=[second(int(now) - 5, run="busy")])
    states = {each["run"]: each["state"] for each in map(json.loads, said("--json").splitlines())}
    assert states == {"begun": "on", "silent": "cut", "busy": "on"}
    assert "still on" in said()


@pytest.mark.usefixtures("two_runs")
def test_one_verbs_runs_alone_can_be_listed() -> None:
    assert [
        json.loads(line)["verb"] for line in said("--json", "--verb", "bench").splitlines()
    ] == ["bench"]


def test_an_empty_database_says_how_to_fill_it() -> None:
    Store.open(DB).close()
    result = runs()
    assert (result.exit_code, result.stdout) == (0, "")
    assert "toolkit bench HOSTS" in result.stderr
    assert said("--json") == ""


@pytest.mark.usefixtures("two_runs")
def test_a_verb_without_runs_is_named() -> None:
    result = runs("--verb", "blsat")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No run of `blsat`. `toolkit runs` lists those of all commands\n"


def test_a_missing_database_is_not_made() -> None:
    assert refused().message == "`data/toolkit.db` does not exist"
    assert not Path("data").exists()


def test_words_for_the_list_do_not_vanish_before_a_subcommand() -> None:
    result = runs("--json", "export", "x")
    assert result.exit_code == 2
    assert "--verb and --json are for the list" in result.stderr


# --- Export -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_runs")
def test_a_blast_is_exported_as_tallies_with_percentiles() -> None:
    rows = list(csv.DictReader(io.StringIO(said("export", RUN.id))))
    assert [(row["name"], row["kind"], row["ok"]) for row in rows] == [
        ("alice", "canary", "1"),
        ("bob", "ranked", "2"),
        ("alice", "ranked", "4"),
    ]
    last = rows[-1]
    assert last["time"] == "2025-06-15T15:07:41+00:00"  # 61 s after 15:06:40
    assert (last["at_s"], last["errors"], last["error_kinds"]) == (
        str(S + 61),
        "3",
        "http_500=1 timeout=2",
    )
    # of 1, 2, 3, 400 ms: the 2nd, the 4th, the 4th, each within 1 %
    assert float(last["e2e_p50_ms"]) == pytest.approx(2, rel=0.0101)
    assert float(last["e2e_p95_ms"]) == float(last["e2e_p99_ms"]) == pytest.approx(400, rel=0.0101)
    assert last["ttft_p50_ms"] == ""
    assert "e2e" not in last


@pytest.mark.usefixtures("two_runs")
def test_json_lines_keep_numbers_and_unknowns() -> None:
    first, *_, last = [json.loads(line) for line in said("export", RUN.id, "--jsonl").splitlines()]
    assert first["error_kinds"] == {}
    assert last["error_kinds"] == {"http_500": 1, "timeout": 2}
    assert (last["ok"], last["ttft_p50_ms"], last["run"]) == (4, None, RUN.id)


@pytest.mark.usefixtures("two_runs")
def test_a_bench_is_exported_as_its_requests() -> None:
    ok, late = csv.DictReader(io.StringIO(said("export", BENCH.id, "--csv")))
    assert (ok["ok"], ok["e2e_ms"], late["ok"], late["error"]) == ("true", "100.5", "false", "a, b")
    # of 10, 10, 20 ms the 2nd and the 3rd
    assert float(ok["itl_p50_ms"]) == pytest.approx(10, rel=0.0101)
    assert float(ok["itl_p95_ms"]) == pytest.approx(20, rel=0.0101)
    assert (late["itl_p50_ms"], late["ttft_ms"]) == ("", "")
    assert "itl" not in ok


@pytest.mark.usefixtures("two_runs")
def test_a_blasts_canary_shots_can_be_exported_too() -> None:
    [row] = said("export", RUN.id, "--shots", "--jsonl").splitlines()
    assert json.loads(row)["sent_at"] == S + 1


@pytest.mark.usefixtures("two_runs")
def test_a_file_is_written_in_the_form_that_its_ending_names() -> None:
    result = runs("export", RUN.id, "-o", "blast.jsonl")
    assert (result.stdout, result.stderr) == ("", "3 rows in blast.jsonl\n")
    assert json.loads(Path("blast.jsonl").read_text().splitlines()[0])["name"] == "alice"
    runs("export", RUN.id, "-o", "blast.csv")
    assert Path("blast.csv").read_text().startswith("time,run,name,url,at_s,worker,kind,ok,")
    error = refused("export", RUN.id, "-o", "nowhere/blast.csv")
    assert error.message == "`nowhere/blast.csv` cannot be written: no such file or directory"


@pytest.mark.usefixtures("two_runs")
def test_rows_that_a_run_has_not_are_named_with_those_that_it_has() -> None:
    result = runs("export", BENCH.id, "--tallies")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"Run {BENCH.id} has no tallies; `--shots` writes its shots\n"


@pytest.mark.usefixtures("two_runs")
def test_an_unknown_run_is_named_with_the_newest() -> None:
    error = refused("export", "nope")
    assert error.message == "`data/toolkit.db` has no run `nope`"
    assert error.hint == f"Newest runs: {RUN.id}, {BENCH.id}. `toolkit runs` lists all"


def test_every_row_is_exported_whatever_the_stretch_it_is_read_in() -> None:
    run = blasted(Path(DB), hosts=5, seconds=130)
    lines = said("export", run.id, "--jsonl").splitlines()
    with Store.open_readonly(DB) as store:
        expected = [(one.at_s, one.name, one.kind, one.ok) for one in store.tallies(run.id)]
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [(row["at_s"], row["name"], row["kind"], row["ok"]) for row in rows] == expected


@pytest.mark.usefixtures("two_runs")
def test_the_database_may_be_named_before_or_after_the_word() -> None:
    Path(DB).rename("other.db")
    for words in (("--db", "other.db", "export", RUN.id), ("export", RUN.id, "--db", "other.db")):
        assert said(*words).startswith("time,run,")
