"""How long `toolkit --help` takes to answer, from fresh processes, beside what Python and click alone take.

RATIO help_s is the median of wall seconds over the 0.2 s that it may take: below 1 is good.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 15
LIMIT_S = 0.2

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import click'": [sys.executable, "-c", "import click"],
    "toolkit --help": [str(Path(sys.executable).with_name("toolkit")), "--help"],
}


def measure(command: list[str]) -> tuple[float, float]:
    """Run one fresh process; its wall and CPU seconds (user and system)."""
    # an installed toolkit is compiled, so a checkout must be allowed to keep what it compiled
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    # getrusage counts microseconds where os.times counts hundredths
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu


def main() -> None:
    """Take turns, so that a busy moment of the machine falls on all three alike."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for command in COMMANDS.values():
        measure(command)  # unmeasured: it compiles and fills the page cache
    for _ in range(RUNS):
        for name, command in COMMANDS.items():
            taken[name].append(measure(command))
    for name, runs in taken.items():
        wall, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{name:<25} median of {RUNS}: wall {1000 * wall:6.1f} ms, CPU {1000 * cpu:6.1f} ms")
    help_s = statistics.median(wall for wall, _ in taken["toolkit --help"])
    print(f"RATIO help_s {help_s / LIMIT_S:.3f}")


if __name__ == "__main__":
    main()
