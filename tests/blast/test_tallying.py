"""Answers folded into seconds: sums by hand, hits told and inferred."""

from typing import Any

import pytest
from support.tallies import sketch

from toolkit.blast.tallying import MOST_KNOWN, MOST_PROMPTS, Tallying
from toolkit.records import ErrorCount, Tally

HOST = ("alice", "http://a:1")
OTHER = ("bob", "http://b:1")


def tallying() -> Tallying:
    return Tallying("run", "w1", lambda _: None)


def add(tallies: Tallying, at: float = 100.0, host: tuple[str, str] = HOST, **more: Any) -> None:
    facts = {"kind": "ranked", "prompt": "p", "repeats": True, "ok": True, "e2e_ms": 50.0}
    tallies.add(host, at, **{**facts, **more})


def canaries(tallies: Tallying, *e2e_ms: float, **more: Any) -> None:
    for value in e2e_ms:
        add(tallies, kind="unique", repeats=False, e2e_ms=value, **more)


def judged(tally: Tally) -> tuple[int, int]:
    return tally.cache_judged, tally.cache_inferred


def test_a_second_is_the_sum_of_its_answers() -> None:
    tallies = tallying()
    add(tallies, 100.0, prompt_tokens=10, output_tokens=20, e2e_ms=50.0)
    add(
        tallies,
        100.999,
        streamed=True,
        ttft_ms=5.0,
        e2e_ms=80.0,
        prompt_tokens=11,
        output_tokens=7,
        output_tokens_estimated=True,
    )
    add(tallies, 100.5, ok=False, error_kind="timeout", e2e_ms=9.0, output_tokens=3)
    add(tallies, 100.5, ok=False, error_kind="http_500")
    add(tallies, 100.5, ok=False, error_kind="timeout")
    assert tallies.take() == [
        Tally(
            run="run",
            name="alice",
            url="http://a:1",
            at_s=100,
            worker="w1",
            kind="ranked",
            ok=2,
            errors=3,
            error_kinds=(
                ErrorCount(kind="http_500", count=1),
                ErrorCount(kind="timeout", count=2),
            ),
            streamed=1,
            prompt_tokens=21,
            output_tokens=27,
            output_tokens_estimated=7,
            e2e=sketch(50.0, 80.0),
            ttft=sketch(5.0),
        )
    ]


def test_seconds_hosts_and_kinds_are_kept_apart() -> None:
    tallies = tallying()
    add(tallies, 101.0)
    add(tallies, 100.0, host=OTHER)
    add(tallies, 100.0)
    add(tallies, 100.0, kind="twin")
    add(tallies, 100.0, kind="unique", repeats=False)
    told = [(t.at_s, t.name, t.kind, t.ok) for t in tallies.take()]
    assert told == [
        (100, "alice", "ranked", 1),
        (100, "alice", "canary", 2),
        (100, "bob", "ranked", 1),
        (101, "alice", "ranked", 1),
    ]


def test_closed_seconds_are_handed_out_once_and_what_comes_late_is_a_row_more() -> None:
    tallies = tallying()
    for at in (100.2, 101.7, 102.0):
        add(tallies, at)
    assert [t.at_s for t in tallies.take(before_s=102)] == [100, 101]
    assert tallies.take(before_s=102) == []
    add(tallies, 100.9)
    assert [(t.at_s, t.ok) for t in tallies.take(before_s=102)] == [(100, 1)]
    assert [(t.at_s, t.ok) for t in tallies.take()] == [(102, 1)]
    assert tallies.take() == []


def test_an_error_without_a_kind_is_still_counted_by_kind() -> None:
    tallies = tallying()
    add(tallies, ok=False, error_kind=None)
    (tally,) = tallies.take()
    assert (tally.errors, tally.error_kinds) == (1, (ErrorCount(kind="garbage", count=1),))


def test_what_is_unknown_counts_for_nothing() -> None:
    tallies = tallying()
    add(tallies, streamed=True, ttft_ms=None, e2e_ms=None)
    (tally,) = tallies.take()
    assert (tally.ok, tally.streamed, tally.output_tokens) == (1, 1, 0)
    assert (tally.e2e, tally.ttft) == (b"", b"")


# hits


def test_a_header_is_believed_and_nothing_is_inferred_beside_it() -> None:
    tallies = tallying()
    canaries(tallies, 1000.0, 1000.0, 1000.0)
    for header in ("proxy; hit; ttl=5", "MISS", "HIT"):
        add(tallies, e2e_ms=1.0, cache_status=header)
    add(tallies, ok=False, error_kind="cut", cache_status="HIT")
    tally = tallies.take()[0]
    assert (tally.cache_told, tally.cache_hits, *judged(tally)) == (3, 2, 0, 0)


