"""`toolkit sim` as a user meets it: in processes of its own where signals and pipes matter. What it answers: tests/contract/sim."""

import asyncio
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from toolkit.cli import main
from toolkit.cli.sim import _serve
from toolkit.hosts import read_hosts
from toolkit.sim.app import Fleet, SimServer
from toolkit.sim.presets import setups_for

TOOLKIT = [str(Path(sys.executable).with_name("toolkit"))]
WAIT_S = 60


def run(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["sim", *words], env=environment or None)


@contextmanager
def started(*words: str) -> Iterator["subprocess.Popen[str]"]:
    """A `toolkit sim` of its own, killed at the end if it should still run."""
    process = subprocess.Popen(
        [*TOOLKIT, "sim", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def models(url: str) -> dict[str, str]:
    """The first entry of what it serves; nothing while it refuses connections."""
    try:
        answer = httpx.get(f"{url}/v1/models", timeout=WAIT_S, trust_env=False)
    except httpx.TransportError:
        return {}
    return dict(answer.json()["data"][0])


def test_list_names_the_whole_cast_and_what_each_does() -> None:
    cast = [json.loads(line) for line in run("list", "--json").stdout.splitlines()]
    assert [each["name"] for each in cast] == (
        "fp8 awq gptq-int4 cached first-token switcher cold flaky drip"
        " kv_starved seq_limited long_prefill no_prefix_cache prefix_evicted slow_decode cpu_bound"
    ).split()
    table = run("list").stdout
    assert all(each["name"] in table and each["summary"] in table for each in cast)


# --- one ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_its_url_when_it_listens_and_stops_cleanly(number: int) -> None:
    with started("serve", "--port", "0", "--personality", "awq") as process:
        assert process.stdout
        assert process.stderr
        assert models(process.stdout.readline().strip())
        process.send_signal(number)
        assert process.wait(WAIT_S) == 0
        assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_serve_stops_by_itself_takes_settings_and_never_prints_its_key() -> None:
    words = ("--set", "num_gpu_blocks=64", "--set", "model=x", "--api-key-env", "SIM_KEY")
    result = run("serve", "--port", "0", "--for", "10ms", *words, SIM_KEY="s3cret")
    assert result.exit_code == 0
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+\n", result.stdout)
    assert "s3cret" not in result.output


def test_serve_that_is_stopped_while_it_starts_prints_nothing() -> None:
    result = run("serve", "--port", "0", "--startup", "1m", "--for", "10ms")
    assert (result.exit_code, result.stdout) == (0, "")


# --- a fleet --------------------------------------------------------------------------------------------


def test_a_fleet_prints_a_hosts_file_and_serves_it() -> None:
    with started("fleet", "alice=cached", "awq", "--model", "tiny") as process:
        assert process.stdout
        hosts = read_hosts(process.stdout.readline() + process.stdout.readline(), "stdout")
        assert [(host.name, models(host.url)["id"]) for host in hosts] == [
            ("alice", "tiny"), ("awq", "tiny"),
        ]  # fmt: skip
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_a_guarded_fleet_names_the_keys_variable_in_its_hosts_file() -> None:
    result = run("fleet", "awq", "--for", "10ms", "--api-key-env", "SIM_KEY", SIM_KEY="s3cret")
    assert [host.api_key_env for host in read_hosts(result.stdout, "stdout")] == ["SIM_KEY"]


def test_a_fleet_writes_its_hosts_file_whole_and_into_what_stands_for_something_else(
    tmp_path: Path,
) -> None:
    # as `/dev/stdout` and `/dev/null`, of which root would have nothing left
    out, pipe, link, target = (tmp_path / name for name in ("hosts.txt", "pipe", "link", "target"))
    os.mkfifo(pipe)
    link.symlink_to(target)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        for file in (out, pipe, link):
            result = run("fleet", "awq", "--out", str(file), "--for", "10ms")
            assert (result.exit_code, result.stdout) == (0, "")
        assert os.read(reader, 1000).startswith(b"awq http://")
    finally:
        os.close(reader)
    assert (pipe.is_fifo(), link.is_symlink()) == (True, True)
    assert [read_hosts(file.read_text(), "out")[0].name for file in (out, target)] == ["awq"] * 2
    assert {file.name for file in tmp_path.iterdir()} == {"hosts.txt", "pipe", "link", "target"}


def test_a_fleet_that_is_still_starting_ends_at_a_signal() -> None:
    async def scene() -> list[str]:
        published: list[str] = []
        fleet = Fleet(setups_for(["awq"], startup_s=3600))
        serving = asyncio.create_task(
            _serve(fleet, asyncio.Event().wait, lambda: published.append("hosts"), None)
        )
        await asyncio.sleep(0)  # its first step takes the signals
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(serving, WAIT_S)
        return published

    assert asyncio.run(scene()) == []


def test_a_signal_lets_the_switcher_fall_and_come_back_as_another_and_spares_the_rest() -> None:
    # down for 2 s of ours: a machine that stood still for a fifth of a second missed a shorter fall
    settings = ("--time-scale", "0.01", "--set", "down_after_s=none", "--set", "down_for_s=200")
    with started("fleet", "a=switcher", "b=awq", *settings) as process:
        assert process.stdout
        a, b = (process.stdout.readline().split()[1] for _ in range(2))
        before, was_down = models(b)["root"], False
        process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + WAIT_S
        while not (was_down and models(a)) and time.monotonic() < end:
            was_down = was_down or not models(a)
            assert models(b)["root"] == before
        assert was_down
        assert (before, models(a)["root"]) == (
            "QuantTrio/Qwen3.5-35B-A3B-AWQ", "Qwen/Qwen3.5-35B-A3B-GPTQ-Int4",
        )  # fmt: skip
        # it has changed already: a second signal is none of its business
        process.send_signal(signal.SIGUSR1)
        assert models(a)["root"].endswith("GPTQ-Int4")


# --- beside a command -------------------------------------------------------------------------------------


def test_a_fleet_runs_a_command_with_its_hosts_and_takes_its_exit_code(tmp_path: Path) -> None:
    """Which sees the switcher fall at a signal, too."""
    script = f"""
import os, pathlib, shutil, signal, sys, time, httpx
hosts, written = sys.argv[1:]
assert hosts == os.environ["TOOLKIT_HOSTS"]
name, url = pathlib.Path(hosts).read_text().split()
pathlib.Path(written).write_text(f"{{name}} {{shutil.which('toolkit')}}")
os.kill(os.getppid(), signal.SIGUSR1)
end = time.monotonic() + {WAIT_S}
while time.monotonic() < end:
    try: text = httpx.get(url + "/v1/models", trust_env=False).text
    except httpx.TransportError: continue
    if "GPTQ" in text: sys.exit(7)
"""
    settings = ("--time-scale", "0.01", "--set", "down_after_s=none", "--set", "down_for_s=1")
    written = tmp_path / "written"
    words = ("--", sys.executable, "-c", script, "{hosts}", str(written))
    with started("fleet", "bob=switcher", *settings, *words) as process:
        assert process.wait(2 * WAIT_S) == 7
        assert process.stdout
        assert process.stdout.read() == ""
    assert written.read_text() == f"bob {TOOLKIT[0]}"


def test_a_command_killed_by_a_signal_exits_as_a_shell_tells_it() -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run("fleet", "awq", "--", sys.executable, "-c", script).exit_code == 137  # 128 + 9


def test_sigterm_is_passed_on_to_the_command(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = (
        "import pathlib, signal, sys, time;"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3));"
        "pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
    )
    with started("fleet", "awq", "--", sys.executable, "-c", script, str(ready)) as process:
        end = time.monotonic() + WAIT_S
        while not ready.exists() and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 3


# --- slips ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message", "way_out"),
    [
        ("serve --personality nobody", "`nobody` is no personality", "`toolkit sim list`"),
        ("fleet nobody", "`nobody` is no personality", "`toolkit sim list`"),
        ("fleet awq awq", "`awq` stands twice", "`alice=awq`"),
        ("fleet alice=", "`alice=` names no personality", "`toolkit sim list`"),
        ("serve --set colour=red", "`--set colour=red` names no setting", "num_gpu_blocks"),
        ("serve --set num_gpu_blocks", "has no value", "Write `--set num_gpu_blocks=64`"),
        ("serve --set prefix_caching=maybe", "should be a valid boolean", "each has a default"),
        ("serve --set num_gpu_blocks=1", "num_gpu_blocks", "each has a default"),
        ("serve --dialect v0 --engines 2", "exactly 1", "each has a default"),
        ("serve --host 192.0.2.1", "cannot be bound: cannot assign", "--host"),  # nobody's, by RFC 5737
        ("fleet --port 65535", "`127.0.0.1:65536` is no address", "`--port`"),
        ("serve --api-key-env NOT_SET_HERE", "`NOT_SET_HERE` is not set", "export NOT_SET_HERE"),
        ("fleet awq -- no-such-command", "`no-such-command` cannot be started", "in a shell"),
        ("fleet awq --out /nowhere/h.txt --for 10ms", "cannot be written", "`--out`"),
    ],
)  # fmt: skip
def test_what_a_user_can_mend_is_told_with_a_hint(words: str, message: str, way_out: str) -> None:
    result = run(*words.split())
    assert result.exit_code == 1
    error, _, hint = result.stderr.partition("\n\nHint: ")
    assert error.startswith("Error: ")
    assert message in error
    assert way_out in hint


@pytest.mark.parametrize(
    ("error", "way_out"),
    [
        (socket.gaierror(socket.EAI_NONAME, "`nowhere:0` cannot be bound: name not known"), "--host"),
        # as `fe80::1`, which is no address without its link
        (OSError(errno.EINVAL, "`nowhere:0` cannot be bound: invalid argument"), "--host"),
        (OSError(errno.EADDRINUSE, "`h:80` cannot be bound: address already in use"), "--port"),
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_bound_is_told_with_a_hint(
    error: OSError, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: SimServer) -> None:
        raise error

    monkeypatch.setattr(SimServer, "_reserve", refuse)  # a real look-up would leave this machine
    result = run("serve", "--host", "nowhere")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {error.strerror}\n")
    assert way_out in result.stderr


@pytest.mark.parametrize("words", ["fleet awq --", "fleet awq --for 1s -- true", "serve --load -1"])
def test_a_wrong_command_line_exits_with_2(words: str) -> None:
    assert run(*words.split()).exit_code == 2
