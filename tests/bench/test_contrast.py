"""Contrast: identical hosts are not told apart, faster ones are, and gaps in the record bias neither."""

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.shots import answered

from toolkit.bench.contrast import contrast, tied
from toolkit.records import RequestRecord

TEMPLATES_MS = (400.0, 4000.0, 1500.0, 900.0, 2500.0)
"""Prompts differ far more than hosts do; pairing takes it out."""


def shot(slot: int, e2e_ms: float | None, **more: Any) -> RequestRecord:
    return answered(e2e_ms, slot, **more)


def host(logs: Iterable[float], **more: Any) -> list[RequestRecord]:
    """A shot a slot, e^log times as long as its template takes."""
    return [
        shot(slot, TEMPLATES_MS[slot % len(TEMPLATES_MS)] * math.exp(log), **more)
        for slot, log in enumerate(logs)
    ]


def even(count: int) -> list[RequestRecord]:
    return host([0.0] * count)


def without(shots: Sequence[RequestRecord], missing: Iterable[int]) -> list[RequestRecord]:
    gone = set(missing)
    return [
        shot(one.slot, None, ok=False, error_kind="cut", took_ms=1.0) if one.slot in gone else one
        for one in shots
    ]


def at(starts_s: Iterable[float], logs: Iterable[float]) -> list[RequestRecord]:
    """An open loop whose answers take a second each."""
    facts = {"concurrency": None, "took_ms": 1000.0, "sent_at": 100.0}
    return [
        shot(slot, 1000.0 * math.exp(log), planned_at=100.0 + start_s, **facts)
        for slot, (start_s, log) in enumerate(zip(starts_s, logs, strict=True))
    ]


SLOW_WAVE = [0.2] * 8 + [0.0] * 8
TOGETHER, ALONE = [0.0] * 8 + [1.0] * 8, [float(slot) for slot in range(16)]


@pytest.mark.parametrize(
    ("logs", "level", "mean", "reach"),
    [
        # 2 at once: blocks (.40 .44) and (.36 .40), means .42 and .38, mean .40
        #   inside 4 * .02^2 = .0016 on 4 - 2 = 2 degrees; guess .0008 + 2 a wave * .07^2 = .0106, worth 2
        #   between 2 * 2 * .02^2 = .0016 on 1; variance (2 * .0106 + .0016) / 3 / 4 = .0019
        #   t(3) = 3.182, reach 3.182 * sqrt(.0019) = .13870
        ([0.40, 0.44, 0.36, 0.40], 2, 0.40, 0.13870),
        # 10 waves of one: 5 blocks of (.1 -.1), all means 0
        #   inside 10 * .01 = .1 on 5; guess .02 + 1 * .0049 = .0249, worth 3; between 0 on 4
        #   variance 3 * .0249 / 7 / 10 = .0010671; t(7) = 2.365, reach .07726
        ([0.1, -0.1] * 5, 1, 0.0, 0.07726),
        # three waves of one: plain Student, sd of (.3 .4 .5) = .1, reach 4.303 * .1 / sqrt(3) = .24844
        ([0.3, 0.4, 0.5], 1, 0.4, 0.24844),
    ],
)
def test_the_interval_rests_on_the_blocks_and_on_the_guess(
    logs: list[float], level: int, mean: float, reach: float
) -> None:
    found = contrast(host(logs, concurrency=level), host([0.0] * len(logs), concurrency=level))
    assert math.log(found.ratio) == pytest.approx(mean, abs=1e-9)
    assert math.log(found.low) == pytest.approx(mean - reach, abs=1e-4)
    assert math.log(found.high) == pytest.approx(mean + reach, abs=1e-4)
    assert found.different == (mean - reach > math.log(1.05))


