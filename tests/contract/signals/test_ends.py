"""However a program is ended, what was measured is kept, and nothing of it stays behind."""

import signal
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from contract.harness.clients import Client, request
from contract.harness.databases import select
from contract.harness.fleets import fleet
from contract.harness.programs import gone, rows, run, toolkit, until
from contract.harness.servers import Asked, server


def test_a_bench_whose_terminal_is_closed_ends_its_run(tmp_path: Path) -> None:
    """The shell tells of it, then the kernel: the second is nobody's haste."""
    file = tmp_path / "toolkit.db"
    load = ("--duration", "60s", "--concurrency", 2, "--max-tokens", 4, "--db", file)
    with fleet({"alice": ("gptq-int4", {"time_scale": 0.05})}) as running:
        hosts = running.write(tmp_path)
        with toolkit("bench", hosts, *load, "--json", cwd=tmp_path) as bench:
            until(lambda: file.exists() and select(file, "SELECT count(*) AS n FROM sqlite_schema"))
            until(lambda: "shots" in str(select(file, "SELECT name FROM sqlite_schema")))
            until(lambda: select(file, "SELECT 1 FROM shots LIMIT 1"))
            bench.process.send_signal(signal.SIGHUP)
            time.sleep(0.2)
            bench.process.send_signal(signal.SIGHUP)
            assert bench.wait() == 130, bench.text
            [told] = rows("\n".join(bench.out))
    [kept] = select(file, "SELECT ended_at, client_ok FROM runs")
    assert kept["ended_at"] is not None
    counted = select(file, "SELECT count(*) AS n FROM shots WHERE ok AND kind <> 'warmup'")
    assert told["ok"] == counted[0]["n"] > 0
    assert rows(run("runs", "--json", "--db", file, cwd=tmp_path).stdout)[0]["state"] == "ended"


def test_a_database_that_is_locked_at_a_blasts_end_loses_nothing(tmp_path: Path) -> None:
    """It waits, says so, and stores all that was counted."""
    file = tmp_path / "toolkit.db"
    load = ("--users", 1, "--duration", "3s", "--profile", "short-answer", "--no-scout")
    more = ("--canaries", 0, "--non-neutral", "--db", file, "--json")
    with fleet({"alice": ("gptq-int4", {"time_scale": 0.05})}) as running:
        hosts = running.write(tmp_path)
        with toolkit("blast", hosts, *load, *more, cwd=tmp_path) as blast:
            until(
                lambda: (
                    file.exists()
                    and "tallies" in str(select(file, "SELECT name FROM sqlite_schema"))
                )
            )
            until(lambda: select(file, "SELECT 1 FROM tallies LIMIT 1"))
            with closing(sqlite3.connect(file, isolation_level=None, timeout=30)) as other:
                other.execute("BEGIN IMMEDIATE")
                blast.line("The last seconds still wait for the database")
                other.execute("ROLLBACK")
            assert blast.wait() == 0, blast.text
    [row] = select(
        file,
        "SELECT sum(ok) AS ok, count(DISTINCT at_s) AS seconds FROM tallies WHERE kind = 'ranked'",
    )
    assert rows("\n".join(blast.out))[0]["ok"] == row["ok"]
    assert row["seconds"] >= 3
    assert select(file, "SELECT ended_at FROM runs")[0]["ended_at"] is not None


def test_a_second_interrupt_of_a_proxy_leaves_no_folder(tmp_path: Path) -> None:
    """While an answer is under way that the first one waits for."""

    def silent(asked: Asked) -> None:
        asked.is_gone(60)

    with (
        # short: a socket's path has a limit, past which /tmp is taken
        tempfile.TemporaryDirectory(dir="/tmp") as name,
        server({"*": silent}) as upstream,
    ):
        temporary = Path(name)
        words = ("--upstream", upstream.url, "--port", 0, "--admin-port", 0, "--workers", 2)
        env = {"TMPDIR": str(temporary)}
        with toolkit("proxy", *words, cwd=tmp_path, env=env) as running:
            url = running.line(r"^Ready: clients on (\S+),")[1]
            assert [each.name[:14] for each in temporary.iterdir()] == ["toolkit-proxy-"]
            with Client(url) as client:
                client.send(request())
                until(lambda: [each for each in upstream.asked if each.method == "POST"])
                running.process.send_signal(signal.SIGINT)
                running.line("Ending: what is under way")
                family = running.family()
                assert running.end(signal.SIGINT) == 130
                assert list(temporary.iterdir()) == []
                assert gone(family)
