"""CPU of Locust for a request: with the blast's recording on, against a bare FastHttpUser that reads the same bodies.

    python tests/benchmarks/bench_blast.py [whole|trickle|burst ...]

Three kinds of answers of 64 tokens: a JSON body, a stream with an event every 10 ms, a stream that arrives in one burst.
Both Locusts run in processes of their own against one server of canned answers. Where they are busy all the time, they
take turns: one is stopped (SIGSTOP) while the other is measured for half a second. Trickling streams leave them idle
most of the time and would pile up meanwhile, so there both run at once. CPU is the kernel's count for all threads of the
process, so the blast's includes its timing, tallies, canaries and SQLite; requests are the server's count. Medians over
pairs of looks.

Bars: the blast makes at least 90 % of the bare one's requests per core, 75 % where streams arrive in one burst. A RATIO
is the bar over what was reached: below 1 is good.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from at_length import at_length

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
BARS = {"whole": 0.90, "trickle": 0.90, "burst": 0.75}
USERS = {"whole": 32, "trickle": 100, "burst": 32}
PAIRS = at_length(12, 2)
TURN_S = 0.5
AT_ONCE_S = 1.5
SETTLE_S = 0.15
"""After a stop, what piled up meanwhile is worked off first."""
START_S = 30.0


@contextmanager
def started(words: list[str], folder: Path, **more: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process that ends with the block, whatever state it is in."""
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **more,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def locust(file: Path, users: int, *words: str) -> list[str]:
    """Headless, all users at once, and nothing printed while it runs."""
    load = ["--headless", "-u", str(users), "-r", str(users), "--only-summary"]
    return ["-m", "locust", "-f", str(file), *load, *words]


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process, to the nanosecond."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        spent += int((task / "schedstat").read_text().split()[0])
    return spent / 1e9


def counts(port: int) -> list[int]:
    """How many answers the server gave to each."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/counts", timeout=10) as page:
        told: list[int] = json.load(page)
    return told


class Look:
    """CPU and requests of one Locust from now on."""

    def __init__(self, process: subprocess.Popen[str], client: int, port: int) -> None:
        self._process, self._client, self._port = process, client, port
        self._began_s, self._asked, self._used_s = self._now()

    def end(self) -> tuple[float, float]:
        """CPU microseconds a request, and requests a second."""
        now_s, asked, used_s = self._now()
        requests = asked - self._asked
        return (used_s - self._used_s) * 1e6 / max(1, requests), requests / (now_s - self._began_s)

    def _now(self) -> tuple[float, int, float]:
        return time.monotonic(), counts(self._port)[self._client], cpu_s(self._process.pid)


Figures = tuple[float, float]


def in_turns(
    bare: subprocess.Popen[str], ours: subprocess.Popen[str], port: int
) -> Iterator[tuple[Figures, Figures]]:
    """Only one of them runs at a time."""
    ours.send_signal(signal.SIGSTOP)
    bare.send_signal(signal.SIGSTOP)
    for number in range(PAIRS):
        figures = {}
        # now the one begins, now the other
        for client in (number % 2, 1 - number % 2):
            process = (bare, ours)[client]
            process.send_signal(signal.SIGCONT)
            time.sleep(SETTLE_S)
            look = Look(process, client, port)
            time.sleep(TURN_S)
            figures[client] = look.end()
            process.send_signal(signal.SIGSTOP)
        yield figures[0], figures[1]


def at_once(
    bare: subprocess.Popen[str], ours: subprocess.Popen[str], port: int
) -> Iterator[tuple[Figures, Figures]]:
    """Both run all the time, and neither is busy."""
    for _ in range(PAIRS):
        looks = [Look(process, client, port) for client, process in enumerate((bare, ours))]
        time.sleep(AT_ONCE_S)
        yield looks[0].end(), looks[1].end()


def wait_for_load(port: int, processes: list[subprocess.Popen[str]]) -> None:
    """Both are under way, past its first requests."""
    deadline = time.monotonic() + START_S
    while min(counts(port)) < 300:
        failed = [process.args for process in processes if process.poll() is not None]
        if failed or time.monotonic() > deadline:
            raise SystemExit(f"no load came from {failed or 'one of the two'}")
        time.sleep(0.1)


def measured(mode: str) -> tuple[float, float, float, float]:
    """Medians of one kind of answer: CPU microseconds a request bare, ours, ours / bare, and requests a second bare."""
    mix = "0" if mode == "whole" else "100"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(
            started([str(HERE / "canned_server.py"), mode], folder, stdout=subprocess.PIPE)
        )
        assert server.stdout is not None
        ports = [int(word) for word in server.stdout.readline().split()]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": (folder / "said").open("w")}
        (folder / "hosts.txt").write_text(f"canned http://127.0.0.1:{ports[1]}\n")
        bare, ours = (
            stack.enter_context(started(words, folder, **quiet))
            for words in (
                locust(
                    HERE / "bare_locustfile.py",
                    USERS[mode],
                    "--host",
                    f"http://127.0.0.1:{ports[0]}",
                ),
                locust(
                    ROOT / "locustfiles" / "blast.py",
                    USERS[mode],
                    *("--hosts-file", "hosts.txt", "--db", "blast.db", "--mix", mix),
                ),
            )
        )
        try:
            wait_for_load(ports[0], [bare, ours])
        except SystemExit:
            print((folder / "said").read_text()[-2000:], file=sys.stderr)
            raise
        looks = at_once if mode == "trickle" else in_turns
        rows = [
            (one[0], other[0], other[0] / one[0], one[1])
            for one, other in looks(bare, ours, ports[0])
        ]
        bare_us, ours_us, ratio, rate = (
            statistics.median(column) for column in zip(*rows, strict=True)
        )
    return bare_us, ours_us, ratio, rate


def main() -> None:
    """Print the medians and the ratios."""
    for mode in sys.argv[1:] or list(BARS):
        bare_us, ours_us, ratio, rate = measured(mode)
        print(
            f"{mode}: bare {bare_us:.0f} us CPU a request ({rate:,.0f} requests/s),"
            f" the blast {ours_us:.0f} us: {100 / ratio:.0f} % of the requests per core"
            f" (bar {100 * BARS[mode]:.0f} %)",
            flush=True,
        )
        print(f"RATIO blast_{mode} {BARS[mode] * ratio:.3f}", flush=True)


if __name__ == "__main__":
    main()
