"""`toolkit watchdog` as a user meets it: a command of real processes, killed, frozen and broken; nobody is left behind."""

import json
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from contract.harness.programs import PATIENCE_S, TOOLKIT, free_port, run, runs
from support.dogs import watchdog
from support.raw_server import serving, vllm_pages

from toolkit.cli import main
from toolkit.records import Run
from toolkit.store import Store

QUICK = (
    *("--interval", "100ms", "--stall-timeout", "2s", "--answer", "4s", "--refused", "1s"),
    *("--idle", "5s", "--backoff", "100ms", "--stop-within", "2s", "--max-num-seqs", "2"),
)


def sim(port: int) -> list[str]:
    """The engine: a shell that starts the simulator, so that ending the shell alone would leave the simulator."""
    engine = [TOOLKIT, "sim", "serve", "--time-scale", "0.05"]
    return ["sh", "-c", f'"$@" --port {port} & wait $!', "sh", *engine]


def processes(port: int) -> list[psutil.Process]:
    """Those whose command lines name the port, our own watchdog's left out: simulator, shell, and who keeps them."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            words = each.cmdline()
            if any(str(port) in word for word in words) and "watchdog" not in words:
                found.append(each)
    return found


def listener(port: int) -> psutil.Process:
    """The simulator itself."""
    (one,) = [each for each in processes(port) if each.cmdline()[-2:] == ["--port", str(port)]]
    return one


@pytest.mark.slow
def test_an_engine_is_started_warmed_killed_brought_back_warm_and_ended(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Store.open(tmp_path / "t.db") as store:
        store.add_run(Run(id="0" * 12, verb="blast", started_at=time.time()))
    words = ("--url", url, "--name", "alice", "--db", "t.db", "--profile", "contest", *QUICK, "--")
    with watchdog(*words, *sim(port), cwd=tmp_path) as dog:
        dog.wait_for("ready after ", "cold TTFT ")
        killed = listener(port)
        killed.send_signal(signal.SIGKILL)
        # the shell says that its child was killed: 128 + 9
        by_itself = "its process ended by itself with exit code 137"
        dog.wait_for(by_itself, "ready after ", "cold TTFT ", "back after ")
        assert listener(port).pid != killed.pid
        assert dog.end() == 0
    assert processes(port) == []
    assert [each["kind"] for each in dog.events] == ["mark"] * 2 + ["restart"] + ["mark"] * 3
    assert {(each["name"], each["url"]) for each in dog.events} == {("alice", url)}
    with Store.open_readonly(tmp_path / "t.db") as store:
        kept = [(event.name, event.text) for _, event in store.events("0" * 12)]
    assert kept == [("alice", text) for text in dog.texts()], "the blast that is on shows them"


@pytest.mark.slow
def test_a_frozen_engine_is_ended_with_its_family_and_comes_back(tmp_path: Path) -> None:
    port = free_port()
    words = ("--url", f"127.0.0.1:{port}", "--no-store", "--no-warm", *QUICK, "--")
    with watchdog(*words, *sim(port), cwd=tmp_path) as dog:
        dog.wait_for("ready after ")
        frozen = listener(port)
        frozen.send_signal(signal.SIGSTOP)
        dog.wait_for("no page for ", "ready after ", "back after ")
        assert not runs(frozen.pid)
        assert listener(port).pid != frozen.pid
        assert dog.end(signal.SIGHUP) == 0  # a closed terminal
    assert processes(port) == []
    assert not (tmp_path / "data" / "toolkit.db").exists()


@pytest.mark.slow
def test_a_crash_loop_ends_with_its_cause_and_exit_1(tmp_path: Path) -> None:
    port = free_port()
    # it serves once, and is broken from then on
    broken = "echo OSError: No space left on device >&2; exit 1"
    script = f"if [ -e once ]; then {broken}; fi; touch once; exec {shlex.join(sim(port))}"
    words = ("--url", f"127.0.0.1:{port}", "--no-store", "--no-warm", "--restarts", 2, *QUICK)
    with watchdog(*words, "--", "sh", "-c", script, cwd=tmp_path) as dog:
        dog.wait_for("ready after ")
        listener(port).send_signal(signal.SIGKILL)
        assert dog.program.wait() == 1
    texts = dog.texts()
    assert [text.split(":")[0] for text in texts[-3:]] == ["did not come back"] * 2 + ["stays down"]
    assert texts[-1] == "stays down: 2 restarts within 600 s: a crash loop"
    assert processes(port) == []


@pytest.mark.slow
def test_without_a_command_trouble_and_its_end_are_told_and_nobody_is_touched(
    tmp_path: Path,
) -> None:
    port = free_port()
    with watchdog("--url", f"127.0.0.1:{port}", "--no-store", *QUICK, cwd=tmp_path) as dog:
        dog.wait_for("in trouble: connections were refused")
        command = [TOOLKIT, "sim", "serve", "--port", str(port)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as engine:
            try:
                dog.wait_for("well again")
                engine.send_signal(signal.SIGSTOP)
                dog.wait_for("in trouble: no page for ")
                assert dog.end() == 1, "it ended in trouble"
                assert engine.poll() is None
            finally:
                engine.kill()


def test_one_that_is_well_until_ctrl_c_ends_with_0(tmp_path: Path) -> None:
    with serving(vllm_pages()) as server:
        with watchdog("--url", server.url, "--no-store", *QUICK, cwd=tmp_path) as dog:
            give_up = time.monotonic() + PATIENCE_S
            while server.paths().count("/metrics") < 3:
                assert time.monotonic() < give_up
                time.sleep(0.02)
            assert dog.end() == 0
        assert dog.events == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--", "sh", "-c", "echo started >> times; exit 3"), "exit code 3"),
        (("--", "no-such-command"), "no-such-command"),
        (("--log", "file/log", "--", "true"), "the log `file/log` cannot be written"),
    ],
)
def test_a_first_start_that_fails_is_told_and_not_tried_again(
    words: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    ran = run(
        "watchdog", "--no-store", "--url", f"127.0.0.1:{free_port()}", *QUICK, *words, cwd=tmp_path
    )
    assert (ran.returncode, "Error: " in ran.stderr) == (1, True)
    assert reason in ran.stderr
    assert "Traceback" not in ran.stderr
    if (tmp_path / "times").exists():
        assert (tmp_path / "times").read_text() == "started\n"


def test_a_port_where_somebody_answers_already_is_refused_before_anything_is_started(
    tmp_path: Path,
) -> None:
    with serving(vllm_pages()) as server:
        words = ("--no-store", "--url", server.url, *QUICK, "--", "sh", "-c", "touch started")
        ran = run("watchdog", *words, cwd=tmp_path)
    assert ran.returncode == 1
    assert f"a server answers at `{server.url}` already" in ran.stderr
    assert not (tmp_path / "started").exists()


def test_the_first_trouble_ends_it_where_that_is_asked_in_json_or_a_line_for_people(
    tmp_path: Path,
) -> None:
    url, trouble = f"127.0.0.1:{free_port()}", "in trouble: connections were refused for "
    words = ("watchdog", "--no-store", "--url", url, "--until-trouble", *QUICK)
    ran = run(*words, "--json", cwd=tmp_path)
    assert ran.returncode == 1
    (event,) = [json.loads(line) for line in ran.stdout.splitlines()]
    assert (event["kind"], event["name"]) == ("mark", url)
    assert event["text"].startswith(trouble)
    (line,) = run(*words, "--name", "alice", cwd=tmp_path).stdout.splitlines()
    assert line[:8].replace(":", "").isdigit()
    assert line[8:].startswith(f" alice: {trouble}")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("", 2, "--url"),
        ("--url ftp://x", 1, "ftp"),
        ("--url 127.0.0.1:1 --stuck 9", 2, "no duration"),
        ("--url 127.0.0.1:1 --until-trouble -- true", 2, "goes without a command"),
        ("--url 127.0.0.1:1 --api-key-env NO_SUCH_KEY", 1, "NO_SUCH_KEY"),
        ("--url 127.0.0.1:1 --profile nobody", 1, "nobody"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_told(words: str, code: int, message: str) -> None:
    ran = CliRunner().invoke(main, ["watchdog", *words.split()])
    assert (ran.exit_code, message in ran.stderr) == (code, True), ran.stderr
