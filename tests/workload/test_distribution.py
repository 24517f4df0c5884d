import math

import numpy as np
import pytest
from support.arrived import arrived, body

from toolkit.records import Seen
from toolkit.workload.columns import columns
from toolkit.workload.distribution import distribution, entropy_bits, frequencies, unseen


def test_bodies_requests_and_prompts_are_told_apart() -> None:
    bodies = [
        body("a", 1),
        body("a", 2),  # the same request, written otherwise
        body("a", 3, request_key="warmer"),  # the same prompt, another temperature
        body("b", 1),
        body("b", 1),
    ]
    found = distribution(columns(Seen(ts=float(at), asked=one) for at, one in enumerate(bodies)))
    assert (found.requests, found.unique_exact) == (5, 4)
    assert (found.unique_canonical, found.unique_prompts) == (3, 2)


def test_the_share_of_the_top_ones_is_told_with_its_counts() -> None:
    # 12 prompts: 50, 30, then ten of 2 each: 100 requests
    asked = ["a"] * 50 + ["b"] * 30 + [f"c{n}" for n in range(10)] * 2
    tops = distribution(arrived(asked)).tops
    assert [(top.prompts, top.requests) for top in tops] == [(1, 50), (2, 80), (10, 96), (12, 100)]
    assert [top.share for top in tops] == [0.5, 0.8, 0.96, 1.0]


def test_entropy_is_that_of_the_shares_and_the_correction_grows_with_the_number_of_prompts() -> (
    None
):
    # 1/2, 1/4, 1/8, 1/8: 0.5 * 1 + 0.25 * 2 + 2 * 0.125 * 3 = 1.75 bits
    found = distribution(arrived(list("aaaabbcd")))
    assert found.entropy_plain_bits == pytest.approx(1.75)
    # (4 - 1) / (2 * 8 * ln 2) = 0.2705 more
    assert found.entropy_bits == pytest.approx(1.75 + 3 / (16 * math.log(2)))
    assert found.effective_prompts == pytest.approx(2 ** (1.75 + 0.27050532))


def test_the_correction_comes_nearer_to_the_true_entropy_of_a_small_sample() -> None:
    # 64 equal prompts have 6 bits; 100 draws of them, 200 times
    draws = np.random.default_rng(5).integers(0, 64, (200, 100))
    plain = [entropy_bits(frequencies(draw)) or 0.0 for draw in draws]
    mean_unique = np.mean([len(frequencies(draw)) for draw in draws])
    assert np.mean(plain) < 5.6
    found = [distribution(arrived(draw.tolist())).entropy_bits or 0.0 for draw in draws[:30]]
    assert abs(np.mean(found) - 6) < (6 - np.mean(plain)) / 2
    assert mean_unique > 40


def test_two_prompts_have_a_bit_at_most_and_one_has_none() -> None:
    assert distribution(arrived(list("ab"))).entropy_plain_bits == pytest.approx(1.0)
    same = distribution(arrived(["a"] * 100))
    assert same.entropy_bits == 0.0
    assert math.copysign(1, same.entropy_bits) == 1  # never -0.0
    assert [top.share for top in same.tops] == [1.0] * 4


def test_of_nothing_nothing_is_told() -> None:
    found = distribution(arrived([]))
    assert (found.requests, found.unique_prompts, found.tops) == (0, 0, ())
    assert found.entropy_bits is found.effective_prompts is found.unseen is found.zipf is None


def test_one_request_says_that_the_next_is_new() -> None:
    found = distribution(arrived(["a"]))
    assert found.entropy_bits == 0.0
    assert found.unseen is not None
    assert (found.unseen.share, found.unseen.once, found.unseen.low) == (1.0, 1, None)


def test_what_is_still_unseen_is_the_share_of_what_was_asked_once() -> None:
    # a 5 times, b 3 times, c and d once: 2 / 10; naively 4 / 10
    found = unseen(arrived(list("aaaaabbbcd")).request)
    assert found is not None
    assert (found.share, found.once, found.naive_share) == (0.2, 2, 0.4)


def test_unseen_goes_by_what_a_cache_tells_apart_not_by_prompt() -> None:
    bodies = [body("a", n, request_key=f"seed {n}") for n in range(10)]
    found = distribution(columns(Seen(ts=float(at), asked=one) for at, one in enumerate(bodies)))
    assert found.unique_prompts == 1
    assert found.unseen is not None
    assert found.unseen.share == 1.0


def test_the_unseen_share_of_a_first_half_foretells_the_second() -> None:
    # Zipf over 20,000 keys: naive 1 - U / N says far too few repeats, Good-Turing nearly as many as come
    law = np.arange(1, 20_001) ** -1.0
    keys = np.random.default_rng(3).choice(20_000, 40_000, p=law / law.sum())
    first, second = keys[:20_000], keys[20_000:]
    truly_new = 1 - np.isin(second[:1000], first).mean()
    found = unseen(np.unique(first, return_inverse=True)[1])
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert abs(found.share - truly_new) < 0.03
    assert found.naive_share - truly_new > 0.08
    assert found.low < found.share < found.high


def test_an_interval_over_stretches_is_wide_where_new_requests_come_in_waves() -> None:
    # 1,000 requests, 100 new ones: spread evenly, and all in one of the twenty stretches
    evenly = [f"n{n}" if n % 10 == 0 else "old" for n in range(1000)]
    waves = [f"n{n}" if n < 50 or n >= 950 else "old" for n in range(1000)]
    steady, wavy = unseen(arrived(evenly).request), unseen(arrived(waves).request)
    assert steady is not None
    assert wavy is not None
    assert steady.share == wavy.share == 0.1
    # every stretch of 50 has 5 new ones: whichever are drawn, the share is 0.1
    assert (steady.low, steady.high) == (pytest.approx(0.1), pytest.approx(0.1))
    # two stretches of all new ones in twenty: none drawn with 0.9 ** 20 = 0.12, five or more with 0.04
    assert wavy.low == 0.0
    assert wavy.high == pytest.approx(0.25, abs=0.05)
