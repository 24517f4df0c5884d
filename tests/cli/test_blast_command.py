"""`toolkit blast` as a user meets it: what it refuses, what it prints, what it keeps."""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner, Result
from contract.harness.databases import select
from contract.harness.programs import rows, run
from support import sim_fleet
from support.raw_server import http, serving, vllm_pages
from support.screens import on_a_terminal
from support.word_tokenizer import word_tokenizer

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
FILE = Path("data/toolkit.db")
OF_HOST = "JOIN hosts ON hosts.id = host_id WHERE kind = 'ranked' AND name = ?"
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


# --- what it refuses --------------------------------------------------------------------------------


def test_a_host_on_this_machine_is_refused_with_the_way_out() -> None:
    assert refused("http://localhost:9", "http://127.0.0.1:9") == (
        "Error: `localhost:9` (127.0.0.1) and `127.0.0.1:9` (127.0.0.1) are on this machine: the load would "
        "take CPU from the server it measures, with no network between them\n\n"
        "Hint: Start the load from another machine; `--non-neutral` runs it all the same, "
        "marked as not valid for ranking\n"
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
        (("--window", "25h"), "`25h` is no duration of a day at most"),
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
    for unknown, problem in (
        ("nope", "`data/toolkit.db` has no run `nope`"),
        ("c" * 12, "run `cccccccccccc` is of `toolkit bench`, not of `blast`"),
    ):
        message = refused(NOBODY, "--non-neutral", "--resume", unknown)
        assert message.startswith(f"Error: {problem}\n")
        hint = "Hint: The newest: bbbbbbbbbbbb. `toolkit runs --verb blast` lists all\n"
        assert message.endswith(hint)


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
def test_a_blast_ranks_its_hosts_and_keeps_all_that_it_saw(tmp_path: Path, fleet: str) -> None:
    Path("hosts.txt").write_text(fleet)
    done = run("blast", *SHORT, "--json", "--scout-every", "1s", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = rows(done.stdout)
    assert [(one["rank"], one["name"], one["errors"]) for one in shown] == [
        (1, "cached", 0),
        (2, "quick", 0),
    ]
    # the run, marked as what it was
    (stored,) = select(FILE, "SELECT * FROM runs")
    assert stored["verb"] == "blast"
    assert stored["ended_at"] is not None
    settings = json.loads(stored["settings"])
    assert (settings["users"], settings["duration_s"], settings["max_tokens"]) == (4, 3, 8)
    here = "`quick` (127.0.0.1) and `cached` (127.0.0.1) are on this machine"
    assert settings["non_neutral"] == here
    events = {each["kind"]: each["text"] for each in select(FILE, "SELECT kind, text FROM events")}
    assert events.keys() == {"start", "mark", "stop"}
    assert events["mark"] == f"not valid for ranking: {here}"
    assert settings["load_generator"] == [socket.gethostname()]
    # the figures are those of the tallies, and scout looked beside the load
    for one in shown:
        (counted,) = select(FILE, f"SELECT sum(ok) AS ok FROM tallies {OF_HOST}", one["name"])
        assert counted["ok"] == one["ok"]
        (seen,) = select(
            FILE,
            "SELECT count(*) AS n FROM sightings JOIN hosts ON hosts.id = host_id WHERE name = ?",
            one["name"],
        )
        assert seen["n"] >= 2
    begins, marked, *_, still_marked, kept = done.stderr.splitlines()
    assert begins == f"Blast `{stored['id']}` begins: 2 users on each of 2 hosts, 0:03"
    assert marked == f"Not valid for ranking: {here}; the run is marked as such"
    assert still_marked == f"Not valid for ranking: {here}"
    again = f"toolkit board --run {stored['id']}"
    assert kept == f"Kept in `data/toolkit.db`; `{again}` shows these standings again"


@pytest.mark.slow
def test_prompts_and_answers_of_a_blast_have_exactly_the_wanted_tokens(
    tmp_path: Path, fleet: str
) -> None:
    Path("hosts.txt").write_text(fleet)
    lengths = ("--input-len", "96", "--output-len", "5", "--canaries", "50")
    words = (*(word for word in SHORT if word not in ("--max-tokens", "8")), *lengths)
    done = run("blast", *words, "--no-scout", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "estimates" not in done.stderr
    for one in rows(done.stdout):
        (sums,) = select(
            FILE,
            f"SELECT sum(ok) AS ok, sum(prompt_tokens) AS p, sum(output_tokens) AS o FROM tallies {OF_HOST}",
            one["name"],
        )
        assert sums["ok"] > 0
        # as the host's own `usage` tells, its chat template included
        assert (sums["p"], sums["o"]) == (96 * sums["ok"], 5 * sums["ok"])
    assert {
        (each["prompt_tokens"], each["output_tokens"])
        for each in select(FILE, "SELECT * FROM shots")
    } == {(96, 5)}
    (begun,) = select(FILE, "SELECT text FROM events WHERE kind = 'start'")
    assert begun["text"] == "random prompts of 96 tokens, 2 users a host"


@pytest.mark.slow
def test_the_prompts_of_a_blast_are_counted_by_a_tokenizers_file(
    tmp_path: Path, fleet: str
) -> None:
    Path("hosts.txt").write_text(fleet)
    word_tokenizer(tmp_path / "model" / "tokenizer.json")
    lengths = ("--input-len", "96", "--tokenizer", "model", "--processes", "2", "--canaries", "50")
    done = run("blast", *SHORT, *lengths, "--no-scout", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for one in rows(done.stdout):
        (sums,) = select(
            FILE,
            f"SELECT sum(ok) AS ok, sum(prompt_tokens) AS p FROM tallies {OF_HOST}",
            one["name"],
        )
        assert sums["ok"] > 0
        # eight more by the simulator's chat template
        assert sums["p"] == (96 + 8) * sums["ok"]
    shots = select(FILE, "SELECT prompt_tokens FROM shots")
    assert {each["prompt_tokens"] for each in shots} == {96 + 8}
    # a run that goes on reads the same file
    (begun,) = select(FILE, "SELECT id FROM runs")
    (tmp_path / "model" / "tokenizer.json").unlink()
    told = refused("--resume", begun["id"], "--duration", "3s", "--non-neutral")
    assert "`model/tokenizer.json` cannot be read: no such file" in told


def test_a_tokenizers_file_is_read_before_anything_is_sent_and_goes_with_a_length() -> None:
    word_tokenizer(Path("words.json"))
    words = (NOBODY, "--dry-run", "--tokenizer", "words.json")
    assert "--tokenizer goes with --input-len" in refused(*words, code=2)
    missing = refused(NOBODY, "--non-neutral", "--input-len", "96", "--tokenizer", "nowhere")
    assert missing.startswith("Error: `nowhere` cannot be read: no such file or directory")
    shown = CliRunner().invoke(main, ["blast", *words, "--input-len", "96"]).stdout
    assert "Random prompts of 96 tokens, as `words.json` counts; no two are equal." in shown


@pytest.mark.slow
def test_embeddings_are_a_target_of_a_blast(tmp_path: Path) -> None:
    embedded = http('{"data":[{"embedding":[0.5]}],"usage":{"prompt_tokens":4,"total_tokens":4}}')
    with serving(vllm_pages() | {"/v1/embeddings": embedded}) as server:
        words = ("--duration", "2s", "--users", "2", "--non-neutral", "--no-scout", "--json")
        done = run("blast", server.url, "--endpoint", "/v1/embeddings", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (one,) = rows(done.stdout)
    assert one["ok"] > 0
    assert (one["errors"], one["ttft_p50_ms"]) == (0, None)
    assert one["p50_ms"] > 0
    assert {path for path in server.paths() if "/v1/" in path} == {"/v1/models", "/v1/embeddings"}


@pytest.mark.slow
def test_hosts_come_from_standard_input_a_dead_one_is_a_row_and_a_key_stands_nowhere(
    tmp_path: Path, fleet: str
) -> None:
    quick, key = fleet.splitlines()[0], "hunter2-very-secret"
    words = ("--duration", "2s", "--users", "1", "--no-scout", "--non-neutral", "--canaries", "0")
    listed = f"{quick} api_key_env=LOCUST_KEY\ngone {NOBODY}\n"
    elsewhere = {"LOCUST_HOST": "http://elsewhere.invalid", "LOCUST_KEY": key}
    done = run("blast", "-", *words, cwd=tmp_path, stdin=listed, env=elsewhere)
    assert done.returncode == 0, done.stderr
    # one user was not enough for two hosts
    assert "begins: 1 user on each of 2 hosts" in done.stderr
    assert {"quick", "gone"} <= {word for line in done.stdout.splitlines() for word in line.split()}
    assert select(FILE, "SELECT * FROM sightings") == []
    assert select(FILE, "SELECT DISTINCT kind FROM tallies") == [{"kind": "ranked"}]
    assert key not in done.stdout + done.stderr
    files = [file.read_bytes() for file in Path().rglob("*") if file.is_file()]
    assert not any(key.encode() in data for data in files)


@pytest.mark.slow
def test_hosts_called_as_the_words_that_make_the_load_and_all_dead_are_exit_1_with_a_whole_table(
    tmp_path: Path,
) -> None:
    Path("p.toml").write_text(
        '[[prompts]]\ntext = "Hi"\n[[phases]]\nname = "only"\nfor = "3s"\nusers = 1\n'
    )
    names = ("globals", "shape_class", "len", "_addresses")
    hosts = [f"{name} http://127.0.0.1:{port}\n" for port, name in enumerate(names, start=9)]
    Path("hosts.txt").write_text("".join(hosts))
    done = run(
        "blast", "--profile", "p.toml", "--no-scout", "--non-neutral", "--json", cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert "No host answered any request; `toolkit scout` shows why" in done.stderr
    assert {(one["name"], one["ok"], one["errors"] > 0) for one in rows(done.stdout)} == {
        (name, 0, True) for name in names
    }
    assert select(FILE, "SELECT text FROM events WHERE kind = 'phase'") == [{"text": "only"}]


@pytest.mark.slow
def test_a_terminal_sees_the_standings_while_they_change(fleet: str) -> None:
    Path("hosts.txt").write_text(fleet)
    screen = on_a_terminal([*PROGRAM, *SHORT, "--duration", "5s", "--no-scout"], columns=160)
    assert "The load is starting" in screen
    # once at least while it ran, and once at the end
    assert screen.count("cached") >= 2
    assert " of 0:05; 4 users; cached leads with " in screen
