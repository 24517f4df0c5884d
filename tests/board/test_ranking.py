"""Ranks and scores, worked out by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.board.ranking import BAND, FEW_FOR_P50, FEW_FOR_P95, Figures, places, scores
from toolkit.board.ranking import figures as figures_of
from toolkit.board.standings import RankBy
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
    told: dict[str, Any] = dict.fromkeys(Figures._fields) | count
    told |= {
        "rps": count["ok"] / 10,
        "output_tokens_per_s": tokens / 10,
        "error_rate": count["errors"] / ended if ended else None,
        "streamed": 0,
        "hit_share_inferred": False,
        "output_tokens_estimated": False,
    }
    return Figures(**told)


NOTHING = figures(
    ok=0, output_tokens=0, p50_ms=None, p95_ms=None, ttft_p50_ms=None, ttft_p95_ms=None
)


def ranks(rank_by: RankBy, *hosts: Figures) -> list[int]:
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
def test_each_ranking_has_the_better_one_first_and_who_answered_nothing_last(
    rank_by: RankBy, better: dict[str, Any], worse: dict[str, Any]
) -> None:
    assert ranks(rank_by, figures(**worse), figures(**better)) == [2, 1]
    slow = dict.fromkeys(("p50_ms", "p95_ms", "ttft_p50_ms", "ttft_p95_ms"), 9e5)
    failing = figures(ok=1, errors=99, output_tokens=1, **slow)
    dead = NOTHING._replace(errors=3, error_rate=1.0)
    assert ranks(rank_by, NOTHING, dead, figures(), failing) == [3, 3, 1, 2]


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
    assert found == [(1, True), (1, True)] if tied else [(2, False), (1, False)]


MANY = {"ok": 1_000_000, "output_tokens": 10_000_000}
PLAIN = {"p95_ms": None, "ttft_p95_ms": None, "output_tokens": 0}


@pytest.mark.parametrize(
    ("rank_by", "hosts", "expected"),
    [
        # a group is what is tied with its best: 2.5758 sqrt(1,000 + 900) = 112.3, sqrt(1,000 + 880) 111.7,
        # sqrt(880 + 800) 105.6
        ("rps", [{"ok": ok} for ok in (800, 880, 900, 1000)], [3, 3, 1, 1]),
        # tokens are as uneven as the answers they came in: 100 of 100 are 1,000 tokens of standard error each, and
        # 2.5758 x sqrt(2) x 1,000 = 3,643
        ("output_tokens_per_s", [{"output_tokens": 10_000}, {"output_tokens": 6_900}], [1, 1]),
        ("output_tokens_per_s", [{"output_tokens": 10_000}, {"output_tokens": 6_000}], [1, 2]),
        # equal values share a rank however many answers made them: 180 a second of 1,800 answers are not tied with 200
        # of 1,500, but of 900 answers they would be
        (
            "output_tokens_per_s",
            [
                {"ok": ok, "output_tokens": tokens}
                for ok, tokens in ((900, 1800), (1800, 1800), (1500, 2000))
            ],
            [2, 2, 1],
        ),
        # 1/102 and 6/107 of (errors + 1) / (N + 2): errors of 0.0098 and 0.0222, together 0.0242, and 0.0624 of them;
        # 5/105 is 0.0476
        ("error_rate", [{"errors": 5}, {}], [1, 1]),
        ("error_rate", [{"errors": 12}, {}], [2, 1]),
        # 100 ms and the two buckets above it
        ("p95", [{"p95_ms": 100.0 * BAND**steps} for steps in (2, 1, 0)], [3, 1, 1]),
        # each is within 2 % of the next: 100 and 101.9, then 103.8 and 105.8
        ("p95", [{"p95_ms": value} for value in (100.0, 101.9, 103.8, 105.8)], [1, 1, 3, 3]),
        # a host without streams is behind all that have a TTFT
        ("ttft_p50", [{"ttft_p50_ms": None}, {"ttft_p50_ms": 900.0}], [2, 1]),
        # a million answers leave the latencies' part of a score: 1 % is the square root of the band, as two of four
        # metrics are latencies
        ("score", [MANY, {"p95_ms": 102.0, "ttft_p95_ms": 10.2, **MANY}], [1, 1]),
        ("score", [MANY, {"p95_ms": 105.0, "ttft_p95_ms": 10.5, **MANY}], [1, 2]),
        # and of 100 answers each the counts': half of 1/sqrt(100), 2.5758 x sqrt(2) x 0.05 = 0.18 and a bit
        ("score", [{}, {"p95_ms": 130.0, "ttft_p95_ms": 10.5}], [1, 1]),
        ("score", [{"ok": 1000, **PLAIN}, {"ok": 900, **PLAIN}], [1, 1]),
        ("score", [{"ok": 1000, **PLAIN}, {"ok": 800, **PLAIN}], [1, 2]),
    ],
)
def test_who_cannot_be_told_apart_shares_a_rank(
    rank_by: RankBy, hosts: list[dict[str, Any]], expected: list[int]
) -> None:
    assert ranks(rank_by, *(figures(**host) for host in hosts)) == expected


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
    counts = [each.ok for each in hosts]
    values = {"score": scores(hosts), "rps": counts}.get(rank_by, latencies)
    is_better = rank_by in ("rps", "score")
    for one, place in zip(values, found, strict=True):
        for other, its_place in zip(values, found, strict=True):
            if one is not None and other is not None and place.rank < its_place.rank:
                assert one > other if is_better else one < other


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        # half the RPS, half the tokens, twice both latencies: every share is 1/2; one in five failed
        (
            [
                {},
                {
                    "ok": 50,
                    "errors": 12.5,
                    "output_tokens": 500,
                    "p95_ms": 200.0,
                    "ttft_p95_ms": 20.0,
                },
            ],
            [1.0, 0.4],
        ),
        # the geometric mean: one share of four is 1/2, and (1/2)^(1/4) = 0.8409
        ([{}, {"ok": 50}], [1.0, 0.8408964]),
        # a metric that nobody has does not count: (1/2)^(1/3)
        ([{"ttft_p95_ms": None}, {"ok": 50, "ttft_p95_ms": None}], [1.0, 0.7937005]),
        # one that only one host lacks is a zero
        ([{}, {"ttft_p95_ms": None}], [1.0, 0.0]),
    ],
)
def test_the_score_is_the_mean_share_of_the_best_times_success(
    hosts: list[dict[str, Any]], expected: list[float]
) -> None:
    assert scores([figures(**host) for host in hosts]) == pytest.approx(expected)


def test_nobody_has_a_score_where_nothing_was_answered() -> None:
    assert scores([NOTHING, NOTHING]) == [None, None]
    assert scores([NOTHING, figures()]) == [0.0, 1.0]


@pytest.mark.parametrize(("few", "q"), [(FEW_FOR_P50, 0.5), (FEW_FOR_P95, 0.95)])
def test_from_that_many_answers_on_the_second_slowest_bounds_the_quantile(
    few: int, q: float
) -> None:
    risks = [n * q ** (n - 1) * (1 - q) + q**n for n in (few, few - 1)]
    assert risks[0] <= 0.01 < risks[1]
