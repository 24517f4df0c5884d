"""`toolkit warmup` at the command line: rows, the database's own requests, slips. What it does: tests/contract/serve/test_warmup.py."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.sim_fleet import running

from toolkit.cli import main
from toolkit.protocol.request import asked
from toolkit.records import Run, Seen
from toolkit.store import Store

QUICK = ("--sweep-concurrency", "1,2", "--max-tokens", "2", "--tolerance", "1", "--rounds", "100")
RUN = "a" * 12


@pytest.fixture(scope="module")
def alice() -> Iterator[str]:
    """A warm server."""
    cast: dict[str, Any] = {"alice": ("gptq-int4", {"time_scale": 0.02, "seed": 1})}
    with running(cast) as hosts:
        yield hosts.split()[1]


def warmup(*words: object) -> Result:
    return CliRunner().invoke(main, ["warmup", *map(str, words)])


def test_of_one_host_each_load_is_shown(alice: str) -> None:
    ran = warmup(alice, "--concurrency", "1,3", "--max-tokens", 2, "--structured")
    loads = [line.split("  ")[0] for line in ran.stdout.splitlines()]
    assert {"1", "3", "3 structured"} <= set(loads)
    assert "cold TTFT" in ran.stdout


def capture(path: Path, *, texts: bool) -> None:
    """Of one request, twice."""
    body = {
        "model": "Qwen3.5-35B-A3B", "max_tokens": 7, "temperature": 0,
        "messages": [{"role": "user", "content": "What is the capital of Singapore?"}],
    }  # fmt: skip
    read = asked(json.dumps(body).encode(), path="/v1/chat/completions", keep_text=texts)
    with Store.open(path) as store:
        store.add_run(Run(id=RUN, verb="capture", started_at=1.0))
        store.add_seen(RUN, [Seen(ts=2.0, asked=read), Seen(ts=3.0, asked=read)])


def test_what_clients_were_seen_to_ask_is_asked(alice: str, tmp_path: Path) -> None:
    capture(tmp_path / "t.db", texts=True)
    ran = warmup(alice, *QUICK, "--seen", "--db", tmp_path / "t.db", "--json")
    assert (ran.exit_code, json.loads(ran.stdout)["seeded"]) == (0, 1)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("", f"no chat's text was kept in capture `{RUN}`", "--store-prompts"),
        ("--run bbb", "has no run `bbb`", f"The newest: {RUN} (capture)"),
        ("--run blast", "run `blast` is of `toolkit blast`, not of `capture` or `proxy`", RUN),
    ],
)
def test_a_capture_that_there_is_not_is_told(
    words: str, message: str, hint: str, tmp_path: Path
) -> None:
    capture(tmp_path / "t.db", texts=False)
    with Store.open(tmp_path / "t.db") as store:
        store.add_run(Run(id="blast", verb="blast", started_at=2.0))
    ran = warmup("127.0.0.1:1", "--seen", *words.split(), "--db", tmp_path / "t.db")
    assert ran.exit_code == 1
    error, _, way_out = ran.stderr.partition("\n\nHint: ")
    assert message in error
    assert hint in way_out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("127.0.0.1:1 127.0.0.1:2 --log /dev/null", "one server's"),
        ("h:1 --seen --profile contest", "two sources of prompts"),
        ("h:1 --run aaa", "--run goes with --seen"),
        ("h:1 --sweep-concurrency 0,1", "a level is at least 1"),
    ],
)
def test_a_slip_is_a_wrong_command_line(words: str, message: str) -> None:
    ran = warmup(*words.split())
    assert (ran.exit_code, message in ran.stderr) == (2, True), ran.stderr
