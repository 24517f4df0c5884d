"""The forecast against a proxy in asyncio that serves the same requests with the same cache: its counters are the truth."""

import numpy as np
import pytest
from support.small_proxy import Request, serve

from toolkit.workload.forecast import hit_curve

COUNT = 20_000
RATE = 50.0
pytestmark = pytest.mark.slow


def keys_of(workload: str, chance: np.random.Generator) -> np.ndarray:
    if workload == "two prompts":
        tail = 2 + np.arange(COUNT)
        return np.where(chance.random(COUNT) < 0.95, chance.integers(0, 2, COUNT), tail)
    likely = 1 / np.arange(1, 3_001) ** 0.9
    return chance.choice(3_000, size=COUNT, p=likely / likely.sum())


def latencies(mode: str, chance: np.random.Generator) -> np.ndarray:
    if mode == "differing":
        return chance.lognormal(0.0, 1.0, COUNT)
    return np.full(COUNT, float(mode))


@pytest.mark.parametrize(
    ("workload", "latency", "size", "ttl_s"),
    [
        ("two prompts", "0", 10, 600.0),
        ("two prompts", "1", 2, 600.0),
        ("two prompts", "differing", 1_000, 20.0),
        ("zipf", "0", 100, 60.0),
        ("zipf", "0", None, 20.0),
        ("zipf", "1", None, None),
        ("zipf", "differing", 100, 60.0),
    ],
)
def test_what_is_forecast_is_what_a_proxy_counts(
    workload: str, latency: str, size: int | None, ttl_s: float | None
) -> None:
    chance = np.random.default_rng(7)
    keys, ts = keys_of(workload, chance), np.cumsum(chance.exponential(1 / RATE, COUNT))
    latency_s, failed = latencies(latency, chance), chance.random(COUNT) < 0.02
    (cell,) = hit_curve(keys, ts, latency_s, sizes=(size,), ttls=(ttl_s,), failed=failed)
    served = serve(
        [
            Request(at, int(key).to_bytes(16), took, fails)
            for at, key, took, fails in zip(
                ts.tolist(), keys.tolist(), latency_s.tolist(), failed.tolist(), strict=True
            )
        ],
        size=size,
        ttl_s=ttl_s,
    )
    if latency == "0":
        assert (cell.hits, cell.coalesced, cell.misses) == (served.hits, 0, served.misses)
    # asyncio calls what is due within its clock's resolution at once, so two requests may change places: measured, none do
    assert abs(cell.hits - served.hits) + abs(cell.coalesced - served.coalesced) <= 2
