"""What live capture loses and costs: requests at 10,000/s, answers at 3,000/s, a stalled reader, and the server beside it.

    python tests/benchmarks/bench_capture_live.py [requests|answers|stall|server|whole ...]

Traffic is tests/support/c_traffic (compiled here): server and clients share one core, the capture has another. Where the
machine has one core only, they share it, and the figures say so. The reader is the capture's first thread as it is: engine,
frames, streams, HTTP; keys, JSON and SQLite are another thread's and not in here. Bodies are compared one by one. CPU is
the reader's.

requests  10,000 requests/s, only requests followed, with each engine. Bars: none missing, none altered, no drop; the
          reader's CPU at most 25 us a request.
answers   3,000 requests/s, each answered by a stream of 24 chunks, answers followed, with scapy's socket. Bar: none
          missing. Where the server cannot make that many, as many as it can.
stall     4,000 requests/s, and the reader does nothing for a second. Bar: none missing.
server    As many requests as a server answers that works 180 us on each, about 5,000/s, with the capture and without
          it in turns of half a second; the median of the pairs' ratios. Here the server has its core for itself, and
          the clients share the capture's. Bar: 3 % fewer requests, a second and a second of the server's CPU.
whole     `toolkit capture` as it is, with store and JSONL, at 10,000 requests/s that all differ. No bar; it shares the
          core between its two threads. Bodies are compared by their hashes.

A RATIO is what was reached over its bar, or the share of requests that is missing: at most 1 and 0 are good.
"""

import hashlib
import json
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from at_length import at_length

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from toolkit.capture.live import (  # noqa: E402
    DEFAULT_BUFFER_BYTES,
    LiveCapture,
    open_live,
)
from toolkit.capture.packets import Frames  # noqa: E402
from toolkit.capture.records import CaptureFilter, HttpRequest, Losses  # noqa: E402
from toolkit.capture.tcp import Streams  # noqa: E402

SOURCE = ROOT / "tests" / "support" / "c_traffic" / "traffic.c"
ENGINES: dict[str, Callable[..., LiveCapture]] = {"scapy": open_live}
CONNECTIONS = 64
BODY = (
    '{"model":"llama","messages":[{"role":"user","content":"request ######## '
    + "word " * 80
    + '"}],"max_tokens":64,"temperature":0,"stream":true}'
)
READER_BAR_US = 25
SERVER_BAR = 0.97
WORK_US = 180
PAIRS = at_length(18, 3)
TURN_S = 0.5
SETTLE_S = 0.05


@dataclass(slots=True)
class Reading:
    """What a reader saw."""

    bodies: list[bytes] = field(default_factory=list)
    answered: int = 0
    losses: Losses = field(default_factory=Losses)
    cpu_s: float = 0.0

    def take(self, request: HttpRequest) -> None:
        if request.body is not None:
            self.bodies.append(request.body)
        if request.answer is not None and request.answer.complete:
            self.answered += 1


class Machine:
    """One core for the traffic, another for the capture."""

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.capture, self.traffic = cores[0], cores[-1]
        os.sched_setaffinity(0, {self.capture})

    def __str__(self) -> str:
        load = ", ".join(f"{one:.2f}" for one in os.getloadavg())
        shared = "" if self.capture != self.traffic else " (ONE CORE ONLY: they share it)"
        return (
            f"capture on core {self.capture}, server on core {self.traffic}{shared};"
            f" load average {load}"
        )


class Traffic:
    """The server, and clients when asked for."""

    def __init__(
        self, machine: Machine, program: Path, *, every: int = 0, work_us: int = 0, clients_at: int
    ) -> None:
        self._program, self._clients_at = program, clients_at
        self._counters = program.with_name("counters")
        self._server = self._start(machine.traffic, "serve", "0", str(every), str(work_us))
        assert self._server.stdout is not None
        self.port = int(self._server.stdout.readline())

    def _start(self, core: int, *words: str) -> subprocess.Popen[str]:
        child = subprocess.Popen([self._program, *words], stdout=subprocess.PIPE, text=True)
        os.sched_setaffinity(child.pid, {core})
        return child

    @contextmanager
    def clients(self, rate: float, seconds: float) -> Iterator[subprocess.Popen[str]]:
        self._counters.write_bytes(bytes(16))
        words = ("send", str(self.port), str(rate), str(seconds), str(CONNECTIONS))
        child = self._start(self._clients_at, *words, str(self._counters), BODY)
        try:
            yield child
        finally:
            child.kill()
            child.wait()

    def answered(self) -> int:
        return int(struct.unpack("=QQ", self._counters.read_bytes())[1])

    def cpu_s(self) -> float:
        """The server's time on its core, the kernel's for it included."""
        schedule = Path(f"/proc/{self._server.pid}/schedstat").read_text()
        return int(schedule.split()[0]) / 1e9

    def close(self) -> None:
        self._server.kill()
        self._server.wait()


