"""Which hosts a verb takes: of files, by URL, by name and by `--only`; no word can mean two things."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.raw_server import serving, vllm_pages

from toolkit.cli import main
from toolkit.cli.inputs import host_from, hosts_from
from toolkit.errors import ToolkitError
from toolkit.records import Host

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
        ("zzz", 1, "`hosts.txt` has no host `zzz`", "There are alice, bob and carol"),
        ("gpu-7.lan", 1, "`hosts.txt` has no host `gpu-7.lan`", "There are alice, bob and carol; an address of that name is written `gpu-7.lan:8000`"),
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
        ("http://h:1/metrics", 1, "`http://h:1/metrics` is the address", "Drop the path: `http://h:1`"),
        ("--hosts none.txt 10.0.0.4", 1, "`none.txt` cannot be read: no such file", "Put one host per line"),
        ("nowhere/hosts.txt", 1, "`nowhere/hosts.txt` cannot be read: no such file", "Put one host per line"),
        ("n" * 5_000, 1, f"`hosts.txt` has no host `{'n' * 5_000}`", "There are alice, bob and carol"),
    ],
)  # fmt: skip
def test_what_is_meant_by_nobody_is_one_error_with_the_way_out(
    words: str, code: int, message: str, hint: str
) -> None:
    result = blast(*words.split())
    assert result.exit_code == code
    assert f"Error: {message}" in result.stderr
    assert (f"Hint: {hint}" in result.stderr) == bool(hint), result.stderr


SECURE = Host(
    name="10.0.0.4:8443", url="https://10.0.0.4:8443", team="red", model="big", api_key_env="K"
)
"""Of a line without a name."""


@pytest.mark.parametrize(("words", "file"), [(["10.0.0.4:8443"], None), ([SECURE.name], "prod")])
def test_an_address_that_is_a_listed_name_is_that_host(words: list[str], file: str | None) -> None:
    Path(file or "hosts.txt").write_text(
        "https://10.0.0.4:8443 team=red model=big api_key_env=K\nbob 10.0.0.5\n"
    )
    assert hosts_from(words, file) == [SECURE]
    assert hosts_from([*words, "bob"], file)[0] == SECURE


@pytest.mark.parametrize(("option", "listed"), [("", "hosts.txt"), ("--hosts prod ", "prod")])
def test_a_file_and_a_listed_host_of_one_name_are_told_apart(option: str, listed: str) -> None:
    Path(listed).write_text(HOSTS)
    Path("alice").write_text("erin 10.0.0.9\n")
    result = blast(*option.split(), "alice")
    assert result.exit_code == 2
    assert f"Error: `alice` is a file and also a host in `{listed}`" in result.stderr
    assert f"Hint: `./alice` for the file, `{option}--only alice` for the host" in result.stderr
    # and both do what the hint says
    assert picked("./alice") == ["erin"]
    assert picked(*option.split(), "--only", "alice") == ["alice"]


@pytest.mark.parametrize("content", [None, "a b c\n"])
@pytest.mark.parametrize("word", ["10.0.0.7", "http://h:1", "prod", "./prod"])
def test_no_list_and_a_bad_one_keep_nobody_from_addresses_and_files(
    word: str, content: str | None
) -> None:
    Path("hosts.txt").unlink()
    if content:
        Path("hosts.txt").write_text(content)
    assert picked(word)
    Path("prod").write_text("erin 10.0.0.9\n")
    assert host_from(word)


@pytest.mark.parametrize(
    ("word", "url"),
    [
        ("alice", "http://10.0.0.4:8000"),
        ("10.0.0.7:1", "http://10.0.0.7:1"),
        ("127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("gpu1", "http://gpu1:8000"),  # neither listed nor a file
        ("gpu.example.com", "http://gpu.example.com:8000"),
        ("one", "http://10.0.0.11:8000"),  # a file
        ("./one", "http://10.0.0.11:8000"),
    ],
)
def test_one_host_is_a_listed_name_else_a_file_else_an_address(word: str, url: str) -> None:
    Path("one").write_text("grace 10.0.0.11\n")
    assert host_from(word).url == url


def test_a_name_is_no_address_where_its_list_is_bad() -> None:
    Path("hosts.txt").write_text("alice 10.0.0.4\na b c\n")
    with pytest.raises(ToolkitError, match=r"`hosts\.txt` line 2"):
        host_from("alice")


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
