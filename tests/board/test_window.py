"""Totals of parts: any order, late, gone again; quantiles as the sketches tell them."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.board_reader import ListReader

from toolkit.board.window import (
    COUNTS,
    FEW,
    MOST,
    Totals,
    bucket_edges_ms,
    bucket_values_ms,
    quantiles_ms,
)
from toolkit.errors import ToolkitError
from toolkit.records import Part
from toolkit.stats import BUCKETS, Sketch

HITS_MS, MISSES_MS = (math.log(2), 0.2), (math.log(3000), 0.4)
"""Logarithm of the median, and its spread."""


def mix(rng: random.Random, count: int, hits: float) -> list[float]:
    return [
        rng.lognormvariate(*(HITS_MS if rng.random() < hits else MISSES_MS)) for _ in range(count)
    ]


def same(one: Totals, other: Totals) -> bool:
    """Whether every single number is the same."""
    names = ("counts", "histograms", "by_second")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def parts_of(*values: list[float]) -> list[Part]:
    reader = ListReader("a")
    return [reader.part("a", second, e2e=found) for second, found in enumerate(values)]


def nearest_rank(values: list[float], percent: int) -> float:
    return sorted(values)[max(1, -(-len(values) * percent // 100)) - 1]


def test_a_bucket_stands_for_the_very_float_of_a_sketch_between_its_edges() -> None:
    edges = bucket_edges_ms()
    assert len(edges) == BUCKETS + 1
    for value in (0.0, 0.005, 0.0101, 0.5, 2.5, 40.0, 3210.0, 999_000.0, 1e6, 9e9):
        one = Sketch()
        one.add(value)
        (bucket,) = one.counts
        assert bucket_values_ms()[bucket] == one.quantile(0.5)
        assert edges[bucket] <= value <= edges[bucket + 1]


@pytest.mark.parametrize("hits", [0.0, 0.5, 0.6, 0.95])
def test_quantiles_of_many_seconds_are_within_one_per_cent_of_exact(hits: float) -> None:
    rng = random.Random(7)
    seconds = [mix(rng, 200, hits) for _ in range(60)]
    totals = Totals([1])
    totals.add(parts_of(*seconds))
    everything = [value for second in seconds for value in second]
    found = quantiles_ms(totals.histograms, (50, 95, 99))[0][0]
    for percent, value in zip((50, 95, 99), found, strict=True):
        assert value == pytest.approx(nearest_rank(everything, percent), rel=0.0100001)


@given(st.lists(st.lists(st.floats(0, 1e7), max_size=8), min_size=1, max_size=6))
def test_quantiles_are_those_of_the_merged_sketch_bit_for_bit(seconds: list[list[float]]) -> None:
    totals, oracle = Totals([1]), Sketch()
    for part in parts_of(*seconds):
        totals.add([part])
        oracle.merge(Sketch.from_bytes(part.e2e))
    found = quantiles_ms(totals.histograms, (0, 1, 50, 95, 100))[0][0]
    assert found == [oracle.quantile(q) for q in (0, 0.01, 0.5, 0.95, 1)]


def test_a_count_past_a_pair_adds_up() -> None:
    one = Sketch()
    one.add(5.0, 70_000)
    one.add(900.0, 70_001)
    reader = ListReader("a")
    part = reader.part("a", 0)._replace(e2e=one.to_bytes(), ok=140_001)
    totals = Totals([1])
    totals.add([part])
    # the 70,001st of 140,001 is the first of the slow ones
    assert quantiles_ms(totals.histograms, (50,))[0][0] == [one.quantile(0.5)]
    assert totals.histograms.sum() == 140_001
    # nothing has no quantile
    assert quantiles_ms(Totals([1, 2]).histograms, (50, 95)) == [[[None, None]] * 2] * 2


def test_an_absurd_usage_breaks_no_sum() -> None:
    reader = ListReader("a")
    absurd = [reader.part("a", second, output_tokens=2**62) for second in range(4)]
    totals = Totals([1])
    totals.add(absurd)
    assert totals.counts[0, COUNTS.index("output_tokens")] == 4 * MOST


def test_counts_go_to_the_host_of_the_part() -> None:
    reader = ListReader("a", "b")
    one = reader.part("b", 3, e2e=[10.0], errors=2, output_tokens=7, cache_hits=1)
    totals = Totals([1, 2], seconds_s=10)
    totals.add([one, one])
    assert dict(zip(COUNTS, totals.counts[1].tolist(), strict=True)) == {
        **dict.fromkeys(COUNTS, 0),
        "ok": 2,
        "errors": 4,
        "output_tokens": 14,
        "cache_hits": 2,
    }
    assert not totals.counts[0].any()
    assert totals.seconds(one.at_s - 1, one.at_s)[1].tolist() == [[0, 2], [0, 4], [0, 14], [0, 0]]


many_parts = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 19),
        st.lists(st.floats(0.1, 1e5), max_size=4),
        st.integers(0, 3),
    ),
    max_size=25,
)


def made(rows: list[tuple[str, int, list[float], int]]) -> list[Part]:
    reader = ListReader("a", "b")
    return [
        reader.part(host, second, e2e=values, ttft=values[:1], errors=errors)
        for host, second, values, errors in rows
    ]


@settings(deadline=None)
@given(many_parts, st.randoms(use_true_random=False))
def test_what_was_added_and_left_again_leaves_a_full_recount(
    rows: list[tuple[str, int, list[float], int]], rng: random.Random
) -> None:
    parts = made(rows)
    gone = [part for part in parts if rng.random() < 0.5]
    stays = [part for part in parts if part not in gone]
    moved, recount = Totals([1, 2], seconds_s=20), Totals([1, 2], seconds_s=20)
    rng.shuffle(parts)
    for part in parts:
        moved.add([part])
    moved.add(gone, -1)
    recount.add(stays)
    assert same(moved, recount)


@settings(deadline=None)
@given(many_parts, st.integers(1, 24))
def test_slabs_add_up_to_what_their_parts_add_up_to(
    rows: list[tuple[str, int, list[float], int]], cut: int
) -> None:
    parts = made(rows)
    slabs = []
    for found in (parts[:cut], parts[cut:]):
        totals = Totals([1, 2])
        totals.add(found)
        slabs.append(totals.slab())
    together, recount = Totals([1, 2]), Totals([1, 2])
    recount.add(parts)
    for slab in slabs:
        together.add_slab(slab)
    assert same(together, recount)
    for slab in slabs:
        together.add_slab(slab, -1)
    assert same(together, Totals([1, 2]))


def test_more_parts_than_are_counted_in_one_pass_add_up() -> None:
    reader = ListReader("a", "b")
    one, other = reader.part("a", 0, e2e=[5.0, 6.0]), reader.part("b", 1, ttft=[700.0])
    totals = Totals([1, 2])
    totals.add([one] * FEW + [other] * (FEW + 1))
    # E2E and TTFT of a, and of b
    assert totals.histograms.sum(axis=2).tolist() == [[2 * FEW, 0], [0, FEW + 1]]


@pytest.mark.parametrize("blob", [b"\x01\x00\x02", np.array([924, 1], dtype="<u2").tobytes()])
def test_a_damaged_sketch_is_an_error_and_not_a_latency(blob: bytes) -> None:
    (part,) = parts_of([5.0])
    totals = Totals([1])
    with pytest.raises(ToolkitError, match="damaged sketch"):
        totals.add([part._replace(e2e=blob)])
    assert same(totals, Totals([1]))


@pytest.mark.parametrize("hosts", [[2], [7], []])
def test_a_part_of_an_unknown_host_is_nobody_elses(hosts: list[int]) -> None:
    (part,) = parts_of([5.0])
    totals = Totals(hosts)
    with pytest.raises(ToolkitError, match="takes no part in its run"):
        totals.add([part])
    assert same(totals, Totals(hosts))
