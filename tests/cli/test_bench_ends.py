"""How `toolkit bench` ends: by Ctrl-C, with a store that refuses, with a home that nobody may write to."""

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.raw_server import http, serving
from support.screens import heard

from toolkit.cli import main
from toolkit.errors import ToolkitError
from toolkit.records import RequestRecord
from toolkit.sim.app import SimThread, serve_in_thread
from toolkit.store import Store

PROGRAM = [sys.executable, "-c", "from toolkit.cli import main; main()", "bench"]
STOPPED = "Stopped: requests in flight are not counted\n"
ENDLESS = ("--duration", "10m", "--max-concurrency", "2", "--max-tokens", "8")
CARDS = http(json.dumps({"data": [{"id": "tiny"}]}), content_type="application/json")


Start = Callable[..., SimThread]
"""Starts a simulated server; its arguments change what it is."""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLKIT_DB", raising=False)
    monkeypatch.delenv("TOOLKIT_HOSTS", raising=False)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start simulated servers, fifty times as fast as life."""
    with ExitStack() as stack:
        yield lambda name="gptq-int4", **changes: stack.enter_context(
            serve_in_thread(name, **({"time_scale": 0.02} | changes))
        )


@contextmanager
def benching(*words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def interrupted(
    running: subprocess.Popen[str], by: signal.Signals = signal.SIGINT
) -> tuple[list[dict[str, Any]], str]:
    """The first Ctrl-C, and what came then: JSON lines and standard error."""
    running.send_signal(by)
    output, errors = running.communicate(timeout=30)
    assert running.returncode == 130, errors
    return [json.loads(line) for line in output.splitlines()], heard(errors)


def rows(query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect("data/toolkit.db")) as file:
        return file.execute(query).fetchall()


def until(is_so: Callable[[], object]) -> None:
    for _ in range(3_000):
        if is_so():
            return
        time.sleep(0.01)
    pytest.fail("it did not come to that within 30 s")


def stored_shots() -> int:
    try:
        return int(rows("SELECT count(*) FROM shots")[0][0])
    except sqlite3.OperationalError:
        return 0


# --- Ctrl-C ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_and_shows_what_was_measured(start: Start, by: signal.Signals) -> None:
    with benching(start().url, *ENDLESS, "--json") as running:
        until(stored_shots)
        (told,), errors = interrupted(running, by)
    assert errors == STOPPED
    assert told["ok"] > 0
    assert rows("SELECT count(*) FROM shots WHERE kind <> 'warmup'") == [(told["requests"],)]
    ((ended,),) = rows("SELECT ended_at FROM runs")
    assert ended is not None


@pytest.mark.slow
def test_ctrl_c_in_a_sweep_shows_the_levels_that_were_reached(start: Start) -> None:
    # the third level can never be over
    words = ("--sweep-concurrency", "1,2,4", "--num-prompts", "4", "--max-tokens", "8", "--json")
    with serving({"/v1/models": CARDS, "/v1/chat/completions": _hang}) as silent:
        url = start().url
        Path("hosts.txt").write_text(f"quick {url}\nsilent {silent.url}\n")
        with benching("hosts.txt", *words) as running:
            until(lambda: stored_shots() >= 4)
            (quick, _), errors = interrupted(running)
    assert [(step["concurrency"], step["ok"]) for step in quick["levels"]] == [(1, 4)]
    picture = Path("data", f"sweep-{quick['run']}.png")
    assert errors == f"{STOPPED}Picture: {picture}\n"
    assert picture.exists()


@pytest.mark.slow
@pytest.mark.parametrize("asked_for", ["/v1/models", "/v1/chat/completions"])
def test_ctrl_c_while_a_host_hangs_is_a_row_that_says_so(asked_for: str) -> None:
    """Before any request, and before any answer."""
    pages = {"/v1/models": CARDS, "/v1/chat/completions": _hang} | {asked_for: _hang}
    with serving(pages) as server, benching(server.url, "--json") as running:
        until(lambda: asked_for in server.paths())
        (told,), errors = interrupted(running)
    assert errors == STOPPED
    assert (told["requests"], told["ok"]) == (0, 0)
    assert told["error"] == "no request was over when the bench ended"


async def _hang(_: object) -> None:
    await asyncio.Event().wait()


def test_a_second_ctrl_c_ends_it_all(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("toolkit.bench.results.results", impatient)
    result = CliRunner().invoke(main, ["bench", start().url, "--max-tokens", "4"])
    assert result.exit_code == 130
    assert (result.stdout, heard(result.stderr)) == ("", "")


# --- a store that refuses --------------------------------------------------------------------------------


def refusing(monkeypatch: pytest.MonkeyPatch, times: float) -> list[int]:
    """Let the store refuse shots so many times; how many shots each call brought."""
    calls: list[int] = []
    keep = Store.add_shots

    def add_shots(store: Store, shots: Sequence[RequestRecord], *more: Any) -> None:
        calls.append(len(shots))
        if len(calls) <= times:
            raise ToolkitError("`toolkit.db` is locked by another process", "Wait until it is done")
        keep(store, shots, *more)

    monkeypatch.setattr(Store, "add_shots", add_shots)
    return calls


@pytest.mark.slow
def test_a_store_that_is_locked_for_a_while_costs_no_shot(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit.bench.runner.KEEP_EVERY_S", 0.05)
    calls = refusing(monkeypatch, times=2)
    words = ["bench", start().url, "--duration", "2s", "--max-tokens", "4", "--json"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert heard(result.stderr) == (
        "Warning: `toolkit.db` is locked by another process; the bench continues and tries again\n"
    )
    assert len(calls) > 2
    assert rows("SELECT count(*), count(DISTINCT slot) FROM shots") == [
        (json.loads(result.stdout)["requests"],) * 2
    ]


def test_a_store_that_stays_locked_costs_no_figure(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, times=float("inf"))
    result = CliRunner().invoke(main, ["bench", start().url, "--max-tokens", "4", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] == 16
    warning, error, _, hint = heard(result.stderr).splitlines()
    assert warning.startswith(
        "Warning: `toolkit.db` is locked by another process; the bench continues"
    )
    assert error == "Error: `toolkit.db` is locked by another process"
    assert hint == "Hint: Wait until it is done"


# --- closed files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_files_are_no_reason_to_fail(start: Start, closed: str) -> None:
    words = [*PROGRAM, start().url, "--num-prompts", "4", "--max-tokens", "4", "--no-store"]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("4/4" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


# --- a home that nobody may write to ----------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_of_the_users_matplotlib_is_heard_or_harms(start: Start) -> None:
    Path("file").write_text("")
    Path("matplotlibrc").write_text("nonsense.key: 1\nfont.family: Nowhere\n")
    done = subprocess.run(
        [*PROGRAM, start().url, "--sweep-concurrency", "1", "--max-tokens", "4", "--json"],
        env=os.environ | {"HOME": "file/home", "MPLCONFIGDIR": "file/x", "MPLBACKEND": "nope"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"Picture: data/sweep-[0-9a-f]{12}\.png\n", heard(done.stderr))
