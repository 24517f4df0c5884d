"""Rows against the base, block by block, with intervals; how far each lever moved; and all in words.

Expected values by hand or by scipy.
"""

import math
import random

import pytest

from toolkit.tuning.sweep_table import (
    NO_DIFFERENCE,
    Compared,
    Moved,
    Status,
    SweepRow,
    Verdict,
    difference_in_words,
    lever_in_words,
    moved,
    progression,
    table,
)

TOKENS, SHARE, SLOWEST = "output_tokens_per_s", "invalid_json_ratio", "e2e_p95_ms"


def one(
    name: str,
    *values: float | None,
    stage: int = 1,
    lever: str | None = "quantization",
    status: Status = "measured",
    metric: str = TOKENS,
) -> SweepRow:
    blocks = {number: {metric: value} for number, value in enumerate(values, start=1)}
    return SweepRow(name=name, stage=stage, lever=lever, value=name, status=status, blocks=blocks)


def compared(a: tuple[float | None, ...], b: tuple[float | None, ...], metric: str) -> Compared:
    rows = table([one("a", *a, metric=metric), one("b", *b, metric=metric)], [metric])
    return rows[1].compared[0]


def test_the_progression_of_the_contest_is_told_against_its_first_row() -> None:
    rows = table(
        [
            one("broken", status="failed"),  # a row, and no base
            one("fp8", 1070, 1080, 1060),
            one("awq", 1211, 1222.3178, 1199.682),
            one("gptq", 3114, 3143, 3085),
            # of another stage: compared with its own first row
            one("gptq", 3100, 3130, 3070, stage=2, lever=None),
            one("seqs 16", 1550, 1565, 1535, stage=2, lever="seqs"),
        ],
        [TOKENS],
    )
    assert [row.against for row in rows] == [None, None, "fp8", "fp8", None, "gptq"]
    differences = [row.compared[0].difference for row in rows if row.compared]
    # 1211 / 1070 = 1.13178 in every block
    assert differences == [
        pytest.approx(0.13178, abs=1e-4),
        pytest.approx(1.9103, abs=1e-3),
        pytest.approx(-0.5),
    ]
    assert [row.compared[0].verdict for row in rows[2:4]] == ["better"] * 2
    # the geometric mean over blocks; a count stays the number that it is
    assert rows[2].figure(TOKENS) == pytest.approx(1210.96, abs=0.1)
    assert one("a", 8.0, metric="json_answered").figure("json_answered") == 8.0
    assert rows[0].as_json()["figures"] == {}


def test_drift_that_all_blocks_share_is_no_difference() -> None:
    # the machine slows down by half; both configurations are as fast as each other in each block
    found = compared((100, 75, 50), (101, 75, 49.6), TOKENS)
    assert found.verdict == NO_DIFFERENCE
    # unpaired, the drift would make an interval of more than +-50 % of it
    assert -0.03 < (found.low or 1) < 0 < (found.high or 1) < 0.03


def test_equal_configurations_are_shown_to_differ_in_few_sweeps() -> None:
    dice = random.Random(11)
    shown = 0
    for _ in range(400):
        known = [one(name, *(dice.gauss(100, 3) for _ in range(4))) for name in "abcdefgh"]
        verdicts = {each.verdict for row in table(known, [TOKENS]) for each in row.compared}
        shown += verdicts != {NO_DIFFERENCE}
    # 5 % of 400 are 20; seven comparisons of 5 % each would be some 100
    assert shown < 40


