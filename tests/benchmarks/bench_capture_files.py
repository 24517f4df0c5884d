"""CPU of getting request bodies out of a capture file: ours, tshark's, scapy's; and memory by the file's size.

Each way is a process of its own, its whole CPU counted, interpreter and imports included; rounds are interleaved, medians
compared. The bodies found must be those written, all of them, by every way. Limits are the project's own: 10 times
tshark's requests per CPU second, 60 times scapy's (per request, on a smaller file), 64 MB however large the file.

RATIO capture_tshark is our CPU over a tenth of tshark's, capture_scapy our CPU over a sixtieth of scapy's, capture_packets
700,000 packets over what of them we read in a CPU second (to segments on the port), capture_memory our peak on a file of
four times the size over 64 MB.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from at_length import at_length
from capture_traffic import PORT, Digest, Written, write

REQUESTS, FEW_REQUESTS = at_length(20_000, 4_000), at_length(3_000, 500)
ROUNDS, SCAPY_ROUNDS = at_length(3, 1), at_length(2, 1)
LIMIT_KB = 64 * 1024
WANTED_PACKETS_PER_S = 700_000

HERE = Path(__file__).parent
READERS = HERE / "capture_readers.py"


class Run(NamedTuple):
    """One process that read one file."""

    cpu_s: float
    said: str


def run(command: list[str]) -> Run:
    """Run to the end; the CPU of the process and of its children."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{command[0]} ended with {child.returncode}")
        out.seek(0)
        return Run(usage.ru_utime + usage.ru_stime, out.read().decode())


def python(way: str, path: Path) -> Run:
    """One of our readers' processes."""
    return run([sys.executable, str(READERS), way, str(path)])


def tshark(path: Path) -> Run:
    """All bodies of requests, one a line, reassembled as well as tshark can."""
    fields = ["-Y", f"http.request.method==POST && tcp.dstport=={PORT}", "-T", "fields"]
    options = ["-o", "tcp.reassemble_out_of_order:TRUE", "-d", f"tcp.port=={PORT},http"]
    return run(["tshark", "-r", str(path), "-n", *options, *fields, "-e", "http.file_data"])


def found(run: Run) -> str:
    """How many bodies a run found, and their digest."""
    if run.said[:1].isdigit() and run.said.count(" ") == 2:
        return run.said.rpartition(" ")[0]
    # tshark prints a body as text up to 4.0, in hexadecimal digits since
    digest = Digest()
    for line in run.said.splitlines():
        if line:
            digest.add(line.encode() if line[0] == "{" else bytes.fromhex(line))
    return str(digest)


def medians(
    path: Path, written: Written, rounds: int, ways: dict[str, Callable[[Path], Run]]
) -> dict[str, float]:
    """CPU seconds of each way, in turns, so that a slower minute slows all; every run must find every body."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            one = way(path)
            if name != "frames" and found(one) != written.digest:
                raise SystemExit(
                    f"{name} did not find the {written.requests:,} bodies that were written"
                )
            taken[name].append(one.cpu_s)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def peak_kb(path: Path) -> int:
    """Of our process alone."""
    return int(python("ours", path).said.split()[2])


def ours(path: Path) -> Run:
    """From the file to whole bodies."""
    return python("ours", path)


def frames(path: Path) -> Run:
    """Only as far as segments on the port."""
    return python("frames", path)


def scapy(path: Path) -> Run:
    """scapy's TCPSession and HTTP layer."""
    return python("scapy", path)


def compare_with_tshark(folder: Path) -> None:
    """The big file: CPU beside tshark's, packets a second."""
    path = folder / "many.pcap"
    written = write(path, REQUESTS)
    cpu_s = medians(path, written, ROUNDS, {"ours": ours, "frames": frames, "tshark": tshark})
    print(
        f"{written.requests:,} requests in {written.packets:,} packets ({written.bytes / 1e6:.0f} MB): ours"
        f" {cpu_s['ours']:.3f} s CPU, {cpu_s['frames']:.3f} of it to segments; tshark {cpu_s['tshark']:.2f}:"
        f" {cpu_s['tshark'] / cpu_s['ours']:.1f} times ours (medians of {ROUNDS} rounds)"
    )
    packets_per_s = written.packets / cpu_s["frames"]
    print(
        f"{written.packets / cpu_s['ours']:,.0f} packets a CPU second to bodies, {packets_per_s:,.0f} to segments"
    )
    print(f"RATIO capture_tshark {10 * cpu_s['ours'] / cpu_s['tshark']:.2f}")
    print(f"RATIO capture_packets {WANTED_PACKETS_PER_S / packets_per_s:.2f}")


def compare_with_scapy(folder: Path) -> None:
    """A smaller file, since scapy takes long."""
    path = folder / "few.pcap"
    written = write(path, FEW_REQUESTS)
    cpu_s = medians(path, written, SCAPY_ROUNDS, {"ours": ours, "scapy": scapy})
    print(
        f"{written.requests:,} requests in {written.packets:,} packets: ours {cpu_s['ours']:.3f} s CPU, scapy's session"
        f" {cpu_s['scapy']:.2f}: {cpu_s['scapy'] / cpu_s['ours']:.0f} times ours (medians of {SCAPY_ROUNDS} rounds)"
    )
    print(f"RATIO capture_scapy {60 * cpu_s['ours'] / cpu_s['scapy']:.2f}")


def compare_sizes(folder: Path) -> None:
    """Memory on one file and on one of four times its size."""
    write(folder / "four.pcap", 4 * REQUESTS)
    one, four = peak_kb(folder / "many.pcap"), peak_kb(folder / "four.pcap")
    print(
        f"peak memory: {one / 1024:.1f} MB; on a file of four times the size {four / 1024:.1f} MB"
    )
    print(f"RATIO capture_memory {four / LIMIT_KB:.2f}")


def main() -> None:
    """Print what each comparison found, and the ratios."""
    if shutil.which("tshark") is None:
        raise SystemExit("tshark is missing: `apt-get install tshark`")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compare_with_tshark(folder)
        compare_with_scapy(folder)
        compare_sizes(folder)


if __name__ == "__main__":
    main()
