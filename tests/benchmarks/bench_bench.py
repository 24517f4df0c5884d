"""How long 16 requests at concurrency 8 take over twenty simulated hosts, against the slowest host alone.

    python tests/benchmarks/bench_bench.py

The fleet runs in a process of its own, at the speed of life: nineteen gptq-int4 and one fp8, the slowest of the
three models. Bar: all twenty at once take at most 1.2 times what the slowest host takes by itself. Medians of 3
rounds, the two cases in turn.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from at_length import at_length

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.sim_fleet import running  # noqa: E402 (path first)

HOSTS = 20
ROUNDS = at_length(3, 1)
BAR = 1.2


def bench(hosts: str, folder: Path) -> tuple[float, list[dict[str, object]]]:
    """Seconds of the whole command, and what it said."""
    (folder / "hosts.txt").write_text(hosts)
    started = time.monotonic()
    done = subprocess.run(
        [Path(sys.executable).with_name("toolkit"), "bench", "hosts.txt", "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return time.monotonic() - started, [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    spec = {f"h{number}": ("gptq-int4", {"seed": number}) for number in range(1, HOSTS)}
    spec |= {"slowest": ("fp8", {"seed": 0})}
    whole, window = [], []
    with running(spec) as hosts, tempfile.TemporaryDirectory() as folder:
        slowest = next(line for line in hosts.splitlines() if line.startswith("slowest"))
        for _ in range(ROUNDS):
            alone_s, alone = bench(slowest, Path(folder))
            all_s, told = bench(hosts, Path(folder))
            assert [each["ok"] for each in told] == [16] * HOSTS, told
            whole.append((alone_s, all_s))
            window.append((alone[0]["window_s"], max(each["window_s"] for each in told)))
    (alone_s, all_s), (alone_window, all_window) = (
        [statistics.median(pair[i] for pair in pairs) for i in (0, 1)] for pairs in (whole, window)
    )
    print(f"16 requests, 8 at once, {HOSTS} simulated hosts, {ROUNDS} rounds")
    print(f"whole command: the slowest host alone {alone_s:.2f} s, all at once {all_s:.2f} s")
    print(f"the load itself: {alone_window:.2f} s and {all_window:.2f} s")
    print(f"RATIO bench_20_hosts {all_s / alone_s / BAR:.3f}")


if __name__ == "__main__":
    main()
