"""What the bench's own client adds to the times it tells, and what an event costs it: `toolkit selftest`, whole command.

    python tests/benchmarks/bench_selftest.py

A stamped server and the client, two processes of this machine: TTFT 50 ms, a token every 10 ms, 100 tokens, three answers
a stream. Medians over 3 rounds, each all levels. Ratios are over the project's bars: 2 ms at p50 and 10 ms at p99 added
to TTFT at 100 streams, 20 ms on average at 500, 25 us of the client's CPU for an event.

Beside them, in the same runs, those of guidellm, aiperf and vllm (`bench serve`) that are on the PATH or in a folder that
TOOLKIT_PEERS names (several: separated as in PATH). There all begin their streams at once, ourselves, too;
RATIO sse_event_cpu_<tool> and ttft_delay_mean_<tool> are ours over theirs. A round takes 15 s, and up to 30 s more a tool.
"""

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from at_length import at_length
from stamped_truths import noted_server
from timing_rivals import TOOLS, Peer, compared, installed, ourselves

from toolkit.bench.stamped import TokenPace

ROUNDS = at_length(3, 1)
LEVELS = (1, 10, 100, 500)
CROWD = 100
"""Streams of the comparison with other tools."""
TOKENS = 100
"""Of each of their answers, 10 ms apart, as `toolkit selftest` has them."""
BAR_P50_MS, BAR_P99_MS, BAR_MEAN_MS, BAR_CPU_US = 2.0, 10.0, 20.0, 25.0

Part = dict[str, Any]
Told = dict[Any, list[Part]]
"""Streams, a tool's name, or `rate` -> what each round told."""


def one_round(rivals: list[Peer]) -> list[Part]:
    """Run the whole command, and the others beside our own client; 1 is the exit status of a clock that misses a bar."""
    toolkit = Path(sys.executable).with_name("toolkit")
    words = [f"--streams={','.join(map(str, LEVELS))}", "--json"]
    done = subprocess.run(
        [toolkit, "selftest", *words], stdout=subprocess.PIPE, text=True, check=False
    )
    parts = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode in (0, 1), done.returncode
    assert parts[-1]["part"] == "verdict", parts[-1:]
    assert all(not part["errors"] for part in parts if part["part"] == "level"), parts
    if rivals:
        with noted_server(TokenPace(tokens=TOKENS)) as server:
            beside = [ourselves(server, CROWD, tokens=TOKENS)]
            beside += [compared(each, server, CROWD, tokens=TOKENS) for each in rivals]
        parts += [{"part": "peer"} | asdict(each) for each in beside]
    return parts


def subject(part: Part) -> Any:
    """What a part tells of: a tool, a number of streams, or what its kind says."""
    return {"peer": part.get("tool"), "level": part.get("streams")}.get(part["part"], part["part"])


def told_by(rounds: list[list[Part]]) -> Told:
    """Gather what the rounds told of the same thing."""
    told: Told = defaultdict(list)
    for part in (part for parts in rounds for part in parts):
        told[subject(part)].append(part)
    return told


def median(parts: list[Part], key: str) -> float | None:
    """None when a round did not tell it."""
    values = [part[key] for part in parts]
    return None if None in values else statistics.median(values)


def shown(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.2f} {unit}" if value < 100 else f"{value:.0f} {unit}"


def print_level(streams: int, parts: list[Part]) -> None:
    p50, p99, mean = (
        shown(median(parts, f"ttft_delay_{which}_ms"), "ms") for which in ("p50", "p99", "mean")
    )
    itl, late = (
        shown(median(parts, key), "ms") for key in ("itl_error_p99_ms", "server_late_p99_ms")
    )
    cpu, share = median(parts, "cpu_us_per_event"), median(parts, "cpu_share")
    print(
        f"{streams:4} streams: TTFT +{p50} p50, +{p99} p99, +{mean} mean; ITL error {itl} p99;"
        f" {shown(cpu, 'us')} CPU an event, {share or 0:.0%} of a core; server late {late} p99"
    )


def print_peer(tool: str, parts: list[Part]) -> None:
    p50, p99, mean = (
        shown(median(parts, f"ttft_delay_{which}_ms"), "ms") for which in ("p50", "p99", "mean")
    )
    cpu = shown(median(parts, "cpu_us_per_event"), "us")
    print(f"{tool:>9}, {CROWD} at once: TTFT +{p50} p50, +{p99} p99, +{mean} mean; {cpu} an event")


def print_ratio(name: str, value: float | None, bar: float | None) -> None:
    if value is not None and bar:
        print(f"RATIO {name} {value / bar:.3f}")
    else:
        print(f"{name}: not measured")


def main() -> None:
    """Print the medians, then the ratios."""
    rivals = installed()
    told = told_by([one_round(rivals) for _ in range(ROUNDS)])
    print(f"{ROUNDS} rounds, {os.cpu_count()} CPUs")
    for streams in LEVELS:
        print_level(streams, told[streams])
    print(
        f"without pauses: {median(told['rate'], 'events_per_cpu_s') or 0:,.0f} events a CPU second"
    )
    names = [tool for tool in ("toolkit", *(each.name for each in TOOLS)) if tool in told]
    for tool in names:
        print_peer(tool, told[tool])
    if not names:
        print(
            f"no other tool is here: none of {', '.join(each.name for each in TOOLS)} on the PATH or in TOOLKIT_PEERS"
        )
    hundred, crowd = told[100], told[500]
    print_ratio("ttft_delay_p50_100", median(hundred, "ttft_delay_p50_ms"), BAR_P50_MS)
    print_ratio("ttft_delay_p99_100", median(hundred, "ttft_delay_p99_ms"), BAR_P99_MS)
    print_ratio("ttft_delay_mean_500", median(crowd, "ttft_delay_mean_ms"), BAR_MEAN_MS)
    print_ratio("sse_event_cpu", median(hundred, "cpu_us_per_event"), BAR_CPU_US)
    for tool in names[1:]:
        for ratio, key in (
            ("sse_event_cpu", "cpu_us_per_event"),
            ("ttft_delay_mean", "ttft_delay_mean_ms"),
        ):
            print_ratio(f"{ratio}_{tool}", median(told["toolkit"], key), median(told[tool], key))


if __name__ == "__main__":
    main()
