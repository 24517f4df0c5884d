"""`toolkit runs` as a user meets it: the list, export, merge and prune. Whole databases: tests/contract/commandline."""

import csv
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.blasted import blasted
from support.sightings import rows, seen
from support.tallies import ALICE, BOB, RUN, S, second, shot, sketch, tally

import toolkit.store.database
from toolkit.cli import runs as runs_verb
from toolkit.cli.runs import command
from toolkit.errors import ToolkitError
from toolkit.protocol.request import asked
from toolkit.records import ErrorCount, Host, Run, Seen
from toolkit.store import Store
from toolkit.workload import read

DB = Path("data/toolkit.db")
BENCH = Run(id="bbbbbbbbbbbb", verb="bench", started_at=S - 500.5)
DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_DB", raising=False)


@pytest.fixture
def two_runs() -> None:
    """A bench of one host that ended, and later a blast of two that was cut off."""
    with Store.open(DB) as store:
        store.add_run(BENCH)
        good = shot(S - 500.0, run=BENCH.id, ok=True, itl=sketch(10, 10, 20), e2e_ms=100.5)
        late = shot(S - 499.0, run=BENCH.id, slot=1, error_kind="timeout", error="a, b")
        store.add_shots([good, late])
        store.end_run(BENCH.id, ended_at=S - 497.0, client_ok=True)
        store.add_run(RUN)
        store.plan_hosts(RUN.id, [Host(name=name, url=url) for name, url in (ALICE, BOB)])
        kinds = (ErrorCount(kind="http_500", count=1), ErrorCount(kind="timeout", count=2))
        last = tally(S + 61, ok=4, errors=3, error_kinds=kinds, e2e=sketch(1, 2, 3, 400))
        store.add_second(
            [tally(S, BOB, ok=2), last, tally(S - 1, ok=1, kind="canary")],
            [second(S + 64)],
            [shot(S + 1.0)],
        )


def runs(*words: str, **more: str) -> Result:
    return CliRunner().invoke(command, list(words), **more)


def printed(*words: str) -> str:
    result = runs(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def done(*words: str) -> str:
    """What is said beside data, of which there is none."""
    result = runs(*words)
    assert (result.exit_code, result.stdout) == (0, ""), (result.output, result.exception)
    return result.stderr


def objects(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed(*words).splitlines()]


def table(*words: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(printed(*words))))


def refused(*words: str) -> ToolkitError:
    error = runs(*words).exception
    assert isinstance(error, ToolkitError), error
    return error


# --- the list -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_runs")
def test_all_runs_are_listed_the_last_begun_first(monkeypatch: pytest.MonkeyPatch) -> None:
    blast, bench = objects("--json")
    assert blast == {
        "run": RUN.id, "verb": "blast", "state": "cut", "started_at": S + 0.25, "ended_at": None,
        "took_s": 63.75,  # to the last second that its loader told, S + 64
        "hosts": 2,
        "requests": 10,  # 2 + 4 + 3 + 1
        "errors": 3, "client_ok": None,
    }  # fmt: skip
    assert (bench["run"], bench["state"], bench["took_s"]) == (BENCH.id, "ended", 3.5)
    assert (bench["hosts"], bench["requests"], bench["errors"]) == (1, 2, 1)
    assert objects("--json", "--verb", "bench") == [bench]
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        titles, _, cut, ended = printed().splitlines()
    time.tzset()
    assert titles.split() == "run verb began took hosts requests errors client ok".split()
    # 1,750,000,000 s are 20,254 days and 54,400 s: 15:06:40 on 2025-06-15
    assert "2025-06-15 15:06:40" in cut
    assert "0:01:04, cut off" in cut
    assert ended.split()[:6] == [BENCH.id, "bench", "2025-06-15", "14:58:19", "3.5", "s"]
    assert ended.split()[6:] == ["1", "2", "1", "yes"]