@pytest.mark.parametrize(
    ("metric", "a", "b", "difference", "verdict"),
    [
        (SLOWEST, (100, 101, 99), (50, 50.5, 49.5), -0.5, "better"),  # less is better
        # shares are compared by their difference, and may be zero
        ("error_rate", (0.0, 0.0, 0.0), (0.10, 0.11, 0.12), 0.11, "worse"),
        (TOKENS, (100,), (300,), 2.0, "not known"),  # one block has no interval
        (TOKENS, (100, 200, 100), (110, None, 110), 0.1, "better"),  # what one side lacks is left out
        (TOKENS, (None, None), (2, 4), None, "not known"),
        (TOKENS, (0.0, 1.0), (1.0, 1.0), None, "not known"),  # of nothing there is no ratio
    ],
)  # fmt: skip
def test_a_difference_and_its_verdict(
    metric: str,
    a: tuple[float | None, ...],
    b: tuple[float | None, ...],
    difference: float | None,
    verdict: Verdict,
) -> None:
    found = compared(a, b, metric)
    assert found.difference == (None if difference is None else pytest.approx(difference))
    assert found.verdict == verdict
    assert found.blocks == sum(None not in pair for pair in zip(a, b, strict=True))


def test_an_interval_is_drawn_in_the_figures_own_measure() -> None:
    first, second = table([one("a", 100, 100), one("b", 200, 200)], [TOKENS])
    assert first.ends(TOKENS) is None  # it is what the other is compared with
    # twice as much in both blocks: the interval is a point, and lies at the figure itself
    assert second.ends(TOKENS) == (pytest.approx(200.0), pytest.approx(200.0))
    known = [one("words", 0.5, 0.5, metric=SHARE), one("json", 0.2, 0.3, metric=SHARE)]
    # 25 points less; 0.1 apart, the interval of their mean reaches 12.706 * 0.05 = 0.6353 to both sides of 0.25
    ends = table(known, [SHARE])[1].ends(SHARE)
    assert ends == (pytest.approx(0.25 - 0.6353, abs=1e-4), pytest.approx(0.25 + 0.6353, abs=1e-4))
    wild = compared((1e-15, 1e15), (1e15, 1e-15), TOKENS)
    assert math.isfinite(wild.high or math.inf)


def test_levers_are_told_by_their_farthest_positions_the_farthest_first() -> None:
    known = [
        one("fp8", 1070, 1075, 1065),
        one("awq", 1211, 1216, 1206),
        one("gptq", 3114, 3120, 3100),
        one("gptq", 3114, 3110, 3118, stage=2, lever=None),
        one("seqs 512", 3500, 3495, 3505, stage=2, lever="seqs"),
        one("length 512", 3114, 3120, 3108, stage=2, lever="length"),
        one("broken", stage=2, lever="nothing", status="failed"),
    ]
    first, second, third = moved(known, TOKENS)
    assert (first.lever, first.best, first.worst) == ("quantization", "gptq", "fp8")
    assert first.factor == pytest.approx(2.91, abs=0.01)
    assert (second.lever, second.best, second.worst) == ("seqs", "seqs 512", "gptq")
    assert second.factor == pytest.approx(1.124, abs=0.001)
    assert (second.verdict, third.verdict) == ("better", NO_DIFFERENCE)
    # where less is better the best is the least
    known = [one("a", 100, 101, metric=SLOWEST), one("b", 50, 50, metric=SLOWEST)]
    (found,) = moved(known, SLOWEST)
    assert (found.best, found.worst) == ("b", "a")


def test_a_lever_of_a_share_is_told_in_points_and_its_interval_pays_for_all_pairs() -> None:
    known = [one("words", 0.3, 0.5, metric=SHARE), one("schema", 0.0, 0.0, metric=SHARE)]
    (found,) = moved(known, SHARE)
    assert (found.best, found.worst, found.is_share) == ("schema", "words", True)
    # 30 and 50 points less; of two values 0.2 apart the interval of their mean reaches 12.706 * 0.1 to both sides
    reach = 1.2706
    assert found.factor == pytest.approx(0.4)
    assert (found.low, found.high) == (
        pytest.approx(0.4 - reach, abs=1e-3),
        pytest.approx(0.4 + reach, abs=1e-3),
    )
    assert found.verdict == NO_DIFFERENCE
    known = [
        one("a", 0.1, 0.1, 0.1, metric=SHARE),
        one("b", 0.3, 0.5, 0.7, metric=SHARE),
        one("c", 0.2, 0.2, 0.2, metric=SHARE),
    ]
    (found,) = moved(known, SHARE)
    # 20, 40 and 60 points: a deviation of 0.2 among three; Student's t of two degrees at 0.05 / 3 is 7.6488
    reach = 7.6488 * 0.2 / math.sqrt(3)
    assert (found.best, found.worst, found.factor) == ("a", "b", pytest.approx(0.4))
    assert found.high == pytest.approx(0.4 + reach, abs=1e-4)


