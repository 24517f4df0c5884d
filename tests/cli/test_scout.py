"""`toolkit scout` at the command line: what it prints and keeps, and where it writes: terminals, pipes, closed and full outputs.

tests/contract/scout has rates, history, and hosts of every kind; tests/contract/commandline exit codes and Ctrl-C.
"""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from support.raw_server import RawServer, http, recorded, serving, vllm_pages
from support.screens import on_a_terminal

from toolkit.cli import main, waiting
from toolkit.cli.scout import LiveTable, page
from toolkit.records import Sighting

PROGRAM = [sys.executable, "-c", "from toolkit.cli import main; main()", "scout"]
DEAD = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TOOLKIT_DB", "TOOLKIT_HOSTS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def vllm() -> Iterator[RawServer]:
    with serving(vllm_pages()) as server:
        yield server


def scout(*words: str, **more: str) -> Result:
    return CliRunner().invoke(main, ["scout", *words], catch_exceptions=False, **more)


def objects(result: Result) -> list[dict]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# --- what it prints and keeps -----------------------------------------------------------------------------


def test_the_table_names_every_host_and_every_reason(vllm: RawServer) -> None:
    Path("hosts.txt").write_text(f"alice {vllm.url}\nbob {DEAD}\n")
    result = scout()  # hosts.txt is the default
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == (
        "host status engine model max length KV tokens GPU mem cache dtype prefix cache KV used running waiting"
        " prefix hits TTFT p50 TTFT p95 queue requests latency"
    ).split()  # fmt: skip
    alice = next(line for line in lines if line.startswith("alice"))
    cells = ("ok", "vllm 0.32.0", "tiny", "512", "2,097,152", "0.92", "auto", "on", "0%", "6%", "380 ms", "2,370 ms", "567 ms", "1,022")  # fmt: skip
    assert [cell for cell in cells if cell not in alice] == []
    assert "down  bob: connection refused: nothing listens there, or vLLM is still loading" in lines
    assert "\x1b" not in result.stdout


def test_json_is_in_the_files_order_and_what_is_unknown_is_null(vllm: RawServer) -> None:
    Path("hosts.txt").write_text(f"bob {DEAD}\nalice {vllm.url}\n")
    bob, alice = objects(scout("hosts.txt", "--json"))  # though the dead one is done first
    assert (bob["name"], alice["name"]) == ("bob", "alice")
    assert list(alice) == list(bob)
    assert (alice["requests_total"], alice["findings"][0]["code"]) == (1022, "metrics_open")
    known = {key for key, value in bob.items() if value is not None}
    assert known == {"name", "url", "at", "status", "error", "models", "findings"}


