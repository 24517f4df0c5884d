"""`toolkit mark` as a user meets it."""

import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.sightings import rows, seen

from toolkit.cli.mark import command
from toolkit.errors import ToolkitError
from toolkit.records import Event, Host, Run
from toolkit.store import Store

ALICE = ("alice", "http://10.0.0.4:8000")
BOB = ("bob", "http://10.0.0.5:8000")
AGO_S = 100.0


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A blast of two hosts that began 100 s ago."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_DB", raising=False)
    with Store.open("data/toolkit.db") as store:
        store.add_run(Run(id="aaaaaaaaaaaa", verb="blast", started_at=time.time() - AGO_S))
        store.plan_hosts("aaaaaaaaaaaa", [Host(name=name, url=url) for name, url in (ALICE, BOB)])
    return Path("data/toolkit.db")


def mark(*words: str) -> Result:
    return CliRunner().invoke(command, list(words))


def refused(*words: str) -> ToolkitError:
    error = mark(*words).exception
    assert isinstance(error, ToolkitError), error
    return error


def events() -> list[Event]:
    with Store.open_readonly("data/toolkit.db") as store:
        return [event for _, event in store.events("aaaaaaaaaaaa")]


def test_a_mark_is_an_event_of_the_blast_that_is_on() -> None:
    before = time.time()
    result = mark("alice", "swapped to GPTQ")
    [event] = events()
    assert (event.run, event.name, event.url, event.kind, event.text) == (
        None,
        *ALICE,
        "mark",
        "swapped to GPTQ",
    )
    assert before <= event.at <= time.time()
    assert result.exit_code == 0
    assert result.stdout == ""
    assert re.fullmatch(
        r"Marked alice at [\d: -]+: swapped to GPTQ \(run aaaaaaaaaaaa\)\n", result.stderr
    )


def test_forgotten_quotes_do_not_cost_the_mark() -> None:
    assert mark("bob", "swapped", "to", "GPTQ").exit_code == 0
    assert [event.text for event in events()] == ["swapped to GPTQ"]


@pytest.mark.parametrize(
    "words", [("-", "lunch break"), ("--all", "lunch break"), ("lunch break", "--all")]
)
def test_a_mark_may_concern_all_hosts(words: tuple[str, ...]) -> None:
    result = mark(*words)
    assert [(event.name, event.url, event.text) for event in events()] == [
        (None, None, "lunch break")
    ]
    assert "Marked all hosts at " in result.stderr


def test_a_host_may_be_named_by_its_url() -> None:
    assert mark(BOB[1], "x").exit_code == 0
    assert [event.name for event in events()] == ["bob"]


def test_a_mark_may_be_made_late() -> None:
    before = time.time()
    assert mark("alice", "x", "--at", "30s ago").exit_code == 0
    [event] = events()
    assert before - 30 <= event.at <= time.time() - 30


def test_a_mark_ahead_of_time_is_a_slip() -> None:
    tomorrow = time.strftime("%Y-%m-%dT%H:%M", time.localtime(time.time() + 86_400))
    result = mark("alice", "x", "--at", tomorrow)
    assert result.exit_code == 2
    assert "this time is still to come" in result.stderr
    assert events() == []


def test_a_mark_that_no_board_will_show_says_so() -> None:
    result = mark("alice", "x", "--at", "1h ago")
    assert result.exit_code == 0
    assert "no blast was on then, so no board will show it" in result.stderr
    with Store.open("data/toolkit.db") as store:
        store.end_run("aaaaaaaaaaaa", ended_at=time.time() - 50, client_ok=True)
    assert "no blast was on then" in mark("alice", "x").stderr
    assert "(run aaaaaaaaaaaa)" in mark("alice", "y", "--at", "60s ago").stderr
    assert [event.text for event in events()] == ["y"]


def test_a_run_that_is_over_may_still_be_marked_by_name() -> None:
    with Store.open("data/toolkit.db") as store:
        store.end_run("aaaaaaaaaaaa", ended_at=time.time() - 50, client_ok=True)
    assert mark("alice", "x", "--run", "aaaaaaaaaaaa").exit_code == 0
    assert [event.run for event in events()] == ["aaaaaaaaaaaa"]


def test_a_run_that_is_not_there_or_not_begun_is_refused() -> None:
    error = refused("alice", "x", "--run", "bbbbbbbbbbbb")
    assert error.message == "`data/toolkit.db` has no run `bbbbbbbbbbbb`"
    assert "toolkit runs" in error.hint
    error = refused("alice", "x", "--run", "aaaaaaaaaaaa", "--at", "1h ago")
    assert error.message.startswith("the run `aaaaaaaaaaaa` began only at ")
    assert events() == []


def test_an_unknown_host_is_named_with_its_nearest() -> None:
    error = refused("alcie", "x")
    assert error.message == "`data/toolkit.db` knows no host `alcie`"
    assert error.hint == "Did you mean `alice`?"
    assert refused("zzz", "x").hint == (
        "Known hosts: alice, bob. `-` instead of a name marks all of them"
    )
    assert events() == []


def test_of_two_hosts_of_one_name_the_one_in_the_run_is_meant(file: Path) -> None:
    with Store.open(file) as store:
        store.add_sightings([seen(1.0, "alice", "http://elsewhere:1")])
    mark("alice", "x")
    assert [event.url for event in events()] == [ALICE[1]]
    mark("http://elsewhere:1", "y")
    assert [event.url for event in events()] == [ALICE[1], "http://elsewhere:1"]


def test_of_two_hosts_of_one_name_outside_a_run_the_last_met_is_meant(file: Path) -> None:
    with Store.open(file) as store:
        store.end_run("aaaaaaaaaaaa", ended_at=time.time() - 50, client_ok=True)
        store.add_sightings([seen(1.0, "alice", "http://elsewhere:1")])
    mark("alice", "x")
    found = rows(file, "SELECT url FROM events JOIN hosts ON hosts.id = host_id")
    assert found == [("http://elsewhere:1",)]


@pytest.mark.parametrize("words", [(), ("alice",), ("alice", " "), ("--all",), ("-",)])
def test_a_mark_without_words_shows_how_to_write_one(words: tuple[str, ...]) -> None:
    result = mark(*words)
    assert result.exit_code == 2
    assert 'toolkit mark alice "swapped to GPTQ"' in result.stderr
    assert events() == []


def test_a_control_character_is_refused() -> None:
    result = mark("alice", "a\x1b[31mb")
    assert (result.exit_code, events()) == (2, [])
    assert "control character" in result.stderr


def test_a_missing_database_is_not_made() -> None:
    error = refused("alice", "x", "--db", "other.db")
    assert error.message == "`other.db` does not exist"
    assert not Path("other.db").exists()