def test_a_run_that_wrote_lately_is_still_on() -> None:
    now = time.time()
    with Store.open(DB) as store:
        store.add_run(Run(id="begun", verb="bench", started_at=now - 10))
        store.add_run(Run(id="silent", verb="bench", started_at=now - 100))
        store.add_run(Run(id="busy", verb="blast", started_at=now - 100))
        store.add_second(seconds=[second(int(now) - 5, run="busy")])
        # a capture of an old file that writes now
        store.add_run(Run(id="old", verb="capture", started_at=now - 3600))
        store.add_seen("old", [Seen(ts=1_000_000_000.0)])
    states = {each["run"]: each["state"] for each in objects("--json")}
    assert states == {"begun": "on", "silent": "cut", "busy": "on", "old": "on"}
    assert "still running" in printed()


def test_nothing_to_list_says_how_to_fill_it() -> None:
    assert refused().message == "`data/toolkit.db` does not exist"
    assert not Path("data").exists()
    Store.open(DB).close()
    assert "toolkit bench HOSTS" in done()
    assert done("--verb", "blsat") == (
        "No run of `blsat`. `toolkit runs` lists those of all commands\n"
    )
    result = runs("--json", "export", "x")
    assert result.exit_code == 2
    assert "--verb and --json are for the list" in result.stderr


# --- export -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_runs")
def test_a_blast_is_exported_as_tallies_with_percentiles() -> None:
    exported = table("export", RUN.id)
    assert [(row["name"], row["kind"], row["ok"]) for row in exported] == [
        ("alice", "canary", "1"), ("bob", "ranked", "2"), ("alice", "ranked", "4"),
    ]  # fmt: skip
    last = exported[-1]
    assert last["time"] == "2025-06-15T15:07:41+00:00"  # 61 s after 15:06:40
    assert (last["at_s"], last["errors"]) == (str(S + 61), "3")
    assert last["error_kinds"] == "http_500=1 timeout=2"
    # of 1, 2, 3, 400 ms: the 2nd, the 4th, the 4th, each within 1 %
    assert float(last["e2e_p50_ms"]) == pytest.approx(2, rel=0.0101)
    assert float(last["e2e_p95_ms"]) == float(last["e2e_p99_ms"]) == pytest.approx(400, rel=0.0101)
    assert (last["ttft_p50_ms"], "e2e" in last) == ("", False)
    first, *_, last_object = objects("export", RUN.id, "--jsonl")
    assert (first["error_kinds"], last_object["error_kinds"]) == ({}, {"http_500": 1, "timeout": 2})
    assert (last_object["ok"], last_object["ttft_p50_ms"]) == (4, None)
    (canary,) = objects("export", RUN.id, "--shots", "--jsonl")
    assert canary["sent_at"] == S + 1


@pytest.mark.usefixtures("two_runs")
def test_a_bench_is_exported_as_its_requests() -> None:
    ok, late = table("export", BENCH.id, "--csv")
    assert (ok["ok"], ok["e2e_ms"], late["ok"], late["error"]) == ("true", "100.5", "false", "a, b")
    # of 10, 10, 20 ms the 2nd and the 3rd
    assert float(ok["itl_p50_ms"]) == pytest.approx(10, rel=0.0101)
    assert float(ok["itl_p95_ms"]) == pytest.approx(20, rel=0.0101)
    assert (late["itl_p50_ms"], late["ttft_ms"], "itl" in ok) == ("", "", False)
    assert done("export", BENCH.id, "--tallies") == (
        f"Run {BENCH.id} has no tallies; `--shots` writes its shots\n"
    )


