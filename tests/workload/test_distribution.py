"""What repeats, who sends it and with which settings: shares, entropy, Zipf's law, clients and parameters, by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.arrived import arrived, body

from toolkit.records import Seen
from toolkit.workload import RequestColumns, columns, summarise
from toolkit.workload.distribution import Clients, Distribution, Mix, Zipf, declared, zipf


def distribution(prompts: Sequence[object]) -> Distribution:
    return summarise(arrived(list(prompts))).distribution


def test_bodies_requests_and_prompts_are_told_apart() -> None:
    bodies = [
        body("a", 1),
        body("a", 2),  # the same request, written otherwise
        body("a", 3, request_key="warmer"),  # the same prompt, another temperature
        body("b", 1),
        body("b", 1),
    ]
    found = summarise(columns(Seen(ts=float(at), asked=one) for at, one in enumerate(bodies)))
    assert (found.requests, found.unique_exact) == (5, 4)
    assert (found.unique_canonical, found.unique_prompts) == (3, 2)


def test_the_share_of_the_top_ones_comes_with_its_counts() -> None:
    # 12 prompts: 50, 30, then ten of 2 each: 100 requests
    tops = distribution(["a"] * 50 + ["b"] * 30 + [f"c{n}" for n in range(10)] * 2).tops
    assert [(top.prompts, top.requests) for top in tops] == [(1, 50), (2, 80), (10, 96), (12, 100)]
    assert [top.share for top in tops] == [0.5, 0.8, 0.96, 1.0]


def test_entropy_is_that_of_the_shares_with_miller_and_madows_correction() -> None:
    # 1/2, 1/4, 1/8, 1/8: 0.5 * 1 + 0.25 * 2 + 2 * 0.125 * 3 = 1.75 bits; (4 - 1) / (2 * 8 * ln 2) = 0.2705 more
    found = distribution("aaaabbcd")
    assert found.entropy_plain_bits == pytest.approx(1.75)
    assert found.entropy_bits == pytest.approx(1.75 + 3 / (16 * math.log(2)))
    assert found.effective_prompts == pytest.approx(2 ** (1.75 + 0.27050532))
    same = distribution(["a"] * 100)
    assert same.entropy_bits == 0.0
    assert math.copysign(1, same.entropy_bits) == 1  # never -0.0


def test_what_is_still_unseen_is_the_share_of_what_was_asked_once() -> None:
    # a 5 times, b 3 times, c and d once: 2 / 10
    assert [distribution(p).unseen_share for p in ("aaaaabbbcd", "aabb", "a")] == [0.2, 0.0, 1.0]
    found = distribution("")
    assert (found.requests, found.unique_prompts, found.tops) == (0, 0, ())
    assert found.entropy_bits is found.effective_prompts is found.unseen_share is found.zipf is None


# --- Zipf's law -----------------------------------------------------------------------------------------


def drawn(shares: np.ndarray, requests: int) -> np.ndarray:
    """Counts of a sample, the most frequent first."""
    counts = np.random.default_rng(0).multinomial(requests, shares / shares.sum())
    return np.sort(counts[counts > 0])[::-1]


def law(keys: int, exponent: float) -> np.ndarray:
    return np.arange(1, keys + 1) ** -exponent


@pytest.mark.parametrize("exponent", [0.3, 1.0, 2.5])
def test_no_exponent_on_a_fine_grid_is_likelier_than_the_fitted_one(exponent: float) -> None:
    counts = drawn(law(40, exponent), 2000)
    ranks = np.arange(1, len(counts) + 1)
    likelihoods = {
        one: float(counts @ np.log(ranks**-one / (ranks**-one).sum()))
        for one in np.arange(0.0, 4.0, 0.001)
    }
    best = max(likelihoods, key=likelihoods.__getitem__)
    assert zipf(counts).exponent == pytest.approx(best, abs=0.001)


TEN = np.array([2520 // rank for rank in range(1, 11)])
"""Zipf's law with exponent 1, without a rest."""


@pytest.mark.parametrize(
    ("counts", "shape", "exponent"),
    [
        (TEN, "zipf", 1.0),
        (drawn(law(20_000, 1.0), 200_000), "zipf", 1.0),
        (drawn(law(1000, 0.8), 10_000), "zipf", 0.8),
        (drawn(law(10_000, 1.2), 100_000), "zipf", 1.2),
        (drawn(0.9 ** np.arange(200.0), 100_000), "other", None),  # geometric
        (drawn(np.random.default_rng(0).lognormal(0, 1, 1000), 100_000), "other", None),
        (drawn(np.r_[np.full(30, 10.0), np.full(970, 0.1)], 100_000), "other", None),  # favourites
        (drawn(np.ones(100), 1000), "even", None),  # a law of exponent 0.27 fits that, too
        (np.full(50, 7), "even", None),
        # two keys with 90 of 100 requests are few, with 89 they are not
        (np.array([50, 40, 2, *[1] * 8]), "few", None),
        (np.array([50, 39, 3, *[1] * 8]), "other", None),
        # a fifth of the requests is not yet too much that nobody else asked
        (np.array([40, 20, 13, 7, *[1] * 20]), "other", None),
        (np.array([40, 20, 13, 6, *[1] * 21]), "unknown", None),
    ],
)
def test_samples_of_zipf_are_told_from_other_curves(
    counts: np.ndarray, shape: str, exponent: float | None
) -> None:
    found = zipf(counts)
    assert found.shape == shape, found
    if exponent is not None:
        assert found.exponent == pytest.approx(exponent, abs=0.06)
        assert (found.distance or 0.0) <= 0.05
    if shape == "other":
        assert (found.distance or 0.0) > 0.05


