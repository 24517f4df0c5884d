"""Lengths in tokens, known or estimated, cut off by limits or not, and the `max_model_len` that they need."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.arrived import arrived

from toolkit.workload import RequestColumns, summarise
from toolkit.workload.lengths import LengthSpread, ModelLength, prompt_tokens, quantiles, rounded_up


def nearest_rank(values: list[float], share: float) -> float:
    """By its definition: the smallest value that at least this share of values does not exceed."""
    ordered = sorted(values)
    return next(v for n, v in enumerate(ordered, 1) if n >= share * len(ordered) - 1e-9)


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 999, 1000])
def test_without_limits_quantiles_are_nearest_ranks(count: int) -> None:
    values = np.random.default_rng(count).integers(1, 50, count).astype(float)
    shares = (0.5, 0.9, 0.99, 0.999)
    found = quantiles(values, np.zeros(count, dtype=bool), shares)
    assert list(found) == [nearest_rank(values.tolist(), share) for share in shares]


def test_answers_that_their_limit_ended_count_as_longer_by_kaplan_and_meier() -> None:
    # 6 answers: 10, 20 cut, 30, 40 cut, 50, 60. Still longer than 10: 5/6; than 30: 5/6 * 3/4 = 0.625;
    # than 50: 0.625 * 1/2 = 0.3125; than 60: 0
    values = np.array([10.0, 20, 30, 40, 50, 60])
    cut = np.array([False, True, False, True, False, False])
    shares = (0.1, 0.2, 0.3, 0.375, 0.38, 0.68, 0.69)
    assert list(quantiles(values, cut, shares)) == [10, 30, 30, 30, 50, 50, 60]
    # both reach 10, one ends: half is longer, and nobody knows how much
    cut = np.array([False, True])
    assert list(quantiles(np.array([10.0, 10.0]), cut, (0.5, 0.51))) == [10, None]


def test_the_true_quantile_is_found_behind_limits_that_hide_a_third_of_answers() -> None:
    rng = np.random.default_rng(1)
    whole = rng.exponential(100, 40_000)
    limit = rng.choice([50.0, 150.0, 1e9], 40_000, p=[0.3, 0.3, 0.4])
    (found,) = quantiles(np.minimum(whole, limit), whole > limit, (0.9,))
    assert found == pytest.approx(100 * np.log(10), rel=0.03)  # 230.3


def outputs(lengths: Sequence[float | None], ends: Sequence[str | None]) -> LengthSpread | None:
    columns = arrived(range(len(lengths)), output_tokens=list(lengths), finish_reason=list(ends))
    return summarise(columns).lengths.output_tokens


def test_a_spread_has_textbook_quantiles_and_bars_of_powers_of_two() -> None:
    found = outputs(range(1, 1001), ["stop"] * 1000)
    assert found is not None
    assert (found.p50, found.p90, found.p99, found.p99_9) == (500, 900, 990, 999)
    assert (found.count, found.mean, found.max, found.censored) == (1000, 500.5, 1000, 0)
    found = outputs([0, 0, 1, 2, 3, 16, 31, 32, None], [None] * 9)
    assert found is not None
    assert [(bar.low, bar.high, bar.count) for bar in found.histogram] == [
        (0, 1, 2), (1, 2, 1), (2, 4, 2), (4, 8, 0), (8, 16, 0), (16, 32, 2), (32, 64, 1),
    ]  # fmt: skip
    found = outputs([2**29], [None])
    assert found is not None
    assert found.histogram[0].low == 2**29
    assert outputs([None], [None]) is None


def test_beyond_the_last_limit_a_quantile_is_unknown_while_what_was_seen_is_known() -> None:
    found = outputs([5, 256, 256, 256], ["stop", *["length"] * 3])
    assert found is not None
    assert (found.p50, found.p99_9) == (None, None)
    assert (found.max, found.censored, found.mean) == (256, 3, 193.25)


def test_counted_prompts_go_before_the_same_prompts_and_those_before_an_estimate() -> None:
    found = prompt_tokens(arrived(list("aab"), usage=[21, None, None], prompt_chars=[33, 33, 55]))
    # a's second: 21 as its first; b: 55 / 4 = 13.75, in whole tokens 14
    assert found.tokens.tolist() == [21, 21, 14]
    assert found.estimated.tolist() == [False, False, True]
    assert (found.chars_per_token, found.calibrated) == (4.0, False)
    # 20 prompts of 300 characters and 100 tokens: 3 a token; 90 characters are 30
    columns = arrived(range(21), usage=[*[100] * 20, None], prompt_chars=[*[300] * 20, 90])
    found = prompt_tokens(columns)
    assert (found.chars_per_token, found.calibrated, found.tokens[-1]) == (3.0, True, 30)
    # prompts of no characters or no tokens give no ratio
    for usage, chars in ((0, 300), (100, 0)):
        columns = arrived(range(20), usage=[*[100] * 19, usage], prompt_chars=[*[300] * 19, chars])
        assert not prompt_tokens(columns).calibrated
    assert np.isnan(prompt_tokens(arrived(list("ab"), prompt_chars=[None, 8])).tokens[0])


def test_lengths_say_what_is_an_estimate_and_what_is_not_known() -> None:
    found = summarise(
        arrived(list("abcd"), prompt_chars=40, usage=[9, 9, 9, None], max_tokens=256)
    ).lengths
    assert found.prompt_tokens_estimated_share == 0.25
    assert found.prompt_tokens is not None
    assert found.prompt_tokens.max == 10
    assert (found.output_tokens, found.output_known_share) == (None, 0.0)
    assert found.max_tokens is not None
    assert found.max_tokens.p50 == 256
    empty = summarise(arrived([])).lengths
    assert empty.prompt_tokens is empty.output_tokens is empty.max_tokens is None
    assert empty.output_known_share is empty.prompt_tokens_estimated_share is None


# --- max_model_len --------------------------------------------------------------------------------------


def judged(columns: RequestColumns, **settings: Any) -> ModelLength:
    return summarise(columns, **settings).model_length


def contest(requests: int = 2000) -> RequestColumns:
    """Two prompts, in turns, each with max_tokens 256; the answers were not followed."""
    return arrived([n % 2 for n in range(requests)], prompt_chars=[55, 33] * (requests // 2), max_tokens=256)  # fmt: skip


def test_the_contest_needs_512_instead_of_8192() -> None:
    # 55 characters / 4 = 13.75, 14 tokens; 14 + 256 = 270; with 15 % 310.5; the next multiple of 256 is 512
    found = judged(contest(), current_max_model_len=8192)
    assert (found.longest, found.recommended) == (270, 512)
    assert (found.basis, found.why) == ("max_tokens", "longest prompt + max_tokens")
    assert found.room_factor == 16.0  # 8192 / 512


@pytest.mark.parametrize(
    ("longest", "expected"),
    # 222 * 1.15 = 255.3; 223 * 1.15 = 256.45; 445 * 1.15 = 511.75; 446 * 1.15 = 512.9;
    # 1280 * 1.15 = 1472; 2560 * 1.15 = 2944 = 11.5 * 256; 5120 * 1.15 = 5888 = 23 * 256 exactly
    [(0, 256), (1, 256), (222, 256), (223, 512), (445, 512), (446, 768), (1280, 1536), (2560, 3072),
     (5120, 5888), (5121, 6144)],
)  # fmt: skip
def test_the_margin_is_15_per_cent_and_steps_are_256(longest: int, expected: int) -> None:
    assert rounded_up(longest) == expected


STOP = {"finish_reason": "stop"}


@pytest.mark.parametrize(
    ("count", "fields", "basis", "longest", "why"),
    [
        # 4000 + 10 and 10 + 2000: the longest is of one request, not of two maxima
        (2, {"usage": [4000, 10], "max_tokens": [10, 2000]}, "max_tokens", 4010, "longest prompt"),
        # 1,000 answers of 1 to 1000 tokens: 99.9 % end by 999
        (1000, {"usage": 100, "output_tokens": list(range(1, 1001)), **STOP}, "observed", 1099, "99.9 %"),
        # 998 answers of 100, one that ended by itself at 900, and one of 100: if that was cut, still longer than 100 are
        # 1 - 998 / 1000 = 0.002, than 900: 0; else 99.9 % end by 100
        (1000, {"usage": 10, "output_tokens": [100] * 999 + [900], "finish_reason": ["stop"] * 998 + ["length", "stop"]}, "observed", 910, "99.9 %"),
        (1000, {"usage": 10, "output_tokens": [100] * 999 + [900], **STOP}, "observed", 110, "99.9 %"),
        (2, {"usage": 10, "output_tokens": [50, 64], "finish_reason": ["stop", "length"]}, "observed", 74, "it may need more"),
        # each by its own: 10 + 300, 500 + 40
        (3, {"usage": [10, 10, 500], "max_tokens": [300, 300, None], "output_tokens": [20, 30, 40], **STOP}, "mixed", 540, "99.9 %"),
        # 500 + the largest limit that anybody set
        (2, {"usage": [10, 500], "max_tokens": [300, None]}, "mixed", 800, "largest max_tokens"),
        # limits that no model can give count as not set
        (3, {"usage": 100, "max_tokens": [400, 10**18, -5]}, "mixed", 500, "largest max_tokens"),
        (3, {"usage": [100, None, None], "max_tokens": 50}, "max_tokens", 150, "longest prompt"),
    ],
)  # fmt: skip
def test_the_longest_need_is_a_prompt_and_its_answer(
    count: int, fields: dict, basis: str, longest: int, why: str
) -> None:
    found = judged(arrived(range(count), **fields))
    assert (found.basis, found.longest) == (basis, longest)
    assert why in found.why
    assert found.recommended == rounded_up(longest)


def test_where_lengths_are_unknown_nothing_is_recommended() -> None:
    found = judged(arrived(list("ab"), usage=10), current_max_model_len=4096)
    assert (found.recommended, found.room_factor) == (None, None)
    assert found.why == "requests set no max_tokens, and no answer's length is known"
    assert judged(arrived(list("ab"), max_tokens=5)).why == "no prompt's length is known"
    assert (judged(arrived([])).why, judged(arrived([])).refusals) == ("no requests", ())


def test_what_other_limits_would_have_refused_is_counted() -> None:
    # needs of 500, 513, 1024, 1025, 40000
    columns = arrived(range(5), usage=[244, 257, 768, 769, 39_744], max_tokens=256)
    found = judged(columns, current_max_model_len=40_000)
    assert [(one.max_model_len, one.refused) for one in found.refusals] == [
        (512, 4), (1024, 2), (2048, 1), (4096, 1), (8192, 1), (16384, 1), (32768, 1), (40_000, 0),
    ]  # fmt: skip
    assert found.refusals[0].refused_share == 0.8
    # prompt 511 + at least one token fits 512, 512 does not; 300 + 400 seen is cut at 512
    columns = arrived(list("abcd"), usage=[511, 512, 300, 100], output_tokens=[1, 1, 400, 100])
    at_512 = judged(columns).refusals[0]
    assert (at_512.refused, at_512.cut) == (1, 1)


def test_the_model_caps_what_is_recommended_and_a_need_beyond_it_is_told() -> None:
    columns = arrived(list("ab"), usage=[7000, 8100], max_tokens=256)
    found = judged(columns, model_max_len=8192)
    assert (found.recommended, found.capped) == (8192, True)
    assert any("needs 8,356 tokens, the model takes 8,192" in one for one in found.warnings)
    # 7936 + 256: to the last token
    fits = judged(arrived(list("ab"), usage=[7000, 7936], max_tokens=256), model_max_len=8192)
    assert (fits.recommended, fits.capped) == (8192, False)
    assert not any("the model takes" in one for one in fits.warnings)


def test_what_makes_the_recommendation_less_sure_is_warned_of() -> None:
    few = judged(contest(998)).warnings
    assert [one.partition(":")[0] for one in few] == [
        "max_model_len rests on 998 requests",
        "max_model_len rests on estimated prompts",
    ]
    assert len(judged(contest(1000)).warnings) == 1
    assert judged(arrived(range(1000), usage=10, max_tokens=10)).warnings == ()
    columns = arrived(range(1000), usage=[*[100] * 998, None, None], max_tokens=[400, 10**18, -5, *[9] * 997])  # fmt: skip
    absurd, unknown = judged(columns).warnings
    assert absurd.startswith("2 requests ask for a max_tokens that no model gives")
    assert unknown.startswith("2 prompts of unknown length")