def test_a_capture_is_exported_as_it_was_printed() -> None:
    path = "/v1/chat/completions"
    bodies = [f'{{"prompt": "{word}", "logprobs": 1, "user": "x"}}'.encode() for word in "HO"]
    requests = [
        Seen(ts=S + n, method="POST", path=path, asked=asked(bodies[n % 2], path=path))
        for n in range(3)
    ]
    requests.append(Seen(ts=S + 9, method="GET", path="/metrics"))
    with Store.open(DB) as store:
        store.add_run(Run(id="capture", verb="capture", started_at=S))
        store.add_seen("capture", requests)
    lines = printed("export", "capture", "--jsonl").encode().splitlines(keepends=True)
    found = [json.loads(line) for line in lines]
    assert [(row["new"], row["unique_so_far"]) for row in found] == [
        (True, 1), (True, 2), (False, 2), (None, 2),
    ]  # fmt: skip
    again = list(read(lines, "export", client=str).seen)
    assert [(one.ts, one.asked and one.asked.request_key) for one in again] == [
        (one.ts, one.asked and one.asked.request_key) for one in requests
    ]
    first, *_ = table("export", "capture")
    assert (first["path"], first["options"], first["damaged"]) == (path, "logprobs user", "false")


@pytest.mark.usefixtures("two_runs")
def test_a_file_is_written_in_the_form_that_its_ending_names() -> None:
    assert done("export", RUN.id, "-o", "blast.jsonl") == "3 rows in blast.jsonl\n"
    assert json.loads(Path("blast.jsonl").read_text().splitlines()[0])["name"] == "alice"
    done("export", RUN.id, "-o", "blast.csv")
    assert Path("blast.csv").read_text().startswith("time,run,name,url,at_s,worker,kind,ok,")
    error = refused("export", RUN.id, "-o", "nowhere/blast.csv")
    assert error.message == "`nowhere/blast.csv` cannot be written: no such file or directory"


def test_every_row_is_exported_whatever_the_stretch_it_is_read_in() -> None:
    run = blasted(DB, hosts=5, seconds=130)
    with Store.open_readonly(DB) as store:
        stored = [(one.at_s, one.name, one.kind, one.ok) for one in store.tallies(run.id)]
    exported = objects("export", run.id, "--jsonl")
    assert [(row["at_s"], row["name"], row["kind"], row["ok"]) for row in exported] == stored


@pytest.mark.usefixtures("two_runs")
def test_the_database_may_be_named_before_or_after_the_word_and_a_hint_names_it() -> None:
    DB.rename("other.db")
    for words in (("--db", "other.db", "export", RUN.id), ("export", RUN.id, "--db", "other.db")):
        assert printed(*words).startswith("time,run,")
    error = refused("export", "nope", "--db", "other.db")
    assert error.message == "`other.db` has no run `nope`"
    assert error.hint == (
        f"The newest: {RUN.id} (blast), {BENCH.id} (bench). `toolkit runs --db other.db` lists all"
    )


# --- merge ------------------------------------------------------------------------------------------------


def ids(path: Path = DB) -> list[str]:
    with Store.open_readonly(path) as store:
        return [run.id for run in store.runs()]


def add_runs(*days_ago: float, path: Path = DB) -> None:
    """Benches that ended, named by how long ago they began."""
    with Store.open(path) as store:
        for days in days_ago:
            at = time.time() - days * DAY_S
            store.add_run(Run(id=f"{days}d", verb="bench", started_at=at))
            store.end_run(f"{days}d", ended_at=at + 1, client_ok=True)


def test_several_files_are_merged_oldest_run_first_and_one_that_is_on_is_left() -> None:
    add_runs(3, 1, path=Path("a.db"))
    add_runs(2, path=Path("b.db"))
    with Store.open("b.db") as store:
        store.add_run(Run(id="on", verb="blast", started_at=time.time()))
    assert "still running, so merge again when it is over" in done("merge", "a.db", "b.db")
    assert ids() == ["1d", "2d", "3d"]
    assert rows(DB, "SELECT id FROM runs ORDER BY number") == [("3d",), ("1d",), ("2d",)]


def test_an_older_file_is_brought_up_to_date_before_it_is_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = dict(list(toolkit.store.database.STEPS.items())[:2])
    with monkeypatch.context() as patch:
        patch.setattr(toolkit.store.database, "STEPS", steps)
        add_runs(1, path=Path("old.db"))
    assert "Copied run 1d" in done("merge", "old.db")
    assert ids() == ["1d"]


