"""A board that is watched while rows come counts every one of them: what it draws last is what a recount of the file says."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from contract.harness.databases import select
from contract.harness.programs import rows, run, toolkit, until

EARLIER = Path(__file__).parents[1] / "fixtures" / "2026-11" / "data" / "toolkit.db"


def test_rows_that_come_while_it_is_watched_are_counted_once_each(tmp_path: Path) -> None:
    file = tmp_path / "toolkit.db"
    shutil.copy(EARLIER, file)
    [blast] = select(
        file, "SELECT number, id FROM runs WHERE verb = 'blast' ORDER BY number LIMIT 1"
    )
    shown = ("board", "--run", blast["id"], "--json", "--db", "toolkit.db")
    whole = rows(run(*shown, cwd=tmp_path).stdout)
    with closing(sqlite3.connect(file, timeout=30)) as database:
        of_run = "SELECT * FROM tallies WHERE run_number = ? ORDER BY id"
        tallies = database.execute(of_run, (blast["number"],)).fetchall()
        thirds = [tallies[:30], tallies[30:60], tallies[60:]]
        marks = ", ".join("?" * len(tallies[0]))
        with database:
            database.execute("DELETE FROM tallies WHERE id > ?", (thirds[0][-1][0],))

        def figures(found: list[dict[str, object]]) -> dict[object, tuple[object, ...]]:
            return {
                row["name"]: (row["ok"], row["errors"], row["rps"], row["p50_ms"]) for row in found
            }

        with toolkit(*shown, "--watch", cwd=tmp_path) as watch:
            until(lambda: len(watch.out) > 0)
            for part in thirds[1:]:
                drawn = len(watch.out)
                with database:
                    database.executemany(f"INSERT INTO tallies VALUES ({marks})", part)
                until(lambda drawn=drawn: len(watch.out) > drawn)
            until(lambda: figures(rows("\n".join(watch.out))[-len(whole) :]) == figures(whole))
            watch.end()
