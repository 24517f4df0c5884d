"""Who asks what, and how much of it others ask too: small crowds counted by hand."""

from dataclasses import replace

import numpy as np
import pytest
from support.arrived import arrived

from toolkit.workload.distribution import clients


def test_each_clients_part_and_what_others_ask_too() -> None:
    # ann: a a b c (3 unique, b and c her own), bob: a d (d his own), cid: d
    found = clients(arrived(list("aabcadd"), client=["ann"] * 4 + ["bob"] * 2 + ["cid"]))
    assert (found.clients, found.unknown, found.top_share) == (3, 0, pytest.approx(4 / 7))
    rows = [(c.client, c.requests, c.unique_prompts, c.own_prompts) for c in found.top]
    assert rows == [("ann", 4, 3, 2), ("bob", 2, 2, 0), ("cid", 1, 1, 0)]
    # a (3 requests) and d (2) are asked by two clients each
    assert (found.shared_prompts, found.shared_share) == (2, pytest.approx(5 / 7))
    # 7 requests, 6 pairs of client and prompt, 4 prompts
    assert found.repeats_within_share == pytest.approx(1 / 7)
    assert found.repeats_across_share == pytest.approx(3 / 7)


def test_clients_that_share_nothing_gain_nothing_from_a_common_cache() -> None:
    found = clients(arrived(list("aabb"), client=["x", "x", "y", "y"]))
    assert (found.shared_prompts, found.shared_share) == (0, 0.0)
    assert found.repeats_within_share == found.repeats_across_share == 0.5
    assert [one.own_prompts for one in found.top] == [1, 1]


def test_of_equals_the_one_that_came_first_stands_first_and_ten_are_listed() -> None:
    found = clients(arrived(range(24), client=[f"c{n // 2:02}" for n in range(24)]))
    assert found.clients == 12
    assert [one.client for one in found.top] == [f"c{n:02}" for n in range(10)]
    assert found.top[0].share == pytest.approx(2 / 24)


def test_requests_of_nobody_known_are_counted_apart() -> None:
    found = clients(arrived(list("abca"), client=["x", None, None, "x"]))
    assert (found.clients, found.unknown) == (1, 2)
    assert (found.top[0].requests, found.top[0].share) == (2, 1.0)


def test_of_a_part_of_the_requests_only_its_own_clients_and_prompts_count() -> None:
    whole = arrived(list("abca"), client=["x", "y", "z", "x"])
    later = whole.part(np.array([False, False, True, True]))  # z asks c, x asks a; y and b are gone
    found = clients(later)
    assert [(one.client, one.requests) for one in found.top] == [("x", 1), ("z", 1)]
    assert (found.clients, found.repeats_across_share) == (2, 0.0)


def test_where_nobody_knows_which_prompts_are_alike_requests_are_counted_and_no_more() -> None:
    found = clients(replace(arrived(list("aab"), client=["x", "x", "y"]), identities=None))
    assert [(one.client, one.requests) for one in found.top] == [("x", 2), ("y", 1)]
    assert (found.clients, found.top_share) == (2, pytest.approx(2 / 3))
    assert found.top[0].unique_prompts is found.top[0].own_prompts is None
    assert found.shared_prompts is found.shared_share is found.repeats_within_share is None


@pytest.mark.parametrize("prompts", ["", "ab"])
def test_without_known_clients_shares_are_unknown(prompts: str) -> None:
    found = clients(arrived(list(prompts)))
    assert (found.clients, found.unknown, found.top) == (0, len(prompts), ())
    assert found.top_share is found.shared_share is found.repeats_within_share is None
