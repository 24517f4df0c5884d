"""What a blast of 1,000 requests a second at each of 20 hosts costs in the database: bytes an hour, commits, a window's read.

Every second is written as a blast's master writes it, in one transaction: ranked and canary tallies, a second of the load
generator a worker, and the stored canary shots (a pair a host every 5 s). Half of the answers come from memory in about
2 ms, the others take about 3 s; all are streams, so that both sketches are full.

RATIO tallies_hour_1, _4 are bytes an hour over 150 MB, with one worker and with four whose parts of a second meet.
RATIO tallies_commit_1, _4 are the 95th percentile of a second's commit over 20 ms, wall time: somebody waits for it.
RATIO tallies_parts is CPU of `Store.parts` for 15 minutes over that of sqlite3 alone fetching the same columns.
"""

import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np

from toolkit.records import Host, LoaderSecond, Part, RequestRecord, Run, Tally, TallyKind
from toolkit.stats import ALPHA, BELOW_MS, BUCKETS, Sketch
from toolkit.store import Store

HOSTS = [Host(name=f"host-{n}", url=f"http://10.0.0.{n}:8000") for n in range(20)]
RPS = 1000
CANARY_SHARE = 0.01
PAIR_S = 5
WINDOW_S = 900
DISTINCT_S = 30
"""Seconds whose sketches differ; further ones use them again."""
MEASURED_S = {1: WINDOW_S, 4: 120}
"""By the number of workers."""
BAR_BYTES_AN_HOUR = 150e6
BAR_COMMIT_S = 0.020
RUN = Run(id="0123456789ab", verb="blast", started_at=1_750_000_000.0)
LOG_GAMMA = np.log((1 + ALPHA) / (1 - ALPHA))


def sketches(
    count: float, seconds: int, chance: np.random.Generator
) -> list[tuple[int, bytes, bytes]]:
    """Seconds of a host's answers at one worker: how many, and the sketches of their E2E and TTFT."""
    counts = chance.poisson(count, seconds)
    of = np.repeat(np.arange(seconds), counts)
    hit = chance.random(len(of)) < 0.5
    spread = chance.lognormal(0, np.where(hit, 0.3, 0.4), len(of))
    e2e, ttft = np.where(hit, 2.0, 3000.0) * spread, np.where(hit, 1.5, 300.0) * spread
    return list(
        zip(counts.tolist(), blobs(e2e, of, seconds), blobs(ttft, of, seconds), strict=True)
    )


def blobs(values_ms: np.ndarray, of: np.ndarray, seconds: int) -> list[bytes]:
    bucket = np.floor(np.log(values_ms / BELOW_MS) / LOG_GAMMA).astype(np.int64) + 1
    key, count = np.unique(of * BUCKETS + np.clip(bucket, 0, BUCKETS - 1), return_counts=True)
    pairs = np.stack([key % BUCKETS, count], axis=1).astype("<u2")
    ends = np.searchsorted(key, np.arange(seconds + 1) * BUCKETS)
    return [pairs[a:b].tobytes() for a, b in pairwise(ends)]


def tally(
    host: Host, at_s: int, worker: int, kind: TallyKind, told: tuple[int, bytes, bytes]
) -> Tally:
    ok, e2e, ttft = told
    return Tally(
        run=RUN.id,
        name=host.name,
        url=host.url,
        at_s=at_s,
        worker=f"loader-{worker}_3f9c2a7b1d0448e6a5b0c7d9e1f20314",
        kind=kind,
        ok=ok,
        streamed=ok,
        prompt_tokens=30 * ok,
        output_tokens=250 * ok,
        cache_judged=ok,
        cache_inferred=ok // 2,
        e2e=e2e,
        ttft=ttft,
    )


def shots(second: int, gaps: bytes, chance: random.Random) -> Iterator[RequestRecord]:
    """A unique canary and its twin of each host, filled as a vLLM's answers are."""
    for host in HOSTS:
        for slot in (2 * second, 2 * second + 1):
            at = RUN.started_at + second
            yield RequestRecord(
                run=RUN.id,
                name=host.name,
                url=host.url,
                slot=slot,
                kind="twin" if slot % 2 else "unique",
                pair=slot - 1 if slot % 2 else None,
                prompt="capital-of-a-country",
                stream=True,
                max_tokens=256,
                planned_at=at,
                sent_at=at + chance.random(),
                send_lag_ms=chance.random(),
                took_ms=3000 * chance.random(),
                ok=True,
                status_code=200,
                ttft_ms=100 * chance.random(),
                ttft_visible_ms=100 * chance.random(),
                e2e_ms=3000 * chance.random(),
                tpot_ms=12 * chance.random(),
                itl=gaps,
                prompt_tokens=30,
                output_tokens=250,
                token_chunks=250,
                text_chars=1100,
                text_hash=f"{chance.getrandbits(64):016x}",
                finish_reason="length",
                model="Qwen/Qwen3.5-35B-A3B-FP8",
                answer_id=f"chatcmpl-{chance.getrandbits(128):032x}",
            )


