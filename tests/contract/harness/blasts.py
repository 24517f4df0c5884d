"""A blast in a database, written with sqlite3 as its loader writes it, and counted again from the file by our own arithmetic.

A latency's bucket: 0 up to 0.01 ms, else one of 924 that grow by 1.01 / 0.99; a bucket tells low * 1.01. A sketch is pairs of
little-endian 16-bit numbers, bucket and count. A window is every ranked row of its seconds, whatever worker wrote it.
"""

import json
import math
import sqlite3
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.harness.databases import select
from contract.harness.programs import run

GROWTH = 1.01 / 0.99
CANARY = {
    "prompt": "p",
    "concurrency": 1,
    "stream": 1,
    "max_tokens": 64,
    "ignore_eos": 0,
    "ok": 1,
    "status_code": 200,
    "ttft_ms": 100.0,
    "ttft_visible_ms": 100.0,
    "prompt_tokens": 20,
    "output_tokens": 64,
    "output_tokens_estimated": 0,
    "token_chunks": 64,
    "text_chars": 300,
    "finish_reason": "length",
    "model": "m",
}


def bucket(value_ms: float) -> int:
    if value_ms <= 0.01:
        return 0
    return min(923, math.floor(math.log(value_ms / 0.01) / math.log(GROWTH)) + 1)


def value_ms(number: int) -> float:
    """What a quantile in this bucket is told as."""
    return 0.01 * GROWTH ** (number - 1) * 1.01


def sketch(values_ms: Mapping[float, int]) -> bytes:
    """Latency -> how many answers took it."""
    counts = Counter[int]()
    for each, count in values_ms.items():
        counts[bucket(each)] += count
    return b"".join(struct.pack("<HH", *pair) for pair in sorted(counts.items()))


def buckets(blob: bytes) -> Counter[int]:
    found = Counter[int]()
    for number, count in struct.iter_unpack("<HH", blob):
        found[number] += count
    return found


def quantile(counts: Counter[int], percent: int) -> float | None:
    """Nearest rank; None of nothing."""
    whole = counts.total()
    if not whole:
        return None
    rank, seen = max(1, math.ceil(whole * percent / 100)), 0
    for number in sorted(counts):
        seen += counts[number]
        if seen >= rank:
            return value_ms(number)
    raise AssertionError("a rank beyond the last bucket")


