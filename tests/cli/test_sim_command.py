"""`toolkit sim` as a user meets it: in processes of its own where signals and pipes matter."""

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
from urllib.parse import urlsplit

import httpx
import pytest
from click.testing import CliRunner, Result

from toolkit.cli import main
from toolkit.cli.sim import _serve_fleet
from toolkit.hosts import read_hosts
from toolkit.sim.app import SimServer
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


def test_list_names_the_whole_cast_and_what_each_does() -> None:
    result = run("list", "--json")
    cast = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["name"] for each in cast] == (
        "fp8 awq gptq-int4 cached first-token switcher cold flaky drip"
        " kv_starved seq_limited long_prefill no_prefix_cache prefix_evicted slow_decode cpu_bound"
    ).split()
    table = run("list").stdout
    assert all(each["name"] in table and each["summary"] in table for each in cast)


def test_a_signal_lets_the_switcher_fall_and_come_back_as_another_and_spares_the_rest() -> None:
    # down for 2 s of ours: a machine that stood still for a fifth of a second missed a shorter fall
    settings = ("--time-scale", "0.01", "--set", "down_after_s=none", "--set", "down_for_s=200")
    with started("fleet", "a=switcher", "b=awq", *settings) as process:
        assert process.stdout
        a, b = (process.stdout.readline().split()[1] for _ in range(2))
        before = root_of(a)
        process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + WAIT_S
        while not (was_down := refuses(a)) and time.monotonic() < end:
            assert not refuses(b)
        while refuses(a) and time.monotonic() < end:
            assert not refuses(b)
        assert was_down
        assert (before, root_of(a)) == (
            "QuantTrio/Qwen3.5-35B-A3B-AWQ",
            "Qwen/Qwen3.5-35B-A3B-GPTQ-Int4",
        )
        assert root_of(b) == before
        # it has changed already: a second signal is none of its business
        process.send_signal(signal.SIGUSR1)
        assert root_of(a).endswith("GPTQ-Int4")


def test_a_signal_lets_the_switcher_fall_beside_a_command_too() -> None:
    lines = (
        "import os, pathlib, signal, sys, time, httpx",
        "url = pathlib.Path(sys.argv[1]).read_text().split()[1] + '/v1/models'",
        f"os.kill(os.getppid(), signal.SIGUSR1); end = time.monotonic() + {WAIT_S}",
        "while time.monotonic() < end:",
        "    try: text = httpx.get(url, trust_env=False).text",
        "    except httpx.TransportError: continue",
        "    if 'GPTQ' in text: sys.exit(7)",
    )
    settings = ("--time-scale", "0.01", "--set", "down_after_s=none", "--set", "down_for_s=1")
    words = ("a=switcher", *settings, "--", sys.executable, "-c", "\n".join(lines), "{hosts}")
    with started("fleet", *words) as process:
        assert process.wait(2 * WAIT_S) == 7


def test_a_fleet_that_is_still_starting_ends_at_a_signal(tmp_path: Path) -> None:
    async def scene() -> None:
        setups = setups_for(["awq"], startup_s=3600)
        serving = asyncio.create_task(_serve_fleet(setups, tmp_path / "hosts.txt", None, ""))
        await asyncio.sleep(0)  # its first step takes the signals
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(serving, WAIT_S)

    asyncio.run(scene())
    assert list(tmp_path.iterdir()) == []


def refuses(url: str) -> bool:
    parts = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((str(parts.hostname), int(parts.port or 0))) != 0


