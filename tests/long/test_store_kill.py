"""SIGKILL a real writer at random moments: the file opens, is whole, and keeps what was promised."""

import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from toolkit.store import Store

WRITER = Path(__file__).with_name("store_writer.py")
BATCH, PAGE = 20, 60
"""As in store_writer.py, written again here: the judge shares no number with the judged."""


def killed_after(path: Path, first: int, pause_s: float, life_s: float, *, wait: bool) -> int:
    """Run the writer, SIGKILL it, and return the last number it promised (`first - 1`: none).

    With `wait` its life counts from its first promise, otherwise from its birth.
    """
    command = [sys.executable, str(WRITER), str(path), str(first), str(pause_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        said = [writer.stdout.readline()] if wait else []
        killer = threading.Timer(life_s, writer.kill)
        killer.start()
        said += writer.stdout.readlines()  # ends when the writer is dead
        killer.join()
    assert writer.returncode == -signal.SIGKILL
    # A last line without its line feed was cut by the kill: `1` may be the half of `12`.
    numbers = [int(line) for line in said if line.endswith("\n")]
    return numbers[-1] if numbers else first - 1


def stored_batches(path: Path) -> dict[int, tuple[int, int]]:
    """Read {number: (sightings, readings that bear the number)} with plain sqlite3, and check the file."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        found = connection.execute(
            """
            SELECT sightings.at, count(DISTINCT sightings.id), sum(readings.value = sightings.at)
            FROM sightings LEFT JOIN readings ON readings.sighting_id = sightings.id
            GROUP BY sightings.at
            """
        ).fetchall()
    return {int(at): (sightings, readings) for at, sightings, readings in found}


def test_twenty_kills_cost_no_promised_batch_and_never_the_file(tmp_path):
    path = tmp_path / "toolkit.db"
    chance = random.Random(2)
    first, promised_in_all = 1, 0
    for number in range(20):
        # Every second writer never pauses, so that most of its kills fall into a transaction.
        pause_s = 0.1 if number % 2 == 0 else 0.0
        promised = killed_after(path, first, pause_s, chance.uniform(0.02, 0.7), wait=True)
        found = stored_batches(path)
        # Nothing is half there, and at most the one batch whose promise was not out yet is more.
        assert set(found.values()) == {(BATCH, BATCH * PAGE)}
        assert sorted(found) == list(range(1, len(found) + 1))
        assert len(found) in (promised, promised + 1)
        with Store.open(path) as store:
            assert store.sightings("host-7")[-1].at == len(found)
        promised_in_all += promised - first + 1
        first = len(found) + 1
    assert promised_in_all >= 20


@pytest.mark.parametrize("life_ms", range(50, 650, 50))
def test_a_kill_while_the_file_is_made_leaves_one_that_opens(tmp_path, life_ms):
    path = tmp_path / "toolkit.db"
    promised = killed_after(path, 1, 0.1, life_ms / 1000, wait=False)
    with Store.open(path) as store:
        assert len(store.sightings("host-0")) in (promised, promised + 1)
    assert set(stored_batches(path).values()) <= {(BATCH, BATCH * PAGE)}