def test_a_repeat_in_less_than_a_tenth_of_the_canaries_median_came_from_memory() -> None:
    tallies = tallying()
    canaries(tallies, 5000.0, 1000.0, 900.0)  # the median is 1000: less than 100 is memory
    for value in (2.0, 99.9, 100.0, 1000.0):
        add(tallies, e2e_ms=value)
    assert judged(tallies.take()[0]) == (4, 2)


def test_what_is_quick_but_slow_enough_to_have_been_written_is_not_judged() -> None:
    tallies = tallying()
    # a long prompt and ten tokens of answer: a prefix cache saves the reading, 2 s, and the engine writes for 150 ms
    canaries(tallies, 2150.0, 2150.0, 2150.0, prompt="long", output_tokens=10)
    add(tallies, prompt="long", e2e_ms=150.0, output_tokens=10)
    # a queue of 30 s that has gone: 256 tokens of 10 ms each
    canaries(tallies, 32_560.0, 32_560.0, 32_560.0, prompt="queued", output_tokens=256)
    add(tallies, prompt="queued", e2e_ms=2_560.0, output_tokens=256)
    assert judged(tallies.take()[0]) == (0, 0)
    # memory is faster than any engine: 4 ms a token are 1,024 and 40 ms; and 215 ms or more are no memory's
    add(tallies, prompt="queued", e2e_ms=20.0, output_tokens=256)
    add(tallies, prompt="long", e2e_ms=39.9, output_tokens=10)
    add(tallies, prompt="long", e2e_ms=40.0, output_tokens=10)
    add(tallies, prompt="long", e2e_ms=215.0, output_tokens=10)
    assert judged(tallies.take()[0]) == (3, 2)


def test_an_answer_of_a_few_tokens_tells_nothing_of_a_cache() -> None:
    tallies = tallying()
    canaries(tallies, 300.0, 300.0, 300.0, output_tokens=7)
    for took in (1.0, 6.0, 300.0):
        add(tallies, e2e_ms=took, output_tokens=7)
    assert judged(tallies.take()[0]) == (0, 0)
    add(tallies, e2e_ms=6.0, output_tokens=8)
    assert judged(tallies.take()[0]) == (1, 1)


def test_nothing_is_inferred_before_three_canaries_of_the_same_prompt_and_host() -> None:
    tallies = tallying()
    canaries(tallies, 1000.0, 1000.0)
    canaries(tallies, 1000.0, 1000.0, 1000.0, prompt="other")
    canaries(tallies, 1000.0, 1000.0, 1000.0, host=OTHER)
    canaries(tallies, 1000.0, ok=False, error_kind="cut")
    add(tallies, kind="twin", e2e_ms=1000.0)
    add(tallies, e2e_ms=2.0)
    assert judged(tallies.take()[0]) == (0, 0)
    canaries(tallies, 1000.0)
    add(tallies, e2e_ms=2.0)
    assert judged(tallies.take()[0]) == (1, 1)


def test_only_ranked_repeats_are_judged() -> None:
    tallies = tallying()
    canaries(tallies, 1000.0, 1000.0, 1000.0)
    add(tallies, repeats=False, e2e_ms=2.0)
    add(tallies, kind="twin", e2e_ms=2.0)
    add(tallies, ok=False, error_kind="cut", e2e_ms=2.0)
    add(tallies, e2e_ms=None)
    assert [judged(tally) for tally in tallies.take()] == [(0, 0), (0, 0)]


def test_a_canary_that_came_from_memory_itself_tells_nothing() -> None:
    tallies = tallying()
    canaries(tallies, 10.0, 10.0, 10.0, cache_status="HIT")
    add(tallies, e2e_ms=2.0)
    assert judged(tallies.take()[0]) == (0, 0)


def test_the_median_follows_the_newest_canaries() -> None:
    tallies = tallying()
    canaries(tallies, *[100.0] * 50)
    add(tallies, e2e_ms=50.0)
    canaries(tallies, *[1000.0] * MOST_KNOWN)
    add(tallies, e2e_ms=50.0)
    assert judged(tallies.take()[0]) == (2, 1)


def test_the_medians_of_many_prompts_are_bounded_and_the_newest_are_kept() -> None:
    tallies = tallying()
    canaries(tallies, 1000.0, 1000.0, 1000.0, prompt="first")
    canaries(tallies, 1000.0, 1000.0, 1000.0, prompt="second")
    for number in range(MOST_PROMPTS - 1):
        canaries(tallies, 1000.0, prompt=f"p{number}")
    add(tallies, prompt="first", e2e_ms=2.0)
    add(tallies, prompt="second", e2e_ms=2.0)
    assert judged(tallies.take()[0]) == (1, 1)


@pytest.mark.parametrize("value", [float("nan"), -1.0])
def test_what_no_clock_can_have_read_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="no latency"):
        add(tallying(), e2e_ms=value)