def test_hosts_come_from_standard_input_and_from_the_environment(
    vllm: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert objects(scout("-", "--json", input=f"alice {vllm.url}\n"))[0]["name"] == "alice"
    Path("cast.txt").write_text(f"carol {vllm.url}\n")
    monkeypatch.setenv("TOOLKIT_HOSTS", "cast.txt")
    assert objects(scout("--json"))[0]["name"] == "carol"


def test_sightings_and_raw_numbers_are_stored_unless_nothing_shall_be(vllm: RawServer) -> None:
    scout(vllm.url, "--no-store")
    assert list(Path().iterdir()) == []
    scout(vllm.url)
    with closing(sqlite3.connect("data/toolkit.db")) as db:
        (seen,) = db.execute("SELECT status, requests_total FROM sightings")
        stored = dict(db.execute(
            "SELECT series.name, sum(value) FROM readings JOIN series ON series.id = series_id GROUP BY 1"
        ))  # fmt: skip
    assert seen == ("ok", 1022.0)
    assert stored["vllm:prompt_tokens_total"] == 98917.0
    assert stored["vllm:iteration_tokens_total_sum"] == 201779.0


def test_changes_are_told_at_the_next_command_though_one_between_was_cut_short(
    vllm: RawServer,
) -> None:
    scout(vllm.url)
    vllm.pages["/metrics"] = http(status="503 Service Unavailable")
    assert scout(vllm.url).exit_code == 0
    changed = recorded("metrics_after_load.txt").replace(b"1.79520096311e+09", b"1.7952009999e+09")
    vllm.pages["/metrics"] = http(changed.replace(b'cache_dtype="auto"', b'cache_dtype="fp8"'))
    found = [(f["code"], f["text"]) for f in objects(scout(vllm.url, "--json"))[0]["findings"]]
    assert found[:2] == [
        ("restarted", "restarted at 2026-11-20 18:56:39 UTC: its counters began anew"),
        ("config_changed", "cache_dtype auto -> fp8"),
    ]


def test_history_contacts_nobody_and_names_those_that_there_are(vllm: RawServer) -> None:
    Path("hosts.txt").write_text(f"alice {vllm.url}\n")
    scout()
    vllm.pages["/version"] = http(b'{"version":"0.33.0"}')
    scout()
    asked = len(vllm.requests)
    first, second = scout("--history", "alice").stdout.splitlines()[2:]
    assert ("first seen" in first, "version 0.32.0 -> 0.33.0" in second) == (True, True)
    assert [line["version"] for line in objects(scout("--history", "alice", "--json"))] == [
        "0.32.0", "0.33.0",
    ]  # fmt: skip
    assert len(vllm.requests) == asked
    assert scout("--history", "alicia").stderr == (
        "Error: `data/toolkit.db` has no sighting of `alicia`\n\nHint: Known hosts: alice\n"
    )


def test_the_key_opens_what_is_closed_and_appears_nowhere(
    vllm: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALICE_KEY", "s3cret-k3y")
    vllm.pages["/v1/models"] = http(b'{"error":"Unauthorized"}', "401 Unauthorized")
    Path("hosts.txt").write_text(f"alice {vllm.url} api_key_env=ALICE_KEY\n")
    result = scout("--json", "-v")
    sent = [headers.get("authorization") for _, path, headers in vllm.requests if path == "/v1/models"]  # fmt: skip
    assert sent == [None, "Bearer s3cret-k3y"]
    assert "s3cret" not in result.output
    stored = Path("data/toolkit.db").read_bytes()
    assert b"s3cret" not in stored
    assert b"ALICE_KEY" not in stored


ONE_A_LINE = "Put one host per line, e.g., `alice http://10.0.0.4:8000 team=red`"


@pytest.mark.parametrize(
    ("words", "stdin", "env", "error", "hint"),
    [
        ("-", "", {}, "`standard input` names no host", ONE_A_LINE),
        (
            "-", "alice http://h:1 api_key_env=NO_SUCH", {},
            "`NO_SUCH` is not set, which holds the key of host `alice`",
            "Set it, e.g., `export NO_SUCH=...`, or take `api_key_env=` out of the line",
        ),
        (
            "-", "alice http://h:1 api_key_env=ODD", {"ODD": "a b\nc"},
            "`ODD` holds characters that no HTTP header may carry", "Was it pasted whole?",
        ),
        (
            "http://h:1 http://h:1/v1", "", {}, "the name `h:1` stands twice",
            "Keep one of the two",
        ),
        (
            "h:1 --ca no.pem", "", {}, "`no.pem` cannot be used: no such file or directory",
            "Give a file of PEM certificates, e.g., `--ca company-ca.pem`",
        ),
    ],
)  # fmt: skip
def test_bad_input_gets_one_clear_error_and_a_hint(
    words: str, stdin: str, env: dict[str, str], error: str, hint: str
) -> None:
    result = scout(*words.split(), input=stdin, env=env)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {error}\n\nHint: {hint}\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("h:1 --timeout 5", "`5` is no duration; write e.g. `500ms`, `90s`, `15m` or `2h`"),
        ("h:1 --count 3", "--count goes with --watch"),
    ],
)
def test_a_wrong_command_line_is_exit_two(words: str, reason: str) -> None:
    result = scout(*words.split())
    assert result.exit_code == 2
    assert reason in result.stderr


# --- outputs ----------------------------------------------------------------------------------------------


def run(*words: str, shell: str = "", **more: object) -> subprocess.CompletedProcess[str]:
    """Run a scout to its end; `shell`: what a shell does before or beside, e.g., `>&-`."""
    more = {"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL} | more
    before, beside = (shell, "") if shell.startswith("ulimit") else (":", shell)
    return subprocess.run(
        ["sh", "-c", f'{before}; exec "$@" {beside}', "sh", *PROGRAM, *words, "--no-store"],
        stderr=subprocess.PIPE, text=True, encoding="utf-8", timeout=60, check=False, **more,
    )  # fmt: skip


@pytest.mark.parametrize("words", [[], ["--json"], ["--watch", "--count", "1"]])
def test_a_closed_output_is_no_error(vllm: RawServer, words: list[str]) -> None:
    done = run(vllm.url, *words, shell=">&-")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [[], ["--watch", "--json"]])
