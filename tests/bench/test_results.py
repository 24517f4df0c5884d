"""Which of a run's facts stand in a host's line."""

from collections.abc import Sequence

import pytest
from support.shots import AT, books, failed, no_books, shot, twin, uniques

from toolkit.bench.plan import BenchPlan
from toolkit.bench.results import Facts, Result, results
from toolkit.bench.summary import GoodputLimits
from toolkit.records import Host, RequestRecord


def runner(name: str, shots: Sequence[RequestRecord]) -> Facts:
    host = Host(name=name, url=f"http://{name}:1")
    return host, shots, no_books()


def judged(
    *runners: Facts, plan: BenchPlan | None = None, limits: GoodputLimits | None = None
) -> list[Result]:
    return results(runners, plan=plan or BenchPlan(), run="r", client_ok=True, limits=limits)


def level(concurrency: int, *, at: float, e2e_ms: float, waves: int = 4) -> list[RequestRecord]:
    """Waves of so many requests at once, each wave sent when the one before it is over."""
    return [
        shot(
            1000 * concurrency + number,
            tokens=2,
            first_ms=e2e_ms / 2,
            token_ms=e2e_ms / 2,
            concurrency=concurrency,
            planned_at=at + number // concurrency * e2e_ms / 1000,
        )
        for number in range(waves * concurrency)
    ]


# requests a second: 10, 20, 20: nothing gained from 2 to 4, and answers take twice as long
KNEE_AT_2 = (
    level(1, at=AT, e2e_ms=100)
    + level(2, at=AT + 10, e2e_ms=100)
    + level(4, at=AT + 20, e2e_ms=200)
)
SWEEP = BenchPlan(levels=(1, 2, 4))


def test_a_run_is_told_in_the_order_of_the_hosts() -> None:
    told = judged(runner("zoe", uniques(8)), runner("abe", uniques(16)))
    assert [(each.summary.name, each.summary.requests) for each in told] == [
        ("zoe", 8),
        ("abe", 16),
    ]
    assert [each.levels for each in told] == [(), ()]
    assert [each.summary.concurrency for each in told] == [8, 8]


def test_a_sweep_is_told_by_its_knee() -> None:
    (told,) = judged(runner("alice", KNEE_AT_2), plan=SWEEP)
    assert [step.concurrency for step in told.levels] == [1, 2, 4]
    assert (told.best_concurrency, told.knee_concurrency) == (None, 2)
    # four waves of two
    assert (told.summary.concurrency, told.summary.requests) == (2, 8)


def test_a_level_has_a_summary_of_its_own_without_warm_up() -> None:
    limits = GoodputLimits(e2e_ms=150)
    cold = shot(0, kind="warmup", concurrency=4)
    (told,) = judged(runner("alice", [cold, *KNEE_AT_2]), plan=SWEEP, limits=limits)
    assert [(each.requests, each.ok, each.good_share) for each in told.levels] == [
        (4, 4, 1.0),
        (8, 8, 1.0),
        (16, 16, 0.0),
    ]
    # 16 requests of two tokens in 4 waves of 0.2 s
    assert [
        round(each or 0) for each in (told.levels[2].rps, told.levels[2].output_tokens_per_s)
    ] == [20, 40]
    assert told.levels[2].e2e_p50_ms == pytest.approx(200, rel=0.0101)
    assert told.summary.verdicts
    assert not any(each.verdicts for each in told.levels)


def test_with_limits_a_sweep_is_told_by_the_most_at_once_that_keeps_them() -> None:
    (told,) = judged(runner("alice", KNEE_AT_2), plan=SWEEP, limits=GoodputLimits(e2e_ms=150))
    assert (told.best_concurrency, told.summary.concurrency) == (2, 2)
    (told,) = judged(runner("alice", KNEE_AT_2), plan=SWEEP, limits=GoodputLimits(e2e_ms=250))
    assert (told.best_concurrency, told.summary.concurrency) == (4, 4)
    assert told.summary.good_share == 1


def test_without_a_knee_a_sweep_is_told_by_its_fastest_level() -> None:
    # 10, 20 and 40 requests a second
    grown = [*KNEE_AT_2[:12], *level(4, at=AT + 20, e2e_ms=100)]
    (told,) = judged(runner("alice", grown), plan=SWEEP)
    assert (told.knee_concurrency, told.summary.concurrency) == (None, 4)


def test_a_host_that_never_answers_a_sweep_is_told_by_its_first_level() -> None:
    dead = [failed(slot, concurrency=1 + slot // 4) for slot in range(8)]
    (told,) = judged(runner("alice", dead), plan=BenchPlan(levels=(1, 2)))
    assert (told.summary.concurrency, told.summary.ok, told.summary.requests) == (1, 0, 4)


def test_an_open_loop_has_a_rate_and_no_concurrency() -> None:
    (told,) = judged(runner("alice", uniques(8, concurrency=None)), plan=BenchPlan(rate=4.0))
    assert (told.summary.rate, told.summary.concurrency) == (4.0, None)


def test_hosts_that_answer_alike_are_tied_and_a_slow_one_is_not() -> None:
    first = uniques(64)
    slow = uniques(64, token_ms=40.0)
    told = judged(runner("a", first), runner("b", first), runner("slow", slow))
    assert [each.summary.tied_with for each in told] == [("b",), ("a",), ()]


def test_other_hosts_are_what_an_answer_is_held_against() -> None:
    """One token an answer is no fault by itself: another host's answers to the same prompts make it one."""
    short = uniques(32, tokens=1)
    alone, *_ = judged(runner("short", short))
    beside, _ = judged(runner("short", short), runner("long", uniques(32)))
    assert "truncated_output" not in [verdict.code for verdict in alone.summary.verdicts]
    assert "truncated_output" in [verdict.code for verdict in beside.summary.verdicts]


def test_counters_of_one_host_are_no_other_hosts() -> None:
    first = uniques(24)
    shots = [*first, *(twin(first[n], 24 + n) for n in range(8))]
    honest = (Host(name="a", url="http://a:1"), shots, books(shots, name="a"))
    other = (Host(name="b", url="http://b:1"), shots, books([], name="b"))  # its engine saw nothing
    told = judged(honest, other)
    codes = [[verdict.code for verdict in each.summary.verdicts] for each in told]
    assert "clean" in codes[0]
    assert "clean" not in codes[1]


def test_a_bench_that_was_stopped_before_any_answer_does_not_claim_that_nothing_was_sent() -> None:
    stopped, refused = judged(runner("stopped", []), runner("refused", [failed(0, kind="connect")]))
    assert stopped.summary.error == "no request was over when the bench ended"
    assert refused.summary.error == "connect (1 of 1 requests)"
    (answered,) = judged(runner("alice", uniques(4)))
    assert answered.summary.error is None
