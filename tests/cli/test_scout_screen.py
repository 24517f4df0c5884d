"""Where `toolkit scout` writes: terminals, pipes, closed and full outputs, alphabets that lack a letter."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from support.raw_server import RawServer, http, serving, vllm_pages
from support.screens import on_a_terminal

from toolkit.cli.scout import LiveTable, page
from toolkit.records import Sighting

PROGRAM = [sys.executable, "-c", "from toolkit.cli import main; main()", "scout"]
EVIL = "m\u00f6del-\U0001f600-\u202e[red]"
SHOWN = "m\u00f6del-\U0001f600-?[red]"
"""Without the mark that turns the direction of writing."""


@pytest.fixture
def vllm() -> Iterator[RawServer]:
    cards = json.dumps({"data": [{"id": EVIL, "owned_by": "vllm", "max_model_len": 512}]})
    with serving(vllm_pages() | {"/v1/models": http(cards)}) as server:
        yield server


def run(*words: str, shell: str = "", **more: object) -> subprocess.CompletedProcess[str]:
    """Run a scout to its end; `shell`: what a shell does before or beside, e.g., `>&-`."""
    more = {"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL} | more
    before, beside = (shell, "") if shell.startswith("ulimit") else ("", shell)
    return subprocess.run(
        ["sh", "-c", f'{before or ":"}; exec "$@" {beside}', "sh", *PROGRAM, *words, "--no-store"],
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        **more,
    )


def shown(*words: str, columns: int = 120, **environment: str) -> str:
    """What a terminal of this size receives."""
    return on_a_terminal([*PROGRAM, *words, "--no-store"], columns=columns, **environment)


def test_a_screen_without_a_letter_shows_another_in_its_place(vllm: RawServer) -> None:
    done = run(vllm.url, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "m?del-?-?[red]" in done.stdout
    assert done.stdout.isascii()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_whole_in_any_alphabet(vllm: RawServer, encoding: str) -> None:
    done = run(vllm.url, "--json", env=os.environ | {"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["model"] == EVIL


@pytest.mark.parametrize("words", [[], ["--json"], ["--watch", "--count", "1"]])
def test_a_closed_output_is_no_error(vllm: RawServer, words: list[str]) -> None:
    done = run(vllm.url, *words, shell=">&-")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [[], ["--json"], ["--watch", "--json"]])
def test_a_full_disk_under_the_output_is_one_clear_error(vllm: RawServer, words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(vllm.url, *words, stdout=full)
    assert (done.returncode, done.stderr) == (
        1, "Error: standard output cannot be written: the disk is full\n",
    )  # fmt: skip


def test_a_closed_input_and_one_that_is_no_text_are_clear_errors() -> None:
    closed = run("-", shell="<&-")
    assert closed.stderr.startswith("Error: standard input is closed\n")
    read, write = os.pipe()
    os.write(write, b"al\xffice http://127.0.0.1:1\n")
    os.close(write)
    odd = run("-", stdin=read)
    os.close(read)
    assert odd.stderr.startswith("Error: `standard input` is not UTF-8 text\n")
    assert (closed.returncode, odd.returncode) == (1, 1)


def test_a_pipe_gets_no_control_codes_though_the_environment_asks_for_colour(
    vllm: RawServer,
) -> None:
    done = run(vllm.url, "--watch", "--count", "1", env=os.environ | {"FORCE_COLOR": "1"})
    assert SHOWN in done.stdout
    assert "\x1b" not in done.stdout


def test_a_terminal_that_cannot_move_its_cursor_gets_table_after_table(vllm: RawServer) -> None:
    seen = shown(
        vllm.url, "--watch", "--count", "3", "--interval", "100ms", TERM="dumb", NO_COLOR="1"
    )
    assert seen.count("Ctrl-C ends") >= 2
    assert "\x1b[" not in seen


@pytest.mark.parametrize("columns", [40, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(vllm: RawServer, columns: int) -> None:
    seen = shown(vllm.url, columns=columns, NO_COLOR="1", TERM="dumb")
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
    lines = text_of(
        sighting("alice", model=path, models=(path,)), sighting("bob", queue_mean_ms=1.0)
    )
    assert {"engine", "model", "queue", "latency"} <= set(lines[0].split())
    # folded, not cut
    assert "".join(lines).count("z") == 150


def test_a_number_no_host_can_mean_takes_no_screen() -> None:
    odd = sighting("alice", running=1e300, requests_total=1e300, queue_mean_ms=1e300)
    assert max(map(len, text_of(odd))) < 200
    assert " 1e+300 " in text_of(odd)[2]
    assert " 1e+297 s " in text_of(odd)[2]  # 1e300 ms


@pytest.mark.parametrize("width", range(60, 220, 7))
def test_the_columns_that_stay_fit_unfolded(width: int) -> None:
    lines = text_of(*(sighting(f"host-{number}", requests_total=5.0) for number in range(3)), width=width)  # fmt: skip
    assert len(lines) == 2 + 3  # title, rule, and one line for each host
    assert max(map(len, lines)) <= width


def test_a_hundred_hosts_at_once_are_drawn_together(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

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


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once_without_a_traceback(second: signal.Signals) -> None:
    async def hang(_: object) -> None:
        import asyncio

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


def test_the_usual_limit_of_open_files_is_lifted(vllm: RawServer, tmp_path: Path) -> None:
    """Forty hosts that close nothing do not fit into 32 open files."""
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("".join(f"{vllm.url}/prefix-{number}\n" for number in range(40)))
    done = run(str(hosts), "--json", "--timeout", "30s", shell="ulimit -S -n 32")
    errors = [json.loads(line)["error"] for line in done.stdout.splitlines()]
    assert len(errors) == 40
    assert not [error for error in errors if error and "open files" in error]
