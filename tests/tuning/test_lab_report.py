"""A run over time, and its totals, from tallies and from timed requests."""

import pytest
from support.shots import failed
from support.shots import shot as timed
from support.tallies import S, sketch, tally

from toolkit.records import ErrorCount
from toolkit.tuning.lab_report import MOST_STRETCHES, host_report, tallied


def test_each_second_of_a_short_run_is_a_stretch() -> None:
    tallies = [
        tally(S, ok=4, output_tokens=40, e2e=sketch(100, 100, 100, 100)),
        tally(S + 2, ok=2, errors=2, error_kinds=(ErrorCount(kind="timeout", count=2),)),
    ]
    found = host_report(tallies, S, S + 3)
    assert [one.rps for one in found.stretches] == [4, 0, 2, 0]
    assert [one.error_rate for one in found.stretches] == [0, None, 0.5, None]
    assert [one.t_s for one in found.stretches] == [0.5, 1.5, 2.5, 3.5]
    assert found.stretches[0].e2e_p50_ms == pytest.approx(100, rel=0.01)
    assert found.stretches[1].e2e_p50_ms is None
    # 6 in 4 s; 2 of 8 failed
    assert (found.rps, found.error_rate, dict(found.error_kinds)) == (1.5, 0.25, {"timeout": 2})


def test_a_long_run_has_equal_stretches_and_no_part_of_one_at_its_end() -> None:
    # 400 s: stretches of 3 s, of which 133 are whole; the 400th second is in none
    found = host_report([tally(S + place, ok=3) for place in range(400)], S, S + 399)
    assert len(found.stretches) == 133
    assert len(found.stretches) <= MOST_STRETCHES
    assert {one.rps for one in found.stretches} == {3.0}
    assert found.ok == 1200


def test_a_bench_is_drawn_as_a_blast_is() -> None:
    shots = [
        timed(0, planned_at=S + 0.0, tokens=10, first_ms=50.0),
        timed(1, planned_at=S + 0.0, stream=False, cache_status="HIT"),
        timed(2, planned_at=S + 0.0, kind="warmup"),
        failed(3, "timeout", took_ms=60_000.0, planned_at=S + 0.0),
    ]
    tallies = tallied(shots)
    assert len(tallies) == 3  # a warm-up is not counted
    first, second, third = tallies
    # 50 ms and nine tokens of 20 ms: it ended in its first second
    assert (first.at_s, first.ok, first.streamed, first.output_tokens) == (S, 1, 1, 10)
    assert (second.cache_told, second.cache_hits, second.streamed) == (1, 1, 0)
    assert (third.at_s, third.errors, third.error_kinds) == (
        S + 60,
        1,
        (ErrorCount(kind="timeout", count=1),),
    )
