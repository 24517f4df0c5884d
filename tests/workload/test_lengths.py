"""Lengths in tokens: told or estimated, quantiles by rank, and answers that a limit cut off."""

import numpy as np
import pytest
from support.arrived import arrived

from toolkit.workload.lengths import at_rank, histogram, lengths, prompt_tokens, quantiles, spread

NOT_CUT = np.zeros(1000, dtype=bool)


def nearest_rank(values: list[float], share: float) -> float:
    """By its definition: the smallest value that at least this share of values does not exceed."""
    ordered = sorted(values)
    return next(v for n, v in enumerate(ordered, 1) if n >= share * len(ordered) - 1e-9)


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 100, 999, 1000])
def test_without_limits_quantiles_are_nearest_ranks(count: int) -> None:
    values = np.random.default_rng(count).integers(1, 50, count).astype(float)
    shares = (0.5, 0.9, 0.99, 0.999)
    found = quantiles(values, NOT_CUT[:count], shares)
    assert list(found) == [nearest_rank(values.tolist(), share) for share in shares]
    assert [at_rank(np.sort(values), share) for share in shares] == list(found)


def test_one_to_a_thousand_has_its_textbook_quantiles() -> None:
    found = spread(np.arange(1.0, 1001.0))
    assert found is not None
    assert (found.p50, found.p90, found.p99, found.p99_9) == (500, 900, 990, 999)
    assert (found.count, found.mean, found.max, found.censored) == (1000, 500.5, 1000, 0)


def test_answers_that_their_limit_ended_count_as_longer_by_kaplan_and_meier() -> None:
    # 6 answers: 10, 20 cut, 30, 40 cut, 50, 60. Still longer than 10: 5/6; than 30: 5/6 * 3/4 = 0.625;
    # than 50: 0.625 * 1/2 = 0.3125; than 60: 0
    values = np.array([10.0, 20, 30, 40, 50, 60])
    cut = np.array([False, True, False, True, False, False])
    shares = (0.1, 0.2, 0.3, 0.375, 0.38, 0.68, 0.69)
    assert quantiles(values, cut, shares) == (10, 30, 30, 30, 50, 50, 60)


def test_an_answer_cut_at_a_length_outlives_one_that_ended_there() -> None:
    # both reach 10, one ends: half is longer, and nobody knows how much
    assert quantiles(np.array([10.0, 10.0]), np.array([False, True]), (0.5, 0.51)) == (10, None)


def test_beyond_the_last_limit_a_quantile_is_unknown_while_what_was_seen_is_told() -> None:
    found = spread(np.array([5.0, 256, 256, 256]), np.array([False, True, True, True]))
    assert found is not None
    assert (found.p50, found.p99_9) == (None, None)
    assert (found.max, found.censored, found.mean) == (256, 3, 193.25)


def test_the_true_quantile_is_found_behind_limits_that_hide_a_third_of_answers() -> None:
    rng = np.random.default_rng(1)
    whole = rng.exponential(100, 40_000)
    limit = rng.choice([50.0, 150.0, 1e9], 40_000, p=[0.3, 0.3, 0.4])
    seen = np.minimum(whole, limit)
    (found,) = quantiles(seen, whole > limit, (0.9,))
    assert found == pytest.approx(100 * np.log(10), rel=0.03)  # 230.3
    (naive,) = quantiles(seen, np.zeros(40_000, dtype=bool), (0.9,))
    assert naive is not None
    assert naive < 170


def test_a_histogram_has_bars_of_powers_of_two_with_the_empty_ones_between() -> None:
    bars = histogram(np.array([0.0, 0.5, 1, 2, 3, 16, 31, 32]))
    assert [(bar.low, bar.high, bar.count) for bar in bars] == [
        (0, 1, 2), (1, 2, 1), (2, 4, 2), (4, 8, 0), (8, 16, 0), (16, 32, 2), (32, 64, 1),
    ]  # fmt: skip
    assert histogram(np.array([2.0**29]))[0].low == 2**29


def test_nothing_known_has_no_spread() -> None:
    assert spread(np.array([np.nan, np.nan])) is None
    assert spread(np.empty(0)) is None


def test_told_prompt_tokens_go_before_the_same_prompts_and_those_before_an_estimate() -> None:
    columns = arrived(list("aab"), usage=[21, None, None], prompt_chars=[33, 33, 55])
    found = prompt_tokens(columns)
    # a's second: 21 as its first; b: 55 / 4 = 13.75, in whole tokens 14
    assert found.tokens.tolist() == [21, 21, 14]
    assert found.estimated.tolist() == [False, False, True]
    assert (found.chars_per_token, found.calibrated) == (4.0, False)


def test_enough_told_prompts_tell_their_own_ratio() -> None:
    # 20 prompts of 300 characters and 100 tokens: 3 a token; 90 characters are 30
    columns = arrived(range(21), usage=[*[100] * 20, None], prompt_chars=[*[300] * 20, 90])
    found = prompt_tokens(columns)
    assert (found.chars_per_token, found.calibrated) == (3.0, True)
    assert found.tokens[-1] == 30


def test_prompts_of_no_characters_or_no_tokens_tell_no_ratio() -> None:
    for usage, chars in ((0, 300), (100, 0)):
        columns = arrived(range(20), usage=[*[100] * 19, usage], prompt_chars=[*[300] * 19, chars])
        assert not prompt_tokens(columns).calibrated


def test_without_characters_a_prompts_length_is_unknown() -> None:
    found = prompt_tokens(arrived(list("ab"), prompt_chars=[None, 8]))
    assert np.isnan(found.tokens[0])
    assert found.estimated.tolist() == [False, True]
    assert prompt_tokens(arrived([])).tokens.tolist() == []


def test_lengths_tell_what_is_an_estimate_and_what_nobody_told() -> None:
    columns = arrived(list("abcd"), prompt_chars=40, usage=[9, 9, 9, None], max_tokens=256)
    found = lengths(columns, prompt_tokens(columns))
    assert found.prompt_tokens_estimated_share == 0.25
    assert found.prompt_tokens is not None
    assert found.prompt_tokens.max == 10
    assert (found.output_tokens, found.output_known_share) == (None, 0.0)
    assert found.max_tokens is not None
    assert found.max_tokens.p50 == 256


def test_lengths_of_nothing_are_unknown() -> None:
    columns = arrived([])
    found = lengths(columns, prompt_tokens(columns))
    assert found.prompt_tokens is found.output_tokens is found.max_tokens is None
    assert found.output_known_share is found.prompt_tokens_estimated_share is None


def test_answers_ended_by_length_are_the_censored_ones() -> None:
    columns = arrived(
        list("abc"), output_tokens=[10, 64, 30], finish_reason=["stop", "length", None]
    )
    found = lengths(columns, prompt_tokens(columns)).output_tokens
    assert found is not None
    assert (found.censored, found.count, found.p99) == (1, 3, None)
    assert found.p50 == 30  # longer than 10: 2/3; than 30: 1/3
