"""How long `toolkit scout` takes for 100 hosts, the whole command from start to last line.

    python tests/benchmarks/bench_scout.py

100 hosts on loopback, in a process of their own, answer every page after 20 ms, /metrics with a
recorded page of 47 KB. Bars, on two cores: all answer, under 2 s; 10 of them hang, no longer than the
timeout plus 0.5 s. Medians of 7 rounds, the two cases in turn.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from at_length import at_length

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.raw_server import RawServer, http  # noqa: E402 (path first)
from support.recordings import RECORDED, recorded  # noqa: E402 (path first)

HOSTS = 100
HANGING = 10
DELAY_S = 0.020
ROUNDS = at_length(7, 2)
TIMEOUT_S = 5.0
BAR_S = 2.0
BAR_OVER_TIMEOUT_S = 0.5


def pages() -> dict[str, bytes]:
    return {
        "/health": http(),
        "/version": http(recorded("version.json"), content_type="application/json"),
        "/v1/models": http(recorded("v1_models.json"), content_type="application/json"),
        "/metrics": http((RECORDED / "metrics_idle.txt").read_bytes(), content_type="text/plain"),
    }


class SlowServer(RawServer):
    """Answers after DELAY_S, or never."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__(pages())
        self._wait_s = 3600 if hangs else DELAY_S

    async def before_answer(self) -> None:
        await asyncio.sleep(self._wait_s)


async def serve() -> None:
    """Be the fleet: print the hosts file with and without the hanging ones, then stay."""
    kind = [await SlowServer(hangs=False).__aenter__() for _ in range(HOSTS)]
    dead = [await SlowServer(hangs=True).__aenter__() for _ in range(HANGING)]
    urls = [server.url for server in kind]
    print(json.dumps([urls, urls[HANGING:] + [server.url for server in dead]]), flush=True)
    await asyncio.Event().wait()


def scout(urls: list[str], folder: Path) -> tuple[float, float, int, float]:
    """Wall seconds, CPU seconds, answering hosts and the median latency told, of one whole command."""
    (folder / "hosts.txt").write_text("\n".join(urls))
    command = ["scout", "hosts.txt", "--json", "--timeout", f"{TIMEOUT_S:g}s", "--db", "bench.db"]
    before, started = os.times(), time.monotonic()
    done = subprocess.run(
        [Path(sys.executable).with_name("toolkit"), *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    wall, after = time.monotonic() - started, os.times()
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    answered = [one for one in seen if one["status"] == "ok"]
    return wall, cpu, len(answered), statistics.median(one["latency_ms"] for one in answered)


def main() -> None:
    with (
        subprocess.Popen(
            [sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True
        ) as fleet,
        tempfile.TemporaryDirectory() as folder,
    ):
        try:
            report(json.loads(fleet.stdout.readline()), Path(folder))
        finally:
            fleet.kill()


def report(cases: list[list[str]], folder: Path) -> None:
    rounds = [[scout(urls, folder) for urls in cases] for _ in range(ROUNDS)]
    assert {case[2] for case in (r[0] for r in rounds)} == {HOSTS}, "not every host was read"
    assert {case[2] for case in (r[1] for r in rounds)} == {HOSTS - HANGING}
    (all_wall, all_cpu), (hang_wall, hang_cpu) = (
        (statistics.median(r[i][0] for r in rounds), statistics.median(r[i][1] for r in rounds))
        for i in (0, 1)
    )
    size = len((RECORDED / "metrics_idle.txt").read_bytes())
    print(
        f"{HOSTS} hosts, {DELAY_S * 1000:.0f} ms an answer, /metrics of {size:,} bytes, {ROUNDS} rounds"
    )
    print(f"all answer:        {all_wall:.2f} s, {all_cpu:.2f} s CPU (bar {BAR_S:g} s)")
    bar = TIMEOUT_S + BAR_OVER_TIMEOUT_S
    print(f"{HANGING} of them hang:   {hang_wall:.2f} s, {hang_cpu:.2f} s CPU (bar {bar:g} s)")
    told = statistics.median(r[0][3] for r in rounds)
    print(f"latency told:      {told:.1f} ms of {DELAY_S * 1000:.0f}")
    print(f"RATIO scout_latency {told / (DELAY_S * 1000):.3f}")
    print(f"RATIO scout_100_hosts {all_wall / BAR_S:.3f}")
    print(f"RATIO scout_10_hanging {hang_wall / bar:.3f}")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        asyncio.run(serve())
    else:
        main()
