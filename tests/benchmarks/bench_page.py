"""What the leaderboard page costs with 15 and with 50 viewers, and how soon a request that ended is seen on it.

    python tests/benchmarks/bench_page.py [--full]

Twenty hosts of 200 requests a second, fifteen minutes of them stored before; a process writes each second on, as a blast's
master does. The page runs as `streamlit run dashboards/leaderboard.py`. The viewers are scripted (support/viewers.py): each
holds a web socket and asks again for each part of the page as often as the page told it to. They arrive a tenth of a second
apart, and what is measured begins when all have their first page: 15 s with 15 viewers and 15 s with 50, with --full 60 s
each and then ten minutes with 50, to see whether the cost rises.

CPU is the server's own. A refresh is timed from asking to its last message, on this same machine, whose viewers cost a
part of the other core.

Bars: refresh p95 under 250 ms with 15 viewers; with 50 under 1 s on less than one core; under 25 ms of CPU a refresh; under
400 MB; a request that ended is seen within 5 s at p95. For that, one more host gets a request in every second, at a random
moment of it, which is written 0.05 to 0.35 s after that second is over.
"""

import argparse
import asyncio
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.page_server import PageServer, page_over  # noqa: E402 (path first)
from support.viewers import Viewer, arrive, leave  # noqa: E402

from toolkit.records import Host, LoaderSecond, Run, Tally  # noqa: E402
from toolkit.stats import Sketch  # noqa: E402
from toolkit.store import Store  # noqa: E402

RUN = "0123456789ab"
HOSTS = tuple(Host(name=f"host-{n:02}", url=f"http://10.0.0.{n}:8000") for n in range(1, 21))
PROBE = Host(name="probe", url="http://10.0.0.99:8000")
RPS = 200
HISTORY_S = 900
WRITTEN_AFTER_S = (0.05, 0.35)
"""After a second is over: once all workers have told of it, at the latest; as locustfiles/blast_master.py does."""
KINDS = 60
"""So many different seconds are drawn and used again and again."""
PROBED = re.compile(rb"data-host=\W*probe\W[^<>]*?data-ok=\W*([0-9]+)")


# --- what is written ------------------------------------------------------------------------------


def blobs(dice: random.Random, median_ms: float) -> list[bytes]:
    """Seconds of a busy host: latencies spread like a logarithmic bell."""
    made = []
    for _ in range(KINDS):
        sketch = Sketch()
        for _ in range(RPS):
            sketch.add(median_ms * dice.lognormvariate(0, 0.4))
        made.append(sketch.to_bytes())
    return made


class Seconds:
    """Each second's tallies; the same seed, the same blast."""

    def __init__(self) -> None:
        self._dice = random.Random(4)
        self._blobs = [
            (blobs(self._dice, 800.0 + 40 * n), blobs(self._dice, 90.0 + 5 * n))
            for n in range(len(HOSTS))
        ]

    def tallies(self, at_s: int) -> list[Tally]:
        return [
            Tally(
                run=RUN, name=host.name, url=host.url, at_s=at_s, worker="w1", kind="ranked",
                ok=(ok := RPS - self._dice.randrange(20)), errors=self._dice.randrange(3), streamed=RPS,
                prompt_tokens=30 * ok, output_tokens=200 * ok, cache_judged=ok, cache_inferred=ok // 3,
                e2e=self._dice.choice(e2e), ttft=self._dice.choice(ttft),
            )
            for host, (e2e, ttft) in zip(HOSTS, self._blobs, strict=True)
        ]  # fmt: skip

    def loader(self, at_s: int) -> LoaderSecond:
        return LoaderSecond(
            run=RUN, at_s=at_s, worker="w1", users=640, cpu_share=0.5, lag_ms=2.0, limited=False
        )


def begin(database: Path) -> None:
    """Store the fifteen minutes before now."""
    seconds, now_s = Seconds(), int(time.time())
    with Store.open(database) as store:
        store.add_run(Run(id=RUN, verb="blast", started_at=float(now_s - HISTORY_S)))
        store.plan_hosts(RUN, [*HOSTS, PROBE])
        for at_s in range(now_s - HISTORY_S, now_s):
            store.add_second(seconds.tallies(at_s), [seconds.loader(at_s)])


def feed(database: str) -> None:
    """Write each second when it is over, and tell when the probe's request of it ended and how many it has."""
    seconds, dice = Seconds(), random.Random()
    sketch = Sketch()
    sketch.add(100.0)
    one = sketch.to_bytes()
    with Store.open(database) as store:
        next_s = max(second.at_s for _, second in store.loader_seconds(RUN)) + 1
        for probes in range(1, 100_000):
            due_s = next_s + 1 + dice.uniform(*WRITTEN_AFTER_S)
            time.sleep(max(0.0, due_s - time.time()))
            probe = Tally(
                run=RUN, name=PROBE.name, url=PROBE.url, at_s=next_s, worker="w1", kind="ranked",
                ok=1, streamed=1, output_tokens=10, e2e=one, ttft=one,
            )  # fmt: skip
            store.add_second([*seconds.tallies(next_s), probe], [seconds.loader(next_s)])
            print(next_s + dice.random(), probes, flush=True)
            next_s += 1


@contextmanager
def feeding(database: Path) -> Iterator[Path]:
    """Feed in a process of its own; the file that tells about the probe."""
    told = database.with_suffix(".probe")
    with told.open("w") as out:
        writer = subprocess.Popen([sys.executable, __file__, "--feed", str(database)], stdout=out)
        try:
            yield told
        finally:
            writer.kill()
            writer.wait()