def test_a_file_that_is_missing_or_the_database_itself_is_refused() -> None:
    add_runs(1)
    gone = refused("merge", "gone.db")
    assert gone.message == "`gone.db` does not exist"
    # not the store's own hint, which is about the file of --db
    assert gone.hint.startswith("Name the database of another machine")
    assert refused("merge", "data/../data/toolkit.db").message.endswith("is the database itself")
    assert not Path("gone.db").exists()


# --- prune ------------------------------------------------------------------------------------------------


def test_the_newest_runs_are_kept() -> None:
    add_runs(1, 2, 3)
    assert "Deleted run 3d (bench of " in done("prune", "--keep", "2", "--yes")
    assert ids() == ["1d", "2d"]
    assert "Nothing to delete: `data/toolkit.db` has 2 runs in " in done("prune", "--keep", "2")


def test_what_is_older_goes_with_what_scout_saw_then() -> None:
    add_runs(1, 6, 8)
    with Store.open(DB) as store:
        store.add_sightings([seen(time.time() - days * DAY_S) for days in (6.5, 7.5, 9)])
    assert "Deleted 2 sightings" in done("prune", "--keep", "7d", "--yes")
    assert ids() == ["1d", "6d"]
    assert rows(DB, "SELECT count(*) FROM sightings") == [(1,)]
    with Store.open(DB) as store:
        store.add_sightings([seen(1.0)])
    assert "Deleted 1 sighting\n" in done("prune", "--keep", "7d", "--yes")


def test_a_run_that_is_still_on_is_never_deleted_and_keeps_the_files_size() -> None:
    add_runs(1, 2)
    now = time.time()
    with Store.open(DB) as store:
        store.add_run(Run(id="live", verb="blast", started_at=now - 3 * DAY_S))
        store.add_second(seconds=[second(int(now), run="live")])
    error = refused("prune", "--keep", "2", "--yes")
    assert error.message == "run `live` is still running, and would be deleted"
    assert ids() == ["1d", "2d", "live"]
    with Store.open(DB) as store:
        store.remove_run("live")
        store.add_run(Run(id="new", verb="blast", started_at=now))
    assert "keeps its size while a run is on" in done("prune", "--keep", "2", "--yes")
    assert ids() == ["new", "1d"]


def test_room_that_cannot_be_given_back_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(_: Store) -> None:
        raise ToolkitError("`data/toolkit.db` cannot grow, the disk is full")

    monkeypatch.setattr(Store, "shrink", full_disk)
    add_runs(1, 2)
    assert "The room is left for new rows: `data/toolkit.db` cannot grow, the disk is full" in done(
        "prune", "--keep", "1", "--yes"
    )
    assert ids() == ["1d"]


def test_nobody_there_to_ask_is_no_yes() -> None:
    add_runs(1, 2)
    error = refused("prune", "--keep", "1")
    assert error.message == "there is no terminal to confirm deleting 1 of 2 runs"
    assert "--yes" in error.hint
    assert ids() == ["1d", "2d"]


@pytest.mark.parametrize(
    ("answer", "left"), [("y\n", ["1d"]), ("n\n", ["1d", "2d"]), ("\n", ["1d", "2d"])]
)
def test_a_person_is_shown_what_would_go_and_asked(
    monkeypatch: pytest.MonkeyPatch, answer: str, left: list[str]
) -> None:
    add_runs(1, 2)
    # only whether somebody is there is pretended
    monkeypatch.setattr(runs_verb, "is_terminal", lambda: True)
    result = runs("prune", "--keep", "1", input=answer)
    assert result.exit_code == 0
    assert "  run 2d (bench of " in result.stderr
    assert "Delete 1 of 2 runs? [y/N]" in result.stderr
    assert ("Nothing was deleted" in result.stderr) == (len(left) == 2)
    assert ids() == left


@pytest.mark.parametrize("word", ["", "five", "-1", "1.5", "2 GB x", "7dd"])
def test_what_is_no_amount_is_refused_with_examples(word: str) -> None:
    result = runs("prune", "--keep", word)
    assert result.exit_code == 2
    assert "write e.g. `5` runs, `7d` or `2GB`" in result.stderr
