"""What a wrong command line, a missing file and a dead host answer with: the exit code, one error and a hint, and no traceback."""

import signal
from pathlib import Path

import pytest
from contract.harness.programs import rows, run, toolkit
from contract.harness.servers import server, vllm_pages

DEAD = "http://127.0.0.1:9"
"""Nobody listens there: the discard service's port."""

WRONG = {
    # command -> what the one error names
    "scout --intervall 3s hosts.txt": "--interval",
    "board --window 25h": "a day at most",
    f"blast {DEAD} --window 25h": "a day at most",
    f"blast {DEAD} --timeout 2h": "an hour at most",
}
UNREADABLE = {
    "scout none.txt": "none.txt",
    "workload --from none.jsonl": "none.jsonl",
    "capture none.pcap": "none.pcap",
    "plan no-such-model --gpu A100-40GB": "no-such-model",
    "board": "does not exist",
    # the loopback is the loopback under each of its names
    "proxy --upstream http://localhost:8123 --port 8123 --check": "where this proxy listens",
    "proxy --upstream http://127.8.9.10:8123 --host 0.0.0.0 --port 8123 --check": "where this proxy listens",
}


@pytest.mark.parametrize("code", [2, 1])
def test_bad_input_gets_one_clear_error_and_a_way_out(code: int, tmp_path: Path) -> None:
    for command, named in (WRONG if code == 2 else UNREADABLE).items():
        done = run(*command.split(), cwd=tmp_path)
        assert done.returncode == code, (command, done)
        assert done.stdout == "", command
        assert "Traceback" not in done.stderr, done.stderr
        assert done.stderr.count("Error: ") == 1, done.stderr
        assert named in done.stderr, (command, done.stderr)
        assert ("Hint: " if code == 1 else "--help") in done.stderr, done.stderr


def test_a_dead_host_is_a_row_with_a_reason_and_all_of_them_dead_is_exit_1(tmp_path: Path) -> None:
    dead = run("scout", DEAD, "--json", cwd=tmp_path)
    assert dead.returncode == 1
    assert [(row["status"], bool(row["error"])) for row in rows(dead.stdout)] == [("down", True)]
    with server(vllm_pages()) as alive:
        both = run("scout", "-", "--json", cwd=tmp_path, stdin=f"one {alive.url}\ntwo {DEAD}\n")
    assert both.returncode == 0, both.stderr
    assert {row["name"]: row["status"] for row in rows(both.stdout)} == {"one": "ok", "two": "down"}


def test_ctrl_c_is_how_a_watch_ends_and_keeps_what_was_measured(tmp_path: Path) -> None:
    with (
        server(vllm_pages()) as alive,
        toolkit("scout", alive.url, "--watch", "--interval", "1s", "--json", cwd=tmp_path) as watch,
    ):
        watch.line(r'"status": ?"ok"')
        assert watch.end(signal.SIGINT) == 0, watch.text
    assert "Traceback" not in watch.text
    seen = run("scout", "--history", alive.url.removeprefix("http://"), "--json", cwd=tmp_path)
    states = [row["status"] for row in rows(seen.stdout)]
    assert states, seen
    assert set(states) == {"ok"}, seen
