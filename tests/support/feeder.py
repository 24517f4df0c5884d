"""A blast of eight hosts that anybody can reckon by hand, written as its master would: one transaction a second.

    python feeder.py FILE RUN

goes on with a stored run from the second after its last to the present, and then each second when it is over, until it is
killed. It prints each second once its transaction is through.

Host `hN` answers N requests in every second, each in N x 100 ms with a first token after N x 10 ms and (9 - N) x 10 tokens:
the last by rate is the first by latency. `h3` has one error a second beside. `h8` is late: it answers nothing in the run's
first LATE_S seconds.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolkit.records import ErrorCount, Host, LoaderSecond, Run, Tally
from toolkit.stats import Sketch
from toolkit.store import Store

RUN = "0123456789ab"
BEGAN, SECONDS = 1_750_000_000, 120
"""When the usual run of tests began, and how long it took."""
HOSTS = tuple(Host(name=f"h{number}", url=f"http://10.0.0.{number}:8000") for number in range(1, 9))
LATE_S = 60
"""So long after the start `h8` begins to answer."""
WORKER = "w1"


def begin(database: Path, run: str, *, started_s: int, seconds: int) -> None:
    """Store a run with its first seconds."""
    with Store.open(database) as store:
        store.add_run(Run(id=run, verb="blast", started_at=float(started_s)))
        store.plan_hosts(run, HOSTS)
        extend(store, run, started_s, started_s + seconds, started_s=started_s)


def extend(store: Store, run: str, from_s: int, to_s: int, *, started_s: int) -> None:
    """Store the seconds from the first to before the second, in one transaction."""
    seconds = range(from_s, to_s)
    store.add_second(
        [
            tally
            for at_s in seconds
            for number in range(1, 9)
            if number < 8 or at_s >= started_s + LATE_S
            for tally in [tally_of(run, number, at_s)]
        ],
        [second_of(run, at_s) for at_s in seconds],
    )


def tally_of(run: str, number: int, at_s: int) -> Tally:
    host = HOSTS[number - 1]
    wrong = 1 if number == 3 else 0
    return Tally(
        run=run,
        name=host.name,
        url=host.url,
        at_s=at_s,
        worker=WORKER,
        kind="ranked",
        ok=number,
        errors=wrong,
        error_kinds=(ErrorCount(kind="http_503", count=1),) * wrong,
        streamed=number,
        prompt_tokens=20 * number,
        output_tokens=number * (9 - number) * 10,
        e2e=blob(100.0 * number, number),
        ttft=blob(10.0 * number, number),
    )


def second_of(run: str, at_s: int) -> LoaderSecond:
    return LoaderSecond(
        run=run, at_s=at_s, worker=WORKER, users=36, cpu_share=0.2, lag_ms=1.0, limited=False
    )


def blob(value_ms: float, count: int) -> bytes:
    sketch = Sketch()
    sketch.add(value_ms, count)
    return sketch.to_bytes()


@dataclass
class Blast:
    """One that is on: a database, and the process that goes on writing to it."""

    database: Path
    started_s: int
    writer: subprocess.Popen[str] | None = None

    def go_on(self) -> int:
        """Write each second from now on; the first one that is in."""
        words = [sys.executable, __file__, str(self.database), RUN]
        self.writer = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.writer.stdout is not None
        return int(self.writer.stdout.readline())

    def stop(self) -> int | None:
        """End the writing, as a killed master would; the last second that it said was in."""
        if self.writer is None:
            return None
        self.writer.kill()
        told, _ = self.writer.communicate()
        self.writer = None
        # a last line without its line feed was cut by the kill
        whole = [line for line in told.splitlines(keepends=True) if line.endswith("\n")]
        return int(whole[-1]) if whole else None


@contextmanager
def blast_on(database: Path, *, seconds: int = 120) -> Iterator[Blast]:
    """A blast that began `seconds` ago and goes on."""
    started_s = int(time.time()) - seconds
    begin(database, RUN, started_s=started_s, seconds=seconds)
    blast = Blast(database, started_s)
    try:
        blast.go_on()
        yield blast
    finally:
        blast.stop()


def main(database: str, run_id: str) -> None:
    with Store.open(Path(database)) as store:
        run = store.run(run_id)
        assert run is not None
        started_s = int(run.started_at)
        next_s = max((second.at_s for _, second in store.loader_seconds(run_id)), default=started_s)
        next_s += 1
        while True:
            time.sleep(max(0.0, next_s + 1 - time.time()))
            now_s = int(time.time())
            extend(store, run_id, next_s, now_s, started_s=started_s)
            next_s = now_s
            print(now_s - 1, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
