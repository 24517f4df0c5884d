"""A bench that is killed: what servers answered over a second before is in the file, the file is sound, and the run is known as cut."""

import sqlite3
import threading
import time
from contextlib import suppress
from pathlib import Path

from contract.harness.databases import is_sound, select
from contract.harness.programs import rows, run, toolkit, until
from contract.harness.servers import Asked, answer, server

LOST_S = 1.0
"""What a kill may cost."""


def stored(database: Path) -> set[str]:
    with suppress(sqlite3.OperationalError):
        return {row["answer_id"] for row in select(database, "SELECT answer_id FROM shots")}
    return set()


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
        seen: set[str] = set()
        late_s: list[float] = []

        def look() -> bool:
            """Whether more came four times, once in time, having noted how old the oldest of them was."""
            if more := stored(database) - seen:
                late_s.append(time.monotonic() - min(written[name] for name in more))
                seen.update(more)
            return len(late_s) >= 4 and min(late_s[1:]) <= LOST_S

        # what comes into the file at once is what a kill just before would have cost; on a busy machine some of it is late
        until(look, step_s=0.02)
        bench.destroy()
    kept = stored(database)
    assert len(seen) > 10, bench.text
    assert seen <= kept <= written.keys()
    assert is_sound(database)
    listed = rows(run("runs", "--json", cwd=tmp_path).stdout)
    assert [(each["verb"], each["requests"]) for each in listed] == [("bench", len(kept))]
    # nothing more comes: a later bench goes into the same file
    again = run("bench", "http://127.0.0.1:9", "--requests", 1, cwd=tmp_path)
    assert "Traceback" not in again.stderr
    assert len(rows(run("runs", "--json", cwd=tmp_path).stdout)) == 2
