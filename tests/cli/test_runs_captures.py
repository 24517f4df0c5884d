"""`toolkit runs` with captures: listed, exported, merged and pruned like any other run."""

import csv
import io
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit.cli import main
from toolkit.protocol.request import asked
from toolkit.records import Run, Seen
from toolkit.store import Store
from toolkit.workload import read

DB = Path("data/toolkit.db")
NOW = time.time()
CHAT = "/v1/chat/completions"
RUN = Run(id="cccccccccccc", verb="capture", started_at=NOW - 120)
BODIES = [f'{{"prompt": "{word}", "logprobs": 1, "user": "x"}}'.encode() for word in ("Hi", "Ho")]
SEEN = [
    Seen(
        ts=NOW - 100 + n,
        method="POST",
        path=CHAT,
        asked=asked(BODIES[n % 2], path=CHAT),
        status=500 if n == 4 else 200,
    )
    for n in range(5)
] + [Seen(ts=NOW - 10, method="GET", path="/metrics")]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_DB", raising=False)


def captured(path: Path = DB, run: Run = RUN) -> None:
    with Store.open(path) as store:
        store.add_run(run)
        store.add_seen(run.id, SEEN)
        store.set_capture(run.id, {"gaps": 1})
        store.end_run(run.id, ended_at=NOW - 5, client_ok=None)


def said(*words: str) -> str:
    result = CliRunner().invoke(main, ["runs", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_capture_of_an_old_file_that_writes_now_is_still_on():
    with Store.open(DB) as store:
        store.add_run(Run(id="old", verb="capture", started_at=time.time() - 3600))
        store.add_seen("old", [Seen(ts=1_000_000_000.0)])
    told = json.loads(said("--json"))
    assert told["state"] == "on"
    assert told["took_s"] == pytest.approx(3600, abs=60)


def test_an_exported_capture_is_read_like_what_it_printed():
    captured()
    lines = said("export", RUN.id, "--jsonl").encode().splitlines(keepends=True)
    first, second, *_, last = [json.loads(line) for line in lines]
    assert (first["new"], first["unique_so_far"], first["options"]) == (
        True,
        1,
        ["logprobs", "user"],
    )
    assert (second["new"], second["unique_so_far"]) == (True, 2)
    assert (last["path"], last["prompt_key"], last["new"], last["unique_so_far"]) == (
        *("/metrics", None, None),
        2,
    )
    found = read(lines, "export", client=str)
    assert found.kind == "capture"
    again = list(found.seen)
    assert [one.ts for one in again] == [one.ts for one in SEEN]
    assert [one.asked and one.asked.request_key for one in again] == [
        one.asked and one.asked.request_key for one in SEEN
    ]


def test_a_capture_as_a_table_has_lists_in_a_cell():
    captured()
    table = list(csv.DictReader(io.StringIO(said("export", RUN.id))))
    assert len(table) == 6
    assert (table[0]["path"], table[0]["options"], table[0]["damaged"]) == (
        CHAT,
        "logprobs user",
        "false",
    )
