"""`toolkit warmup` as a user meets it: rows and reasons, JSON, exit codes, the database's own requests."""

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

QUICK = ("--concurrency", "1,2", "--max-tokens", "2", "--tolerance", "1", "--rounds", "100")


@pytest.fixture(scope="module")
def fleet() -> Iterator[dict[str, str]]:
    """A warm server, and one that answers each repeated request from memory."""
    cast: dict[str, Any] = {
        "alice": ("gptq-int4", {"time_scale": 0.02, "seed": 1}),
        "bob": ("cached", {"time_scale": 0.02, "seed": 2}),
    }
    with running(cast) as hosts:
        yield dict(line.split()[:2] for line in hosts.splitlines())


def warmup(*words: object) -> Result:
    return CliRunner().invoke(main, ["warmup", *map(str, words)])


def objects(ran: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_of_one_host_each_load_is_shown(fleet: dict[str, str]) -> None:
    ran = warmup(fleet["alice"], "--concurrency", "1,3", "--max-tokens", 2, "--structured")
    loads = [line.split("  ")[0] for line in ran.stdout.splitlines()]
    assert {"1", "3", "3 structured"} <= set(loads)
    assert "cold TTFT" in ran.stdout


def test_a_warmed_response_cache_answers_the_blasts_first_request(fleet: dict[str, str]) -> None:
    ran = warmup(fleet["bob"], *QUICK, "--profile", "contest", "--json")
    assert objects(ran)[0]["seeded"] == 4
    # what the engine behind it said so far; a hit asks it nothing
    before = generated(fleet["bob"])
    body = {
        "model": "Qwen3.5-35B-A3B",
        "messages": [{"role": "user", "content": "What is the capital of Singapore?"}],
        "max_tokens": 256,
    }
    post(f"{fleet['bob']}/v1/chat/completions", body)
    assert generated(fleet["bob"]) == before


def generated(url: str) -> float:
    import urllib.request

    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("vllm:generation_tokens_total{")
    )


def post(url: str, body: dict[str, Any]) -> None:
    import urllib.request

    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def stored(path: Path, *, texts: bool) -> None:
    """A capture of one request, twice."""
    body = {
        "model": "Qwen3.5-35B-A3B",
        "messages": [{"role": "user", "content": "What is the capital of Singapore?"}],
        "max_tokens": 7,
        "temperature": 0,
    }
    read = asked(json.dumps(body).encode(), path="/v1/chat/completions", keep_text=texts)
    with Store.open(path) as store:
        store.add_run(Run(id="a" * 12, verb="capture", started_at=1.0))
        store.add_seen("a" * 12, [Seen(ts=2.0, asked=read), Seen(ts=3.0, asked=read)])


def test_what_clients_were_seen_to_ask_is_asked(fleet: dict[str, str], tmp_path: Path) -> None:
    stored(tmp_path / "t.db", texts=True)
    ran = warmup(fleet["alice"], *QUICK, "--seen", "--db", tmp_path / "t.db", "--json")
    assert (ran.exit_code, objects(ran)[0]["seeded"]) == (0, 1)


def test_a_capture_without_texts_is_told(fleet: dict[str, str], tmp_path: Path) -> None:
    stored(tmp_path / "t.db", texts=False)
    ran = warmup(fleet["alice"], "--seen", "--db", tmp_path / "t.db")
    assert ran.exit_code == 1
    assert "no chat's text was kept" in ran.stderr
    assert "--store-prompts" in ran.stderr
    ran = warmup(fleet["alice"], "--seen", "--run", "b" * 12, "--db", tmp_path / "t.db")
    assert (ran.exit_code, "a" * 12 in ran.stderr) == (1, True)


def test_one_log_is_of_one_host(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    ran = warmup("127.0.0.1:1", "127.0.0.1:2", "--log", tmp_path / "log")
    assert (ran.exit_code, "one server's" in ran.stderr) == (2, True)
