"""`toolkit proxy` as a user meets it: what it says, what it keeps, how it ends."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from contract.harness.programs import PATIENCE_S, TOOLKIT, run
from support.proxied import ASKED as TINY
from support.proxy_verb import ask, proxying
from support.sim_fleet import running

from toolkit.store import Store

ASKED = TINY | {"model": "Qwen3.5-35B-A3B"}
"""As the simulator calls its model."""


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """A simulated vLLM."""
    with running({"sim": ("gptq-int4", {"seed": 1, "time_scale": 0.02})}) as hosts:
        yield hosts.split()[1]


def test_it_says_what_it_does_and_counts_when_it_ends(engine: str, tmp_path: Path) -> None:
    with proxying("--upstream", engine, "--log", "requests.jsonl", cwd=tmp_path) as proxy:
        answers = [proxy.ask(ASKED)[1]["cache-status"] for _ in range(3)]
        assert proxy.end(signal.SIGTERM) == 0
    assert ["hit" in answer for answer in answers] == [False, True, True]
    said = "\n".join(proxy.said)
    assert f"in front of {engine}" in said
    assert "Every complete answer is kept for 1 h" in said
    assert "given to every client that asks the same" in said
    assert "everybody may ask" in said
    assert proxy.said[-1].startswith("3 requests in ")
    assert "2 hits (66.7 %)" in proxy.said[-1]
    assert len((tmp_path / "requests.jsonl").read_text().splitlines()) >= 3
    assert (tmp_path / "data" / "proxy-cache.db").stat().st_mode & 0o777 == 0o600


def until(holds: Callable[[], bool]) -> None:
    """Wait for what it does by itself within a second or so; on a busy machine it takes longer."""
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def count(path: Path, table: str) -> int:
    """Rows that are in a database, as anybody sees them; none while it is being made."""
    address = f"file:{path}?mode=ro"
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(address, uri=True)) as file:
        return int(file.execute(f"select count(*) from {table}").fetchone()[0])
    return 0


def test_killed_it_loses_no_answer_but_the_last_moment_s(engine: str, tmp_path: Path) -> None:
    log, cache = tmp_path / "requests.jsonl", tmp_path / "data" / "proxy-cache.db"
    with proxying("--upstream", engine, "--log", "requests.jsonl", cwd=tmp_path) as proxy:
        for seed in range(5):
            assert proxy.ask(ASKED | {"seed": seed})[0] == 200
        until(lambda: count(cache, "answers") == 5 and log.read_text().count("request_id") == 5)
        assert proxy.end(signal.SIGKILL) == -signal.SIGKILL
    with proxying("--upstream", engine, cwd=tmp_path) as proxy:
        told = [proxy.ask(ASKED | {"seed": seed})[1]["cache-status"] for seed in range(5)]
    assert all("; hit" in each for each in told)
    assert sum("request_id" in json.loads(line) for line in log.read_text().splitlines()) == 5


def test_requests_go_into_a_database_where_the_workload_finds_them(
    engine: str, tmp_path: Path
) -> None:
    with proxying(
        "--upstream", engine, "--db", "seen.db", "--no-cache-file", cwd=tmp_path
    ) as proxy:
        for seed in (1, 1, 1, 2):
            proxy.ask(ASKED | {"seed": seed})
        # to make the tables may take longer than a proxy that ends waits for its store
        until(lambda: count(tmp_path / "seen.db", "runs") == 1)
        assert proxy.end() == 0
    with Store.open_readonly(tmp_path / "seen.db") as store:
        (run,) = store.runs()
        seen = list(store.seen(run.id))
    assert run.verb == "proxy"
    assert [each.cache for each in seen] == ["miss", "hit", "hit", "miss"]
    assert len({each.asked.request_key for each in seen if each.asked}) == 2


def test_a_file_names_teams_and_the_environment_their_keys(engine: str, tmp_path: Path) -> None:
    settings = tmp_path / "proxy.toml"
    settings.write_text(
        f'[[upstream]]\nurl = "{engine}"\n[[team]]\nname = "red"\nkey_env = "RED_KEY"\n'
        '[cache]\nfile = "none"\n'
    )
    with proxying("--config", settings, cwd=tmp_path, RED_KEY="sk-1") as proxy:
        assert proxy.ask(ASKED)[0] == 401
        assert proxy.ask(ASKED, authorization="Bearer sk-1")[0] == 200
        assert proxy.get("/metrics")[0] == 404
        status, _, page = proxy.get("/metrics", admin=True)
        assert (status, b'team="red"' in page) == (200, True)
        assert not any("sk-1" in line for line in proxy.said)


def test_keys_in_a_file_that_others_may_read_are_refused(engine: str, tmp_path: Path) -> None:
    keys, settings = tmp_path / "keys", tmp_path / "proxy.toml"
    keys.write_text("red sk-1\n")
    keys.chmod(0o644)
    settings.write_text(
        f'keys_file = "{keys}"\n[[upstream]]\nurl = "{engine}"\n[[team]]\nname = "red"\n'
    )
    ran = run("proxy", "--config", settings, "--check", cwd=tmp_path)
    assert ran.returncode == 1
    assert f"Hint: `chmod 600 {keys}`" in ran.stderr
    keys.chmod(0o600)
    ran = run("proxy", "--config", settings, "--check", cwd=tmp_path)
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (0, "These settings are good")
    assert not (tmp_path / "data").exists(), "--check makes nothing"


@pytest.mark.parametrize(
    ("words", "code", "message", "hint"),
    [
        ((), 1, "no upstream is named", "--upstream URL"),
        (("--upstream", "ftp://x"), 1, "ftp://x", "http://"),
        (("--upstream", "http://u:p@x"), 1, "upstream", ""),
        (("--config", "none.toml"), 1, "`none.toml` cannot be read", "TOML"),
        (("--upstream", "http://x", "--replay", "original"), 2, "`original` is no pace", "instant"),
        (("--upstream", "http://x", "--ttl", "9"), 2, "`9` is no duration", "15m"),
        (
            ("--upstream", "http://x", "--cache-file", "a", "--no-cache-file"),
            2,
            "--no-cache-file does without",
            "",
        ),
    ],
)
def test_a_command_line_that_makes_no_sense_is_told(
    tmp_path: Path, words: tuple[str, ...], code: int, message: str, hint: str
) -> None:
    ran = run("proxy", *words, cwd=tmp_path)
    assert ran.returncode == code
    assert message in ran.stderr
    assert hint in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_port_that_is_taken_is_told(engine: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = run("proxy", "--upstream", engine, "--port", port, "--no-cache-file", cwd=tmp_path)
    assert ran.returncode == 1
    assert f"Error: cannot listen on 127.0.0.1:{port}: " in ran.stderr
    assert "Hint: " in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_clients_port_of_a_host_without_teams_shows_engine_and_cache(
    engine: str, tmp_path: Path
) -> None:
    with proxying("--upstream", engine, "--no-cache-file", cwd=tmp_path) as proxy:
        proxy.ask(ASKED)
        status, _, page = ask(proxy.port, "GET", "/metrics")
    assert status == 200
    assert b"vllm:num_requests_running" in page
    assert b"toolkit_proxy_requests_total" in page


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_signal_ends_it_though_nobody_reads_what_it_says(workers: int, tmp_path: Path) -> None:
    words = f"--upstream http://127.0.0.1:9 --workers {workers} --port 0 --admin-port 0"
    """As behind `2>&1 | head`."""
    process = subprocess.Popen(
        [TOOLKIT, "proxy", *words.split(), "--cache-file", str(tmp_path / "cache.db")],
        cwd=tmp_path,
        env=os.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while not process.stderr.readline().startswith(b"Ready:"):
            assert process.poll() is None
        process.stderr.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(PATIENCE_S)