# --- what is measured -----------------------------------------------------------------------------


@dataclass
class Sight:
    """When a viewer first saw how many of the probe's requests; wall clock."""

    seen: list[tuple[float, int]] = field(default_factory=list)

    def __call__(self, data: bytes) -> None:
        for count in PROBED.findall(data):
            if not self.seen or int(count) > self.seen[-1][1]:
                self.seen.append((time.time(), int(count)))

    def delays_s(self, told: Path) -> list[float]:
        """For each of the probe's requests that was seen: from its end until then."""
        ended = [line.split() for line in told.read_text().splitlines()]
        return [
            next(at for at, seen in self.seen if seen >= int(number)) - float(moment)
            for moment, number in ended
            if self.seen and self.seen[0][1] < int(number) <= self.seen[-1][1]
        ]


@dataclass
class Figures:
    """One steady spell."""

    viewers: int
    first_page_s: float
    refresh_ms: list[float]
    late: int
    """Of these, refreshes still awaited at the end."""
    cpu_ms: float
    cores: float
    rss_mb: float

    @property
    def p95_ms(self) -> float:
        return nearest(self.refresh_ms, 0.95)

    def __str__(self) -> str:
        return (
            f"{self.viewers} viewers: {len(self.refresh_ms)} refreshes ({self.late} awaited at the end),"
            f" p50 {nearest(self.refresh_ms, 0.5):.0f} ms, p95 {self.p95_ms:.0f} ms,"
            f" {self.cpu_ms:.1f} ms CPU each, {self.cores:.2f} of a core, {self.rss_mb:.0f} MB,"
            f" first page p95 {self.first_page_s:.1f} s"
        )


def nearest(values: list[float], q: float) -> float:
    """Nearest rank."""
    return sorted(values)[max(0, -(-int(q * 1000) * len(values) // 1000) - 1)]


async def spell(server: PageServer, viewers: list[Viewer], length_s: float) -> Figures:
    """Watch for a while."""
    cpu_s, began = server.cpu_s(), time.monotonic()
    await asyncio.sleep(length_s)
    ended = time.monotonic()
    cpu_s = server.cpu_s() - cpu_s
    took_s = [took for v in viewers for at, took in v.refresh_s if began < at <= ended]
    answered = len(took_s)
    # one that has not come by now took at least as long as it is waited for
    took_s += [ended - asked_at for v in viewers for asked_at in v.waiting.values()]
    refresh_ms = [1e3 * took for took in took_s]
    assert refresh_ms, [v.faults for v in viewers]
    assert not any(v.faults for v in viewers), viewers[0].faults
    return Figures(
        viewers=len(viewers),
        first_page_s=nearest([v.first_page_s or 0.0 for v in viewers], 0.95),
        late=len(refresh_ms) - answered,
        refresh_ms=refresh_ms,
        cpu_ms=1e3 * cpu_s / answered,
        cores=cpu_s / (ended - began),
        rss_mb=server.rss_mb(),
    )


async def watched(
    server: PageServer, count: int, spells_s: list[float], sight: Sight
) -> list[Figures]:
    """So many viewers, for one spell after the other."""
    viewers = [Viewer(server.url) for _ in range(count - 1)]
    # the probe, slow as it is, stands below the twenty that are shown unless more are asked for
    viewers.append(Viewer(server.url, query="top=50", listen=sight))
    tasks = await arrive(viewers)
    try:
        figures = []
        for length_s in spells_s:
            figures.append(await spell(server, viewers, length_s))
            print(figures[-1], flush=True)
        return figures
    finally:
        await leave(tasks)


def main(*, full: bool) -> None:
    length_s = 60.0 if full else 15.0
    few_sight, many_sight = Sight(), Sight()
    with tempfile.TemporaryDirectory() as name:
        database = Path(name) / "blast.db"
        begin(database)
        with feeding(database) as told, page_over(database, Path(name)) as server:
            [few] = asyncio.run(watched(server, 15, [length_s], few_sight))
            soak_s = [60.0] * 10 if full else []
            many, *soak = asyncio.run(watched(server, 50, [length_s, *soak_s], many_sight))
            delays_s = few_sight.delays_s(told) + many_sight.delays_s(told)
    if soak:
        ratio = statistics.mean(one.cpu_ms for one in soak[-2:]) / many.cpu_ms
        print(f"ten minutes later a refresh costs {ratio:.2f} times the CPU, and")
        print(f"the server holds {soak[-1].rss_mb - many.rss_mb:+.0f} MB")
    print(
        f"from a request's end to a viewer's eyes, {len(delays_s)} of them:"
        f" p50 {nearest(delays_s, 0.5):.2f} s, p95 {nearest(delays_s, 0.95):.2f} s"
    )
    print(f"RATIO page_refresh_p95_15_viewers {few.p95_ms / 250:.3f}")
    print(f"RATIO page_refresh_p95_50_viewers {many.p95_ms / 1000:.3f}")
    print(f"RATIO page_cores_50_viewers {many.cores:.3f}")
    print(f"RATIO page_cpu_per_refresh {many.cpu_ms / 25:.3f}")
    print(f"RATIO page_memory_50_viewers {many.rss_mb / 400:.3f}")
    print(f"RATIO page_request_to_eyes_p95 {nearest(delays_s, 0.95) / 5:.3f}")


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("--full", action="store_true")
    words.add_argument("--feed")
    chosen = words.parse_args()
    feed(chosen.feed) if chosen.feed else main(full=chosen.full)