def gaps_of(chance: random.Random) -> bytes:
    sketch = Sketch()
    for _ in range(250):
        sketch.add(chance.lognormvariate(2.5, 0.3))
    return sketch.to_bytes()


def seconds_of(
    workers: int, seconds: int
) -> Iterator[tuple[list[Tally], list[LoaderSecond], list[RequestRecord]]]:
    """What the master hears each second."""
    dice, chance = np.random.default_rng(1), random.Random(1)
    kinds: dict[TallyKind, float] = {"ranked": 1 - CANARY_SHARE, "canary": CANARY_SHARE}
    told = {
        (host.name, worker, kind): sketches(RPS * share / workers, DISTINCT_S, dice)
        for host in HOSTS
        for worker in range(workers)
        for kind, share in kinds.items()
    }
    gaps = gaps_of(chance)
    for second in range(seconds):
        at_s = int(RUN.started_at) + second
        tallies = [
            tally(host, at_s, worker, kind, told[host.name, worker, kind][second % DISTINCT_S])
            for worker in range(workers)
            for host in HOSTS
            for kind in kinds
        ]
        health = [
            LoaderSecond(run=RUN.id, at_s=at_s, worker=each, users=640, cpu_share=0.7, lag_ms=1.5)
            for each in dict.fromkeys(tally.worker for tally in tallies)
        ]
        yield tallies, health, list(shots(second, gaps, chance)) if second % PAIR_S == 0 else []


def write(path: Path, workers: int) -> tuple[list[float], float, float]:
    """Write a blast; each commit's wall time, a commit's mean CPU, and bytes an hour."""
    taken, worked = [], 0.0
    with Store.open(path) as store:
        store.add_run(RUN)
        store.plan_hosts(RUN.id, HOSTS)
        store._rows("PRAGMA wal_checkpoint(TRUNCATE)")
        before = path.stat().st_size
        for tallies, health, canaries in seconds_of(workers, MEASURED_S[workers]):
            began, cpu_began = time.perf_counter(), time.process_time()
            store.add_second(tallies, health, canaries)
            taken.append(time.perf_counter() - began)
            worked += time.process_time() - cpu_began
        store._rows("PRAGMA wal_checkpoint(TRUNCATE)")
    seconds = MEASURED_S[workers]
    return taken, worked / seconds, (path.stat().st_size - before) * 3600 / seconds


def cpu(action: Callable[[], object]) -> float:
    """The least CPU of a few tries: a busy neighbour only adds."""
    least = float("inf")
    for _ in range(5):
        began = time.process_time()
        action()
        least = min(least, time.process_time() - began)
    return least


def time_reading(path: Path) -> tuple[float, float]:
    """CPU of a 15-minute window's parts, by the store and by sqlite3 alone."""
    first = int(RUN.started_at)
    columns = ", ".join(("id", "host_id", *Part._fields[2:]))
    plain = f"SELECT {columns} FROM tallies WHERE run_number = 1 AND kind = 'ranked' AND at_s >= ?"
    with Store.open_readonly(path) as store, closing(sqlite3.connect(path)) as connection:
        assert len(store.parts(RUN.id, from_s=first)) == WINDOW_S * len(HOSTS)
        ours = cpu(lambda: store.parts(RUN.id, from_s=first))
        bare = cpu(lambda: connection.execute(plain, (first,)).fetchall())
    return ours, bare


def main() -> None:
    ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        for workers, seconds in MEASURED_S.items():
            path = Path(folder, f"{workers}.db")
            taken, worked, hour = write(path, workers)
            p50, p95 = np.quantile(taken, [0.5, 0.95])
            print(
                f"{workers} workers, {seconds} s: {hour / 1e6:.0f} MB an hour; "
                f"a second's commit p50 {1000 * p50:.1f} ms, p95 {1000 * p95:.1f} ms, CPU {1000 * worked:.1f} ms"
            )
            ratios[f"tallies_hour_{workers}"] = hour / BAR_BYTES_AN_HOUR
            ratios[f"tallies_commit_{workers}"] = p95 / BAR_COMMIT_S
        ours, bare = time_reading(Path(folder, "1.db"))
    print(
        f"{WINDOW_S * len(HOSTS):,} parts: {1000 * ours:.0f} ms CPU, sqlite3 alone {1000 * bare:.0f} ms"
    )
    ratios["tallies_parts"] = ours / bare
    for name, value in ratios.items():
        print(f"RATIO {name} {value:.3f}")


if __name__ == "__main__":
    main()