def test_each_level_of_a_sweep_has_waves_of_its_own() -> None:
    # 4 slots at 2 and 8 slots at 4: 12 pairs in 2 + 2 waves and as many blocks, no spread at all
    #   guess 12 / 4 * .07^2 = .0147, worth 3; freedom 6; variance 3 * .0147 / 6 / 12 = .0006125
    #   t(6) = 2.447, reach .06056
    a = [*host([0.4] * 4, concurrency=2), *host([0.4] * 8, concurrency=4)]
    b = [*host([0.0] * 4, concurrency=2), *host([0.0] * 8, concurrency=4)]
    assert math.log(contrast(a, b).high) == pytest.approx(0.46056, rel=1e-4)


def test_an_open_loops_wave_is_as_long_as_requests_overlap() -> None:
    wide = contrast(at(TOGETHER, SLOW_WAVE), at(TOGETHER, [0.0] * 16))
    narrow = contrast(at(ALONE, SLOW_WAVE), at(ALONE, [0.0] * 16))
    # together: 2 blocks as in a closed loop of 8; alone: 4 blocks of 4
    assert wide.high == pytest.approx(contrast(host(SLOW_WAVE), even(16)).high)
    assert wide.high > narrow.high


ODD = [
    shot(20, 1.0, kind="twin", pair=3),
    shot(21, 1.0, kind="warmup"),
    shot(22, 1.0, ok=False, error_kind="cut"),
    shot(23, None),
]
ODD_SLOW = [shot(one.slot, 9000.0, kind=one.kind, pair=one.pair) for one in ODD]


@pytest.mark.parametrize(
    ("a", "b", "pairs", "ratio", "different"),
    [
        # twice as long and eight times as long: the square root of 16
        ([shot(0, 200.0), shot(1, 8000.0)], [shot(0, 100.0), shot(1, 1000.0)], 2, 4.0, False),
        # one slow wave of two; sixteen requests on their own would be sure of it: .15 to .54
        (host([0.7] * 8 + [0.0] * 8), even(16), 16, math.exp(0.35), False),
        (host([math.log(1.04)] * 200), even(200), 200, 1.04, False),  # sure, and less than 5 %
        (host([math.log(1.08)] * 200), even(200), 200, 1.08, True),
        (host([-math.log(1.5)] * 16), even(16), 16, 1 / 1.5, True),
        (even(16), host([-math.log(1.5)] * 16), 16, 1.5, True),
        # failures, twins, and warm-up are compared with nothing, repeats are
        ([*even(16), *ODD], [*even(16), *ODD_SLOW], 16, 1.0, False),
        (host([-1.0] * 16, kind="repeat"), host([0.0] * 16, kind="repeat"), 16, math.exp(-1), True),
        # streams only with streams, levels with their own slots
        (host([0.0] * 16, stream=False), even(16), 0, None, False),
        (host([0.0] * 16, concurrency=16), even(16), 0, None, False),
        ([*even(16), *host([0.0] * 16, concurrency=16)], [*even(16), *host([0.0] * 16, concurrency=16)],
         32, 1.0, False),
        (without(even(16), range(8)), without(even(16), range(8, 16)), 0, None, False),
        ([], [], 0, None, False),
        ([shot(3, 900.0)], even(16), 1, 1.0, False),
        # a host that fails on all long prompts is not faster for it: of what each answered, the mean would differ by a third
        (without(even(40), [slot for slot in range(40) if slot % 5 == 1]), even(40), 32, 1.0, False),
        (without(host([-math.log(1.5)] * 16), [0, 1, 2, 9, 12]), without(even(16), [3]), 10, 1 / 1.5, True),
        (without(host([-1.0] * 16), range(8)), even(16), 8, math.exp(-1), True),  # a whole wave is missing
    ],
)  # fmt: skip
def test_hosts_are_compared_by_the_slots_that_both_answered(
    a: list[RequestRecord],
    b: list[RequestRecord],
    pairs: int,
    ratio: float | None,
    different: bool,
) -> None:
    found = contrast(a, b)
    assert (found.pairs, found.different) == (pairs, different)
    assert found.ratio == (None if ratio is None else pytest.approx(ratio))
    assert (found.low is None) == (found.high is None) == (pairs < 2)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=40), st.integers(1, 9))
