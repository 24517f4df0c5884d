"""A bench that is killed: what servers answered over a second before is in the file, the file is sound, and the run is known as cut."""

import threading
import time
from pathlib import Path

from contract.harness.databases import is_sound, select
from contract.harness.programs import rows, run, toolkit, until
from contract.harness.servers import Asked, answer, server

LOST_S = 1.0
"""What a kill may cost."""
BUSY_S = 1.0
"""For a machine that has others to run meanwhile."""


def test_a_killed_bench_has_lost_a_second_at_most_and_no_file(tmp_path: Path) -> None:
    written: dict[str, float] = {}
    lock = threading.Lock()

    def reply(asked: Asked) -> None:
        time.sleep(0.02)
        with lock:
            name = f"answer-{len(written)}"
            written[name] = float("inf")
        choice = {"message": {"content": "Hi there"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 7, "completion_tokens": 2}
        body = {"id": name, "model": "tiny", "choices": [choice], "usage": usage}
        asked.send(answer(body))
        written[name] = time.monotonic()

    models = answer({"data": [{"id": "tiny"}]})
    database = tmp_path / "data" / "toolkit.db"
    words = ("--duration", "10m", "--concurrency", 4, "--no-stream")
    with (
        server({"/v1/models": models, "/v1/chat/completions": reply}) as host,
        toolkit("bench", host.url, *words, cwd=tmp_path) as bench,
    ):
        until(lambda: written and min(written.values()) < time.monotonic() - LOST_S - BUSY_S - 1)
        killed_s = time.monotonic()
        bench.destroy()
    kept = {row["answer_id"] for row in select(database, "SELECT answer_id FROM shots")}
    due = {name for name, at in written.items() if at < killed_s - LOST_S - BUSY_S}
    assert len(due) > 10, bench.text
    assert due <= kept
    assert kept <= written.keys()
    assert is_sound(database)
    listed = rows(run("runs", "--json", cwd=tmp_path).stdout)
    assert [(each["verb"], each["requests"]) for each in listed] == [("bench", len(kept))]
    # nothing more comes: a later bench goes into the same file
    again = run("bench", "http://127.0.0.1:9", "--requests", 1, cwd=tmp_path)
    assert "Traceback" not in again.stderr
    assert len(rows(run("runs", "--json", cwd=tmp_path).stdout)) == 2
