"""A sweep's rows in words."""

from dataclasses import replace

import pytest

from toolkit.tuning.figures import figure
from toolkit.tuning.sweep_file import Configuration, Serving
from toolkit.tuning.sweep_table import (
    Compared,
    MeasuredConfiguration,
    Moved,
    Verdict,
    difference,
    lever,
    progression,
    table,
)

TOKENS = "output_tokens_per_s"


def compared(
    low: float | None, high: float | None, verdict: Verdict, metric: str = TOKENS
) -> Compared:
    middle = None if low is None or high is None else (low + high) / 2
    return Compared(metric=metric, difference=middle, low=low, high=high, blocks=3, verdict=verdict)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (TOKENS, 3114.4, "3,114"),
        ("rps", 4.25, "4.25"),
        ("ttft_p95_ms", 219.0, "219 ms"),
        ("ttft_p95_ms:short", 89_000.0, "89.0 s"),
        ("error_rate", 0.045, "4.5 %"),
        ("rps", None, "\N{EN DASH}"),
    ],
)
def test_a_figure_has_its_unit(name: str, value: float | None, told: str) -> None:
    assert figure(name, value) == told


def test_a_difference_comes_with_its_interval() -> None:
    assert difference(compared(1.85, 1.97, "better")) == "+191 % (+185 to +197 %)"
    assert difference(compared(-0.052, -0.048, "worse")) == "-5.0 % (-5.2 to -4.8 %)"


def test_bounds_of_different_units_keep_both() -> None:
    told = difference(compared(-0.94, 11.6, "no difference shown"))
    assert told == "no difference shown (-94 % to 12.6x)"


def test_no_difference_is_called_so() -> None:
    told = difference(compared(-0.01, 0.03, "no difference shown"))
    assert told == "no difference shown (-1.0 to +3.0 %)"
    same = compared(0.0, 0.0, "no difference shown", "error_rate")
    assert difference(same) == "no difference shown"


def test_shares_differ_by_points() -> None:
    told = difference(compared(0.10, 0.12, "worse", "error_rate"))
    assert told == "+11.0 points (+10.0 to +12.0 points)"


def test_one_block_is_said_to_have_no_interval() -> None:
    one = Compared(metric=TOKENS, difference=0.5, blocks=1, verdict="not known")
    assert difference(one) == "+50 %, one block: no interval"


def rows_of(*known: tuple[str, tuple[float, ...]]) -> str | None:
    measured = [
        MeasuredConfiguration(
            configuration=Configuration(
                name=name, stage=1, lever="q", value=name, serving=Serving()
            ),
            status="measured" if values else "failed",
            blocks={number: {TOKENS: value} for number, value in enumerate(values)},
        )
        for name, values in known
    ]
    return progression(table(measured, [TOKENS]), TOKENS)


def test_the_progression_has_the_contests_shape() -> None:
    told = rows_of(("fp8", (1070.0, 1070.0)), ("awq", (1211.0, 1211.0)), ("gptq", (3114.0, 3114.0)))
    assert told == "1,070 -> 1,211 (+13 %) -> 3,114 (+191 %)"


def test_the_progression_does_not_call_noise_a_step() -> None:
    told = rows_of(("a", (100.0, 110.0)), ("b", (111.0, 101.0)), ("broken", ()))
    assert told == "105 -> 106 (no difference shown)"
    assert rows_of(("a", (100.0,))) is None


QUANTIZATION = Moved(
    lever="quantization",
    best="gptq",
    worst="fp8",
    factor=2.91,
    low=2.8,
    high=3.03,
    verdict="better",
)


def test_a_lever_is_told_by_its_best_and_worst() -> None:
    expected = "quantization: 2.91x (2.80 to 3.03) in output tokens/s, gptq against fp8"
    assert lever(QUANTIZATION, TOKENS) == expected


def test_a_lever_of_a_share_is_told_in_points() -> None:
    name = "invalid_json_ratio"
    one = replace(QUANTIZATION, factor=0.4, low=0.35, high=0.45, is_share=True)
    assert lever(one, name) == (
        "quantization: 40.0 points (+35.0 to +45.0 points) in invalid JSON, gptq against fp8"
    )
    alone = lever(replace(one, low=None, high=None, verdict="not known"), name)
    assert alone == "quantization: 40.0 points in invalid JSON, gptq against fp8, from one block"
