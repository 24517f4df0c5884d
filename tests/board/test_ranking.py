"""Ranks and scores, worked out by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.board.ranking import BAND, FEW_FOR_P50, FEW_FOR_P95, Figures, places, scores
from toolkit.board.ranking import figures as figures_of
from toolkit.board.standings import RANK_BY, RankBy
from toolkit.board.window import COUNTS
from toolkit.stats import BUCKETS


def figures(**changes: Any) -> Figures:
    """100 answers in 10 s, no errors; what follows from counts follows here, too."""
    usual: dict[str, Any] = {
        "ok": 100,
        "errors": 0,
        "p50_ms": 50.0,
        "p95_ms": 100.0,
        "ttft_p50_ms": 5.0,
        "ttft_p95_ms": 10.0,
    }
    tokens = changes.pop("output_tokens", 1000)
    count = usual | changes
    ended = count["ok"] + count["errors"]
    return Figures(
        rps=count["ok"] / 10,
        output_tokens_per_s=tokens / 10,
        error_rate=count["errors"] / ended if ended else None,
        streamed=0,
        hit_share=None,
        hit_share_inferred=False,
        output_tokens_estimated=False,
        **count,
    )


NOTHING = figures(
    ok=0, output_tokens=0, p50_ms=None, p95_ms=None, ttft_p50_ms=None, ttft_p95_ms=None
)


def ranks(hosts: list[Figures], rank_by: RankBy) -> list[int]:
    return [place.rank for place in places(hosts, rank_by)]


def test_figures_follow_from_counts_and_seconds() -> None:
    counts = np.zeros((3, len(COUNTS)), dtype=np.int64)
    given = {"ok": 90, "errors": 10, "output_tokens": 450, "output_tokens_estimated": 9}
    # 25 hits of 50 answers that say
    given |= {"cache_told": 10, "cache_hits": 4, "cache_judged": 40, "cache_inferred": 21}
    counts[0] = [given.get(name, 0) for name in COUNTS]
    histograms = np.zeros((3, 2, BUCKETS), dtype=np.int64)
    one, nothing, _ = figures_of(counts, histograms, 10)
    assert (one.rps, one.output_tokens_per_s, one.error_rate) == (9.0, 45.0, 0.1)
    assert (one.hit_share, one.hit_share_inferred, one.output_tokens_estimated) == (0.5, True, True)
    assert (nothing.error_rate, nothing.hit_share, nothing.p50_ms) == (None, None, None)
    # and no rate is divided by nothing
    assert figures_of(counts, histograms, 0)[0].rps == 0.0


@pytest.mark.parametrize(
    ("rank_by", "better", "worse"),
    [
        ("rps", {"ok": 150}, {"ok": 100}),
        ("output_tokens_per_s", {"output_tokens": 1500}, {"output_tokens": 1000}),
        ("error_rate", {"errors": 1}, {"errors": 20}),
        ("ttft_p50", {"ttft_p50_ms": 4.0}, {"ttft_p50_ms": 6.0}),
        ("ttft_p95", {"ttft_p95_ms": 9.0}, {"ttft_p95_ms": 11.0}),
        ("p50", {"p50_ms": 40.0}, {"p50_ms": 60.0}),
        ("p95", {"p95_ms": 90.0}, {"p95_ms": 110.0}),
        ("score", {"ok": 150, "p95_ms": 90.0}, {"ok": 75}),
    ],
)
def test_each_ranking_has_the_better_one_first(
    rank_by: RankBy, better: dict[str, Any], worse: dict[str, Any]
) -> None:
    assert ranks([figures(**worse), figures(**better)], rank_by) == [2, 1]


# ties


@pytest.mark.parametrize(
    ("a", "b", "tied"),
    [
        # 2.5758 sqrt(a + b): of 19,600 it is 360.6, of 19,642 361.0
        (10_000, 9_600, False),
        (10_000, 9_640, True),
        # of 11 it is 8.54, of 12 8.92: (9 - 1)^2 / 10 is less than 6.635, (11 - 1)^2 / 12 is more
        (9, 1, True),
        (11, 1, False),
        # an answer is more than none, however few there are
        (1, 0, False),
        (1000, 1000, True),
    ],
)
def test_counts_are_tied_within_the_interval_of_their_difference(
    a: int, b: int, tied: bool
) -> None:
    found = places([figures(ok=b), figures(ok=a)], "rps")
    assert [place.tied for place in found] == [tied, tied]
    assert [place.rank for place in found] == ([1, 1] if tied else [2, 1])


def test_a_group_of_counts_is_what_is_tied_with_its_best() -> None:
    # 2.5758 sqrt(1,000 + 900) = 112.3, sqrt(1,000 + 880) 111.7, sqrt(880 + 800) 105.6
    hosts = [figures(ok=ok) for ok in (800, 880, 900, 1000)]
    assert ranks(hosts, "rps") == [3, 3, 1, 1]


def test_tokens_are_as_uneven_as_the_answers_they_came_in() -> None:
    # 100 answers of 100 tokens: 1,000 tokens of standard error each, 2.5758 x sqrt(2) x 1,000 = 3,643
    for tokens, tied in ((6_900, True), (6_000, False)):
        hosts = [figures(output_tokens=10_000), figures(output_tokens=tokens)]
        assert [place.tied for place in places(hosts, "output_tokens_per_s")] == [tied, tied]


def test_equal_values_share_a_rank_however_many_answers_made_them() -> None:
    # 180 a second of 1,800 answers are not tied with 200 of 1,500, but of 900 answers they would be
    hosts = [
        figures(ok=ok, output_tokens=tokens)
        for ok, tokens in ((900, 1800), (1800, 1800), (1500, 2000))
    ]
    assert ranks(hosts, "output_tokens_per_s") == [2, 2, 1]
    assert ranks([hosts[0], hosts[2]], "output_tokens_per_s") == [1, 1]


def test_error_rates_are_tied_within_the_interval_of_two_shares() -> None:
    # 1/102 and 6/107 of (errors + 1) / (N + 2): errors of 0.0098 and 0.0222, together 0.0242, and 0.0624 of them; 5/105 is 0.0476
    assert ranks([figures(errors=5), figures()], "error_rate") == [1, 1]
    assert ranks([figures(errors=12), figures()], "error_rate") == [2, 1]


def test_latencies_of_neighbouring_buckets_are_tied_and_the_next_are_not() -> None:
    # 100 ms and the two buckets above it
    hosts = [figures(p95_ms=100.0 * BAND**steps) for steps in (2, 1, 0)]
    assert [(p.rank, p.tied) for p in places(hosts, "p95")] == [(3, False), (1, True), (1, True)]


def test_a_group_is_what_lies_within_the_band_of_its_own_best() -> None:
    # each is within 2 % of the next: 100 and 101.9, then 103.8 and 105.8
    hosts = [figures(p95_ms=value) for value in (100.0, 101.9, 103.8, 105.8)]
    assert ranks(hosts, "p95") == [1, 1, 3, 3]


def test_scores_are_tied_within_what_latencies_and_counts_make_of_them() -> None:
    # a million answers leave the latencies' part: 1 % is the square root of the band, as two of four metrics are latencies
    many = {"ok": 1_000_000, "output_tokens": 10_000_000}
    level = figures(p95_ms=102.0, ttft_p95_ms=10.2, **many)
    worse = figures(p95_ms=105.0, ttft_p95_ms=10.5, **many)
    assert ranks([figures(**many), level], "score") == [1, 1]
    assert ranks([figures(**many), worse], "score") == [1, 2]
    # and of 100 answers each the counts': half of 1/sqrt(100), 2.5758 x sqrt(2) x 0.05 = 0.18 and a bit
    assert ranks([figures(), figures(p95_ms=130.0, ttft_p95_ms=10.5)], "score") == [1, 1]


def test_scores_of_counts_alone_have_the_counts_interval() -> None:
    plain = {"p95_ms": None, "ttft_p95_ms": None, "output_tokens": 0}
    assert ranks([figures(ok=1000, **plain), figures(ok=900, **plain)], "score") == [1, 1]
    assert ranks([figures(ok=1000, **plain), figures(ok=800, **plain)], "score") == [1, 2]


@given(
    st.lists(st.floats(1, 200), min_size=1, max_size=12),
    st.sampled_from(["p50", "p95", "rps", "score"]),
)
def test_ranks_hold_together(latencies: list[float], rank_by: RankBy) -> None:
    hosts = [figures(ok=round(value), p50_ms=value, p95_ms=value) for value in latencies]
    found = places(hosts, rank_by)
    in_order = sorted(place.rank for place in found)
    # competition ranks: each is 1 + the number of hosts before its group
    assert all(rank == in_order.index(rank) + 1 for rank in in_order)
    assert all(place.tied == (in_order.count(place.rank) > 1) for place in found)
    score = scores(hosts)
    value = (
        score
        if rank_by == "score"
        else [each.ok if rank_by == "rps" else each.p50_ms for each in hosts]
    )
    is_better = rank_by in ("rps", "score")
    for one, place in zip(value, found, strict=True):
        for other, its_place in zip(value, found, strict=True):
            if one is not None and other is not None and place.rank < its_place.rank:
                assert one > other if is_better else one < other


# who is last


@pytest.mark.parametrize("rank_by", RANK_BY)
def test_a_host_that_answered_nothing_is_last_whatever_decides(rank_by: RankBy) -> None:
    slow = dict.fromkeys(("p50_ms", "p95_ms", "ttft_p50_ms", "ttft_p95_ms"), 9e5)
    failing = figures(ok=1, errors=99, output_tokens=1, **slow)
    dead = figures(
        **{name: getattr(NOTHING, name) for name in ("ok", "p50_ms", "p95_ms")}, errors=3
    )
    found = places([NOTHING, dead, figures(), failing], rank_by)
    assert [place.rank for place in found] == [3, 3, 1, 2]


def test_a_host_without_streams_is_behind_all_that_have_a_ttft() -> None:
    without = figures(ttft_p50_ms=None, ttft_p95_ms=None)
    assert ranks([without, figures(ttft_p50_ms=900.0), NOTHING], "ttft_p50") == [2, 1, 3]


# score


def test_the_score_is_the_mean_share_of_the_best_times_success() -> None:
    best = figures()
    # half the RPS, half the tokens, twice both latencies: every share is 1/2; one in five failed
    half = figures(ok=50, errors=12.5, output_tokens=500, p95_ms=200.0, ttft_p95_ms=20.0)
    assert scores([best, half]) == [1.0, pytest.approx(0.5 * 0.8)]
    # only the RPS is half: (1/2)^(1/4)
    assert scores([best, figures(ok=50)])[1] == pytest.approx(0.8408964)


def test_a_metric_that_nobody_has_does_not_count() -> None:
    best = figures(ttft_p95_ms=None)
    half = figures(ok=50, ttft_p95_ms=None)
    # a third metric is missing: (1/2)^(1/3)
    assert scores([best, half])[1] == pytest.approx(0.7937005)


def test_a_metric_that_only_one_host_lacks_is_a_zero() -> None:
    assert scores([figures(), figures(ttft_p95_ms=None)]) == [1.0, 0.0]


def test_nobody_has_a_score_where_nothing_was_answered() -> None:
    assert scores([NOTHING, NOTHING]) == [None, None]
    assert scores([NOTHING, figures()]) == [0.0, 1.0]


@pytest.mark.parametrize(("few", "q"), [(FEW_FOR_P50, 0.5), (FEW_FOR_P95, 0.95)])
def test_from_that_many_answers_on_the_second_slowest_bounds_the_quantile(
    few: int, q: float
) -> None:
    def risk(answers: int) -> float:
        return q**answers + answers * q ** (answers - 1) * (1 - q)

    assert risk(few) <= 0.01 < risk(few - 1)
