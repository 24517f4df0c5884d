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

TOKENS, SHARE = "output_tokens_per_s", "invalid_json_ratio"


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


def test_the_progression_of_the_contest_is_told_against_its_first_row() -> None:
    rows = table(
        [
            one("fp8", 1070, 1080, 1060),
            one("awq", 1211, 1222.3178, 1199.682),
            one("gptq", 3114, 3143, 3085),
        ],
        [TOKENS],
    )
    assert [row.against for row in rows] == [None, "fp8", "fp8"]
    first, second, third = rows
    assert first.compared == ()
    # 1211 / 1070 = 1.13178 in every block
    assert second.compared[0].difference == pytest.approx(0.13178, abs=1e-4)
    assert third.compared[0].difference == pytest.approx(1.9103, abs=1e-3)
    assert (second.compared[0].verdict, third.compared[0].verdict) == ("better", "better")
    assert second.figure(TOKENS) == pytest.approx(1210.96, abs=0.1)  # their geometric mean


def test_drift_that_all_blocks_share_is_no_difference() -> None:
    # the machine slows down by half; both configurations are as fast as each other in each block
    rows = table([one("a", 100, 75, 50), one("b", 101, 75, 49.6)], [TOKENS])
    compared = rows[1].compared[0]
    assert compared.verdict == "no difference shown"
    assert compared.low is not None
    assert compared.high is not None
    assert compared.low < 0 < compared.high
    # unpaired, the drift would make an interval of more than +-50 % of it
    assert compared.high - compared.low < 0.06


def test_equal_configurations_are_shown_to_differ_in_few_sweeps() -> None:
    dice = random.Random(11)
    shown = 0
    for _ in range(400):
        known = [one(name, *(dice.gauss(100, 3) for _ in range(4))) for name in "abcdefgh"]
        shown += any(
            row.compared and row.compared[0].verdict != "no difference shown"
            for row in table(known, [TOKENS])
        )
    # 5 % of 400 are 20; seven comparisons of 5 % each would be some 100
    assert shown < 40


def test_less_is_better_where_that_is_so() -> None:
    rows = table(
        [
            one("a", 100, 101, 99, metric="e2e_p95_ms"),
            one("b", 50, 50.5, 49.6, metric="e2e_p95_ms"),
        ],
        ["e2e_p95_ms"],
    )
    assert rows[1].compared[0].verdict == "better"
    assert rows[1].compared[0].difference == pytest.approx(-0.5, abs=0.01)
    (found,) = moved(rows, "e2e_p95_ms")
    assert (found.best, found.worst) == ("b", "a")


def test_shares_are_compared_by_their_difference_and_may_be_zero() -> None:
    rows = table(
        [
            one("a", 0.0, 0.0, 0.0, metric="error_rate"),
            one("b", 0.10, 0.11, 0.12, metric="error_rate"),
        ],
        ["error_rate"],
    )
    compared = rows[1].compared[0]
    assert compared.difference == pytest.approx(0.11)
    assert compared.verdict == "worse"
    assert rows[1].figure("error_rate") == pytest.approx(0.11)


def test_an_interval_is_drawn_in_the_figures_own_measure() -> None:
    first, second = table([one("a", 100, 100), one("b", 200, 200)], [TOKENS])
    assert first.ends(TOKENS) is None  # it is what the other is compared with
    # twice as much in both blocks: the interval is a point, and lies at the figure itself
    assert second.ends(TOKENS) == (pytest.approx(200.0), pytest.approx(200.0))
    known = [one("words", 0.5, 0.5, metric=SHARE), one("json", 0.2, 0.3, metric=SHARE)]
    # 25 points less; 0.1 apart, the interval of their mean reaches 12.706 * 0.05 = 0.6353 to both sides of 0.25
    ends = table(known, [SHARE])[1].ends(SHARE)
    assert ends == (pytest.approx(0.25 - 0.6353, abs=1e-4), pytest.approx(0.25 + 0.6353, abs=1e-4))


def test_wild_blocks_do_not_overflow_and_a_figure_that_nobody_knows_is_not_compared() -> None:
    rows = table([one("a", 1e-15, 1e15), one("b", 1e15, 1e-15)], [TOKENS, "spec_mean_length"])
    wild, unknown = rows[1].compared
    assert wild.high is not None
    assert math.isfinite(wild.high)
    assert (unknown.difference, unknown.verdict) == (None, "not known")


def test_one_block_has_no_interval_and_so_no_verdict() -> None:
    compared = table([one("a", 100), one("b", 300)], [TOKENS])[1].compared[0]
    assert (compared.difference, compared.low) == (pytest.approx(2.0), None)
    assert compared.verdict == "not known"


def test_a_block_that_one_side_lacks_is_left_out_of_both() -> None:
    compared = table([one("a", 100, 200, 100), one("b", 110, None, 110)], [TOKENS])[1].compared[0]
    assert compared.blocks == 2
    assert compared.difference == pytest.approx(0.1)


def test_a_configuration_that_never_worked_is_a_row_and_no_base() -> None:
    broken = one("broken", status="failed")
    rows = table([broken, one("a", 100, 101), one("b", 200, 202)], [TOKENS])
    assert [row.against for row in rows] == [None, None, "a"]
    assert rows[0].status == "failed"
    assert rows[0].as_json()["figures"] == {}


def test_stages_are_compared_each_with_its_own_first_row() -> None:
    rows = table(
        [
            one("fp8", 100, 101),
            one("gptq", 300, 303),
            one("gptq", 290, 293, stage=2, lever=None),
            one("seqs 16", 145, 146.5, stage=2, lever="seqs"),
        ],
        [TOKENS],
    )
    assert [row.against for row in rows] == [None, "fp8", None, "gptq"]
    assert rows[3].compared[0].difference == pytest.approx(-0.5, abs=0.01)


