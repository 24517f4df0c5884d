"""`toolkit bench` over the simulated cast: does every host get its verdict and no other, again and again?

One round by default, ten rounds of the cast and two hundred benches of clean hosts with TOOLKIT_LONG=full (six
minutes). It prints what it saw.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.sim_fleet import running

ROUNDS = {"short": 1, "full": 10}[os.environ.get("TOOLKIT_LONG", "short")]
CLEAN_HOSTS = 20
"""Ten rounds are two hundred benches of a host."""

pytestmark = pytest.mark.timeout(60 * ROUNDS + 240)

QUICK = {"time_scale": 0.2}
EXPECTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "fp8": ("fp8", QUICK, "clean"),
    "awq": ("awq", QUICK, "clean"),
    "gptq-int4": ("gptq-int4", QUICK, "clean"),
    "cached": ("cached", QUICK, "response_cache"),
    "first-token": ("first-token", QUICK, "truncated_output"),
    "flaky": ("flaky", QUICK, "fast_failures"),
    "loaded": ("gptq-int4", QUICK | {"load": 4}, "foreign_traffic"),
    # its 89 s come once for each of four batch sizes
    "cold": ("cold", {"time_scale": 0.03}, "cold"),
}
"""Host: personality, what is changed in it, and the one verdict it must get."""


def bench(hosts: str, folder: Path, *words: str) -> list[dict[str, Any]]:
    (folder / "hosts.txt").write_text(hosts)
    done = subprocess.run(
        [Path(sys.executable).with_name("toolkit"), "bench", "hosts.txt", "--json", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stderr, end="")
    return [json.loads(line) for line in done.stdout.splitlines()]


def codes(said: dict[str, Any]) -> list[str]:
    return [verdict["code"] for verdict in said["verdicts"]]


def test_every_host_of_the_cast_gets_exactly_its_verdict(tmp_path: Path) -> None:
    wrong = []
    for seed in range(ROUNDS):
        spec = {
            name: (person, settings | {"seed": 100 * seed + number})
            for number, (name, (person, settings, _)) in enumerate(EXPECTED.items())
        }
        with running(spec) as hosts:
            told = bench(hosts, tmp_path, "--num-prompts", "48", "--mix", "50", "--seed", str(seed))
        wrong += [
            (seed, said["name"], said["verdicts"])
            for said in told
            if codes(said) != [EXPECTED[said["name"]][2]]
        ]
    print(f"{ROUNDS} rounds of {len(EXPECTED)} hosts, {len(wrong)} wrong")
    assert wrong == []


def test_clean_hosts_are_never_accused_and_equal_ones_seldom_told_apart(tmp_path: Path) -> None:
    """Twenty hosts at once; eight of them are the same model with other dice: 28 pairs a round."""
    same = {f"same-{number}": "gptq-int4" for number in range(8)}
    others = {f"other-{number}": ("fp8", "awq", "gptq-int4")[number % 3] for number in range(12)}
    dialects = ("v1", "v0", "rust")
    seen: Counter[tuple[str, ...]] = Counter()
    accused: list[tuple[str, list[dict[str, Any]]]] = []
    apart, pairs = 0, 0
    for seed in range(ROUNDS):
        spec = {
            name: (
                person,
                {
                    "seed": 100 * seed + number,
                    "dialect": "v1" if name in same else dialects[number % 3],
                },
            )
            for number, (name, person) in enumerate((same | others).items())
        }
        assert len(spec) == CLEAN_HOSTS
        with running(spec) as hosts:
            told = bench(hosts, tmp_path, "--seed", str(seed))
        seen.update(tuple(codes(said)) for said in told)
        accused += [(said["name"], said["verdicts"]) for said in told if codes(said) != ["clean"]]
        ties = {said["name"]: set(said["tied_with"]) for said in told}
        pairs += len(same) * (len(same) - 1) // 2
        apart += sum(a < b and b not in ties[a] for a in same for b in same)
    print(
        f"{ROUNDS * CLEAN_HOSTS} benches: {dict(seen)}; {apart} of {pairs} equal pairs told apart"
    )
    assert accused == []
    assert seen == {("clean",): ROUNDS * CLEAN_HOSTS}
    assert apart <= 0.05 * pairs
