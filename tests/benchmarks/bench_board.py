"""What a board costs over a database of 20 hosts, and how exact its quantiles are. Takes about half a minute.

For 200 and for 1,000 answers a second and host, half of them from memory (2 ms) and half not (3 s):

    cold      CPU of the window of 15 minutes from an open database, best of five
    page      CPU of a whole cold board: with the windows of one and five minutes ago
    step      CPU of the next board 2 s later, 40 of them; each is held against a fresh recount, bit for bit
    ranks     CPU of all ranks of the run in steps of 10 s, first from nothing, then of another figure

RATIO board_cold is the dearer cold window over 100 ms, board_step the dearer p95 of a step over 10 ms, and
board_quantile the largest error in 4 mixes of 60,000 values over 1 %.
"""

import gc
import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from toolkit.board.feed import Feed
from toolkit.board.follow import Follow
from toolkit.board.window import Totals, quantiles_ms
from toolkit.records import Host, LoaderSecond, Part, Run, Tally
from toolkit.stats import Sketch
from toolkit.store import Store

S = 1_800_000_000
RUN = Run(id="abcdef012345", verb="blast", started_at=S + 0.2)
HOSTS = tuple(Host(name=f"h{n:02}", url=f"http://10.0.0.{n}:8000") for n in range(20))
WINDOW_S = 900
SECONDS = WINDOW_S + 300 + 80
RATES = (200, 1000)
BLOBS = 30
"""Sketches are drawn from so many; each is as long as a real one of its rate."""
STEPS = 40
BAR_COLD_MS, BAR_STEP_MS, BAR_ERROR = 100.0, 10.0, 0.01


def latency(rng: random.Random, hits: float) -> float:
    if rng.random() < hits:
        return rng.lognormvariate(math.log(2), 0.2)
    return rng.lognormvariate(math.log(3000), 0.4)


def blob(rng: random.Random, count: int, hits: float = 0.5) -> bytes:
    sketch = Sketch()
    for _ in range(count):
        sketch.add(latency(rng, hits))
    return sketch.to_bytes()


def write(path: Path, rate: int) -> None:
    rng = random.Random(rate)
    blobs = [(blob(rng, rate), blob(rng, rate // 2)) for _ in range(BLOBS)]
    with Store.open(path) as store:
        store.add_run(RUN)
        store.plan_hosts(RUN.id, HOSTS)
        for at_s in range(S, S + SECONDS):
            tallies = [tally(host, at_s, rate, rng.choice(blobs), rng) for host in HOSTS]
            store.add_second(tallies, [LoaderSecond(run=RUN.id, at_s=at_s, worker="w1")])


def tally(
    host: Host, at_s: int, rate: int, blobs: tuple[bytes, bytes], rng: random.Random
) -> Tally:
    return Tally(
        run=RUN.id,
        name=host.name,
        url=host.url,
        at_s=at_s,
        worker="w1",
        kind="ranked",
        ok=rate,
        streamed=rate // 2,
        errors=rng.choice((0, 0, 0, 1)),
        output_tokens=rate * 100,
        e2e=blobs[0],
        ttft=blobs[1],
    )


def cpu_ms(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def window_ms(store: Store) -> float:
    """A cold window, whose garbage is collected outside."""
    follow = Follow(store, RUN)
    follow.refresh()
    gc.collect()
    return cpu_ms(lambda: follow.totals(WINDOW_S, S + SECONDS - 1))


def page_ms(store: Store) -> float:
    feed = Feed(store, RUN)
    gc.collect()
    return cpu_ms(feed.board)


def steps_ms(store: Store) -> list[float]:
    feed, last_s = Feed(store, RUN), S + SECONDS - 1
    feed.board(at_s=last_s - 2 * STEPS)
    taken = []
    for at_s in range(last_s - 2 * (STEPS - 1), last_s + 1, 2):
        taken.append(cpu_ms(lambda at_s=at_s: feed.board(at_s=at_s)))  # type: ignore[misc]
        if feed.board(at_s=at_s) != Feed(store, RUN).board(at_s=at_s):
            raise SystemExit("a board that moved differs from one that was counted anew")
    return sorted(taken)


def ranks_ms(store: Store) -> tuple[float, float, float]:
    feed = Feed(store, RUN)
    feed.refresh()
    cold = cpu_ms(feed.ranks)
    other = cpu_ms(lambda: feed.ranks(rank_by="p95"))
    slabs = feed._follow.steps(10).slabs.values()
    size = sum(each.counts.nbytes + each.cells.nbytes + each.values.nbytes for each in slabs)
    kib = size / 1024 / len(HOSTS) / (SECONDS / 3600)
    return cold, other, kib


def measured(path: Path, rate: int) -> tuple[float, float]:
    """The cold window and the p95 of a step."""
    with Store.open_readonly(path) as store:
        cold = min(window_ms(store) for _ in range(5))
        page = min(page_ms(store) for _ in range(3))
        steps = steps_ms(store)
        p50, p95 = steps[len(steps) // 2], steps[math.ceil(len(steps) * 0.95) - 1]
        first, other, kib = ranks_ms(store)
    print(
        f"{rate:5} rps: cold {cold:.0f} ms, page {page:.0f} ms, step p50 {p50:.1f} p95 {p95:.1f} ms, "
        f"ranks {first:.0f} ms then {other:.0f} ms, steps kept {kib:,.0f} KiB a host and hour"
    )
    return cold, p95


def quantile_error(rng: random.Random, hits: float) -> float:
    """The largest of p50, p95 and p99 of 300 seconds of 200 values, against the exact nearest rank."""
    seconds = [[latency(rng, hits) for _ in range(200)] for _ in range(300)]
    totals = Totals([1])
    totals.add([part(number, values) for number, values in enumerate(seconds)])
    told = quantiles_ms(totals.histograms, (50, 95, 99))[0][0]
    everything = sorted(value for values in seconds for value in values)
    worst = 0.0
    for percent, value in zip((50, 95, 99), told, strict=True):
        exact = everything[math.ceil(len(everything) * percent / 100) - 1]
        assert value is not None
        worst = max(worst, abs(value - exact) / exact)
    return worst


def part(row: int, values: Sequence[float]) -> Part:
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    nothing = (0,) * 8
    return Part(row, 1, S + row, len(values), *nothing, sketch.to_bytes(), b"")


def main() -> None:
    rng = random.Random(4)
    error = max(quantile_error(rng, hits) for hits in (0.0, 0.5, 0.6, 0.95))
    print(f"largest quantile error: {error:.2%}")
    colds, steps = [], []
    with tempfile.TemporaryDirectory() as folder:
        for rate in RATES:
            path = Path(folder) / f"{rate}.db"
            write(path, rate)
            cold, step = measured(path, rate)
            colds.append(cold)
            steps.append(step)
    print(f"RATIO board_quantile {error / BAR_ERROR:.3f}")
    print(f"RATIO board_cold {max(colds) / BAR_COLD_MS:.3f}")
    print(f"RATIO board_step {max(steps) / BAR_STEP_MS:.3f}")


if __name__ == "__main__":
    main()