def sent_by(child: subprocess.Popen[str]) -> tuple[int, float]:
    """How many requests, in how many seconds."""
    assert child.stdout is not None
    sent, answered, seconds = child.stdout.readline().split()
    assert sent == answered, f"{sent} requests, {answered} answers"
    return int(sent), float(seconds)


def read(
    engine: LiveCapture,
    port: int,
    child: subprocess.Popen[str],
    *,
    follow: bool,
    stall_at_s: float | None = None,
) -> Reading:
    """Follow the traffic until the clients have ended and nothing comes any more."""
    seen = Reading()
    watch = CaptureFilter(ports=[port], follow_answers=follow)
    streams = Streams(seen.take, watch, seen.losses)
    frames = Frames(engine.link_type, streams.segment, watch, seen.losses)
    began, cpu = time.monotonic(), time.process_time()
    while child.poll() is None:
        engine.pump(frames.frame, 0.1)
        if stall_at_s is not None and time.monotonic() - began > stall_at_s:
            time.sleep(1.0)
            stall_at_s = None
    engine.drain(frames.frame)
    seen.cpu_s = time.process_time() - cpu
    streams.close()
    engine.close()
    seen.losses.kernel_drops = engine.drops()
    return seen


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    engine: str
    rate: int
    seconds: float
    every: int = 0
    follow: bool = False
    stall_at_s: float | None = None


def report(case: Case, program: Path, machine: Machine) -> None:
    traffic = Traffic(machine, program, every=case.every, clients_at=machine.traffic)
    try:
        engine = ENGINES[case.engine](
            "lo",
            ports=[traffic.port],
            follow_answers=case.follow,
            buffer_bytes=DEFAULT_BUFFER_BYTES,
        )
        with traffic.clients(case.rate, case.seconds) as child:
            seen = read(engine, traffic.port, child, follow=case.follow, stall_at_s=case.stall_at_s)
            sent, seconds = sent_by(child)
    finally:
        traffic.close()
    wanted = {BODY.replace("########", f"{number:08}").encode() for number in range(sent)}
    whole = wanted & set(seen.bodies)
    assert len(seen.bodies) == len(set(seen.bodies)), "a request was seen twice"
    assert set(seen.bodies) <= wanted, "a body was altered"
    cpu_us = 1e6 * seen.cpu_s / max(1, sent)
    losses = seen.losses
    answered = f", {seen.answered:,} answers" if case.follow else ""
    print(
        f"{case.name:<9} {case.engine:<8} {sent:>7,} requests at {sent / seconds:>6,.0f}/s: {len(whole):>7,} seen{answered},"
        f" {losses.kernel_drops:,} drops, {losses.gaps:,} gaps, {cpu_us:5.1f} us CPU a request,"
        f" {seen.losses.frames / seconds:,.0f} frames/s; {machine}",
        flush=True,
    )
    label = f"live_{case.name}_{case.engine}"
    print(f"RATIO {label}_missing {1 - len(whole) / sent:.4f}")
    if case.follow:
        print(f"RATIO {label}_answers_missing {1 - seen.answered / sent:.4f}")
    elif case.stall_at_s is None:
        print(f"RATIO {label}_reader_cpu {cpu_us / READER_BAR_US:.3f}")


CASES = [
    *(Case("requests", name, 10_000, at_length(10, 2)) for name in ENGINES),
    Case("answers", "scapy", 3_000, at_length(5, 2), every=1, follow=True),
    Case("stall", "scapy", 4_000, 4.0, stall_at_s=1.5),
]


# --- the server beside it ---------------------------------------------------------------------------------


class Turn(NamedTuple):
    per_s: float
    """Requests answered a second."""
    per_cpu_s: float
    """Requests answered in a second of the server's time on its core: other programs' turns on it do not count."""


def turn(traffic: Traffic, engine: LiveCapture | None, seconds: float) -> Turn:
    """While the capture reads, or nobody does."""
    frame: Callable[[float, bytes, int], None] | None = None
    if engine is not None:
        seen, ports = Reading(), [traffic.port]
        watch = CaptureFilter(ports=ports)
        streams = Streams(seen.take, watch, seen.losses)
        frame = Frames(engine.link_type, streams.segment, watch, seen.losses).frame
    answered, cpu_s, began = traffic.answered(), traffic.cpu_s(), time.monotonic()
    while (left := began + seconds - time.monotonic()) > 0:
        if engine is None or frame is None:
            time.sleep(left)
        else:
            engine.pump(frame, min(left, 0.05))
    done = traffic.answered() - answered
    return Turn(done / (time.monotonic() - began), done / (traffic.cpu_s() - cpu_s))


