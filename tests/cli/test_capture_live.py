"""`toolkit capture` live on `lo`, with a real server and real connections: what it sees, how it ends, what it survives."""

import ctypes
import os
import pty
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from contract.harness.packets import post
from support.capturing import COMMAND, Client, capture, capturing, chat, talking
from support.live_traffic import Server, serving
from support.net_namespaces import (
    inside,
    namespace,
    needs_capture,
    needs_namespaces,
    needs_tcpdump,
)

from toolkit.store import Store

pytestmark = [needs_capture, pytest.mark.slow]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


def send(client: Client, *prompts: str) -> None:
    for prompt in prompts:
        client.send(post(chat(prompt)))


@pytest.mark.parametrize("iface", ["any", "lo"])
def test_sent_is_seen_once_and_whole(tmp_path: Path, server: Server, iface: str) -> None:
    words = ("--port", server.port, "--iface", iface, "--json", "--bodies")
    sent = [chat(f"prompt {n % 7} {'x' * 300 * n}") for n in range(300)]
    with capturing(*words, "--no-store", cwd=tmp_path) as live, talking(server.port) as client:
        for body in sent:
            client.send(post(body))
        seen = [live.line() for _ in sent]
        ran = live.end()
    assert ran.code == 0
    assert [one["body"].encode() for one in seen] == sent == server.bodies
    summary = ran.summary
    assert (summary["requests"], summary["unique"]) == (300, 300)
    assert (summary["damaged"], summary["kernel_drops"], summary["gaps"]) == (0, 0, 0)
    assert not any(one["damaged"] for one in seen)


@needs_tcpdump
def test_where_python_may_not_tcpdump_may(tmp_path: Path, server: Server) -> None:
    words = ("--port", server.port, "--iface", "lo", "--engine", "tcpdump", "--no-store")
    ran = capture(*words, cwd=tmp_path)
    assert ran.code == 1
    hint = f"tcpdump -i lo -s 0 -U -w - 'tcp port {server.port}' | toolkit capture -"
    assert f"Hint: sudo {hint} --port {server.port}" in ran.err
    command = hint.removesuffix("| toolkit capture -").replace("'", "").split()
    sent = [chat(f"prompt {n} {'x' * 10 * n}") for n in range(100)]
    words = ("-", "--port", server.port, "--full", "--json", "--bodies", "--no-store")
    with subprocess.Popen(command, stdout=-1, stderr=-1) as tcpdump:
        try:
            assert b"listening on lo" in tcpdump.stderr.readline()
            stdin = tcpdump.stdout
            with capturing(*words, cwd=tmp_path, is_live=False, stdin=stdin) as running:
                with talking(server.port) as client:
                    for body in sent:
                        client.send(post(body))
                seen = [running.line() for _ in sent]
        finally:
            tcpdump.kill()
    # both copies of `lo` are there, and each request counts once
    assert [one["body"].encode() for one in seen] == sent
    assert {one["status"] for one in seen} == {200}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly_with_the_page_and_everything_kept(
    tmp_path: Path, server: Server, number: int
) -> None:
    words = ("--port", server.port, "--iface", "lo", "--jsonl", "a.jsonl")
    with capturing(*words, cwd=tmp_path) as live, talking(server.port) as client:
        send(client, "a", "a", "b")
        ran = live.end(number)  # at once: what is in the kernel and in batches counts, too
    assert ran.code == 0
    assert ran.out.startswith("3 requests, 2 unique prompts, 33.3 % repeats\n")
    assert "Lost: kernel drops 0, application drops 0" in ran.err
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 3
    with Store.open_readonly(tmp_path / "data" / "toolkit.db") as store:
        (run,) = store.runs(verb="capture")
        assert store.content(run.id).requests == 3
        assert run.ended_at is not None


def test_the_duration_ends_it_and_nothing_is_an_error_then(tmp_path: Path, server: Server) -> None:
    words = ("--port", server.port, "--no-store", "--duration", "500ms")
    ran = capture(*words, "--iface", "lo", cwd=tmp_path)
    assert ran.code == 1
    assert f"Error: nothing arrived for port {server.port} on `lo`" in ran.err
    assert "`--iface any` hears all interfaces" in ran.err
    # who hears all of them is not told to
    ran = capture(*words, cwd=tmp_path)
    assert "`--iface NAME` counts what goes out, too" in ran.err
    assert "--iface any" not in ran.err


def test_ctrl_c_on_a_quiet_port_is_no_error(tmp_path: Path, server: Server) -> None:
    words = ("--port", server.port, "--iface", "lo", "--json", "--no-store")
    with capturing(*words, cwd=tmp_path) as live:
        ran = live.end()
    assert ran.code == 0
    assert ran.summary["requests"] == 0


