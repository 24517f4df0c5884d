"""Answers folded into seconds: sums by hand, hits that a header names and hits that are inferred."""

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


def judged(tallies: Tallying) -> tuple[int, int]:
    """Of the ranked answers since the last time: how many could be judged, and how many came from memory."""
    ranked = [tally for tally in tallies.take() if tally.kind == "ranked"]
    return sum(t.cache_judged for t in ranked), sum(t.cache_inferred for t in ranked)


def test_a_second_is_the_sum_of_its_answers() -> None:
    tallies = tallying()
    add(tallies, 100.0, prompt_tokens=10, output_tokens=20, e2e_ms=50.0)
    estimated = {"output_tokens": 7, "output_tokens_estimated": True}
    add(tallies, 100.9, streamed=True, ttft_ms=5.0, e2e_ms=80.0, prompt_tokens=11, **estimated)
    add(tallies, 100.5, ok=False, error_kind="timeout", e2e_ms=9.0, output_tokens=3)
    add(tallies, 100.5, ok=False, error_kind="http_500")
    add(tallies, 100.5, ok=False, error_kind="timeout")
    # what is unknown counts for nothing, but an error without a kind for one of its own
    add(tallies, 101.0, streamed=True, ttft_ms=None, e2e_ms=None)
    add(tallies, 101.0, ok=False, error_kind=None)
    usual = {"run": "run", "name": "alice", "url": "http://a:1", "worker": "w1", "kind": "ranked"}
    kinds = (ErrorCount(kind="http_500", count=1), ErrorCount(kind="timeout", count=2))
    unknown = (ErrorCount(kind="garbage", count=1),)
    assert tallies.take() == [
        Tally(
            **usual,  # type: ignore[arg-type]
            at_s=100,
            ok=2,
            errors=3,
            error_kinds=kinds,
            streamed=1,
            prompt_tokens=21,
            output_tokens=27,
            output_tokens_estimated=7,
            e2e=sketch(50.0, 80.0),
            ttft=sketch(5.0),
        ),
        Tally(**usual, at_s=101, ok=1, errors=1, error_kinds=unknown, streamed=1),  # type: ignore[arg-type]
    ]


def test_seconds_hosts_and_kinds_are_kept_apart_and_handed_out_once() -> None:
    tallies = tallying()
    add(tallies, 102.0)
    add(tallies, 101.0)
    add(tallies, 100.0, host=OTHER)
    add(tallies, 100.0)
    add(tallies, 100.0, kind="twin")
    add(tallies, 100.0, kind="unique", repeats=False)

    def taken(before_s: int | None = None) -> list[tuple[Any, ...]]:
        return [(t.at_s, t.name, t.kind, t.ok) for t in tallies.take(before_s)]

    assert taken(102) == [
        (100, "alice", "ranked", 1),
        (100, "alice", "canary", 2),
        (100, "bob", "ranked", 1),
        (101, "alice", "ranked", 1),
    ]
    assert taken(102) == []
    add(tallies, 100.9)  # what comes late is a row more
    assert taken(102) == [(100, "alice", "ranked", 1)]
    assert taken() == [(102, "alice", "ranked", 1)]


# --- hits ---------------------------------------------------------------------------------------------


def test_a_header_is_believed_and_nothing_is_inferred_beside_it() -> None:
    tallies = tallying()
    canaries(tallies, 1000.0, 1000.0, 1000.0)
    for header in ("proxy; hit; ttl=5", "MISS", "HIT"):
        add(tallies, e2e_ms=1.0, cache_status=header)
    add(tallies, ok=False, error_kind="cut", cache_status="HIT")
    tally = tallies.take()[0]
    assert (tally.cache_told, tally.cache_hits, tally.cache_judged) == (3, 2, 0)
    # a canary that came from memory itself says nothing
    canaries(tallies, *[10.0] * MOST_KNOWN, cache_status="HIT")
    add(tallies, e2e_ms=2.0)
    assert judged(tallies) == (1, 1)


