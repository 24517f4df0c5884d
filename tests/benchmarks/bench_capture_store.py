"""CPU of the whole capture of a file beside that of tshark's mere extraction of bodies; and its memory.

`toolkit capture FILE --db --jsonl`: packets, streams, HTTP, JSON, keys, counting, SQLite and JSONL. With bodies that all
differ (the worst for us: each is parsed and stored), into both or into SQLite alone, and with the contest's two. Each run is a process of its
own, its whole CPU counted, interpreter and imports included; the database is there but empty, as after any first use
(to make one takes 0.4 s more, once). Rounds are interleaved, medians compared; every request must be in both sinks.

RATIO capture_store is our CPU over a fifth of tshark's with bodies that differ, into SQLite; capture_store_jsonl the same with
JSONL beside it, capture_store_contest with the contest's
two, capture_json our CPU for `--json --bodies --no-store` over a fifth of tshark's; below 1 is good.
capture_store_memory is our peak on three times the requests over the peak on one.
"""

import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from at_length import at_length
from capture_traffic import PORT, Digest, body

REQUESTS = at_length(20_000, 4_000)
ROUNDS = at_length(3, 1)
COMMAND = [sys.executable, "-c", "from toolkit.cli import main; main()", "capture"]


class Run(NamedTuple):
    """What one process took."""

    cpu_s: float
    peak_mb: float


class Place:
    """A folder with captures and an empty database to begin with.

    Both are made by processes of their own: a child's peak begins with what its parent holds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.empty = folder / "empty.db"
        python(f"from toolkit.store import Store; Store.open({str(self.empty)!r}).close()")
        self.different = self.written("different.pcap", REQUESTS)
        self.contest = self.written("contest.pcap", REQUESTS, "lambda number: body(number % 2)")

    def written(self, name: str, requests: int, bodies: str = "body") -> Path:
        """A capture whose requests have these bodies."""
        path = self.folder / name
        python(
            "import capture_traffic; from pathlib import Path; body = capture_traffic.body; "
            f"capture_traffic.body = {bodies}; capture_traffic.write(Path({str(path)!r}), {requests})"
        )
        return path

    def stored(self, path: Path, requests: int = REQUESTS, *, jsonl: bool = True) -> Run:
        """Capture into a fresh copy of the empty database, and into a fresh file unless told not to."""
        database, lines = self.folder / "t.db", self.folder / "t.jsonl"
        for old in (database, lines, *self.folder.glob("t.db-*")):
            old.unlink(missing_ok=True)
        shutil.copy(self.empty, database)
        words = [str(path), "--port", str(PORT), "--db", str(database)]
        words += ["--jsonl", str(lines)] if jsonl else []
        ran = run([*COMMAND, *words])
        with closing(sqlite3.connect(database)) as db:
            (rows,) = db.execute("SELECT count(*) FROM seen").fetchone()
        assert rows == requests, "a request is missing in the database"
        if jsonl:
            with lines.open("rb") as file:
                assert sum(1 for _ in file) == requests, "a request is missing in the file"
        return ran


def python(program: str) -> None:
    """Run a program beside this file."""
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, check=True)


def run(command: list[str], out: Path | None = None) -> Run:
    """Run to the end, as a user's Python would: it keeps what it compiled."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
    }
    environment["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / "toolkit-bench-pyc")
    with (out or Path(os.devnull)).open("wb") as file:
        child = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command[0]} ended with {child.returncode}")
    return Run(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def tshark(path: Path) -> Run:
    """All bodies of requests, one a line, reassembled as well as tshark can."""
    fields = ["-Y", f"http.request.method==POST && tcp.dstport=={PORT}", "-T", "fields"]
    options = ["-o", "tcp.reassemble_out_of_order:TRUE", "-d", f"tcp.port=={PORT},http"]
    return run(["tshark", "-r", str(path), "-n", *options, *fields, "-e", "http.file_data"])


def printed(place: Place) -> Run:
    """Bodies and keys as JSON; nothing is kept."""
    out = place.folder / "out.jsonl"
    words = ["--port", str(PORT), "--json", "--bodies", "--no-store"]
    ran = run([*COMMAND, str(place.different), *words], out)
    found, wanted = Digest(), Digest()
    with out.open("rb") as file:
        for number, line in zip(range(REQUESTS), file, strict=False):
            found.add(json.loads(line)["body"].encode())
            wanted.add(body(number))
    assert str(found) == str(wanted), "the bodies are not those that were written"
    return ran


def main() -> None:
    """Take turns, so that a slower minute slows all."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        ways = {
            "tshark": lambda: tshark(place.different),
            "different, SQLite": lambda: place.stored(place.different, jsonl=False),
            "and JSONL": lambda: place.stored(place.different),
            "two bodies": lambda: place.stored(place.contest),
            "bodies as JSON": lambda: printed(place),
        }
        place.stored(place.contest)  # unmeasured: it compiles and fills the page cache
        taken: dict[str, list[Run]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                taken[name].append(way())
        large = place.written("large.pcap", 3 * REQUESTS)
        peak_mb = place.stored(large, 3 * REQUESTS).peak_mb
    report(taken, peak_mb)


def report(taken: dict[str, list[Run]], large_mb: float) -> None:
    cpu_s = {name: statistics.median(one.cpu_s for one in runs) for name, runs in taken.items()}
    peaks = {name: max(one.peak_mb for one in runs) for name, runs in taken.items()}
    for name, seconds in cpu_s.items():
        print(
            f"{name:<18} median of {ROUNDS}: {seconds:5.2f} s CPU for {REQUESTS:,} requests, "
            f"{cpu_s['tshark'] / seconds:4.1f} x tshark, peak {peaks[name]:.0f} MB"
        )
    print(f"three times the requests, all different: peak {large_mb:.0f} MB")
    print(f"RATIO capture_store {5 * cpu_s['different, SQLite'] / cpu_s['tshark']:.3f}")
    print(f"RATIO capture_store_jsonl {5 * cpu_s['and JSONL'] / cpu_s['tshark']:.3f}")
    print(f"RATIO capture_store_contest {5 * cpu_s['two bodies'] / cpu_s['tshark']:.3f}")
    print(f"RATIO capture_json {5 * cpu_s['bodies as JSON'] / cpu_s['tshark']:.3f}")
    print(f"RATIO capture_store_memory {large_mb / peaks['and JSONL']:.3f}")


if __name__ == "__main__":
    main()