# --- in words ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "middle", "bounds", "verdict", "told"),
    [
        (TOKENS, 1.91, (1.85, 1.97), "better", "+191 % (+185 to +197 %)"),
        (TOKENS, -0.05, (-0.052, -0.048), "worse", "-5.0 % (-5.2 to -4.8 %)"),
        # bounds of different units keep both
        (TOKENS, 5.33, (-0.94, 11.6), NO_DIFFERENCE, "no difference shown (-94 % to 12.6x)"),
        ("error_rate", 0.0, (0.0, 0.0), NO_DIFFERENCE, "no difference shown"),
        # shares differ by points
        ("error_rate", 0.11, (0.10, 0.12), "worse", "+11.0 points (+10.0 to +12.0 points)"),
        (TOKENS, 0.5, (None, None), "not known", "+50 %, one block: no interval"),
        (TOKENS, None, (None, None), "not known", "\N{EN DASH}"),
    ],
)
def test_a_difference_comes_with_its_interval(
    metric: str,
    middle: float | None,
    bounds: tuple[float | None, float | None],
    verdict: Verdict,
    told: str,
) -> None:
    low, high = bounds
    found = Compared(metric=metric, difference=middle, low=low, high=high, verdict=verdict)
    assert difference_in_words(found) == told


@pytest.mark.parametrize(
    ("known", "told"),
    [
        # the contest's shape
        ([(1070.0, 1070.0), (1211.0, 1211.0), (3114.0, 3114.0)], "1,070 -> 1,211 (+13 %) -> 3,114 (+191 %)"),
        # noise is no step, and what failed is none either
        ([(100.0, 110.0), (111.0, 101.0), ()], "105 -> 106 (no difference shown)"),
        ([(100.0,)], None),
    ],
)  # fmt: skip
def test_the_progression_tells_each_figure_and_its_step(
    known: list[tuple[float, ...]], told: str | None
) -> None:
    rows = [one("x", *values, status="measured" if values else "failed") for values in known]
    assert progression(table(rows, [TOKENS]), TOKENS) == told


@pytest.mark.parametrize(
    ("metric", "factor", "bounds", "verdict", "told"),
    [
        (TOKENS, 2.91, (2.8, 3.03), "better", "2.91x (2.80 to 3.03) in output tokens/s, gptq against fp8"),
        (SHARE, 0.4, (0.35, 0.45), "better", "40.0 points (+35.0 to +45.0 points) in invalid JSON, gptq against fp8"),
        (SHARE, 0.4, (None, None), "not known", "40.0 points in invalid JSON, gptq against fp8, from one block"),
        (TOKENS, 1.01, (0.9, 1.1), NO_DIFFERENCE, "no difference shown in output tokens/s between its positions"),
    ],
)  # fmt: skip
def test_a_lever_is_told_by_its_best_and_worst(
    metric: str,
    factor: float,
    bounds: tuple[float | None, float | None],
    verdict: Verdict,
    told: str,
) -> None:
    low, high = bounds
    names = {"lever": "quantization", "best": "gptq", "worst": "fp8"}
    is_share = metric == SHARE
    found = Moved(**names, factor=factor, low=low, high=high, verdict=verdict, is_share=is_share)
    assert lever_in_words(found, metric) == f"quantization: {told}"