def root_of(url: str) -> str:
    return str(
        httpx.get(f"{url}/v1/models", timeout=WAIT_S, trust_env=False).json()["data"][0]["root"]
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_its_url_when_it_listens_and_stops_cleanly(number: int) -> None:
    with started("serve", "--port", "0", "--personality", "awq") as process:
        assert process.stdout
        assert process.stderr
        url = process.stdout.readline().strip()
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
        process.send_signal(number)
        assert process.wait(WAIT_S) == 0
        assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_serve_stops_by_itself_and_takes_settings() -> None:
    result = run(
        "serve", "--port", "0", "--for", "10ms", "--set", "num_gpu_blocks=64", "--set", "model=x"
    )
    assert result.exit_code == 0
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+\n", result.stdout)


def test_serve_that_is_stopped_while_it_starts_prints_nothing() -> None:
    result = run("serve", "--port", "0", "--startup", "1m", "--for", "10ms")
    assert (result.exit_code, result.stdout) == (0, "")


def test_a_fleet_prints_a_hosts_file_and_serves_it() -> None:
    with started("fleet", "alice=cached", "awq", "--model", "tiny") as process:
        assert process.stdout
        lines = process.stdout.readline() + process.stdout.readline()
        hosts = read_hosts(lines, "stdout")
        assert [host.name for host in hosts] == ["alice", "awq"]
        for host in hosts:
            models = httpx.get(f"{host.url}/v1/models", trust_env=False).json()
            assert models["data"][0]["id"] == "tiny"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_a_fleet_writes_its_hosts_file_whole_and_prints_nothing_then(tmp_path: Path) -> None:
    out = tmp_path / "hosts.txt"
    result = run("fleet", "awq", "--out", str(out), "--for", "10ms")
    assert (result.exit_code, result.stdout) == (0, "")
    assert [host.name for host in read_hosts(out.read_text(), "out")] == ["awq"]
    assert list(tmp_path.iterdir()) == [out]


def test_a_pipe_or_a_link_named_for_the_hosts_file_is_written_into_and_stays(
    tmp_path: Path,
) -> None:
    # as `/dev/stdout` and `/dev/null`, of which root would have nothing left
    pipe, link, target = (tmp_path / name for name in ("pipe", "link", "hosts.txt"))
    os.mkfifo(pipe)
    link.symlink_to(target)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        for out in (pipe, link):
            assert run("fleet", "awq", "--out", str(out), "--for", "10ms").exit_code == 0
        assert os.read(reader, 1000).startswith(b"awq http://")
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert target.read_text().startswith("awq http://")


def test_a_fleet_runs_a_command_with_its_hosts_and_takes_its_exit_code(tmp_path: Path) -> None:
    told = tmp_path / "told.txt"
    script = (
        "import os, sys, pathlib, shutil, urllib.request as r;"
        "text = pathlib.Path(sys.argv[1]).read_text();"
        "assert sys.argv[1] == os.environ['TOOLKIT_HOSTS'];"
        "status = r.build_opener(r.ProxyHandler({})).open(text.split()[1] + '/health').status;"
        "pathlib.Path(sys.argv[2]).write_text(f\"{text.split()[0]} {status} {shutil.which('toolkit')}\");"
        "sys.exit(7)"
    )
    result = run("fleet", "bob=awq", "--", sys.executable, "-c", script, "{hosts}", str(told))
    assert (result.exit_code, result.stdout) == (7, "")
    assert told.read_text() == f"bob 200 {TOOLKIT[0]}"


def test_a_command_killed_by_a_signal_exits_as_a_shell_tells_it() -> None:
    suicide = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    result = run("fleet", "awq", "--", sys.executable, "-c", suicide)
    assert result.exit_code == 137  # 128 + 9


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


@pytest.mark.slow
def test_scout_sees_the_fleet_through_the_hosts_file() -> None:
    words = [
        "fleet",
        "alice=awq",
        "--load",
        "2",
        "--",
        "toolkit",
        "scout",
        "{hosts}",
        "--json",
        "--no-store",
    ]
    done = subprocess.run(
        [*TOOLKIT, "sim", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["name"], seen["status"], seen["engine"]) == ("alice", "ok", "vllm")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("serve", "--personality", "nobody"), "`nobody` is no personality"),
        (("fleet", "nobody"), "`nobody` is no personality"),
        (("fleet", "awq", "awq"), "`awq` stands twice"),
        (("serve", "--set", "colour=red"), "`--set colour=red` names no setting"),
        (("serve", "--set", "num_gpu_blocks"), "has no value"),
        (("serve", "--set", "prefix_caching=maybe"), "should be a valid boolean"),
        (
            ("serve", "--host", "192.0.2.1"),
            "cannot be bound: cannot assign",
        ),  # nobody's, by RFC 5737
        (("serve", "--host", ""), "is no address"),
        (("fleet", "--port", "65535"), "`127.0.0.1:65536` is no address"),
        (("fleet", "alice="), "`alice=` names no personality"),
        (("serve", "--set", "num_gpu_blocks=1"), "num_gpu_blocks"),
        (
            ("serve", "--set", "num_gpu_blocks=many"),
            "`num_gpu_blocks` should be a valid integer",
        ),
        (("serve", "--dialect", "v0", "--engines", "2"), "exactly 1"),
        (("serve", "--api-key-env", "NOT_SET_HERE"), "`NOT_SET_HERE` is not set"),
        (("fleet", "awq", "--", "no-such-command"), "`no-such-command` cannot be started"),
        (("fleet", "awq", "--out", "/nowhere/hosts.txt", "--for", "10ms"), "cannot be written"),
    ],
)
def test_what_a_user_can_mend_is_told_with_a_hint(words: tuple[str, ...], message: str) -> None:
    result = run(*words)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.startswith("Error: ")
    assert "\n\nHint: " in result.stderr


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (("serve", "--set", "max_num_seqs=x"), "each has a default"),
        (("fleet", "awq", "awq"), "`alice=awq`"),
        (("fleet", "--port", "65535"), "`--port`"),
        (("fleet", "nobody"), "`toolkit sim list`"),
    ],
)
def test_the_hint_is_of_what_was_wrong(words: tuple[str, ...], way_out: str) -> None:
    assert way_out in run(*words).stderr.partition("Hint: ")[2]


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(socket.EAI_NONAME, "`nowhere:0` cannot be bound: name not known"),
        # as `fe80::1`, which is no address without its link
        OSError(errno.EINVAL, "`nowhere:0` cannot be bound: invalid argument"),
    ],
)
def test_a_host_that_cannot_be_bound_is_told_with_a_hint(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: SimServer) -> None:
        raise error

    monkeypatch.setattr(SimServer, "_reserve", unknown)  # a real look-up would leave this machine
    result = run("serve", "--host", "nowhere")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {error.strerror}\n")
    assert "--host" in result.stderr


