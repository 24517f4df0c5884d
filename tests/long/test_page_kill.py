"""`streamlit run dashboards/leaderboard.py` killed with SIGKILL at random while a blast writes, with a tab left open.

Three kills by default (each costs 5 to 6 s), forty with TOOLKIT_LONG=full. After each the server is started again, and
nobody touches the tab. The writer goes on meanwhile; at the end the file is checked by SQLite itself, and no second that
the writer had reported may be missing in it.
"""

import os
import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from contract.harness.browser import chromium
from support.board_page import board, comes, fact, hosts
from support.browser import tab_of
from support.feeder import RUN, blast_on
from support.page_server import page_over

KILLS = {"short": 3, "full": 40}[os.environ.get("TOOLKIT_LONG", "short")]

pytestmark = pytest.mark.timeout(120 + 20 * KILLS)


def rows_of(database: Path) -> tuple[int, int, int]:
    """Seconds, ranked tallies and answers of the run, read with plain sqlite3 from a file that is found whole."""
    with closing(sqlite3.connect(database)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert file.execute("PRAGMA foreign_key_check").fetchall() == []
        of_run = "run_number = (SELECT number FROM runs WHERE id = ?)"
        (seconds,) = file.execute(
            f"SELECT count(DISTINCT at_s) FROM loader_seconds WHERE {of_run}", [RUN]
        ).fetchone()
        tallies, answers = file.execute(
            f"SELECT count(*), sum(ok) FROM tallies WHERE {of_run}", [RUN]
        ).fetchone()
    return seconds, tallies, answers


def test_a_page_killed_again_and_again_comes_back_by_itself_and_never_hurts_the_file(
    tmp_path: Path,
) -> None:
    chance = random.Random(7)
    with (
        blast_on(tmp_path / "blast.db", seconds=30) as blast,
        page_over(blast.database, tmp_path) as server,
        chromium() as browser,
        tab_of(browser) as tab,
    ):
        tab.page.goto(f"{server.url}/?rank=p95")
        board(tab).wait_for()
        for _ in range(KILLS):
            # in the middle of a first page, of a tick, of a reading: whatever it does in these seconds
            time.sleep(chance.uniform(0.0, 2.0))
            server.kill()
            clock = fact(tab, "clock")
            server.start()
            comes(tab, lambda clock=clock: fact(tab, "clock") != clock, True)
            assert hosts(tab) == [f"h{number}" for number in range(1, 9)]
        assert tab.strangers() == set()
        ended_s = blast.stop()
    seconds, tallies, answers = rows_of(blast.database)
    # every second from the first to the last told one; in each h1 to h7 answer 28 requests, and h8 answers 8 from the 61st on
    whole = ended_s + 1 - blast.started_s
    assert seconds >= whole
    late = max(0, seconds - 60)
    assert (tallies, answers) == (7 * seconds + late, 28 * seconds + 8 * late)
    print(f"{KILLS} kills, {whole} seconds written meanwhile, {late} of them with all eight hosts")
