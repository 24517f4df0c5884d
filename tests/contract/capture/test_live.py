"""Live on loopback: what is sent is what is seen; a capture that is killed has lost at most its last second, and no file."""

import json
import os
import random
import signal
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from contract.harness.clients import Client, request
from contract.harness.databases import is_sound, select
from contract.harness.programs import rows, run, toolkit
from contract.harness.servers import chat, server

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="captures live: run it as root, or with CAP_NET_RAW and CAP_NET_ADMIN"
)

LOST_S = 1.0
"""What a kill may cost."""
STALL_S = 0.1
"""Between two requests that should leave every few milliseconds: then the machine was busy with others."""


def body(number: int, text: str) -> bytes:
    return json.dumps(
        {"model": "m", "max_tokens": number, "messages": [{"role": "user", "content": text}]}
    ).encode()


def test_what_is_sent_is_seen_once_with_its_answer(tmp_path: Path) -> None:
    chance = random.Random(1)
    sizes = [0, 40, 3000, 70_000]
    sent = [body(n, chance.randbytes(chance.choice(sizes)).hex()) for n in range(400)]
    sent[7] = b"\xff\xfe no text"
    with server({"*": chat("Hello", tokens=3)}) as upstream:
        port = upstream.url.rpartition(":")[2]
        words = ("--port", port, "--iface", "lo", "--full", "--json", "--bodies", "--no-store")
        with toolkit("capture", *words, cwd=tmp_path) as live:
            live.line("Capturing port")
            for start in range(0, 400, 100):
                with Client(upstream.url) as client:
                    for each in sent[start : start + 60]:
                        assert client.ask(each).status == 200
                    # pipelined, cut anywhere
                    data = b"".join(request(each) for each in sent[start + 60 : start + 100])
                    for at in range(0, len(data), 30_011):
                        client.send(data[at : at + 30_011])
                    for _ in range(40):
                        assert client.reply().status == 200
            assert live.end(signal.SIGINT) == 0, live.text
    *requests, last = rows("\n".join(live.out))
    summary = last["summary"]
    losses = {name: summary[name] for name in ("kernel_drops", "app_drops", "gaps", "truncated")}
    assert not any(losses.values()), losses
    assert summary["requests"] == len(requests) == 400
    as_text = [each.decode(errors="replace") for each in sent]
    assert Counter(row["body"] for row in requests) == Counter(as_text)
    assert all(row["status"] == 200 and row["output_tokens"] == 3 for row in requests)


def lost_s(sent: list[float], kept: int, killed_at: float) -> float:
    """Over how long what is missing was sent, in seconds in which the machine let its sender run."""
    return sum(min(later - at, STALL_S) for at, later in pairwise([*sent[kept:], killed_at]))


def test_a_killed_capture_has_lost_a_second_at_most_and_no_file(tmp_path: Path) -> None:
    database, lines = tmp_path / "t.db", 0
    for number, seconds in enumerate((1.3, 0.9)):
        sent: list[float] = []
        with server({"*": chat()}) as upstream:
            port = upstream.url.rpartition(":")[2]
            words = ("--port", port, "--iface", "lo", "--db", database, "--jsonl", "a.jsonl")
            with toolkit("capture", *words, cwd=tmp_path) as live, Client(upstream.url) as client:
                live.line("Capturing port")
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    sent.append(time.time())
                    client.ask(body(len(sent), f"prompt {random.random()}"))
                    time.sleep(0.01)
                killed_at = time.time()
                live.end(signal.SIGKILL)
        assert is_sound(database)
        # the file goes on after the one that was killed before, and what is there is a beginning without a hole
        written = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)
        whole = [json.loads(line) for line in written if line.endswith(b"\n")][lines:]
        lines += len(whole)
        assert [row["max_tokens"] for row in whole] == list(range(1, len(whole) + 1))
        assert lost_s(sent, len(whole), killed_at) <= LOST_S
        [run_number] = select(database, "SELECT max(number) AS n FROM runs")
        times = select(
            database, "SELECT ts FROM seen WHERE run_number = ? ORDER BY ts", run_number["n"]
        )
        assert 0 < len(times) <= len(sent)
        assert lost_s(sent, len(times), killed_at) <= LOST_S
        assert len(select(database, "SELECT id FROM runs WHERE verb = 'capture'")) == number + 1
    # what it left is read as any other capture, and is said to have no end
    told = run("workload", "--json", "--db", database, cwd=tmp_path)
    [report] = rows(told.stdout)
    assert report["requests"] == len(times)
    assert any("no end" in note for note in report["notes"])