def test_a_wrong_setting_gets_the_list_of_them() -> None:
    hint = run("serve", "--set", "blocks=5").stderr.partition("Hint: ")[2]
    assert all(name in hint for name in ("num_gpu_blocks", "time_scale", "cache_header"))


def test_a_taken_port_is_told_with_the_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("serve", "--port", str(port))
    assert result.exit_code == 1
    assert f"`127.0.0.1:{port}` cannot be bound: address already in use" in result.stderr
    assert "--port" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("fleet", "awq", "--"),
        ("fleet", "awq", "--for", "1s", "--", "true"),
        ("serve", "--load", "-1"),
    ],
)
def test_a_wrong_command_line_exits_with_2(words: tuple[str, ...]) -> None:
    assert run(*words).exit_code == 2


def test_a_key_comes_from_the_environment_and_is_never_printed() -> None:
    result = run(
        "serve", "--port", "0", "--for", "10ms", "--api-key-env", "SIM_KEY", SIM_KEY="s3cret"
    )
    assert result.exit_code == 0
    assert "s3cret" not in result.output


def test_a_guarded_fleet_names_the_keys_variable_in_its_hosts_file() -> None:
    result = run("fleet", "awq", "--for", "10ms", "--api-key-env", "SIM_KEY", SIM_KEY="s3cret")
    assert [host.api_key_env for host in read_hosts(result.stdout, "stdout")] == ["SIM_KEY"]
