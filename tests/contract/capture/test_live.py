"""Live on loopback: what is sent is what is seen; a capture that is killed has lost at most its last second, and no file."""

import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from contract.harness.clients import Client, request
from contract.harness.databases import is_sound, select
from contract.harness.programs import PATIENCE_S, rows, run, toolkit
from contract.harness.servers import chat, server

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="captures live: run it as root, or with CAP_NET_RAW and CAP_NET_ADMIN"
)

LOST_S = 1.0
"""What a kill may cost."""


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


def read(file: Path) -> list[dict[str, Any]]:
    """Its whole lines."""
    if not file.exists():
        return []
    lines = file.read_bytes().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def stored(database: Path, run_number: int) -> int:
    with suppress(sqlite3.OperationalError):
        sql = "SELECT count(*) AS n FROM seen WHERE run_number = ?"
        return int(select(database, sql, run_number)[0]["n"])
    return 0


def test_a_killed_capture_has_lost_a_second_at_most_and_no_file(tmp_path: Path) -> None:
    """What comes into a file at once is what a kill just before would have cost; on a busy machine some of it is late."""
    database, file, lines = tmp_path / "t.db", tmp_path / "a.jsonl", 0
    for number in (1, 2):
        sent: list[float] = []
        kept = {"lines": 0, "rows": 0}
        late_s: dict[str, list[float]] = {"lines": [], "rows": []}

        def look() -> bool:
            """Whether there were some more of each, once in time, having noted how old the oldest of them is."""
            now = {"lines": len(read(file)) - lines, "rows": stored(database, number)}  # noqa: B023
            for name, count in now.items():
                if count > kept[name]:  # noqa: B023
                    late_s[name].append(time.time() - sent[kept[name]])  # noqa: B023
                    kept[name] = count  # noqa: B023
            return all(len(each) >= 3 and min(each[1:]) <= LOST_S for each in late_s.values())  # noqa: B023

        with server({"*": chat()}) as upstream:
            port = upstream.url.rpartition(":")[2]
            words = ("--port", port, "--iface", "lo", "--db", database, "--jsonl", "a.jsonl")
            with toolkit("capture", *words, cwd=tmp_path) as live, Client(upstream.url) as client:
                live.line("Capturing port")
                give_up = time.monotonic() + PATIENCE_S
                while not look():
                    sent.append(time.time())
                    client.ask(body(len(sent), f"prompt {random.random()}"))
                    time.sleep(0.01)
                    assert time.monotonic() < give_up, late_s
                live.end(signal.SIGKILL)
        assert is_sound(database)
        # the file goes on after the one that was killed before, and what is there is a beginning without a hole
        whole = read(file)[lines:]
        lines += len(whole)
        assert kept["lines"] <= len(whole)
        assert [row["max_tokens"] for row in whole] == list(range(1, len(whole) + 1))
        times = stored(database, number)
        assert kept["rows"] <= times <= len(sent)
        assert len(select(database, "SELECT id FROM runs WHERE verb = 'capture'")) == number
    # what it left is read as any other capture, and is said to have no end
    told = run("workload", "--json", "--db", database, cwd=tmp_path)
    [report] = rows(told.stdout)
    assert report["requests"] == times
    assert any("no end" in note for note in report["notes"])