def test_a_full_disk_under_the_output_is_one_clear_error(vllm: RawServer, words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(vllm.url, *words, stdout=full)
    assert (done.returncode, done.stderr) == (
        1, "Error: standard output cannot be written: the disk is full\n",
    )  # fmt: skip


def test_a_closed_input_and_one_that_is_no_text_are_clear_errors() -> None:
    closed = run("-", shell="<&-")
    assert closed.stderr.startswith("Error: standard input is closed\n")
    Path("odd.txt").write_bytes(b"al\xffice http://127.0.0.1:1\n")
    odd = run("odd.txt")
    assert odd.stderr.startswith("Error: `odd.txt` is not UTF-8 text\n")
    assert (closed.returncode, odd.returncode) == (1, 1)


def test_a_reader_that_goes_away_ends_the_watch_without_a_traceback(vllm: RawServer) -> None:
    words = [vllm.url, "--watch", "--interval", "50ms", "--json", "--no-store"]
    with subprocess.Popen(
        [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert json.loads(running.stdout.readline())["status"] == "ok"
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait(timeout=20) == 1


def test_a_watch_says_nothing_beside_its_objects(
    vllm: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LONG_S", 0.0)
    result = scout(vllm.url, "--watch", "--interval", "50ms", "--count", "3", "--json")
    assert (result.stdout.count("\n"), result.stderr) == (3, "")


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once_without_a_traceback(second: signal.Signals) -> None:
    async def hang(_: object) -> None:
        await asyncio.sleep(30)

    with serving(vllm_pages()) as kind, serving(dict.fromkeys(vllm_pages(), hang)) as slow:
        words = [kind.url, slow.url, "--watch", "--json", "--timeout", "30s", "--no-store"]
        with subprocess.Popen(
            [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            running.stdout.readline()  # under way
            running.send_signal(signal.SIGINT)
            running.send_signal(second)
            _, errors = running.communicate(timeout=20)
    assert "Traceback" not in errors


def test_the_usual_limit_of_open_files_is_lifted(vllm: RawServer) -> None:
    """Forty hosts that close nothing do not fit into 32 open files."""
    Path("hosts.txt").write_text("".join(f"{vllm.url}/prefix-{number}\n" for number in range(40)))
    done = run("hosts.txt", "--json", "--timeout", "30s", shell="ulimit -S -n 32")
    errors = [json.loads(line)["error"] for line in done.stdout.splitlines()]
    assert len(errors) == 40
    assert not [error for error in errors if error and "open files" in error]


# --- screens ----------------------------------------------------------------------------------------------


def shown(*words: str, columns: int = 120) -> str:
    """What a terminal of this size receives that cannot move its cursor."""
    words = (*PROGRAM, *words, "--no-store")
    return on_a_terminal(list(words), columns=columns, TERM="dumb", NO_COLOR="1")


def test_a_terminal_that_cannot_move_its_cursor_gets_table_after_table(vllm: RawServer) -> None:
    seen = shown(vllm.url, "--watch", "--count", "3", "--interval", "100ms")
    assert seen.count("Ctrl-C ends") >= 2
    assert "\x1b[" not in seen


@pytest.mark.parametrize("columns", [40, 120])
def test_no_line_is_wider_than_the_terminal(vllm: RawServer, columns: int) -> None:
    seen = shown(vllm.url, columns=columns)
    assert max(len(line.rstrip("\r")) for line in seen.splitlines()) <= columns
    assert vllm.url.removeprefix("http://") in seen


def sighting(name: str, **more: object) -> Sighting:
    return Sighting(name=name, url="http://h:1", at=1.0, status="ok", engine="vllm", **more)


def text_of(*sightings: Sighting, width: int = 200) -> list[str]:
    console = Console(width=width, color_system=None, force_terminal=False, highlight=False)
    with console.capture() as captured:
        console.print(page(sightings, console))
    return captured.get().splitlines()


def test_one_hosts_long_model_path_costs_nobody_a_column() -> None:
    path = "/mnt/models/" + "z" * 150
    alice, bob = sighting("alice", model=path, models=(path,)), sighting("bob", queue_mean_ms=1.0)
    lines = text_of(alice, bob)
    head = " ".join(lines[: next(at for at, line in enumerate(lines) if line.startswith("─"))])
    assert {"engine", "model", "queue", "latency"} <= set(head.split())
    assert "".join(lines).count("z") == 150  # folded, not cut


def test_a_number_no_host_can_mean_takes_no_screen() -> None:
    odd = sighting("alice", running=1e300, requests_total=1e300, queue_mean_ms=1e300)
    assert max(map(len, text_of(odd))) < 200
    assert " 1e+300 " in text_of(odd)[2]
    assert " 1e+297 s " in text_of(odd)[2]  # 1e300 ms


@pytest.mark.parametrize("width", range(60, 220, 20))
def test_a_row_is_a_line_at_any_width(width: int) -> None:
    lines = text_of(*(sighting(f"host-{n}", requests_total=5.0) for n in range(3)), width=width)
    assert [sum(line.startswith(f"host-{n} ") for line in lines) for n in range(3)] == [1, 1, 1]
    rule = next(at for at, line in enumerate(lines) if line.startswith("─"))
    below = "".join(lines[rule + 4 :])
    assert below.startswith("Not shown: ") or not below
    assert max(map(len, lines[: rule + 4])) <= width


def test_a_hundred_hosts_at_once_are_drawn_together(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    async def run() -> None:
        rest_drawn = asyncio.Event()
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr("toolkit.report.tables.screen", lambda: Console(force_terminal=True))

        def count(sightings: list[Sighting], console: Console) -> object:
            drawn.append(len(sightings))
            if len(drawn) == 2:
                rest_drawn.set()
            return page(sightings, console)

        monkeypatch.setattr("toolkit.cli.scout.page", count)
        seen: list[Sighting] = []
        with LiveTable(2.0) as table:
            for number in range(100):
                seen.append(sighting(f"host-{number}"))
                table.show(tuple(seen))
                await asyncio.sleep(0)
            await asyncio.wait_for(rest_drawn.wait(), timeout=30)

    asyncio.run(run())
    # the first, the rest, and the last picture that stays
    assert len(drawn) == 3
    assert drawn[1:] == [100, 100]
