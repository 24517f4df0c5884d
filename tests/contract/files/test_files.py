"""What the toolkit makes is for its owner's eyes alone, what exists keeps its rights, and a trap in a database is refused."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from contract.harness.clients import ask
from contract.harness.programs import ROOT, rows, run, until
from contract.harness.proxies import proxy
from contract.harness.servers import chat, server

OLD = Path(__file__).parents[1] / "fixtures" / "2026-11" / "data"
USER = {"SUDO_UID": "12345", "SUDO_GID": "12346"}
# without an end, and without a table behind it
ENDLESS = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS number FROM n"
)


def mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


def test_databases_captures_and_logs_are_made_private_and_belong_to_whoever_said_sudo(
    tmp_path: Path,
) -> None:
    """Of a capture, of a proxy while it writes, of a link that leads nowhere yet."""
    owner = (12345, 12346) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    pcap = ROOT / "data" / "sample.pcap"
    (tmp_path / "link.db").symlink_to(tmp_path / "behind.db")
    ended = run(
        *("capture", pcap, "--jsonl", "seen.jsonl", "--rotate", "20KB", "--db", "new/toolkit.db"),
        cwd=tmp_path,
        env=USER,
    )
    assert ended.returncode == 0, ended.stderr
    made = [tmp_path / "new" / "toolkit.db", tmp_path / "seen.jsonl", tmp_path / "seen.jsonl.1"]
    assert run("capture", pcap, "--db", "link.db", cwd=tmp_path, env=USER).returncode == 0
    made.append(tmp_path / "behind.db")

    words = ("--db", "proxy.db", "--log", "requests.jsonl")
    with (
        server({"*": chat()}) as upstream,
        proxy(upstream.url, "", *words, cwd=tmp_path, env=USER) as running,
    ):
        assert ask(running.url).status == 200
        now = [tmp_path / name for name in ("proxy.db", "proxy.db-wal", "proxy.db-shm")]
        now += [tmp_path / "requests.jsonl"]
        until(lambda: all(each.exists() for each in now))
        found = {
            each.name: (oct(mode(each)), (each.stat().st_uid, each.stat().st_gid)) for each in now
        }
    found |= {
        each.name: (oct(mode(each)), (each.stat().st_uid, each.stat().st_gid)) for each in made
    }
    assert found == dict.fromkeys(found, ("0o600", owner))
    assert ((tmp_path / "new").stat().st_uid, (tmp_path / "new").stat().st_gid) == owner


def test_what_exists_keeps_its_rights(tmp_path: Path) -> None:
    for name in ("toolkit.db", "seen.jsonl"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o644)
    words = ("--jsonl", "seen.jsonl", "--db", "toolkit.db")
    ended = run("capture", ROOT / "data" / "sample.pcap", *words, cwd=tmp_path, env=USER)
    assert ended.returncode == 0, ended.stderr
    for name in ("toolkit.db", "seen.jsonl"):
        file = tmp_path / name
        assert file.stat().st_size > 0
        assert (mode(file), file.stat().st_uid) == (0o644, os.getuid())


@pytest.mark.parametrize(
    ("trap", "what"),
    [
        (f"DROP TABLE runs; CREATE VIEW runs AS {ENDLESS}", "view"),
        (f"DROP TABLE _sqlite_migrations; CREATE VIEW _sqlite_migrations AS {ENDLESS}", "view"),
        (
            f"CREATE TRIGGER owned BEFORE INSERT ON EVENTS BEGIN SELECT count(*) FROM ({ENDLESS}); END",
            "trigger",
        ),
        ("DROP TABLE hosts; CREATE VIRTUAL TABLE Hosts USING fts5(name, url)", "virtual table"),
    ],
    ids=["view", "view of the steps", "trigger", "virtual table"],
)
def test_a_trap_in_a_database_is_refused_at_once(tmp_path: Path, trap: str, what: str) -> None:
    file = tmp_path / "toolkit.db"
    shutil.copy(OLD / "toolkit.db", file)
    with closing(sqlite3.connect(file)) as database:
        database.executescript(f"PRAGMA foreign_keys = OFF; {trap}")
    words = ("mark", "alice", "swapped") if what == "trigger" else ("runs",)
    ended = run(*words, "--db", "toolkit.db", cwd=tmp_path, timeout_s=60)
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.startswith(f"Error: `toolkit.db` has a {what} where the toolkit has")


def test_a_user_may_have_views_of_other_names(tmp_path: Path) -> None:
    file = tmp_path / "toolkit.db"
    shutil.copy(OLD / "toolkit.db", file)
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE VIEW my_blasts AS SELECT * FROM runs WHERE verb = 'blast'")
    assert len(rows(run("runs", "--json", "--db", "toolkit.db", cwd=tmp_path).stdout)) == 16


def test_a_trap_in_a_cache_file_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "cache.db"
    shutil.copy(OLD / "proxy-cache.db", file)
    with closing(sqlite3.connect(file)) as database:
        database.executescript(f"DROP TABLE epochs; CREATE VIEW epochs AS {ENDLESS}")
    words = ("--upstream", "http://127.0.0.1:9", "--port", 0, "--cache-file", "cache.db")
    ended = run("proxy", *words, cwd=tmp_path, timeout_s=60)
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.splitlines()[-3].startswith("Error: `cache.db` has a view or a trigger")
