"""How often the same is asked: top shares, entropy and what is unseen, by hand and against known laws."""

import math

import numpy as np
import pytest
from support.arrived import arrived, body

from toolkit.records import Seen
from toolkit.workload import columns
from toolkit.workload.distribution import distribution


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
    # 64 equal prompts have 6 bits; 100 draws of them, 60 times
    draws = np.random.default_rng(5).integers(0, 64, (200, 100))
    found = [distribution(arrived(draw.tolist())) for draw in draws[:60]]
    plain = np.mean([one.entropy_plain_bits or 0.0 for one in found])
    assert plain < 5.6
    assert abs(np.mean([one.entropy_bits or 0.0 for one in found]) - 6) < (6 - plain) / 2
    assert np.mean([one.unique_prompts or 0 for one in found]) > 40


def test_two_prompts_have_a_bit_at_most_and_one_has_none() -> None:
    assert distribution(arrived(list("ab"))).entropy_plain_bits == pytest.approx(1.0)
    same = distribution(arrived(["a"] * 100))
    assert same.entropy_bits == 0.0
    assert math.copysign(1, same.entropy_bits) == 1  # never -0.0
    assert [top.share for top in same.tops] == [1.0] * 4


def test_of_nothing_nothing_is_told() -> None:
    found = distribution(arrived([]))
    assert (found.requests, found.unique_prompts, found.tops) == (0, 0, ())
    assert found.entropy_bits is found.effective_prompts is found.unseen_share is found.zipf is None


def test_one_request_says_that_the_next_is_new() -> None:
    found = distribution(arrived(["a"]))
    assert found.entropy_bits == 0.0
    assert found.unseen_share == 1.0


def test_what_is_still_unseen_is_the_share_of_what_was_asked_once() -> None:
    # a 5 times, b 3 times, c and d once: 2 / 10
    assert distribution(arrived(list("aaaaabbbcd"))).unseen_share == 0.2
    assert distribution(arrived(list("aabb"))).unseen_share == 0.0


def test_the_unseen_share_of_a_first_half_foretells_the_second() -> None:
    # Zipf over 20,000 keys: unique / requests says far more new ones than come, Good-Turing nearly as many
    law = np.arange(1, 20_001) ** -1.0
    keys = np.random.default_rng(3).choice(20_000, 40_000, p=law / law.sum())
    first, second = keys[:20_000], keys[20_000:]
    truly_new = 1 - np.isin(second[:1000], first).mean()
    found = distribution(arrived(first.tolist()))
    assert found.unseen_share == pytest.approx(truly_new, abs=0.03)
    assert (found.unique_prompts or 0) / 20_000 - truly_new > 0.08