@pytest.mark.parametrize(("keys", "words"), [(1, "1 key:"), (2, "2 keys"), (9, "9 keys")])
def test_under_ten_keys_no_law_is_told(keys: int, words: str) -> None:
    found: Zipf | None = distribution(list(range(keys)) * 100).zipf
    assert found is not None
    assert (found.shape, found.exponent, words in found.why) == ("few", None, True)


# --- Clients --------------------------------------------------------------------------------------------


def clients(prompts: str, client: list[str | None]) -> Clients:
    return summarise(arrived(list(prompts), client=client)).clients


def test_each_clients_part_and_what_others_ask_too() -> None:
    # ann: a a b c (3 unique, b and c her own), bob: a d (none his own), cid: d
    found = clients("aabcadd", ["ann"] * 4 + ["bob"] * 2 + ["cid"])
    assert (found.clients, found.unknown, found.top_share) == (3, 0, pytest.approx(4 / 7))
    rows = [(c.client, c.requests, c.unique_prompts, c.own_prompts) for c in found.top]
    assert rows == [("ann", 4, 3, 2), ("bob", 2, 2, 0), ("cid", 1, 1, 0)]
    # a (3 requests) and d (2) are asked by two clients each
    assert (found.shared_prompts, found.shared_share) == (2, pytest.approx(5 / 7))
    # 7 requests, 6 pairs of client and prompt, 4 prompts
    assert found.repeats_within_share == pytest.approx(1 / 7)
    assert found.repeats_across_share == pytest.approx(3 / 7)


def test_of_equals_the_one_that_came_first_stands_first_and_ten_are_listed() -> None:
    found = summarise(arrived(range(24), client=[f"c{n // 2:02}" for n in range(24)])).clients
    assert found.clients == 12
    assert [one.client for one in found.top] == [f"c{n:02}" for n in range(10)]


def test_requests_of_nobody_known_are_counted_apart_and_a_part_has_only_its_own_clients() -> None:
    found = clients("abca", ["x", None, None, "x"])
    assert (found.clients, found.unknown) == (1, 2)
    assert (found.top[0].requests, found.top[0].share) == (2, 1.0)
    whole = arrived(list("abca"), client=["x", "y", "z", "x"])
    later = summarise(whole.part(np.array([False, False, True, True]))).clients
    assert [(one.client, one.requests) for one in later.top] == [("x", 1), ("z", 1)]
    for prompts in ("", "ab"):
        found = clients(prompts, [None] * len(prompts))
        assert (found.clients, found.unknown, found.top) == (0, len(prompts), ())
        assert found.top_share is found.shared_share is found.repeats_within_share is None


# --- Settings -------------------------------------------------------------------------------------------


def mix(prompts: object, identities: Any = "bodies", **each: object) -> Mix:
    laid: RequestColumns = arrived(list(prompts), **each)  # type: ignore[call-overload]
    return summarise(replace(laid, identities=identities)).mix


def test_values_are_counted_by_request_the_most_frequent_first() -> None:
    model, limit = mix("aaab", max_tokens=[256, 256, 64, None], model="qwen").parameters
    assert (model.name, limit.name) == ("model", "max_tokens")
    assert [(one.value, one.requests, one.share) for one in model.values] == [("qwen", 4, 1.0)]
    assert [(one.value, one.requests, one.share) for one in limit.values] == [
        (256, 2, 0.5),
        (64, 1, 0.25),
        (None, 1, 0.25),
    ]
    # values beyond the eight that are listed are counted together
    [limit] = mix(["a"] * 12, max_tokens=[*range(100, 110), 100, 100]).parameters
    assert (limit.different, len(limit.values), limit.rest) == (10, 8, 2)


@pytest.mark.parametrize(
    ("stream", "identities", "expected"),
    [
        ([True, True], "bodies", 1.0),
        # a body without the field asks for no stream, but a trace has no body to tell
        ([None, True], "bodies", 0.5),
        ([None, None], "bodies", 0.0),
        ([None, None], "prompts", None),
        ([True, False], "prompts", 0.5),
    ],
)
def test_the_share_of_streams(stream: list, identities: str, expected: float | None) -> None:
    found = mix("ab", identities, stream=stream)
    assert found.stream_share == expected
    if identities == "prompts":
        assert found.declared_share is found.images_share is None


def test_temperature_0_or_a_seed_declares_a_request_repeatable_a_default_does_not() -> None:
    laid = arrived(range(5), temperature=[0.0, 0.7, None, 0.7, 1.0], seed=[None, None, None, 42, 0])
    assert declared(laid).tolist() == [True, False, False, True, True]
    assert summarise(laid).mix.declared_share == pytest.approx(3 / 5)


def test_other_fields_and_images_come_with_their_share() -> None:
    found = mix("aab", options=[("tools",), (), ("logprobs", "tools")], images=[0, 1, 0])
    assert [(one.name, one.requests, one.share) for one in found.options] == [
        ("tools", 2, pytest.approx(2 / 3)),
        ("logprobs", 1, pytest.approx(1 / 3)),
    ]
    assert found.images_share == pytest.approx(1 / 3)
    empty = mix("")
    assert empty.stream_share is empty.declared_share is empty.images_share is None
    assert (empty.parameters, empty.options) == ((), ())
