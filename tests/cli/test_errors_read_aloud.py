"""Slips that everybody makes once, provoked: what is told says what, on which thing, and the way out, in the same words everywhere."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.blasted import blasted

from toolkit.cli import main
from toolkit.store import Store


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TOOLKIT_DB", "TOOLKIT_HOSTS"):
        monkeypatch.delenv(name, raising=False)


def told(line: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, line.split())
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    "line",
    [
        "scout no.txt",
        "bench no.txt",
        "workload --from no.jsonl",
        "capture no.pcap",
        "serve no.toml",
        "deploy nginx no.toml --out o",
        "proxy --config no.toml",
        "sweep no.toml",
        "blast no.txt --dry-run",
        "plan qwen2.5-7b --gpu l4 --workload no.json",
    ],
)
def test_a_file_that_is_not_there_is_told_in_the_same_words_with_a_way_out(line: str) -> None:
    code, text = told(line)
    assert code == 1
    missing = next(word for word in line.split() if word.startswith("no."))
    assert f"Error: `{missing}` cannot be read: no such file or directory\n\nHint: " in text


NAMES = {
    "mark nobody hello": "`nobody`",
    "serve status": "`data/serve`",
    "serve --preset nope --check": "`nope`",
    "serve --sim nope --check": "`nope`",
    "impact --run zzz --host memory": "`zzz`",
    "plan nomodel --gpu l4": "`nomodel`",
    "compare zzz zzz": "`zzz`",
}
"""What a message must name, where that is not the last word of the line."""


@pytest.mark.parametrize(
    "line",
    [
        *("board --run zzz", "report zzz", "runs export zzz", "compare zzz zzz"),
        *("mark nobody hello", "scout --history nobody", "impact --host nobody"),
        *("sweep --show zzz", "plan qwen2.5-7b --gpu l4 --run zzz", "diagnose zzz"),
        *("plan nomodel --gpu l4", "plan qwen2.5-7b --gpu l99", "serve --preset nope --check"),
        *("bench 127.0.0.1:9 --profile nope", "sim serve --personality nope", "serve status"),
        *("sim serve --set foo=1", "capture --iface nope0"),
        *("serve --sim nope --check", "impact --run zzz --host memory"),
        *("scout ftp://x", "watchdog --url ftp://x", "warmup ftp://x"),
    ],
)
def test_a_name_that_nobody_has_is_told_with_those_that_there_are(
    line: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    blasted(tmp_path / "data" / "toolkit.db", hosts=2, seconds=5)
    code, text = told(line)
    assert code == 1, text
    error, _, hint = text[text.index("Error: ") :].partition("\n\nHint: ")
    assert hint.strip()
    assert not error.rstrip().endswith(".")
    assert error.count(NAMES.get(line, line.rsplit(maxsplit=1)[-1])) == 1, (
        "told once, and told at all"
    )


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("becnh", "`bench`"),
        ("scuot hosts.txt", "`scout`"),
        ("run", "`runs`"),
        ("dpeloy", "`deploy`"),
    ],
)
def test_a_verb_that_is_spelt_wrong_gets_the_one_that_was_meant(line: str, meant: str) -> None:
    code, text = told(line)
    assert code == 2
    assert "did you mean" in text
    assert meant in text


def test_a_verb_that_is_like_no_other_is_clicks_to_refuse() -> None:
    code, text = told("xyzzy")
    assert code == 2
    assert "No such command 'xyzzy'" in text


def test_a_verb_that_is_interrupted_says_no_more_and_exits_as_shells_expect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    blasted(tmp_path / "t.db", hosts=1, seconds=1)
    monkeypatch.setattr(Store, "runs", interrupted)
    assert told("runs --db t.db") == (130, "\n")


def test_a_hint_is_a_command_that_means_the_same_database(tmp_path: Path) -> None:
    blasted(tmp_path / "my runs.db", hosts=2, seconds=5)
    database = "my runs.db"
    result = CliRunner().invoke(main, ["report", "zzz", "--db", database])
    hint = result.stderr.partition("Hint: ")[2]
    typed = shlex.split(hint.split("`")[1])
    assert typed == ["toolkit", "runs", "--db", database]
    assert CliRunner().invoke(main, typed[1:]).exit_code == 0


def test_a_run_compared_with_itself_is_told_which_two_hosts_can_be(tmp_path: Path) -> None:
    run = blasted(tmp_path / "t.db", hosts=3, seconds=5).id
    code, text = told(f"compare {run} {run} --db t.db")
    assert code == 1
    typed = text.partition("Hint: ")[2].split("`")[1]
    assert typed == f"toolkit compare {run}:memory {run}:one-token --db t.db"
    assert told(typed.removeprefix("toolkit "))[0] == 0


def test_a_file_without_a_certificate_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    code, text = told("scout 127.0.0.1:9 --ca ca.pem")
    assert (code, text.split("\n")[0]) == (
        1,
        "Error: `ca.pem` cannot be used: it holds no certificate",
    )


def test_the_lever_that_a_broken_sweeps_hint_shows_is_one(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("x = [")
    shown = told("sweep mine.toml")[1].partition("Hint: ")[2].split("`")[1::2]
    text = '[base]\nsim = "fp8"\n' + "\n".join(
        word for word in shown if word[0] == "[" or "=" in word
    )
    (tmp_path / "mine.toml").write_text(text)
    assert told("sweep mine.toml --sim --dry-run")[0] == 0


def test_an_address_that_is_none_is_told_how_to_write_one_wherever_it_stands() -> None:
    for line in ("proxy --upstream ftp://x --check", "scout ftp://x"):
        code, text = told(line)
        assert (code, text.count("Hint: Write it like `http://10.0.0.4:8000`")) == (1, 1), line
