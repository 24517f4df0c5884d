"""`toolkit scout --watch` killed with SIGKILL, again and again, on the same database.

Twenty rounds by hand and in CI: a round takes 1 to 2 s.
"""

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from support.raw_server import serving, vllm_pages

from toolkit.store import Store

ROUNDS = 20
INTERVAL_S = 0.05
LOST_S = 1.0
"""What a kill may cost."""


def watch(url: str, database: Path, seconds: float) -> list[dict]:
    """Run a watch, kill it after some seconds, and return what it had printed."""
    command = ["scout", url, "--watch", "--interval", "50ms", "--json", "--db", str(database)]
    with subprocess.Popen(
        [sys.executable, "-c", "from toolkit.cli import main; main()", *command],
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        first = running.stdout.readline()  # start-up is over
        time.sleep(seconds)
        running.send_signal(signal.SIGKILL)
        rest, _ = running.communicate(timeout=20)
        assert running.returncode == -signal.SIGKILL
    whole = [line for line in [first, *rest.splitlines(keepends=True)] if line.endswith("\n")]
    return [json.loads(line) for line in whole]


def stored(database: Path) -> tuple[str, list[float]]:
    with closing(sqlite3.connect(database)) as db:
        (integrity,) = db.execute("PRAGMA integrity_check").fetchone()
        return integrity, [at for (at,) in db.execute("SELECT at FROM sightings ORDER BY at")]


def test_a_killed_watch_loses_at_most_the_last_second_and_never_the_file(tmp_path: Path) -> None:
    database = tmp_path / "toolkit.db"
    chance = random.Random(20)
    printed: list[dict] = []
    lost_s: list[float] = []
    with serving(vllm_pages()) as server:
        for _ in range(ROUNDS):
            seen = watch(server.url, database, chance.uniform(0.2, 1.4))
            printed += seen
            integrity, kept = stored(database)
            assert integrity == "ok"
            missing = [one["at"] for one in seen if one["at"] not in kept]
            lost_s.append(seen[-1]["at"] - min(missing) if missing else 0.0)
            assert lost_s[-1] <= LOST_S
            # only the end is missing, never a hole
            assert all(
                at > max((k for k in kept if k <= seen[-1]["at"]), default=0) for at in missing
            )
    with Store.open(database) as store:
        history = store.sightings(server.url.removeprefix("http://"))
    assert len(history) == len(kept)
    assert len(printed) >= ROUNDS * 4
    assert all(store_one.readings == () for store_one in history)
    print(
        f"{ROUNDS} kills, {len(printed)} looks printed, {len(kept)} kept, at most {max(lost_s):.2f} s lost"
    )


def test_every_kept_sighting_has_all_its_readings(tmp_path: Path) -> None:
    """A sighting and its readings are one transaction: no kill leaves half of it."""
    database = tmp_path / "toolkit.db"
    with serving(vllm_pages()) as server:
        for _ in range(3):
            watch(server.url, database, 0.6)
    with closing(sqlite3.connect(database)) as db:
        counts = db.execute(
            "SELECT count(*) FROM readings GROUP BY sighting_id ORDER BY 1"
        ).fetchall()
        (sightings,) = db.execute("SELECT count(*) FROM sightings").fetchone()
    assert len(counts) == sightings
    assert counts[0] == counts[-1]