def test_levers_are_told_by_their_farthest_positions_the_farthest_first() -> None:
    known = [
        one("fp8", 1070, 1075, 1065),
        one("awq", 1211, 1216, 1206),
        one("gptq", 3114, 3120, 3100),
        one("gptq", 3114, 3110, 3118, stage=2, lever=None),
        one("seqs 512", 3500, 3495, 3505, stage=2, lever="seqs"),
        one("length 512", 3114, 3120, 3108, stage=2, lever="length"),
    ]
    first, second, third = moved(known, TOKENS)
    assert (first.lever, first.best, first.worst) == ("quantization", "gptq", "fp8")
    assert first.factor == pytest.approx(2.91, abs=0.01)
    assert (second.lever, second.best, second.worst) == ("seqs", "seqs 512", "gptq")
    assert second.factor == pytest.approx(1.124, abs=0.001)
    assert (second.verdict, third.verdict) == ("better", "no difference shown")


def test_a_count_of_one_block_stays_the_number_that_it_is() -> None:
    (row,) = table([one("a", 8.0, metric="json_answered")], ())
    assert row.figure("json_answered") == 8.0


def test_a_lever_of_a_share_is_told_in_points_as_nothing_is_no_factor_of_nothing() -> None:
    known = [one("words", 0.3, 0.5, metric=SHARE), one("schema", 0.0, 0.0, metric=SHARE)]
    (found,) = moved(known, SHARE)
    assert (found.best, found.worst, found.is_share) == ("schema", "words", True)
    # 30 and 50 points less; of two values 0.2 apart the interval of their mean reaches 12.706 * 0.1 to both sides
    assert (found.factor, found.low, found.high) == (
        pytest.approx(0.4),
        pytest.approx(0.4 - 1.2706, abs=1e-3),
        pytest.approx(0.4 + 1.2706, abs=1e-3),
    )
    assert found.verdict == "no difference shown"


def test_a_levers_interval_pays_for_all_pairs_among_which_its_was_picked() -> None:
    known = [
        one("a", 0.1, 0.1, 0.1, metric=SHARE),
        one("b", 0.3, 0.5, 0.7, metric=SHARE),
        one("c", 0.2, 0.2, 0.2, metric=SHARE),
    ]
    (found,) = moved(known, SHARE)
    # 20, 40 and 60 points: a deviation of 0.2 among three; Student's t of two degrees at 0.05 / 3 is 7.6488
    reach = 7.6488 * 0.2 / math.sqrt(3)
    assert (found.best, found.worst, found.factor) == ("a", "b", pytest.approx(0.4))
    assert (found.low, found.high) == (
        pytest.approx(0.4 - reach, abs=1e-4),
        pytest.approx(0.4 + reach, abs=1e-4),
    )


def test_a_lever_with_one_known_position_moved_nothing_that_is_known() -> None:
    assert moved([one("a", 1, 2), one("b", status="failed")], TOKENS) == ()
    assert moved([], TOKENS) == ()


# --- in words ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "middle", "bounds", "verdict", "told"),
    [
        (TOKENS, 1.91, (1.85, 1.97), "better", "+191 % (+185 to +197 %)"),
        (TOKENS, -0.05, (-0.052, -0.048), "worse", "-5.0 % (-5.2 to -4.8 %)"),
        # bounds of different units keep both
        (TOKENS, 5.33, (-0.94, 11.6), NO_DIFFERENCE, "no difference shown (-94 % to 12.6x)"),
        (TOKENS, 0.01, (-0.01, 0.03), NO_DIFFERENCE, "no difference shown (-1.0 to +3.0 %)"),
        ("error_rate", 0.0, (0.0, 0.0), NO_DIFFERENCE, "no difference shown"),
        # shares differ by points
        ("error_rate", 0.11, (0.10, 0.12), "worse", "+11.0 points (+10.0 to +12.0 points)"),
        (TOKENS, 0.5, (None, None), "not known", "+50 %, one block: no interval"),
    ],
)
def test_a_difference_comes_with_its_interval(
    metric: str,
    middle: float,
    bounds: tuple[float | None, float | None],
    verdict: Verdict,
    told: str,
) -> None:
    low, high = bounds
    one = Compared(metric=metric, difference=middle, low=low, high=high, blocks=3, verdict=verdict)
    assert difference_in_words(one) == told


@pytest.mark.parametrize(
    ("known", "told"),
    [
        # the contest's shape
        (
            {"fp8": (1070.0, 1070.0), "awq": (1211.0, 1211.0), "gptq": (3114.0, 3114.0)},
            "1,070 -> 1,211 (+13 %) -> 3,114 (+191 %)",
        ),
        # noise is no step, and what failed is none either
        (
            {"a": (100.0, 110.0), "b": (111.0, 101.0), "broken": ()},
            "105 -> 106 (no difference shown)",
        ),
        ({"a": (100.0,)}, None),
    ],
)
def test_the_progression_tells_each_figure_and_its_step(
    known: dict[str, tuple[float, ...]], told: str | None
) -> None:
    measured = [
        one(name, *values, status="measured" if values else "failed")
        for name, values in known.items()
    ]
    assert progression(table(measured, [TOKENS]), TOKENS) == told


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
    found = Moved(
        lever="quantization",
        best="gptq",
        worst="fp8",
        factor=factor,
        low=bounds[0],
        high=bounds[1],
        verdict=verdict,
        is_share=metric == SHARE,
    )
    assert lever_in_words(found, metric) == f"quantization: {told}"
