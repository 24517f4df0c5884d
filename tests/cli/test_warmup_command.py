"""`toolkit warmup` as a user meets it: rows and reasons, JSON, exit codes, the database's own requests."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.sim_fleet import running

from toolkit.cli import main
from toolkit.records import Run, Seen
from toolkit.request_body import asked
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


def closed() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def warmup(*words: object) -> Result:
    return CliRunner().invoke(main, ["warmup", *map(str, words)])


def objects(ran: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_a_dead_host_is_a_row_with_a_reason_beside_the_ones_that_are_warm(
    fleet: dict[str, str],
) -> None:
    dead = closed()
    ran = warmup(fleet["alice"], dead, *QUICK)
    assert ran.exit_code == 0
    row = next(line for line in ran.stdout.splitlines() if line.startswith(dead))
    assert row.endswith("no connection: connection refused")
    assert "warm after " in ran.stdout
    assert "x  " in ran.stdout, "a ratio"


def test_all_hosts_dead_is_exit_1() -> None:
    ran = warmup(closed(), closed(), *QUICK, "--json")
    assert ran.exit_code == 1
    assert [each["measure"] for each in objects(ran)] == [None, None]


def test_json_has_the_keys_of_the_record(fleet: dict[str, str]) -> None:
    (told,) = objects(warmup(fleet["alice"], *QUICK, "--json", "--structured", "--long"))
    assert told["measure"] == "ttft"
    assert told["cold_ttft_ms"] > 0
    assert told["warm_ttft_ms"] > 0
    assert told["ratio"] == pytest.approx(told["cold_ttft_ms"] / told["warm_ttft_ms"])
    assert {each["kind"] for each in told["levels"]} == {"plain", "structured", "long"}
    assert (told["error"], told["errors"], told["late_compilations"]) == (None, 0, None)
    assert {each["phase"] for each in told["rounds"]} == {"cold", "settle", "probe"}


def test_of_one_host_each_load_is_shown(fleet: dict[str, str]) -> None:
    ran = warmup(fleet["alice"], "--concurrency", "1,3", "--max-tokens", 2, "--structured")
    loads = [line.split("  ")[0] for line in ran.stdout.splitlines()]
    assert {"1", "3", "3 structured"} <= set(loads)
    assert "cold TTFT" in ran.stdout


def test_levels_double_to_max_num_seqs(fleet: dict[str, str]) -> None:
    (told,) = objects(warmup(fleet["alice"], "--max-num-seqs", 6, "--max-tokens", 2, "--json"))
    assert [each["concurrency"] for each in told["levels"]] == [1, 2, 4, 6]


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seen", "--profile", "contest"), "two sources"),
        (("--run", "x"), "goes with --seen"),
        (("--concurrency", "0,1"), "at least 1"),
        (("--limit", "9"), "no duration"),
        (("--log", "no-such-file"), "no-such-file"),
        (("--tolerance", "0"), "0.0"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_told(words: tuple[str, ...], message: str) -> None:
    ran = warmup("127.0.0.1:1", *words)
    assert ran.exit_code == 2
    assert message in ran.stderr


def test_one_log_is_of_one_host(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    ran = warmup("127.0.0.1:1", "127.0.0.1:2", "--log", tmp_path / "log")
    assert (ran.exit_code, "one server's" in ran.stderr) == (2, True)


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    cold: dict[str, Any] = {"cold_s": 30.0, "seed": 1}
    with running({"alice": ("cold", cold | {"time_scale": 0.02})}) as hosts:
        command = [sys.executable, "-c", "from toolkit.cli import main; main()", "warmup"]
        words = [
            hosts.split()[1],
            "--json",
            "--max-tokens",
            "2",
            "--rounds",
            "1000",
            "--tolerance",
            "0.01",
        ]
        with subprocess.Popen(
            [*command, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        ) as process:
            assert process.stderr is not None
            assert "1 at once (cold)" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            said, _ = process.communicate(timeout=60)
            assert time.monotonic() - began < 60
    told = json.loads(said)
    assert process.returncode == 130
    assert told["error"] == "it was stopped"
    assert told["rounds"][0]["phase"] == "cold"
