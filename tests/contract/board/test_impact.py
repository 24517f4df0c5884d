"""`impact`, `mark` and `runs` over a blast in which a host was down for a minute, by hand."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from contract.harness.blasts import begin
from contract.harness.databases import select
from contract.harness.programs import rows, run

BEGAN = 1_790_000_000


def test_an_outage_is_measured_marked_and_listed(tmp_path: Path) -> None:
    blast = begin(tmp_path / "blast.db", ["well", "gone"], BEGAN)

    def gone(second: int) -> dict[str, int]:
        return {"ok": 10} if second < 100 else {"errors": 5} if second < 160 else {"ok": 15}

    blast.write({BEGAN + n: {"well": {"ok": 10}, "gone": gone(n)} for n in range(400)})
    blast.end(BEGAN + 400)
    words = ("impact", "--host", "gone", "--window", "200s", "--json", "--db", blast.file)
    (told,) = rows(run(*words, cwd=tmp_path).stdout)
    series = told["series"]
    figures = {
        "downtime_s": 60,
        "window_s": 200,
        # 60 s of 5 errors beside the 100 s of 10 answers that the run had lived through
        "peak_error_rate": pytest.approx(300 / 1300),
        "tainted_s": 260,
        # 60 s of 10 answers are lost, and 5 more a second win them back in 120 s
        "breakeven_s": 180,
    }
    assert {key: told[key] for key in figures} == figures
    assert [each["error_rate"] for each in series if each["t_s"] in (0, 60, 260)] == [
        0.0,
        pytest.approx(300 / 1300),
        0.0,
    ]

    (number,) = select(blast.file, "SELECT max(id) AS id FROM hosts WHERE name = 'gone'")
    done = run("mark", "gone", "swapped to GPTQ", "--db", blast.file, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (event,) = select(blast.file, "SELECT host_id, kind, text FROM events")
    assert event == {"host_id": number["id"], "kind": "mark", "text": "swapped to GPTQ"}

    (listed,) = rows(run("runs", "--json", "--db", blast.file, cwd=tmp_path).stdout)
    wanted = {
        "run": "aaaabbbbcccc",
        "verb": "blast",
        "started_at": BEGAN,
        "ended_at": BEGAN + 400,
        "took_s": 400,
        "hosts": 2,
        # 400 s of 10, and 100 of 10, 60 of 5 errors, 240 of 15
        "requests": 8900,
        "errors": 300,
        "client_ok": True,
    }
    assert {key: listed[key] for key in wanted} == wanted


def test_seconds_in_which_nothing_ended_are_seconds_of_the_window_all_the_same(
    tmp_path: Path,
) -> None:
    """The loader told of them, and nobody answered: the run has gone on, and an earlier second's answers have left the window."""
    blast = begin(tmp_path / "blast.db", ["well", "gone"], BEGAN)
    blast.write({BEGAN + n: {"well": {"ok": 10}, "gone": {"ok": 5}} for n in range(100)})
    blast.write({BEGAN + n: {} for n in range(100, 160)})
    for window_s, counted in ((30, {"well": 0, "gone": 0}), (100, {"well": 400, "gone": 200})):
        words = ("board", "--json", "--window", f"{window_s}s", "--db", blast.file)
        told = rows(run(*words, cwd=tmp_path).stdout)
        assert {one["name"]: one["ok"] for one in told} == counted
        assert {(one["at"], one["counted_s"]) for one in told} == {(BEGAN + 159, window_s)}
    (listed,) = rows(run("runs", "--json", "--db", blast.file, cwd=tmp_path).stdout)
    assert (listed["state"], listed["took_s"]) == ("cut", 159)


def test_an_export_has_what_a_loader_counted_that_told_no_second_of_its_own(tmp_path: Path) -> None:
    blast = begin(tmp_path / "blast.db", ["well"], BEGAN)
    blast.write({BEGAN + n: {"well": {"ok": 1 + n % 7}} for n in (*range(50), 2000, 4000)})
    with closing(sqlite3.connect(blast.file, timeout=30)) as database, database:
        database.execute("DELETE FROM loader_seconds WHERE at_s > ?", (BEGAN + 20,))
    words = ("runs", "export", "aaaabbbbcccc", "--jsonl", "--db", blast.file)
    exported = rows(run(*words, cwd=tmp_path).stdout)
    assert [each["ok"] for each in exported] == [1 + n % 7 for n in (*range(50), 2000, 4000)]