@contextmanager
def listening(name: str, port: int) -> Iterator[LiveCapture]:
    engine = ENGINES[name](
        "lo", ports=[port], follow_answers=False, buffer_bytes=DEFAULT_BUFFER_BYTES
    )
    try:
        yield engine
    finally:
        engine.close()


def server_beside(program: Path, machine: Machine, name: str) -> None:
    """Turns with and without, in the order A B B A, so that a drift falls on both."""
    traffic = Traffic(machine, program, work_us=WORK_US, clients_at=machine.capture)
    turns: dict[bool, list[Turn]] = {False: [], True: []}
    try:
        with traffic.clients(0, PAIRS * 2 * (TURN_S + 4 * SETTLE_S) + 10):
            time.sleep(0.5)
            for number in range(PAIRS):
                for captured in (False, True) if number % 2 else (True, False):
                    turns[captured].append(one_turn(traffic, name if captured else None))
    finally:
        traffic.close()
    print(f"server    {name:<8} {PAIRS} pairs; {machine}")
    for place, (what, label) in enumerate((("a second", "throughput"), ("a CPU second", "cpu"))):
        alone, captured_too = ([one[place] for one in turns[key]] for key in (False, True))
        pairs = [on / off for on, off in zip(captured_too, alone, strict=True)]
        kept = statistics.median(pairs)
        low, high = statistics.quantiles(pairs, n=4)[::2]
        print(
            f"          {statistics.median(alone):,.0f} requests {what} alone, {statistics.median(captured_too):,.0f}"
            f" captured: {kept:.3f} of it (quartiles {low:.3f} to {high:.3f})"
        )
        print(f"RATIO live_server_{label}_{name} {(1 - kept) / (1 - SERVER_BAR):.3f}", flush=True)


def one_turn(traffic: Traffic, name: str | None) -> Turn:
    with ExitStack() as stack:
        engine = stack.enter_context(listening(name, traffic.port)) if name else None
        time.sleep(SETTLE_S)
        return turn(traffic, engine, TURN_S)


# --- the verb --------------------------------------------------------------------------------------------------


def packet_sockets() -> int:
    return len(Path("/proc/net/packet").read_text().splitlines())


def whole(program: Path, machine: Machine, engine: str) -> None:
    """The verb in a process of its own, interrupted when the clients have ended."""
    told = program.with_name(f"{engine}.jsonl")
    traffic = Traffic(machine, program, clients_at=machine.traffic)
    words = ["capture", "--iface", "lo", "--port", str(traffic.port)]
    words += ["--jsonl", str(told), "--db", str(program.with_name(f"{engine}.db"))]
    sockets = packet_sockets()
    child = subprocess.Popen(
        [sys.executable, "-c", "from toolkit.cli import main; main()", *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while packet_sockets() == sockets and child.poll() is None:
            time.sleep(0.05)
        time.sleep(0.2)
        with traffic.clients(10_000, 5.0) as clients:
            sent, seconds = sent_by(clients)
        time.sleep(1.0)
        child.send_signal(signal.SIGINT)
        _, child.returncode, used = os.wait4(child.pid, 0)
    finally:
        traffic.close()
        if child.poll() is None:
            child.kill()
            child.wait()
    wanted = {exact_key(BODY.replace("########", f"{number:08}")) for number in range(sent)}
    seen = [json.loads(line).get("exact_key") for line in told.read_text().splitlines()]
    assert len(seen) == len(set(seen)), "a request was told twice"
    assert set(seen) <= wanted, "a body was altered"
    cpu_us = 1e6 * (used.ru_utime + used.ru_stime) / sent
    print(
        f"whole     {engine:<8} {sent:>7,} requests at {sent / seconds:>6,.0f}/s: {len(seen):>7,} in the JSONL file,"
        f" {cpu_us:5.1f} us CPU a request, start included; {used.ru_maxrss / 1024:,.0f} MB; {machine}"
    )
    print(f"RATIO live_whole_{engine}_missing {1 - len(seen) / sent:.4f}", flush=True)


def exact_key(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=16).hexdigest()


def main() -> None:
    wanted = set(sys.argv[1:]) or {"requests", "answers", "stall", "server", "whole"}
    machine = Machine()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "traffic")
        subprocess.run(["gcc", "-O2", "-o", program, SOURCE], check=True)
        for case in CASES:
            if case.name in wanted and case.engine in ENGINES:
                report(case, program, machine)
        if "whole" in wanted:
            whole(program, machine, "scapy")
        if "server" in wanted:
            server_beside(program, machine, "scapy")


if __name__ == "__main__":
    main()
