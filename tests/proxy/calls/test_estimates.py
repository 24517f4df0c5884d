"""Estimated prompt tokens: what is assumed, what is learned, and what may not spoil it."""

from random import Random

import pytest

from toolkit.proxy.calls.estimates import Estimates


def taught(*pairs: tuple[int, int], times: int = 1) -> Estimates:
    estimates = Estimates()
    for _ in range(times):
        for chars, tokens in pairs:
            estimates.learn("m", chars, tokens)
    return estimates


def test_before_any_answer_four_characters_are_a_token_and_a_template_adds_eight() -> None:
    assert Estimates().tokens("m", 4000) == 1008
    assert Estimates().tokens(None, 0) == 8


def test_what_answers_tell_of_one_model_counts_for_that_model() -> None:
    estimates = taught((4000, 2000), times=50)
    assert estimates.tokens("m", 4000) == pytest.approx(2000, rel=0.02)
    assert estimates.tokens("other", 4000) == 1008


@pytest.mark.parametrize("rate", [0.05, 0.25, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("overhead", [0, 30])
def test_mixed_lengths_give_rate_and_overhead_whatever_they_are(rate: float, overhead: int) -> None:
    chance = Random(1)
    estimates = Estimates()
    for _ in range(300):
        chars = round(10 ** chance.uniform(1.5, 4.5))
        estimates.learn("m", chars, round(overhead + rate * chars * chance.uniform(0.9, 1.1)))
    for chars in (300, 3_000, 30_000, 100_000):
        assert estimates.tokens("m", chars) == pytest.approx(
            overhead + rate * chars, rel=0.1, abs=5
        )


def test_many_short_prompts_do_not_make_a_long_one_look_longer() -> None:
    # 5 characters, 24 tokens: 20 of them the template's. By their ratio 10,000 characters were 48,000 tokens
    estimates = taught((5, 24), (8, 25), (3, 23), times=200)
    assert estimates.tokens("m", 5) == pytest.approx(24, abs=2)
    assert estimates.tokens("m", 10_000) == pytest.approx(2520, rel=0.25)


def test_long_prompts_of_one_length_do_not_make_a_short_one_long() -> None:
    # Chinese: a character a token
    estimates = taught((20_000, 20_010), times=100)
    assert estimates.tokens("m", 10) < 60
    assert estimates.tokens("m", 40_000) == pytest.approx(40_000, rel=0.02)


def test_what_changes_is_followed_and_the_old_fades() -> None:
    estimates = taught((4000, 1000), times=1000)
    for _ in range(1000):
        estimates.learn("m", 4000, 4000)
    assert estimates.tokens("m", 4000) == pytest.approx(4000, rel=0.03)


@pytest.mark.parametrize(
    ("chars", "tokens"),
    [(0, 10), (-1, 10), (10, 0), (10, -3), (20, 1500), (1, 10**9)],
    ids=["no text", "negative", "no tokens", "negative tokens", "an image", "nonsense"],
)
def test_what_no_text_can_have_teaches_nothing(chars: int, tokens: int) -> None:
    estimates = taught((chars, tokens), times=100)
    assert estimates.tokens("m", 4000) == 1008


def test_extremes_neither_divide_by_zero_nor_give_less_than_a_token() -> None:
    estimates = taught((10**9, 1), (1, 1), (10**9, 4 * 10**9), times=50)
    for chars in (0, 1, 10**3, 10**9):
        assert estimates.tokens("m", chars) >= 1
    spaces = taught((10**6, 1), times=500)
    assert spaces.tokens("m", 1) >= 1
    assert spaces.tokens("m", 10**6) == pytest.approx(10_000, rel=0.01)  # a hundredth is the least


def test_so_many_models_are_known_and_the_one_longest_silent_goes() -> None:
    estimates = Estimates(most=3)
    for model in ("a", "b", "c", "a", "d"):
        for _ in range(50):
            estimates.learn(model, 4000, 4000)
    assert len(estimates) == 3
    assert [estimates.tokens(model, 4000) > 3000 for model in "abcd"] == [True, False, True, True]
