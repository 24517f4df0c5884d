"""What `toolkit runs` says of a proxy: on while it runs, however long nobody asks it; then ended, or cut off where it was killed."""

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from contract.harness.clients import ask
from contract.harness.databases import select
from contract.harness.programs import rows, run, until
from contract.harness.proxies import proxy
from contract.harness.servers import chat, server


def states(database: Path) -> list[str]:
    listed = rows(run("runs", "--db", database, "--json", cwd=database.parent).stdout)
    return [f"{each['verb']} {each['state']} {each['requests']}" for each in listed]


def test_a_proxy_that_nobody_asks_is_on_until_it_ends(tmp_path: Path) -> None:
    database = tmp_path / "seen.db"

    def is_stored() -> bool:
        return database.exists() and bool(
            select(database, "SELECT 1 FROM sqlite_master WHERE name = 'seen'")
            and select(database, "SELECT 1 FROM seen")
        )

    with server({"*": chat()}) as upstream:
        for workers, number in ((1, signal.SIGTERM), (2, signal.SIGTERM), (1, signal.SIGKILL)):
            words = ("--db", database, "--workers", workers)
            with proxy(upstream.url, "", *words, cwd=tmp_path) as running:
                ask(running.url)
                until(is_stored)
                # as if that one request had come an hour ago
                with closing(sqlite3.connect(database, timeout=30)) as file, file:
                    file.execute("UPDATE runs SET started_at = started_at - 3600")
                    file.execute("UPDATE seen SET ts = ts - 3600")
                assert states(database) == ["proxy on 1"]
                running.program.end(number)
            assert states(database) == [
                "proxy cut 1" if number == signal.SIGKILL else "proxy ended 1"
            ]
            database.unlink()
