"""Which hosts a verb takes: of files, by URL, by name and by `--only`; no word can mean two things."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.raw_server import serving, vllm_pages

from toolkit.cli import main

HOSTS = """\
alice 10.0.0.4 team=red model=big
bob   10.0.0.5 team=red
carol 10.0.0.6 team=blue model=big
"""


@pytest.fixture(autouse=True)
def in_a_folder_with_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_HOSTS", raising=False)
    Path("hosts.txt").write_text(HOSTS)
    Path("prod").write_text("erin 10.0.0.9\nfrank 10.0.0.10\n")


def blast(*words: str) -> Result:
    return CliRunner().invoke(main, ["blast", "--dry-run", *words])


def picked(*words: str) -> list[str]:
    result = blast(*words, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line)["name"] for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("", "alice bob carol"),
        ("carol alice", "carol alice"),  # in the order of the command line
        ("prod", "erin frank"),  # there is such a file
        ("./hosts.txt prod", "alice bob carol erin frank"),
        ("--hosts prod", "erin frank"),
        ("--hosts prod frank", "frank"),
        ("bob 10.0.0.7", "bob 10.0.0.7:8000"),
        ("--only bob", "bob"),
        ("--only team=red", "alice bob"),
        ("--only team=red --only team=blue", "alice bob carol"),
        ("--only team=red --only model=big", "alice"),
        ("--only team=red --only carol --only bob", "bob"),
        ("alice carol --only team=blue", "carol"),
        ("prod --only erin", "erin"),
    ],
)
def test_who_is_meant(words: str, hosts: str) -> None:
    assert picked(*words.split()) == hosts.split()


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"),
    [
        ("alcie", 1, "`hosts.txt` has no host `alcie`", "Did you mean `alice`?"),
        ("Bob zzz", 1, "`hosts.txt` has no host `Bob` or `zzz`", "Did you mean `bob`?"),
        ("zzz", 1, "`hosts.txt` has no host `zzz`", "There are alice, bob, carol"),
        ("gpu-7.lan", 1, "`hosts.txt` has no host `gpu-7.lan`", "There are alice, bob, carol; an address of that name is written `gpu-7.lan:8000`"),
        ("bob bob", 1, "the name `bob` stands twice", "Keep one of the two"),
        ("--only team=rde", 1, "no host has `team=rde`", "There is team blue, red"),
        ("--only note=x", 1, "no host has `note=x`", "No host says its note"),
        ("--only bbo", 1, "the list has no host `bbo`", "Did you mean `bob`?"),
        (
            "--only team=blue --only bob", 1, "no host is all of `team=blue` and `bob`",
            "Values of one key add hosts, another key takes away: leave one out",
        ),
        ("hosts.txt bob", 2, "`hosts.txt` is a file, which means all hosts in it", "For one of them `--hosts hosts.txt bob`; for all `hosts.txt` alone"),
        ("prod --hosts hosts.txt", 2, "`prod` is a file, which means all hosts in it", "For one of them"),
        ("10.0.0.4 --hosts prod", 2, "--hosts is where names are looked up, and `10.0.0.4` is none; leave --hosts out", ""),
        ("--only colour=red", 2, "--only takes a host's name, or one of `team=`", ""),
        ("--hosts none.txt bob", 1, "`bob` is no file and no URL, and there is no `none.txt` that could list it", "Write a host like `10.0.0.4:8000`"),
        ("http://h:1/v1/chat/completions", 1, "`http://h:1/v1/chat/completions` is the address of a page, not of a server", "Drop the path: `http://h:1`"),
        ("http://h:1/team-a/v1/models", 1, "`http://h:1/team-a/v1/models` is the address", "Drop the path: `http://h:1/team-a`"),
    ],
)  # fmt: skip
def test_what_is_meant_by_nobody_is_one_error_with_the_way_out(
    words: str, code: int, message: str, hint: str
) -> None:
    result = blast(*words.split())
    assert result.exit_code == code
    assert f"Error: {message}" in result.stderr
    assert (f"Hint: {hint}" in result.stderr) == bool(hint), result.stderr


@pytest.mark.parametrize(
    "words",
    [
        "scout --no-store --json",
        "bench --no-store --json --num-prompts 1 --max-tokens 2",
        "warmup --json --sweep-concurrency 1",
        "diagnose --json --interval 100ms",
    ],
)
def test_every_verb_that_asks_hosts_takes_a_name(words: str) -> None:
    with serving(vllm_pages()) as server:
        Path("hosts.txt").write_text(f"alice {server.url}\nbob 127.0.0.1:1\n")
        verb, *options = words.split()
        result = CliRunner().invoke(main, [verb, "alice", *options])
    # none of its pages is a chat
    assert {json.loads(line)["name"] for line in result.stdout.splitlines()} == {"alice"}
    assert server.requests