@dataclass
class Blast:
    """One that a test writes: seconds, canaries and its end, whenever it likes."""

    file: Path
    started_s: int
    hosts: dict[str, int] = field(default_factory=dict)
    """Name -> number in the file."""
    number: int = 1

    def write(self, seconds: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> None:
        """Second -> host -> what the loader counted of it: `ok`, `errors`, `e2e_ms` and `ttft_ms` of all of them alike, `tokens`."""
        with sqlite3.connect(self.file, timeout=30) as connection:
            for at_s, counted in seconds.items():
                for name, told in counted.items():
                    ok, errors = told.get("ok", 0), told.get("errors", 0)
                    kinds = [{"kind": "http_500", "count": errors}] if errors else []
                    e2e, ttft = told.get("e2e_ms", 500.0), told.get("ttft_ms", 50.0)
                    connection.execute(
                        "INSERT INTO tallies (run_number, at_s, host_id, worker_id, kind, ok, errors, error_kinds, streamed,"
                        " prompt_tokens, output_tokens, output_tokens_estimated, cache_told, cache_hits, cache_judged,"
                        " cache_inferred, e2e, ttft) VALUES (?,?,?,1,'ranked',?,?,?,?,?,?,0,0,0,0,0,?,?)",
                        (self.number, at_s, self.hosts[name], ok, errors, json.dumps(kinds), ok, 20 * ok)
                        + (told.get("tokens", 50 * ok),)
                        + ((sketch({e2e: ok}), sketch({ttft: ok})) if ok else (b"", b"")),
                    )  # fmt: skip
                connection.execute(
                    "INSERT INTO loader_seconds (run_number, at_s, worker_id, users, cpu_share, lag_ms, limited)"
                    " VALUES (?,?,1,8,0.1,1.0,0)",
                    (self.number, at_s),
                )
        connection.close()

    def canaries(self, name: str, from_s: int, pairs: int = 8, e2e_ms: float = 500.0) -> None:
        """Unique prompts and their twins, all answered in full and none from memory."""
        with sqlite3.connect(self.file, timeout=30) as connection:
            for slot in range(2 * pairs):
                at = from_s + 2.0 * slot
                told = CANARY | {
                    "run_number": self.number,
                    "host_id": self.hosts[name],
                    "slot": slot,
                    "kind": "twin" if slot % 2 else "unique",
                    "pair": slot - 1 if slot % 2 else None,
                    "planned_at": at,
                    "sent_at": at,
                    "send_lag_ms": 0.0,
                    "took_ms": e2e_ms,
                    "e2e_ms": e2e_ms + slot,
                    "tpot_ms": (e2e_ms - 100) / 63,
                    "text_hash": f"h{slot // 2}",
                    "answer_id": f"{name}-{slot}",
                }
                connection.execute(
                    f"INSERT INTO shots ({', '.join(told)}) VALUES ({', '.join('?' * len(told))})",
                    list(told.values()),
                )
        connection.close()

    def end(self, ended_s: int) -> None:
        with sqlite3.connect(self.file, timeout=30) as connection:
            connection.execute(
                "UPDATE runs SET ended_at = ?, client_ok = 1 WHERE number = ?",
                (float(ended_s), self.number),
            )
        connection.close()


def begin(file: Path, hosts: Sequence[str], started_s: int) -> Blast:
    """A file whose tables the product made, and a blast in it that begins."""
    made = run("scout", "http://127.0.0.1:1", "--db", file, cwd=file.parent)
    assert file.is_file(), made.stderr
    blast = Blast(file, started_s)
    with sqlite3.connect(file, timeout=30) as connection:
        connection.execute(
            "INSERT INTO runs (number, id, verb, started_at, settings) VALUES (1, 'aaaabbbbcccc', 'blast', ?, '{}')",
            (float(started_s),),
        )
        connection.execute("INSERT INTO workers (id, name) VALUES (1, 'w1')")
        for number, name in enumerate(hosts, 100):
            url = f"http://10.0.0.{number}:8000"
            connection.execute(
                "INSERT INTO hosts (id, name, url, first_seen_at) VALUES (?, ?, ?, ?)",
                (number, name, url, float(started_s)),
            )
            connection.execute(
                "INSERT INTO run_hosts (run_number, host_id) VALUES (1, ?)", (number,)
            )
            blast.hosts[name] = number
    connection.close()
    return blast


@dataclass
class Counted:
    """One host in one window, counted from the file."""

    ok: int = 0
    errors: int = 0
    streamed: int = 0
    tokens: int = 0
    e2e: Counter[int] = field(default_factory=Counter)
    ttft: Counter[int] = field(default_factory=Counter)

    def figures(self, seconds: int) -> dict[str, float | None]:
        """As `board --json` names them; rates over so many seconds."""
        ended = self.ok + self.errors
        return {
            "ok": self.ok,
            "errors": self.errors,
            "streamed": self.streamed,
            "rps": self.ok / seconds,
            "output_tokens_per_s": self.tokens / seconds,
            "error_rate": self.errors / ended if ended else None,
            "p50_ms": quantile(self.e2e, 50),
            "p95_ms": quantile(self.e2e, 95),
            "ttft_p50_ms": quantile(self.ttft, 50),
            "ttft_p95_ms": quantile(self.ttft, 95),
        }


def recount(file: Path, run_id: str, from_s: int, to_s: int) -> dict[str, Counted]:
    """Every host of a run, from the ranked rows of these seconds, both included."""
    number = select(file, "SELECT number FROM runs WHERE id = ?", run_id)[0]["number"]
    names = select(
        file,
        "SELECT host_id, name FROM run_hosts JOIN hosts ON hosts.id = host_id WHERE run_number = ?",
        number,
    )
    found = {each["host_id"]: Counted() for each in names}
    for row in select(
        file,
        "SELECT * FROM tallies WHERE run_number = ? AND kind = 'ranked' AND at_s BETWEEN ? AND ?",
        number,
        from_s,
        to_s,
    ):
        of_host = found[row["host_id"]]
        of_host.ok += row["ok"]
        of_host.errors += row["errors"]
        of_host.streamed += row["streamed"]
        of_host.tokens += row["output_tokens"]
        of_host.e2e += buckets(row["e2e"])
        of_host.ttft += buckets(row["ttft"])
    return {each["name"]: found[each["host_id"]] for each in names}


def by_requests(counted: Mapping[str, Counted]) -> dict[str, tuple[int, bool]]:
    """Host -> rank by requests/s, and whether it shares that.

    Two counts of one window are tied where their difference lies within its 99 % interval: |a - b| <= 2.576 sqrt(a + b). A
    group holds all that are tied with its best. Who answered nothing comes last.
    """
    order = sorted(counted, key=lambda name: -counted[name].ok)
    groups: list[list[str]] = []
    for name in order:
        ok = counted[name].ok
        best = counted[groups[-1][0]].ok if groups else 0
        is_level = (best - ok) ** 2 <= 2.5758293035489004**2 * (best + ok) and bool(best) == bool(
            ok
        )
        if groups and is_level:
            groups[-1].append(name)
        else:
            groups.append([name])
    told: dict[str, tuple[int, bool]] = {}
    for group in groups:
        rank = len(told) + 1
        told |= {name: (rank, len(group) > 1) for name in group}
    return told
