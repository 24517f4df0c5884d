"""`toolkit blast` as a user meets it: what it refuses, what it prints, what it keeps."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result
from support import sim_fleet
from support.screens import on_a_terminal

from toolkit.blast import machine
from toolkit.cli import main
from toolkit.cli.blast.load import locustfile
from toolkit.errors import ToolkitError
from toolkit.records import Run
from toolkit.store import Store

PROGRAM = [sys.executable, "-c", "from toolkit.cli import main; main()", "blast"]
NOBODY = "http://127.0.0.1:9"
"""The discard port: connections are refused at once."""
FLEET: sim_fleet.Spec = {
    "quick": ("gptq-int4", {"time_scale": 0.02}),
    "cached": ("cached", {"time_scale": 0.02}),
}
SHORT = ("--duration", "3s", "--users", "4", "--max-tokens", "8", "--non-neutral")


@pytest.fixture(scope="module")
def fleet() -> Iterator[str]:
    with sim_fleet.running(FLEET) as hosts:
        yield hosts


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TOOLKIT_DB", "TOOLKIT_HOSTS", "LOCUST_HOST"):
        monkeypatch.delenv(name, raising=False)


def refused(*words: str, code: int = 1) -> str:
    result: Result = CliRunner().invoke(main, ["blast", *words])
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    return result.stderr


def blast(
    *words: str, stdin: str | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*PROGRAM, *words],
        input=stdin,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def rows(query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect("data/toolkit.db")) as file:
        return file.execute(query).fetchall()


# --- what it refuses --------------------------------------------------------------------------------


def test_a_host_on_this_machine_is_refused_with_the_way_out() -> None:
    assert refused("http://localhost:9", "http://127.0.0.1:9") == (
        "Error: `localhost:9` (127.0.0.1) and `127.0.0.1:9` (127.0.0.1) are on this machine: the load would "
        "take CPU from the server it measures, and no network lies between\n\n"
        "Hint: Start the load from another machine; `--non-neutral` runs it all the same and marks the run\n"
    )
    assert not Path("data").exists()


@pytest.mark.parametrize(
    ("hosts", "words", "message"),
    [
        (None, (), "`hosts.txt` cannot be read: no such file"),
        (f"a {NOBODY}", ("--non-neutral", "--profile", "nope"), "no profile is called `nope`"),
        ("alice 10.0.0.4 api_key_env=ALICE_KEY", (), "`ALICE_KEY` is not set"),
    ],
)
def test_what_is_missing_is_an_error_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, hosts: str | None, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.delenv("ALICE_KEY", raising=False)
    if hosts is not None:
        Path("hosts.txt").write_text(f"{hosts}\n")
    assert refused(*words).startswith(f"Error: {message}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(
            ((option, value), f"Invalid value for '{option}'")
            for option, value in (
                ("--users", "0"),
                ("--rate", "0"),
                ("--duration", "10"),
                ("--mix", "101"),
                ("--canaries", "-1"),
                ("--processes", "0"),
            )
        ),
        # past all bounds, even of a dry run: click's own ranges let `nan` and `inf` through
        (("--rate", "nan"), "--rate is 100,000 at most"),
        (("--spawn-rate", "inf"), "--spawn-rate is 1,000,000 at most"),
        (("--canaries", "nan"), "--canaries is 100 at most"),
        (("--timeout", "2h"), "--timeout is an hour at most"),
        (("--duration", "366d"), "--duration is a year at most"),
        (("--window", "25h"), "--window is a day at most"),
    ],
)
def test_what_cannot_be_is_a_wrong_command_line(words: tuple[str, str], message: str) -> None:
    assert message in refused(NOBODY, "--non-neutral", *words, "--dry-run", code=2)


def test_numbers_at_their_bounds_can_be_meant() -> None:
    words = ("--rate", "100000", "--timeout", "1h", "--duration", "365d", "--window", "24h")
    result = CliRunner().invoke(main, ["blast", "10.0.0.4", *words, "--dry-run"])
    assert result.exit_code == 0, result.output


def test_a_run_that_nobody_knows_cannot_go_on() -> None:
    with Store.open("data/toolkit.db") as store:
        store.add_run(Run(id="b" * 12, verb="blast", started_at=1.8e9))
        store.add_run(Run(id="c" * 12, verb="bench", started_at=1.8e9))
    for run in ("nope", "c" * 12):
        told = refused(NOBODY, "--non-neutral", "--resume", run)
        assert told.startswith(f"Error: `data/toolkit.db` has no blast `{run}` to go on with\n")
        assert told.endswith("Hint: Known blasts: `bbbbbbbbbbbb`\n")


def test_too_few_open_files_or_ports_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "open_files_limit", lambda: machine.SPARE_FILES + 9)
    told = refused(NOBODY, "--non-neutral", "--users", "10")
    assert told.startswith("Error: 10 users need 266 open files in a process")
    monkeypatch.setattr(machine, "open_files_limit", lambda: None)
    monkeypatch.setattr(machine, "ports_for_one_host", lambda: 3)
    told = refused(NOBODY, "--non-neutral", "--users", "10")
    assert told.startswith("Error: 10 users a host need as many ports, and this machine has 3")


def test_a_full_disk_and_a_wrong_clock_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open("data/toolkit.db") as store:
        store.add_run(Run(id="b" * 12, verb="bench", started_at=9e9))
    monkeypatch.setattr(machine, "free_bytes", lambda _: 1_500_000)
    monkeypatch.setattr("toolkit.cli.blast.plan.hosts_file", lambda _: no_further())

    def no_further() -> NoReturn:
        raise ToolkitError("far enough")

    disk, clock = refused(NOBODY, "--non-neutral").splitlines()[:2]
    # 2,100 B x 900 s
    assert disk.startswith(
        "Warning: the blast may write 1.89 MB to the database, where 1.5 MB are free"
        " and 100 MB should stay so. Free some space"
    )
    assert clock.startswith("Warning: this machine's clock says 20")


def test_a_toolkit_without_its_locustfile_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(locustfile, "__defaults__", (tmp_path / "toolkit",))
    assert "is not there, which makes the load" in refused(NOBODY, "--non-neutral")


# --- a whole blast ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_blast_ranks_its_hosts_and_keeps_all_that_it_saw(fleet: str) -> None:
    Path("hosts.txt").write_text(fleet)
    done = blast(*SHORT, "--json", "--scout-every", "1s")
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["rank"], first["name"], second["rank"], second["name"]) == (
        1,
        "cached",
        2,
        "quick",
    )
    assert first["errors"] == second["errors"] == 0
    # the run, marked as what it was
    ((run, verb, ended_at, settings),) = rows("SELECT id, verb, ended_at, settings FROM runs")
    assert verb == "blast"
    assert ended_at is not None
    told = json.loads(settings)
    assert (told["users"], told["duration_s"], told["max_tokens"]) == (4, 3, 8)
    here = "`quick` (127.0.0.1) and `cached` (127.0.0.1) are on this machine"
    assert told["non_neutral"] == here
    kinds = dict(rows("SELECT kind, text FROM events"))
    assert set(kinds) == {"start", "mark", "stop"}
    assert kinds["mark"] == f"not neutral: {here}"
    # the figures are those of the tallies
    counted = dict(
        rows(
            "SELECT name, sum(ok) FROM tallies JOIN hosts ON hosts.id = host_id "
            "WHERE kind = 'ranked' GROUP BY name"
        )
    )
    assert counted == {"cached": first["ok"], "quick": second["ok"]}
    # scout looked beside the load
    seen = dict(
        rows("SELECT name, count(*) FROM sightings JOIN hosts ON hosts.id = host_id GROUP BY 1")
    )
    assert min(seen["cached"], seen["quick"]) >= 2
    begins, marked, *_, still_marked, kept = done.stderr.splitlines()
    assert begins == f"Blast `{run}` begins: 2 users on each of 2 hosts, 0:03"
    assert marked == f"Not neutral: {here}; the run is marked, and its figures rank nobody"
    assert still_marked == f"Not neutral: {here}; these figures rank nobody"
    again = f"toolkit board --run {run}"
    assert kept == f"Kept in `data/toolkit.db`; `{again}` shows these standings again"
    shown = CliRunner().invoke(main, [*again.split()[1:], "--json"])
    assert [json.loads(line)["ok"] for line in shown.stdout.splitlines()] == [
        first["ok"],
        second["ok"],
    ]


@pytest.mark.slow
def test_hosts_come_from_standard_input_a_dead_one_is_a_row_and_a_key_stands_nowhere(
    fleet: str,
) -> None:
    quick, key = fleet.splitlines()[0], "hunter2-very-secret"
    words = ("--duration", "2s", "--users", "1", "--no-scout", "--non-neutral", "--canaries", "0")
    listed = f"{quick} api_key_env=LOCUST_KEY\ngone {NOBODY}\n"
    elsewhere = {"LOCUST_HOST": "http://elsewhere.invalid"}
    done = blast("-", *words, stdin=listed, LOCUST_KEY=key, **elsewhere)
    assert done.returncode == 0, done.stderr
    assert (
        "begins: 1 user on each of 2 hosts" in done.stderr
    )  # one user was not enough for two hosts
    lines = [line.split() for line in done.stdout.splitlines()]
    assert any("quick" in line for line in lines)
    assert any("gone" in line for line in lines)
    assert rows("SELECT count(*) FROM sightings") == [(0,)]
    assert rows("SELECT DISTINCT kind FROM tallies") == [("ranked",)]
    assert key not in done.stdout + done.stderr
    files = [file.read_bytes() for file in Path().rglob("*") if file.is_file()]
    assert not any(key.encode() in data for data in files)


@pytest.mark.slow
def test_hosts_called_as_the_words_that_make_the_load_and_all_dead_are_exit_1_with_a_whole_table() -> (
    None
):
    Path("p.toml").write_text(
        '[[prompts]]\ntext = "Hi"\n[[phases]]\nname = "only"\nfor = "3s"\nusers = 1\n'
    )
    names = ("globals", "shape_class", "len", "_addresses")
    Path("hosts.txt").write_text(
        "".join(f"{name} http://127.0.0.1:{port}\n" for port, name in enumerate(names, start=9))
    )
    done = blast("--profile", "p.toml", "--no-scout", "--non-neutral", "--json")
    assert "before its first request" not in done.stderr
    assert done.returncode == 1, done.stderr
    assert "No host answered a single request; `toolkit scout` tells why" in done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["name"] for one in told} == set(names)
    assert all(one["ok"] == 0 < one["errors"] for one in told)
    assert rows("SELECT text FROM events WHERE kind = 'phase'") == [("only",)]


@pytest.mark.slow
def test_a_terminal_sees_the_standings_while_they_change(fleet: str) -> None:
    Path("hosts.txt").write_text(fleet)
    screen = on_a_terminal([*PROGRAM, *SHORT, "--duration", "5s", "--no-scout"], columns=160)
    assert "The load is starting" in screen
    # once at least while it ran, and once at the end
    assert screen.count("cached") >= 2
    assert " of 0:05; 4 users; cached leads with " in screen
