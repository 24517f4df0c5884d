"""Before and after: verdicts by hand, and on simulated blasts whether they say what is so."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from toolkit.records import Run
from toolkit.stats import Sketch
from toolkit.tuning.cells import Cell
from toolkit.tuning.compare import ComparedMetric, Comparison, Side, compare

PLAN: dict[str, object] = {"profile": "contest", "users_per_host": 4}
SEEDS = 200
SECONDS = 60


def cell(ok: int, *, errors: int = 0, tokens: int = 100, e2e: tuple[float, ...] = ()) -> Cell:
    sketch = Sketch()
    for value in e2e:
        sketch.add(value)
    return Cell(elapsed_s=1.0, ok=ok, errors=errors, output_tokens=ok * tokens, e2e=sketch)


def side(cells: list[Cell], plan: dict[str, object] = PLAN, **changes) -> Side:
    run = Run(id="a" * 12, verb="blast", started_at=1.0, settings=json.dumps(plan))
    return Side(run=replace(run, **changes), name="alice", cells=dict(enumerate(cells)))


def row(found: Comparison, metric: str) -> ComparedMetric:
    [told] = [each for each in found.rows if each.metric == metric]
    return told


def test_a_rate_by_hand() -> None:
    # A answers 9 and 11 in turn, B 19 and 21: block means of three seconds differ by 10 throughout
    a = side([cell(ok) for ok in [9, 11] * 30])
    b = side([cell(ok) for ok in [19, 21] * 30])
    told = row(compare(a, b), "rps")
    assert (told.a, told.b, told.difference, told.change) == (10.0, 20.0, 10.0, 1.0)
    # paired, the blocks agree to the last digit
    assert (told.low, told.high) == (pytest.approx(10.0), pytest.approx(10.0))
    assert told.verdict == "better"


@pytest.mark.parametrize("metric", ["rps", "e2e_p50_ms", "error_rate"])
def test_each_metric_knows_which_way_is_worse(metric: str) -> None:
    a = side([cell(10, e2e=(100.0,) * 10)] * 60)
    b = side([cell(8, errors=2, e2e=(150.0,) * 8)] * 60)
    assert row(compare(a, b), metric).verdict == "worse"
    assert row(compare(b, a), metric).verdict == "better"


def test_a_difference_that_is_sure_and_too_small_is_none() -> None:
    a, b = side([cell(1000)] * 60), side([cell(1015)] * 60)
    assert row(compare(a, b), "rps").verdict == "no difference shown"  # 1.5 %
    assert row(compare(a, b, least_share=0.01), "rps").verdict == "better"


def test_percentiles_are_known_to_one_per_cent_however_well_the_blocks_agree() -> None:
    a = side([cell(10, e2e=(100.0,) * 10)] * 60)
    told = row(compare(a, a), "e2e_p50_ms")
    assert told.difference == 0
    # 1 % of 100 ms, evenly spread, at each side: sqrt(2 / 3) ms; t of 19 degrees of freedom is 2.093
    assert told.high == pytest.approx(2.093 * math.sqrt(2 / 3), rel=0.01)
    assert told.verdict == "no difference shown"


def test_no_error_is_no_proof_of_an_error_rate_of_zero() -> None:
    few = row(compare(side([cell(1)] * 60), side([cell(1)] * 60)), "error_rate")
    # 1 / 62 at each side: sqrt(2 * 0.01613 * 0.98387 / 62) = 0.02263, times 2.093
    assert few.high == pytest.approx(0.0474, abs=0.0001)
    many = row(compare(side([cell(100)] * 60), side([cell(100)] * 60)), "error_rate")
    assert many.high is not None
    assert many.high < 0.001


def test_too_little_data_says_so() -> None:
    five = row(compare(side([cell(10)] * 5), side([cell(10)] * 5)), "rps")
    assert (five.low, five.high, five.verdict) == (None, None, "no difference shown")
    assert five.why == "too little data: 5 blocks of one side, and 6 are needed"
    thin = side([cell(1, e2e=(100.0,))] * 100)
    # 100 answers, of which a block needs 40
    told = row(compare(thin, thin), "e2e_p95_ms")
    assert told.why == "too little data: 100 answers of one side, and 240 are needed"
    assert (told.a, told.difference) == (pytest.approx(100, rel=0.01), 0)
    assert row(compare(thin, thin), "e2e_p50_ms").why is None
    assert row(compare(thin, thin), "ttft_p50_ms").why == "not known of A and B"


def test_a_host_that_was_down_for_most_of_the_run_has_too_few_blocks_with_an_answer() -> None:
    up = cell(40, e2e=(100.0,) * 40)
    a = side([up] * 60)
    b = side([up] * 20 + [cell(0, errors=5)] * 40)
    told = row(compare(a, b), "e2e_p50_ms")
    assert told.why == "too little data: in some part of the run one side answered nothing"
    # once down is once: no interval of blocks knows how often that happens
    assert compare(a, b).notes == (
        "B answered nothing in 40 of the 60 seconds: whether that happens again no interval knows",
    )
    assert compare(a, a).notes == ()


def test_only_the_seconds_that_both_have_are_compared() -> None:
    a = side([cell(10)] * 60)
    b = side([cell(10)] * 60 + [cell(99)] * 60)
    found = compare(a, b)
    assert (found.cells, row(found, "rps").b) == (60, 10)
    assert found.notes == ("compared are the 60 seconds that both have; A has 60, B 120",)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"plan": PLAN | {"profile": "chain"}}, "`profile` is contest in A and chain in B"),
        ({"plan": {"profile": "contest"}}, "`users_per_host` is 4 in A and not set in B"),
        ({"plan": PLAN | {"rate": 5.0}}, "`rate` is not set in A and 5.0 in B"),
        ({"verb": "bench"}, "A is a blast, B a bench"),
        ({"client_ok": False}, "the measuring machine was the limit in B"),
    ],
)
def test_other_plans_are_named_and_shown_all_the_same(changes, reason: str) -> None:
    found = compare(side([cell(10)] * 60), side([cell(20)] * 60, **changes))
    assert found.not_comparable == (reason,)
    assert (found.comparable, found.paired) == (False, False)
    assert (row(found, "rps").a, row(found, "rps").b) == (10, 20)
    assert row(found, "rps").verdict == "better"


def test_another_seed_compares_but_not_block_by_block() -> None:
    a, b = (side([cell(10)] * 60, PLAN | {"seed": seed}) for seed in (0, 1))
    found = compare(a, b)
    assert (found.comparable, found.paired) == (True, False)
    assert found.notes == ("A drew with seed 0, B with 1: not paired",)


def blast(seed: int, level: float) -> Side:
    """10 requests a second, 100 ms each; at `level` 2 twice as fast. Seconds remember half of the one before.

    The second's pace is e^(0.1 x), x a series of variance 1 / (1 - 0.5^2) = 4 / 3.
    """
    chance = np.random.default_rng(seed)
    memory = [0.0]
    for noise in chance.normal(size=100 + SECONDS):
        memory.append(0.5 * memory[-1] + noise)
    pace = np.exp(0.1 * np.array(memory[-SECONDS:]))
    cells = []
    for second in range(SECONDS):
        ok = int(chance.poisson(10 * level / pace[second]))
        cells.append(
            cell(ok, e2e=tuple(chance.lognormal(math.log(100 / level * pace[second]), 0.3, ok)))
        )
    return side(cells)


# Exactly, from the logarithms' normal distributions: rps 10 * level * e^(0.01 * 4/3 / 2); a request's latency has the
# median 100 / level * e^(-0.01 * 4/3), as fast seconds hold more of them, and a deviation of sqrt(0.3^2 + 0.01 * 4/3),
# so that the 95th percentile is e^(1.6449 * 0.32146) = 1.6968 times the median.
RPS = 10 * 1.006689
P50 = 100 * 0.986755


@pytest.mark.slow
@pytest.mark.parametrize("level", [1.0, 1.5])
def test_simulated_blasts_hold_the_true_difference_as_often_as_they_say(level: float) -> None:
    truth = {
        "rps": RPS * (level - 1),
        "e2e_p50_ms": P50 * (1 / level - 1),
        "e2e_p95_ms": P50 * 1.6968 * (1 / level - 1),
    }
    held, apart = dict.fromkeys(truth, 0), 0
    for seed in range(SEEDS):
        found = compare(blast(10 + 2 * seed, 1.0), blast(11 + 2 * seed, level), least_share=0.0)
        for metric, value in truth.items():
            told = row(found, metric)
            assert told.low is not None
            assert told.high is not None
            held[metric] += told.low <= value <= told.high
        apart += row(found, "rps").verdict != "no difference shown"
    # of 200 seeds 190 within four standard deviations, which are 12
    assert all(abs(count - 190) <= 12 for count in held.values()), held
    # equal ones are told apart in one of twenty, and half as much again is hardly ever missed
    assert apart <= 22 if level == 1.0 else apart >= 195