def test_the_order_of_the_two_hosts_changes_no_judgement(logs: list[float], level: int) -> None:
    a, b = host(logs, concurrency=level), host([0.0] * len(logs), concurrency=level)
    there, back = contrast(a, b), contrast(b, a)
    assert there.different == back.different
    assert there.ratio * back.ratio == pytest.approx(1.0)
    if len(logs) > 1:
        assert there.low * back.high == pytest.approx(1.0)


def test_times_beyond_reason_break_nothing() -> None:
    a = [shot(0, 1e-300), shot(1, 1e300), shot(2, math.inf), shot(3, math.nan), shot(4, 0.0)]
    found = contrast(a, [shot(slot, 1000.0) for slot in range(5)])
    assert (found.pairs, found.different) == (2, False)
    assert math.isfinite(found.high)


def test_hosts_that_can_not_be_told_apart_are_tied_in_the_order_given() -> None:
    hosts = {
        "alice": even(16),
        "bob": host([0.01] * 16),
        "fast": host([-1.0] * 16),
        "dead": without(even(16), range(16)),
        "carol": host([-0.01] * 16),
    }
    tied_to_alice = {
        "alice": ("bob", "carol"),
        "bob": ("alice", "carol"),
        "carol": ("alice", "bob"),
    }
    assert tied(hosts) == tied_to_alice | {"fast": (), "dead": ()}
    assert tied({}) == {}
    # a tie need not be passed on: steps of 16 % from two waves, neighbours are tied, the ends (35 %) are not
    jitter = [0.02 * (-1) ** slot for slot in range(16)]
    hosts = {name: host([step * 0.15 + j for j in jitter]) for step, name in enumerate("abc")}
    assert tied(hosts) == {"a": ("b",), "b": ("a", "c"), "c": ("b",)}


# Simulated runs with fixed seeds; contrast.py's docstring has the large tables.


def noisy(
    dice: random.Random, count: int, *, own: float = 0.01, wave: float = 0.0, carried: float = 0.0
) -> list[float]:
    """Log noise of one host: each request's own, and one that the 8 of a wave share."""
    logs: list[float] = []
    shared = dice.gauss(0.0, wave)
    for slot in range(count):
        if slot and slot % 8 == 0:
            shared = carried * shared + math.sqrt(1 - carried**2) * dice.gauss(0.0, wave)
        logs.append(shared + dice.gauss(0.0, own))
    return logs


def share_different(trials: int, count: int, speedup: float = 1.0, **noise: float) -> float:
    dice = random.Random(20_240_601)
    found = 0
    for _ in range(trials):
        a = without(host(noisy(dice, count, **noise)), dice.sample(range(count), count // 8))
        b = without(host(noisy(dice, count, **noise)), dice.sample(range(count), count // 8))
        faster = [shot(one.slot, one.e2e_ms and one.e2e_ms / speedup, ok=one.ok) for one in a]
        found += contrast(faster, b).different
    return found / trials


@pytest.mark.parametrize(
    ("count", "noise"),
    [
        (16, {"own": 0.2}),
        (16, {"wave": 0.05}),
        (16, {"wave": 0.08}),
        (16, {"own": 0.4}),
        (64, {"wave": 0.1}),
    ],
)
def test_identical_hosts_are_called_different_in_at_most_one_run_of_twenty(
    count: int, noise: dict[str, float]
) -> None:
    assert share_different(200, count, **noise) <= 0.05


@pytest.mark.parametrize(
    ("count", "speedup", "noise", "least"),
    [
        (16, 1.5, {"own": 0.05}, 0.99),
        (16, 1.5, {"wave": 0.05}, 0.99),
        (16, 2.0, {"own": 0.2}, 0.99),
        (64, 1.2, {"wave": 0.03}, 0.99),
    ],
)
def test_a_host_faster_by_half_is_found_from_two_waves_and_by_a_fifth_from_eight(
    count: int, speedup: float, noise: dict[str, float], least: float
) -> None:
    assert share_different(100, count, speedup, **noise) >= least