A_MEDIAN_OF_1000 = (5000.0, 1000.0, 900.0)


@pytest.mark.parametrize(
    ("uniques", "tokens", "repeats", "expected"),
    [
        # less than a tenth of the median, 100, is memory
        (A_MEDIAN_OF_1000, None, (2.0, 99.9, 100.0, 1000.0), (4, 2)),
        # a long prompt and ten tokens of answer: a prefix cache saves the reading, 2 s, and the engine writes for 150 ms
        ((2150.0,) * 3, 10, (150.0,), (0, 0)),
        # memory is faster than any engine, 4 ms a token: 40; and 215 ms or more are no memory's
        ((2150.0,) * 3, 10, (39.9, 40.0, 215.0), (2, 1)),
        # a queue of 30 s that has gone: 256 tokens of 10 ms each, or of memory
        ((32_560.0,) * 3, 256, (2_560.0,), (0, 0)),
        ((32_560.0,) * 3, 256, (20.0,), (1, 1)),
        # an answer of a few tokens says nothing of a cache
        ((300.0,) * 3, 7, (1.0, 6.0, 300.0), (0, 0)),
        ((300.0,) * 3, 8, (6.0,), (1, 1)),
        # nor do fewer than three canaries
        ((1000.0,) * 2, None, (2.0,), (0, 0)),
    ],
)
def test_a_repeat_that_no_engine_can_have_written_so_quickly_came_from_memory(
    uniques: tuple[float, ...],
    tokens: int | None,
    repeats: tuple[float, ...],
    expected: tuple[int, int],
) -> None:
    tallies = tallying()
    canaries(tallies, *uniques, output_tokens=tokens)
    for e2e_ms in repeats:
        add(tallies, e2e_ms=e2e_ms, output_tokens=tokens)
    assert judged(tallies) == expected


def test_only_ranked_repeats_are_judged_by_ok_canaries_of_their_prompt_and_host() -> None:
    tallies = tallying()
    canaries(tallies, 1000.0, 1000.0)
    canaries(tallies, 1000.0, 1000.0, 1000.0, prompt="other")
    canaries(tallies, 1000.0, 1000.0, 1000.0, host=OTHER)
    canaries(tallies, 1000.0, ok=False, error_kind="cut")
    add(tallies, kind="twin", e2e_ms=1000.0)
    add(tallies, e2e_ms=2.0)
    assert judged(tallies) == (0, 0)
    canaries(tallies, 1000.0)
    add(tallies, repeats=False, e2e_ms=2.0)
    add(tallies, kind="twin", e2e_ms=2.0)
    add(tallies, ok=False, error_kind="cut", e2e_ms=2.0)
    add(tallies, e2e_ms=None)
    assert judged(tallies) == (0, 0)
    add(tallies, e2e_ms=2.0)
    assert judged(tallies) == (1, 1)


def test_the_median_follows_the_newest_canaries_of_the_newest_prompts() -> None:
    tallies = tallying()
    canaries(tallies, *[100.0] * 50)
    add(tallies, e2e_ms=50.0)
    canaries(tallies, *[1000.0] * MOST_KNOWN)
    add(tallies, e2e_ms=50.0)
    assert judged(tallies) == (2, 1)
    canaries(tallies, 1000.0, 1000.0, 1000.0, prompt="second")
    for number in range(MOST_PROMPTS - 1):
        canaries(tallies, 1000.0, prompt=f"p{number}")
    for prompt in ("p", "second"):  # the first is forgotten
        add(tallies, prompt=prompt, e2e_ms=2.0)
    assert judged(tallies) == (1, 1)


@pytest.mark.parametrize("value", [float("nan"), -1.0])
def test_what_no_clock_can_have_read_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="no latency"):
        add(tallying(), e2e_ms=value)
