"""Levels: the best one and the knee of a sweep, and when neither is told."""

from typing import Any

from support.shots import answered, step

from toolkit.bench.goodput import GoodputLimits
from toolkit.bench.levels import LevelFigures, best_level, knee, level_figures
from toolkit.records import RequestRecord


def good(concurrency: int, share: float | None) -> LevelFigures:
    return step(concurrency, 1.0, 1000.0, good_share=share)


def shot(slot: int, concurrency: int | None, took_ms: float, **more: Any) -> RequestRecord:
    return answered(took_ms, slot, concurrency=concurrency, **more)


def test_each_level_has_its_figures_the_lowest_first() -> None:
    shots = [
        shot(0, 8, 4000.0),
        shot(1, 8, 4000.0),
        shot(0, 2, 1000.0),
        shot(1, 2, 1000.0, ok=False, error_kind="cut"),
        shot(0, None, 9000.0),
        shot(0, 1, 9000.0, kind="warmup"),
    ]
    low, high = level_figures(shots, GoodputLimits(e2e_ms=2000.0))
    # level 2: 1 answer in 1 s, 1 of 2 good; level 8: 2 answers in 4 s, none good
    assert (low.concurrency, low.requests, low.ok, low.rps, low.good_share) == (2, 2, 1, 1.0, 0.5)
    assert (high.concurrency, high.requests, high.ok, high.rps) == (8, 2, 2, 0.5)
    assert high.good_share == 0.0


def test_a_levels_figures_are_its_summarys() -> None:
    facts = {"ttft_ms": 100.0, "tpot_ms": 10.0, "output_tokens": 50}
    (found,) = level_figures([shot(slot, 4, 2000.0, **facts) for slot in range(4)])
    assert (found.rps, found.output_tokens_per_s, found.good_share) == (2.0, 100.0, None)
    assert 0.99 <= found.ttft_p50_ms / 100.0 <= 1.01
    assert 0.99 <= found.e2e_p50_ms / 2000.0 <= 1.01
    assert 0.99 <= found.e2e_p95_ms / 2000.0 <= 1.01
    assert 0.99 <= found.tpot_p50_ms / 10.0 <= 1.01


def test_the_best_level_is_the_largest_that_meets_the_limits() -> None:
    assert best_level([good(8, 1.0), good(16, 0.95), good(32, 0.94)]) == 16


def test_a_level_above_a_failed_one_does_not_count() -> None:
    assert best_level([good(8, 1.0), good(16, 0.5), good(32, 1.0)]) == 8


def test_there_is_no_best_level_when_the_lowest_fails() -> None:
    assert best_level([good(8, 0.9), good(16, 1.0)]) is None


def test_there_is_no_best_level_without_limits_or_levels() -> None:
    assert best_level([good(8, None), good(16, None)]) is None
    assert best_level([]) is None


def test_the_levels_may_come_in_any_order() -> None:
    assert best_level([good(32, 0.5), good(8, 1.0), good(16, 1.0)]) == 16
    assert knee([step(16, 10.2, 1560.0), step(4, 6.0, 660.0), step(8, 10.0, 800.0)]) == 8


def test_the_knee_is_where_throughput_ends_and_waiting_begins() -> None:
    # from 8 on: 10.0 -> 10.4 and 10.5 (+5 %), 800 -> 3,050 ms
    levels = [(1, 1.9, 520), (2, 3.7, 540), (4, 7.0, 570), (8, 10.0, 800), (16, 10.4, 1540)]
    assert knee([step(*level) for level in [*levels, (32, 10.5, 3050)]]) == 8


def test_two_levels_are_enough_for_a_knee() -> None:
    assert knee([step(8, 10.0, 800.0), step(16, 10.9, 1470.0)]) == 8
    # +10 %: still a gain, and above 16 nobody looked
    assert knee([step(8, 10.0, 800.0), step(16, 11.0, 1450.0)]) is None


def test_throughput_that_falls_is_past_the_knee_too() -> None:
    assert knee([step(8, 10.0, 800.0), step(16, 6.0, 2600.0)]) == 8


def test_flat_throughput_without_waiting_is_no_knee() -> None:
    # 8 and 9 at once lie too close together: +12 % is what a closed loop must show
    assert knee([step(8, 10.0, 800.0), step(9, 10.1, 896.0)]) is None
    assert knee([step(8, 10.0, 800.0), step(12, 10.0, 1200.0)]) == 8


def test_levels_close_together_still_show_the_knee_over_several() -> None:
    levels = [(8, 10.0, 800), (10, 10.1, 990), (12, 10.0, 1200), (14, 10.1, 1390)]
    assert knee([step(*level) for level in levels]) == 8


def test_one_slow_level_in_the_middle_is_no_knee() -> None:
    levels = [(4, 6.0, 660), (8, 4.0, 2000), (16, 12.0, 1330), (32, 24.0, 1340)]
    assert knee([step(*level) for level in levels]) is None


def test_of_equal_levels_the_lowest_is_the_knee() -> None:
    levels = [(4, 10.0, 400), (8, 10.0, 800), (16, 10.0, 1600)]
    assert knee([step(*level) for level in levels]) == 4


def test_a_level_without_an_answer_is_no_sign_of_saturation() -> None:
    dead = step(16, 0.0, None, ok=0)
    assert knee([step(8, 10.0, 800.0), dead]) is None
    assert knee([step(4, 10.0, 400.0), dead, step(32, 10.0, 3200.0)]) == 4
    assert knee([dead, step(32, None, None, ok=0)]) is None


def test_answers_of_unknown_length_are_no_sign_of_saturation() -> None:
    assert knee([step(8, 10.0, None), step(16, 10.0, 1600.0)]) is None


def test_one_level_has_no_knee() -> None:
    assert knee([step(8, 10.0, 800.0)]) is None
    assert knee([]) is None
