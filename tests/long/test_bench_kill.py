"""`toolkit bench` killed with SIGKILL, again and again, on the same database.

What must be there is told by the servers: a raw one notes when it wrote which answer, the simulated ones count the
requests that ended. Nine rounds by default, ninety with TOOLKIT_LONG=full; a round takes 1 to 3 s.
"""

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support import sim_fleet
from support.raw_server import http, serving

from toolkit.store import Store

ROUNDS = {"short": 9, "full": 90}[os.environ.get("TOOLKIT_LONG", "short")]
LOST_S = 1.0
"""What a kill may cost."""
DELIVERY_S = 0.1
"""From a server's writing an answer, or counting it, to the client's having read it: 1 ms on an idle machine."""
ANSWER_S = 0.02
QUICK = {"time_scale": 0.02}
FLEET = {"fp8": ("fp8", QUICK), "gptq-int4": ("gptq-int4", QUICK)}

pytestmark = pytest.mark.timeout(60 + 10 * ROUNDS)


@dataclass
class Log:
    """What the raw server wrote: the answer's id, and when it was out."""

    written: dict[str, float] = field(default_factory=dict)

    async def answer(self, writer: asyncio.StreamWriter) -> bool:
        name = f"answer-{len(self.written)}"
        self.written[name] = float("inf")
        await asyncio.sleep(ANSWER_S)
        body = {
            "id": name,
            "model": "tiny",
            "choices": [{"message": {"content": "Hi there"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 2},
        }
        writer.write(http(json.dumps(body), content_type="application/json"))
        await writer.drain()
        self.written[name] = time.time()
        return True

    def before(self, moment: float) -> set[str]:
        return {name for name, at in dict(self.written).items() if at < moment}


@contextmanager
def raw_host() -> Iterator[tuple[Log, str]]:
    log = Log()
    cards = http(json.dumps({"data": [{"id": "tiny"}]}), content_type="application/json")
    with serving({"/v1/models": cards, "/v1/chat/completions": log.answer}) as server:
        yield log, server.url


def ended(url: str) -> int:
    """How many answers the server says it has brought to their end."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    counted = [line for line in lines if line.startswith("vllm:request_success_total{")]
    return sum(int(float(line.split()[-1])) for line in counted if '"abort"' not in line)


def ended_everywhere(urls: Mapping[str, str]) -> dict[str, int]:
    return {name: ended(url) for name, url in urls.items()}


def when_still(urls: Mapping[str, str]) -> dict[str, int]:
    """The same, once the requests of a killed client have ended."""
    now = ended_everywhere(urls)
    while True:
        time.sleep(0.1)
        before, now = now, ended_everywhere(urls)
        if before == now:
            return now


def command(hosts: Path, database: Path, *words: str) -> list[str]:
    program = [sys.executable, "-c", "from toolkit.cli import main; main()", "bench", str(hosts)]
    plan = ["--concurrency", "4", "--max-tokens", "8", "--mix", "50", "--db", str(database)]
    return [*program, *plan, *words]


def query(database: Path, sql: str, *values: object) -> list[tuple]:
    with closing(sqlite3.connect(database)) as file:
        return file.execute(sql, values).fetchall()


def stored(database: Path, run: int, host: str) -> list[tuple[str, int]]:
    """Answer's id and whether it is ok, of all that was kept of a host in a run."""
    return query(
        database,
        "SELECT answer_id, ok FROM shots JOIN hosts ON hosts.id = host_id"
        " WHERE run_number = ? AND name = ?",
        run,
        host,
    )


def newest_run(database: Path) -> int:
    if not database.exists():
        return 0
    try:
        return query(database, "SELECT coalesce(max(number), 0) FROM runs")[0][0]
    except sqlite3.OperationalError:  # killed before its tables were made
        return 0


def lives_s(chance: random.Random) -> Iterator[float]:
    """How long each bench lives: one in three dies while it starts."""
    for number in range(ROUNDS):
        yield chance.uniform(0.05, 0.8) if number % 3 == 0 else chance.uniform(LOST_S + 0.6, 3.2)


def test_a_killed_bench_loses_at_most_the_last_second_and_never_the_file(tmp_path: Path) -> None:
    database, hosts = tmp_path / "toolkit.db", tmp_path / "hosts.txt"
    due = kept = 0
    with sim_fleet.running(FLEET) as simulated, raw_host() as (log, url):
        hosts.write_text(f"{simulated}raw {url}\n")
        urls = dict(line.split() for line in simulated.splitlines())
        for life_s in lives_s(random.Random(20)):
            earlier, counted, before = newest_run(database), when_still(urls), set(log.written)
            with subprocess.Popen(command(hosts, database, "--duration", "10m")) as running:
                time.sleep(max(0.0, life_s - LOST_S - DELIVERY_S))
                must = ended_everywhere(urls)
                time.sleep(min(life_s, LOST_S + DELIVERY_S))
                killed_at = time.time()
                running.kill()
            assert running.returncode == -signal.SIGKILL
            run = newest_run(database)
            if database.exists():
                assert query(database, "PRAGMA integrity_check") == [("ok",)]
            # the raw server's word: which answers
            answers = stored(database, run, "raw") if run > earlier else []
            told = log.before(killed_at - LOST_S - DELIVERY_S) - before
            assert told <= {answer for answer, _ in answers}
            assert {answer for answer, _ in answers} <= set(log.written) - before
            # the simulated ones' word: how many
            for name in urls:
                ours = [ok for _, ok in (stored(database, run, name) if run > earlier else [])]
                assert sum(ours) >= must[name] - counted[name]
            due, kept = due + len(told), kept + len(answers)
        done = subprocess.run(
            command(hosts, database), capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    _check_whole(database)
    assert due > 20 * ROUNDS
    print(f"{ROUNDS} kills; the raw host owed {due} shots, {kept} were kept")


def _check_whole(database: Path) -> None:
    """Nothing stands twice, killed runs are open, the last one is over, and the toolkit reads it all."""
    twice = "SELECT count(*) FROM shots GROUP BY run_number, host_id, slot HAVING count(*) > 1"
    assert query(database, twice) == []
    with Store.open(database) as store:
        last, *killed = store.runs(verb="bench")
        assert last.ended_at is not None
        assert [run.ended_at for run in killed] == [None] * len(killed)
        assert len(killed) > ROUNDS / 2
        assert len(store.shots(last.id)) == 3 * 16
        assert all(shot.run == killed[0].id for shot in store.shots(killed[0].id))