@needs_namespaces
def test_a_quiet_port_gets_a_sign_of_life_that_names_other_servers(tmp_path: Path) -> None:
    # where no server of this machine has more connections
    with namespace() as name, inside(name), serving() as quiet, serving() as busy:
        words = ("--port", quiet.port, "--iface", "lo", "--no-store")
        with capturing(*words, cwd=tmp_path) as live, talking(busy.port):
            live.wait_for("no packets")
            (said,) = [line for line in live.said if "no packets" in line]
            live.end()
    assert f"no packets on port {quiet.port} yet; servers here listen on: " in said
    assert f"{busy.port} (1 connection" in said


def test_two_captures_of_one_port_see_the_same_and_share_the_database(
    tmp_path: Path, server: Server
) -> None:
    words = ("--port", server.port, "--iface", "lo", "--json")
    with (
        capturing(*words, cwd=tmp_path) as first,
        capturing(*words, cwd=tmp_path) as second,
        talking(server.port) as client,
    ):
        send(client, "a", "b", "a")
        seen = [[live.line() for _ in range(3)] for live in (first, second)]
        ran = [first.end(), second.end()]
    assert [one["exact_key"] for one in seen[0]] == [one["exact_key"] for one in seen[1]]
    with Store.open_readonly(tmp_path / "data" / "toolkit.db") as store:
        assert {store.content(one.summary["run"]).requests for one in ran} == {3}


def locked(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_a_locked_database_holds_up_nothing_and_gets_everything_afterwards(
    tmp_path: Path, server: Server
) -> None:
    words = ("--port", server.port, "--iface", "lo", "--json", "--db", "t.db")
    with capturing(*words, cwd=tmp_path) as live, talking(server.port) as client:
        send(client, "first")
        live.line()
        with closing(locked(tmp_path / "t.db")) as connection:
            send(client, *"abc")
            assert [live.line()["new"] for _ in range(3)] == [True] * 3
            live.wait_for("is locked by another process; the capture continues and tries again")
            connection.execute("ROLLBACK")
        ran = live.end()
    assert ran.code == 0
    assert (ran.summary["not_stored"], ran.summary["app_drops"]) == (0, 0)
    with Store.open_readonly(tmp_path / "t.db") as store:
        assert store.content(ran.summary["run"]).requests == 4


def test_a_database_that_stays_locked_costs_the_rows_and_says_so(
    tmp_path: Path, server: Server
) -> None:
    words = ("--port", server.port, "--iface", "lo", "--json", "--db", "t.db")
    with capturing(*words, cwd=tmp_path) as live, talking(server.port) as client:
        send(client, "first")
        live.line()
        with closing(locked(tmp_path / "t.db")):
            send(client, *"abc")
            live.wait_for("is locked")
            ran = live.end()
    assert ran.code == 1
    assert ran.summary["requests"] == 4
    assert ran.summary["not_stored"] >= 3
    assert "Traceback" not in ran.err


def without_the_right() -> None:
    """In the child, before its program starts: even root has no CAP_NET_RAW (13) any more then."""
    ctypes.CDLL(None).prctl(24, 13, 0, 0, 0)  # PR_CAPBSET_DROP


def test_who_may_not_capture_is_told_the_capability_and_the_pipe(tmp_path: Path) -> None:
    words = ("--no-store", "--port", "9000")
    ran = capture(*words, cwd=tmp_path, preexec_fn=without_the_right)
    assert ran.code == 1
    assert "CAP_NET_RAW" in ran.err
    assert "setcap" in ran.err
    pipe = "tcpdump -i any -s 0 -U -w - 'tcp port 9000' | toolkit capture - --port 9000"
    assert pipe in ran.err
    assert "Traceback" not in ran.err


def test_an_interface_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    ran = capture("--iface", "eth77", "--no-store", cwd=tmp_path)
    assert ran.code == 1
    assert "eth77" in ran.err
    assert "lo" in ran.err


def test_a_second_ctrl_c_quits_at_once(tmp_path: Path, server: Server) -> None:
    """The first one ends it in good order, which a reader that takes nothing from our output holds up."""
    words = [*COMMAND, "--port", str(server.port), "--iface", "lo", "--json", "--no-store"]
    reading, writing = os.pipe()
    with subprocess.Popen(words, stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        os.close(writing)
        try:
            assert "Capturing" in process.stderr.readline().decode()
            with talking(server.port) as client:
                for n in range(500):  # some 300 KB of lines: a pipe holds 64 KB
                    client.send(post(chat(f"prompt {n}")))
            while process.poll() is None:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):  # two at once would be one
                    process.wait(0.5)
        finally:
            os.close(reading)
    assert process.returncode == 130


def test_a_line_is_drawn_once_a_second_on_a_terminal(tmp_path: Path, server: Server) -> None:
    controller, terminal = pty.openpty()
    words = [*COMMAND, "--port", str(server.port), "--iface", "lo", "--no-store"]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=terminal, cwd=tmp_path) as process,
        talking(server.port) as client,
    ):
        os.close(terminal)
        said = b""
        try:
            while b"requests/s" not in said:
                send(client, "a")
                said += os.read(controller, 4096)
            process.send_signal(signal.SIGINT)
            process.wait(30)
            process.stdout.read()
        finally:
            process.kill()
    os.close(controller)
    assert b"1 unique" in said
    assert b"nothing lost" in said
