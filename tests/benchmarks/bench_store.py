"""What 20 sightings with the readings of a recorded page, and 200 shots, cost in CPU and on disk.

RATIO store_cpu is CPU of `Store.add_sightings` over that of plain `executemany` with the same rows
ready-made in the same tables: what turning records into rows and finding series' ids adds. RATIO
store_shot_cpu is the same for `Store.add_shots`.
"""

import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sqlite_utils import Database

from toolkit.metrics.parser import read_page
from toolkit.records import Reading, RequestRecord, Run, Sighting
from toolkit.stats import Sketch
from toolkit.store import Store

PAGE = Path(__file__).parent.parent / "data" / "vllm-0.32.0-cpu" / "metrics_after_load.txt"
HOSTS = 20
TICKS = 120
ROUNDS = 5
LOOKS_AN_HOUR = 3600 // 2  # every 2 s
SHOTS = 10_000
SHOT_BATCH = 200
GAPS = 127  # of an answer of 128 chunks
RUN = Run(id="0123456789ab", verb="bench", started_at=1_750_000_000.0)


def grown(reading: Reading, tick: int) -> Reading:
    """A later look: every number moved, whole ones by whole steps, so that none gets cheaper to store."""
    step = 1.0 if reading.value.is_integer() else 0.1234567
    return Reading(name=reading.name, labels=reading.labels, value=reading.value + tick * step)


def look(host: int, tick: int, page: tuple[Reading, ...]) -> Sighting:
    """A sighting filled as scout fills it for a vLLM."""
    return Sighting(
        name=f"host-{host}",
        url=f"http://10.0.0.{host}:8000",
        at=1_750_000_000 + 2.0 * tick + host / 1000,
        status="ok",
        latency_ms=12.345 + tick,
        engine="vllm",
        dialect="v1",
        version="0.32.0",
        model="Qwen/Qwen2.5-7B-Instruct",
        models=("Qwen/Qwen2.5-7B-Instruct",),
        max_model_len=32768,
        gpu_memory_utilization=0.9,
        cache_dtype="auto",
        block_size=16,
        num_gpu_blocks=27_000,
        kv_cache_tokens=432_000,
        kv_cache_max_concurrency=13.18,
        engines=1,
        prefix_caching=True,
        running=3.0,
        waiting=0.0,
        kv_cache_usage=0.1234,
        prefix_hit_ratio=0.4321,
        preemptions_total=0.0,
        prompt_tokens_total=1000.0 * tick,
        generation_tokens_total=500.0 * tick,
        requests_total=float(tick),
        ttft_p50_ms=41.7,
        ttft_p95_ms=183.2,
        queue_mean_ms=1.25,
        config_hash="0123456789abcdef",
        started_at=1_749_990_000.5,
        readings=tuple(grown(reading, tick) for reading in page),
    )


def batches() -> list[list[Sighting]]:
    page = read_page(PAGE.read_text()).readings()
    return [[look(host, tick, page) for host in range(HOSTS)] for tick in range(TICKS)]


def through_store(path: Path, work: list[list[Sighting]]) -> float:
    with Store.open(path) as store:
        began = time.process_time()
        for batch in work:
            store.add_sightings(batch)
        return time.process_time() - began


