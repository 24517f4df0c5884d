"""What the response cache's policy and its forecast cost, and how far the forecast is from a proxy that serves the same requests.

The workloads are 200,000 requests at 50/s: two prompts of which one is asked in 95 % of requests, beside a tail that nobody repeats,
and Zipf's law (exponent 0.9) over 20,000 keys. CPU time throughout, medians of rounds.

RATIO forecast_points is the largest difference of a ratio between forecast and proxy (asyncio, virtual time) over 0.5 points.
RATIO forecast_grid is CPU of the grid of 5 sizes and 3 times to live over 4 s, of Zipf's law, the dearer one.
RATIO forecast_cell_two, forecast_cell_zipf are CPU of its dearest cell, ten answers held, over 1 us a request.
RATIO cache_get, cache_put are CPU of a hit over 0.5 us, and of putting a new answer into a full cache over 2 us.
RATIO cache_entry is memory of an entry beside its answer, with its key of 16 bytes and its part of the ghost, over 350 bytes: the mean
of five sizes (how full Python's tables are differs), each after the cache was filled three times over.
RATIO prefix_ceiling is CPU of the ceiling of the Mooncake trace (276,491 blocks) over 1 s, prefix_capacity that of LRU at one capacity.
"""

import lzma
import os
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
from at_length import at_length

sys.path.insert(0, str(Path(__file__).parent.parent))
from support.small_proxy import Request, serve

from toolkit.proxy.cache.memory import MemoryCache
from toolkit.workload import RequestColumns, columns, hit_curve, read, shared_prefix

COUNT = at_length(200_000, 40_000)
SERVED = at_length(20_000, 4_000)
SIZES = (10, 100, 1_000, 10_000, None)
TTLS_S = (60.0, 600.0, None)
HELD = (30_000, 50_000, 70_000, 100_000, 150_000)[: at_length(5, 1)]
TRACE = Path(__file__).parent.parent / "data" / "traces" / "mooncake_conversation.jsonl.xz"


def cpu_s(work: Callable[[], object], rounds: int = 3) -> float:
    """CPU of one call, the median of some."""
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def workloads() -> dict[str, np.ndarray]:
    chance = np.random.default_rng(1)
    likely = 1 / np.arange(1, 20_001) ** 0.9
    return {
        "two": np.where(
            chance.random(COUNT) < 0.95, chance.integers(0, 2, COUNT), 2 + np.arange(COUNT)
        ),
        "zipf": chance.choice(20_000, size=COUNT, p=likely / likely.sum()),
    }


def points(keys: np.ndarray, ts: np.ndarray, size: int, latency_s: float) -> float:
    """The largest difference between a forecast's and a proxy's ratios, in points."""
    keys, ts = keys[:SERVED], ts[:SERVED]
    latencies = np.full(SERVED, latency_s)
    (cell,) = hit_curve(keys, ts, latencies, sizes=(size,), ttls=(60.0,))
    served = serve(
        [
            Request(at, key.to_bytes(16), latency_s)
            for at, key in zip(ts.tolist(), keys.tolist(), strict=True)
        ],
        size=size,
        ttl_s=60.0,
    )
    apart = max(abs(cell.hits - served.hits), abs(cell.coalesced - served.coalesced))
    return 100 * apart / SERVED


def forecasts() -> None:
    ts = np.cumsum(np.random.default_rng(2).exponential(1 / 50, COUNT))
    latency_s = np.ones(COUNT)
    worst = 0.0
    for name, keys in workloads().items():
        grid = cpu_s(lambda keys=keys: hit_curve(keys, ts, latency_s, sizes=SIZES, ttls=TTLS_S))
        dearest = cpu_s(
            lambda keys=keys: hit_curve(keys, ts, latency_s, sizes=(10,), ttls=(600.0,))
        )
        cell_us = dearest / COUNT * 1e6
        worst = max(worst, *(points(keys, ts, 100, took) for took in (0.0, 1.0)))
        print(
            f"{name}: grid of {len(SIZES) * len(TTLS_S)} cells {grid:.2f} s CPU, dearest cell {cell_us:.2f} us a request"
        )
        print(f"RATIO forecast_cell_{name} {cell_us:.2f}")
        if name == "zipf":
            print(f"RATIO forecast_grid {grid / 4:.2f}")
    print(
        f"forecast and proxy differ by at most {worst:.3f} points over {SERVED:,} requests, latency 0 and 1 s"
    )
    print(f"RATIO forecast_points {worst / 0.5:.2f}")


def operations() -> None:
    keys = [os.urandom(16) for _ in range(COUNT)]
    held = 20_000
    full: MemoryCache[bytes, bytes] = MemoryCache(held * 1_000, ttl_s=600.0)

    def fill() -> None:
        for key in keys:
            full.put(key, key, 1.0, weight=1_000)

    def find() -> None:
        for key in newest:
            full.get(key, 2.0)

    put_us = cpu_s(fill, 5) / COUNT * 1e6
    newest = keys[-1_000:] * 200
    get_us = cpu_s(find, 5) / len(newest) * 1e6
    assert full.evicted
    assert sum(full.get(key, 2.0) is not None for key in newest) > 0.9 * len(newest)
    print(f"a hit {get_us:.2f} us, a put that evicts {put_us:.2f} us CPU")
    print(f"RATIO cache_get {get_us / 0.5:.2f}")
    print(f"RATIO cache_put {put_us / 2:.2f}")


def entry_bytes(held: int) -> float:
    """Memory of one entry beside its answer, in a cache that has turned over twice."""
    answer = object()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    cache: MemoryCache[bytes, object] = MemoryCache(held * 1_000, ttl_s=600.0)
    for number in range(3 * held):
        cache.put(os.urandom(16), answer, number / 1e6, weight=1_000)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(cache) == held
    return (after - before) / held


def memory() -> None:
    told = {held: entry_bytes(held) for held in HELD}
    print("bytes an entry: " + ", ".join(f"{size:.0f} at {held:,}" for held, size in told.items()))
    print(f"RATIO cache_entry {statistics.mean(told.values()) / 350:.2f}")


def trace() -> RequestColumns:
    with lzma.open(TRACE) as lines:
        return columns(read(lines, "mooncake", client=str).seen)


def prefixes() -> None:
    laid = trace()
    ceiling = cpu_s(lambda: shared_prefix(laid))
    both = cpu_s(lambda: shared_prefix(laid, capacities=(8_192,)))
    told = shared_prefix(laid)
    print(
        f"Mooncake: {100 * (told.share or 0):.2f} % of prompt tokens, ceiling in {ceiling:.2f} s, LRU at a capacity in {both - ceiling:.2f} s"
    )
    print(f"RATIO prefix_ceiling {ceiling:.2f}")
    print(f"RATIO prefix_capacity {both - ceiling:.2f}")


def main() -> None:
    forecasts()
    operations()
    memory()
    prefixes()


if __name__ == "__main__":
    main()
