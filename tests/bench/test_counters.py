"""Ledgers: what a host's counters moved by, and when nobody can tell."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.bench.counters import with_counters
from toolkit.metrics.dialects import EngineNumbers, read_numbers
from toolkit.metrics.parser import Histogram, read_page
from toolkit.records import Ledger, ServedModel

RECORDED = Path(__file__).parent.parent / "data" / "metrics" / "recorded"
SUMS = (
    "requests prompt_tokens generation_tokens finished_length finished_stop asked_tokens"
    " asked_requests prefix_queries prefix_hits preemptions queue_mean_ms"
).split()


def page(**numbers: Any) -> EngineNumbers:
    return EngineNumbers(**{"engine": "vllm", "dialect": "v1", **numbers})


def total(amount: float, count: float) -> Histogram:
    return Histogram(edges=(), counts=(), sum=amount, count=count)


def of(
    before: EngineNumbers | None,
    after: EngineNumbers | None,
    seen: Sequence[EngineNumbers] = (),
    **more: Any,
) -> Ledger:
    known = Ledger(run="r", name="alice", url="http://h:1", **more)
    return with_counters(known, before, after, seen)


def sums(found: Ledger) -> dict[str, float | None]:
    return {name: getattr(found, name) for name in SUMS}


BEFORE = page(
    requests_total=10,
    prompt_tokens_total=100,
    generation_tokens_total=1000,
    finished_by_reason=(("abort", 0), ("length", 4), ("stop", 6)),
    asked_tokens=total(640, 10),
    prefix_queries_total=100,
    prefix_hits_total=16,
    preemptions_total=1,
    queue=total(2.0, 10),
    started_at=500.0,
)
AFTER = page(
    requests_total=30,
    prompt_tokens_total=500,
    generation_tokens_total=3500,
    finished_by_reason=(("abort", 1), ("length", 9), ("stop", 20)),
    asked_tokens=total(5760, 30),
    prefix_queries_total=500,
    prefix_hits_total=48,
    preemptions_total=3,
    queue=total(7.0, 30),
    started_at=500.0,
)


def test_every_sum_is_the_difference_of_two_pages() -> None:
    found = of(BEFORE, AFTER)
    assert sums(found) == {
        "requests": 20,
        "prompt_tokens": 400,
        "generation_tokens": 2500,
        "finished_length": 5,
        "finished_stop": 14,
        "asked_tokens": 5120,
        "asked_requests": 20,
        "prefix_queries": 400,
        "prefix_hits": 32,
        "preemptions": 2,
        "queue_mean_ms": 250.0,  # (7 s - 2 s) / 20
    }
    assert found.restarted is False


def test_what_is_no_difference_is_kept_as_it_was_told() -> None:
    tiny, other = ServedModel(id="tiny", root="org/tiny"), ServedModel(id="other")
    found = of(
        page(running=3, waiting=1),
        page(running=7, waiting=9),
        error="why",
        rtt_ms=1.5,
        seen=[page(waiting=2), page(waiting=5), page(), page(waiting=4)],
        models_before=(tiny,),
        models_after=(tiny, other),
    )
    assert (found.run, found.name, found.url, found.error) == ("r", "alice", "http://h:1", "why")
    assert (found.running_before, found.waiting_before, found.waiting_max) == (3, 1, 5)
    assert (found.rtt_ms, found.models_before, found.models_after) == (1.5, (tiny,), (tiny, other))


@pytest.mark.parametrize(("before", "after"), [(None, AFTER), (BEFORE, None), (None, None)])
def test_one_page_makes_no_sum_and_keeps_the_reason(
    before: EngineNumbers | None, after: EngineNumbers | None
) -> None:
    found = of(before, after, error="`/metrics` answered 404")
    assert set(sums(found).values()) == {None}
    assert (found.restarted, found.error) == (None, "`/metrics` answered 404")


@pytest.mark.parametrize(
    "later",
    [
        page(generation_tokens_total=999, requests_total=30),
        page(requests_total=9),
        page(prompt_tokens_total=0),
        page(preemptions_total=0),
        page(prefix_hits_total=15),
        page(finished_by_reason=(("length", 3), ("stop", 20))),
        page(asked_tokens=total(640, 9)),
        page(queue=total(9.0, 9)),
        page(started_at=501.5),  # more than a clock's correction
        page(started_at=100.0),
        page(engine="sglang", dialect="sglang"),
    ],
)
def test_a_smaller_counter_or_another_start_is_a_restart_without_sums(later: EngineNumbers) -> None:
    found = of(BEFORE, later)
    assert found.restarted is True
    assert set(sums(found).values()) == {None}


def test_a_corrected_clock_is_no_restart() -> None:
    assert of(page(started_at=500.0), page(started_at=500.9)).restarted is False


def test_a_restart_in_the_midst_of_the_load_is_seen_though_the_sums_have_caught_up() -> None:
    found = of(BEFORE, AFTER, seen=[page(preemptions_total=2), page(preemptions_total=0)])
    assert found.restarted is True
    assert of(BEFORE, AFTER, seen=[page(preemptions_total=2), page(waiting=1)]).restarted is False


def test_a_series_that_appears_with_its_first_request_began_at_zero() -> None:
    found = of(page(prompt_tokens_total=0), AFTER)
    assert (found.requests, found.generation_tokens, found.finished_stop) == (30, 3500, 20)
    assert found.queue_mean_ms == pytest.approx(7000 / 30)


def test_a_reason_that_was_not_told_yet_began_at_zero() -> None:
    found = of(
        page(requests_total=6, finished_by_reason=(("stop", 6),)),
        page(requests_total=9, finished_by_reason=(("length", 2), ("stop", 7))),
    )
    assert (found.finished_length, found.finished_stop) == (2, 1)


def test_a_reason_that_never_came_up_is_zero_and_not_unknown() -> None:
    found = of(
        page(requests_total=6, finished_by_reason=(("stop", 6),)),
        page(requests_total=9, finished_by_reason=(("stop", 9),)),
    )
    assert found.finished_length == 0


def test_a_page_that_counted_nothing_at_all_is_no_start_to_count_from() -> None:
    found = of(page(running=0, waiting=0), AFTER)
    assert set(sums(found).values()) == {None}
    assert found.restarted is False


def test_a_series_that_is_gone_is_unknown_and_no_restart() -> None:
    found = of(BEFORE, page(requests_total=30))
    assert (found.requests, found.generation_tokens, found.restarted) == (20, None, False)


def test_no_request_waited_is_unknown_and_not_zero() -> None:
    idle = page(requests_total=10, queue=total(2.0, 10))
    assert of(idle, idle).queue_mean_ms is None


def test_seconds_added_in_another_order_make_no_negative_wait() -> None:
    # 0.1 + 0.2 + 0.3 = 0.6000000000000001; 0.3 + 0.2 + 0.1 = 0.6
    before = page(requests_total=3, queue=total(0.1 + 0.2 + 0.3, 3))
    after = page(requests_total=4, queue=total(0.3 + 0.2 + 0.1, 4))
    found = of(before, after)
    assert (found.restarted, found.queue_mean_ms) == (False, 0.0)


def test_recorded_pages_before_and_after_a_load() -> None:
    before, after = (
        read_numbers(read_page((RECORDED / f"{name}.txt").read_text(encoding="utf-8")))
        for name in ("idle", "after_load")
    )
    found = of(before, after)
    # by grep from after_load; idle has counted nothing
    assert (found.restarted, found.requests, found.finished_length) == (False, 1022, 1022)
    assert (found.finished_stop, found.asked_tokens, found.asked_requests) == (0, 108878, 1022)
    assert (found.prefix_queries, found.prefix_hits) == (98917, 6016)


COUNTERS = [field.name for field in fields(EngineNumbers) if field.name.endswith("_total")]


@given(st.dictionaries(st.sampled_from(COUNTERS), st.tuples(st.integers(0), st.integers(0))))
def test_pages_that_only_grow_are_never_a_restart(moves: dict[str, tuple[int, int]]) -> None:
    start = page(**{name: float(first % 2**52) for name, (first, _) in moves.items()})
    end = page(**{name: float(first % 2**52 + by % 2**52) for name, (first, by) in moves.items()})
    found = of(start, end)
    assert found.restarted is False
    if "requests_total" in moves:
        assert found.requests == moves["requests_total"][1] % 2**52