def ready_rows(path: Path) -> tuple[list[str], list[tuple], list[tuple]]:
    """Take the rows that the store itself wrote."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT * FROM sightings ORDER BY id")
        columns = [column[0] for column in found.description]
        return (
            columns,
            found.fetchall(),
            connection.execute("SELECT * FROM readings ORDER BY sighting_id, series_id").fetchall(),
        )


def empty_copy(full: Path, path: Path) -> sqlite3.Connection:
    """Make a file with the same tables, hosts, series and runs, and no sighting or shot yet."""
    Store.open(path).close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("ATTACH ? AS full", (str(full),))
    connection.execute("INSERT INTO hosts SELECT * FROM full.hosts")
    connection.execute("INSERT INTO series SELECT * FROM full.series")
    connection.execute("INSERT INTO runs SELECT * FROM full.runs")
    connection.execute("DETACH full")
    return connection


Insert = Callable[[sqlite3.Connection, str, list[str], list[tuple]], object]


def with_executemany(
    connection: sqlite3.Connection, table: str, columns: list[str], rows: list[tuple]
) -> None:
    marks = ", ".join("?" * len(columns))
    connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def with_sqlite_utils(
    connection: sqlite3.Connection, table: str, columns: list[str], rows: list[tuple]
) -> None:
    Database(connection).table(table).insert_all(
        dict(zip(columns, row, strict=True)) for row in rows
    )


def through(insert: Insert, full: Path, path: Path) -> float:
    columns, sightings, readings = ready_rows(full)
    page = len(readings) // len(sightings)
    with closing(empty_copy(full, path)) as connection:
        began = time.process_time()
        for start in range(0, len(sightings), HOSTS):
            end = start + HOSTS
            connection.execute("BEGIN IMMEDIATE")
            insert(connection, "sightings", columns, sightings[start:end])
            names = ["sighting_id", "series_id", "value"]
            insert(connection, "readings", names, readings[start * page : end * page])
            connection.execute("COMMIT")
        return time.process_time() - began


def bare_size(path: Path) -> int:
    """Bytes of a file that holds no facts yet."""
    Store.open(path).close()
    return path.stat().st_size


def bench_sightings() -> None:
    """Take turns, so that a busy moment of the machine falls on all three alike."""
    work = batches()
    taken: dict[str, list[float]] = {"store": [], "executemany": [], "sqlite-utils insert_all": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            full = Path(folder, f"{number}-store.db")
            taken["store"].append(through_store(full, work))
            plain = Path(folder, f"{number}-plain.db")
            taken["executemany"].append(through(with_executemany, full, plain))
            other = Path(folder, f"{number}-utils.db")
            taken["sqlite-utils insert_all"].append(through(with_sqlite_utils, full, other))
            assert ready_rows(full) == ready_rows(plain) == ready_rows(other)
        size = full.stat().st_size - bare_size(Path(folder, "bare.db"))
    report(work, taken, size)


def report(work: list[list[Sighting]], taken: dict[str, list[float]], size: int) -> None:
    readings = len(work[0][0].readings)
    each = size / (HOSTS * TICKS)
    for name, runs in taken.items():
        batch_ms = 1000 * statistics.median(runs) / TICKS
        print(f"{name:<24} {batch_ms:6.2f} ms CPU a batch of {HOSTS} (median of {ROUNDS})")
    print(f"{readings} readings a sighting, {each:,.0f} bytes a sighting on disk, indexes included")
    growth = each * HOSTS * LOOKS_AN_HOUR / 1e6
    print(f"{HOSTS} hosts every 2 s: {growth:.0f} MB/h")
    ratio = statistics.median(taken["store"]) / statistics.median(taken["executemany"])
    print(f"RATIO store_cpu {ratio:.3f}")


def gaps(chance: random.Random) -> bytes:
    """The sketch of a steady stream: most gaps near 12 ms, log-normal, a third more or less."""
    sketch = Sketch()
    for _ in range(GAPS):
        sketch.add(chance.lognormvariate(2.5, 0.3))
    return sketch.to_bytes()


def shot(number: int, chance: random.Random) -> RequestRecord:
    """A streamed answer filled as bench fills it for a vLLM."""
    host, planned_at = number % HOSTS, RUN.started_at + number / 100
    return RequestRecord(
        run=RUN.id,
        name=f"host-{host}",
        url=f"http://10.0.0.{host}:8000",
        slot=number // HOSTS,
        kind="unique",
        prompt="capital-of-a-country",
        concurrency=8,
        stream=True,
        max_tokens=256,
        planned_at=planned_at,
        sent_at=planned_at + 0.0001,
        send_lag_ms=chance.random(),
        took_ms=1500 + 100 * chance.random(),
        ok=True,
        status_code=200,
        ttft_ms=50 * chance.random(),
        ttft_visible_ms=50 * chance.random(),
        e2e_ms=1500 + 100 * chance.random(),
        tpot_ms=12 * chance.random(),
        itl=gaps(chance),
        prompt_tokens=87,
        output_tokens=128,
        token_chunks=128,
        text_chars=555,
        text_hash=f"{chance.getrandbits(64):016x}",
        finish_reason="stop",
        model="Qwen/Qwen2.5-7B-Instruct",
        answer_id=f"chatcmpl-{chance.getrandbits(128):032x}",
    )


def shots_through_store(path: Path, work: list[RequestRecord]) -> float:
    with Store.open(path) as store:
        store.add_run(RUN)
        began = time.process_time()
        for start in range(0, SHOTS, SHOT_BATCH):
            store.add_shots(work[start : start + SHOT_BATCH])
        return time.process_time() - began


def shot_rows(path: Path) -> list[tuple]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM shots ORDER BY id").fetchall()


def shots_through_executemany(full: Path, path: Path) -> float:
    rows = shot_rows(full)
    with closing(empty_copy(full, path)) as connection:
        began = time.process_time()
        for start in range(0, SHOTS, SHOT_BATCH):
            connection.execute("BEGIN IMMEDIATE")
            with_executemany(connection, "shots", list(rows[0]), rows[start : start + SHOT_BATCH])
            connection.execute("COMMIT")
        return time.process_time() - began


def time_reading(path: Path) -> float:
    with Store.open_readonly(path) as store:
        began = time.process_time()
        assert len(store.shots(RUN.id)) == SHOTS
        return time.process_time() - began


def bench_shots() -> None:
    chance = random.Random(1)
    work = [shot(number, chance) for number in range(SHOTS)]
    taken: dict[str, list[float]] = {"store": [], "executemany": [], "reading": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            full, plain = Path(folder, f"{number}-store.db"), Path(folder, f"{number}-plain.db")
            taken["store"].append(shots_through_store(full, work))
            taken["executemany"].append(shots_through_executemany(full, plain))
            taken["reading"].append(time_reading(full))
            assert shot_rows(full) == shot_rows(plain)
        size = full.stat().st_size - bare_size(Path(folder, "bare.db"))
    report_shots(work, taken, size)


def report_shots(work: list[RequestRecord], taken: dict[str, list[float]], size: int) -> None:
    for name, runs in taken.items():
        shot_us = 1e6 * statistics.median(runs) / SHOTS
        print(f"{name:<24} {shot_us:6.1f} us CPU a shot (median of {ROUNDS})")
    sketch = statistics.mean(len(one.itl or b"") for one in work)
    print(
        f"{size / SHOTS:,.0f} bytes a shot on disk, indexes included, {sketch:,.0f} of them the sketch"
    )
    ratio = statistics.median(taken["store"]) / statistics.median(taken["executemany"])
    print(f"RATIO store_shot_cpu {ratio:.3f}")


def main() -> None:
    bench_sightings()
    bench_shots()


if __name__ == "__main__":
    main()
