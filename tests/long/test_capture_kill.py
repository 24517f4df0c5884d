"""`toolkit capture` killed with SIGKILL, again and again, on the same database and the same JSONL file.

Five rounds in CI, twenty by hand (TOOLKIT_LONG=full): a round takes 1 to 2 s.
"""

import json
import os
import random
import signal
import sqlite3
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from support.capturing import capture, capturing, chat, serving, talking
from support.net_namespaces import needs_capture
from support.packets import post

from toolkit.store import Store

pytestmark = [needs_capture, pytest.mark.timeout(300)]

ROUNDS = 20 if os.environ.get("TOOLKIT_LONG") == "full" else 5
PACE_S = 0.005
"""Between two requests: a client that never rests sends more than a busy machine reads, counts and serves at once."""
LOST_S = 1.0
"""What a kill may cost."""
STALL_S = 0.1
"""Between two requests that should leave every few milliseconds: the machine was busy with others, or the disk was."""


def kill_one(folder: Path, seconds: float) -> tuple[float, list[tuple[float, str]]]:
    """Capture, send a request every few milliseconds, kill; when it was killed, and what was sent when."""
    sent: list[tuple[float, str]] = []
    with serving() as server:
        words = ("--port", server.port, "--iface", "lo", "--db", "t.db", "--jsonl", "a.jsonl")
        with capturing(*words, cwd=folder) as live, talking(server.port) as client:
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s:
                body = chat(f"prompt {random.random()}")
                sent.append((time.time(), body.decode()))
                client.send(post(body))
                time.sleep(PACE_S)
            killed_at = time.time()
            live.process.send_signal(signal.SIGKILL)
            live.process.wait(20)
    return killed_at, sent


def lost(sent: list[tuple[float, str]], kept: int, killed_at: float) -> float:
    """Over how long what is missing was sent, in seconds in which the machine let its sender run."""
    times = [at for at, _ in sent[kept:]] + [killed_at]
    return sum(min(later - at, STALL_S) for at, later in pairwise(times))


def stored(database: Path) -> tuple[str, list[float]]:
    with closing(sqlite3.connect(database)) as db:
        (integrity,) = db.execute("PRAGMA integrity_check").fetchone()
    with Store.open_readonly(database) as store:
        newest = store.runs(verb="capture", limit=1)[0]
        assert store.capture(newest.id) is not None  # it told of its losses while it ran
        return integrity, [seen.ts for seen in store.seen(newest.id)]


def test_a_killed_capture_loses_at_most_the_last_second_and_never_a_file(tmp_path: Path) -> None:
    chance = random.Random(5)
    lost_s: list[float] = []
    lines = requests = 0
    for _ in range(ROUNDS):
        killed_at, sent = kill_one(tmp_path, chance.uniform(1.0, 2.0))
        requests += len(sent)
        integrity, kept = stored(tmp_path / "t.db")
        assert integrity == "ok"
        # what is there is the beginning without a hole, and what is missing was sent in the last second
        assert 0 < len(kept) <= len(sent)
        lost_s.append(lost(sent, len(kept), killed_at))
        assert lost_s[-1] <= LOST_S
        written = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)
        whole = [json.loads(line) for line in written if line.endswith(b"\n")]
        assert lost(sent, len(whole) - lines, killed_at) <= LOST_S
        lines = len(whole)
    with Store.open(tmp_path / "t.db") as store:
        assert len(store.runs(verb="capture")) == ROUNDS
    print(f"{ROUNDS} kills, {requests} requests, at most {max(lost_s):.2f} s lost")


def test_a_capture_of_a_file_that_is_killed_leaves_a_database_for_the_next(tmp_path: Path) -> None:
    """Whatever a kill left of the write-ahead log, the next capture goes on with the file."""
    for _ in range(2):
        kill_one(tmp_path, 0.7)
    with serving() as server:
        words = ("--port", server.port, "--iface", "lo", "--db", "t.db", "--duration", "500ms")
        ran = capture(*words, cwd=tmp_path)
    assert "Traceback" not in ran.err
    with closing(sqlite3.connect(tmp_path / "t.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
