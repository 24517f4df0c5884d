"""Counters against tallies: an honest host is never accused, whatever is in flight; a second engine and others' load are."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shots import AT, shot, twin

from toolkit.board.counter_deltas import (
    CounterDeltas,
    CounterStretch,
    Ours,
    are_one_engine,
    foreign_traffic,
    hidden_backend,
    stretch,
    surplus,
)
from toolkit.board.counter_deltas import counted as counted_of
from toolkit.board.scrapes import Scrape
from toolkit.records import RequestRecord, Verdict

S = int(AT)
SECONDS = 300
MAX_TOKENS = 256


@dataclass(frozen=True)
class Request:
    """One that an engine works on from `began` to `ended`, a token at a time."""

    began: float
    ended: float
    tokens: int
    ok: bool = True


def traffic(rng: random.Random, users: int, longest_s: float) -> list[Request]:
    """Closed loop: each user sends again once it was answered; one in fifty fails in the middle."""
    done = []
    for _ in range(users):
        now = rng.random() * longest_s
        while now < SECONDS:
            ended = now + rng.uniform(0.01, longest_s)
            done.append(Request(now, ended, rng.randint(1, MAX_TOKENS), rng.random() > 0.02))
            now = ended
    return done


def look(served: Sequence[Request], at: float, **more: Any) -> Scrape:
    """What the engine's counters say at a moment; a token is counted when it is made, a request when it ended."""
    made = sum(
        int(each.tokens * min(1.0, max(0.0, (at - each.began) / (each.ended - each.began))))
        for each in served
    )
    usual = dict.fromkeys(Scrape._fields)
    usual |= {"at": S + at, "is_down": False, "started_at": S - 900.0, "models": (), "settings": ()}
    usual |= {"requests": float(sum(each.ended <= at for each in served))}
    return Scrape(**{**usual, "generation_tokens": float(made), **more})


def looks(rng: random.Random, requests: Sequence[Request], every_s: float = 10.0) -> list[Scrape]:
    """Looks whose moment is told up to 5 s before or after the counters were read."""
    times = [every_s * n + rng.random() for n in range(int(SECONDS / every_s))]
    told = [look(requests, at)._replace(at=S + at + rng.uniform(-5, 5)) for at in times]
    return sorted(told, key=lambda each: each.at)


def ours(rng: random.Random, requests: Sequence[Request], users: int, **more: Any) -> Ours:
    """What the blast counts: each request in the second of its end, or in one beside it."""
    ok, errors, tokens = ([0] * SECONDS for _ in range(3))
    for each in requests:
        second = int(each.ended + rng.uniform(-0.9, 0.9))
        if 0 <= second < SECONDS:
            ok[second] += each.ok
            errors[second] += not each.ok
            tokens[second] += each.tokens * each.ok
    known = sum(ok)
    usual = {"from_s": S, "seconds": np.array([ok, errors, tokens]), "cache_known": known}
    usual |= {"cache_hits": 0, "in_flight": users, "max_tokens": MAX_TOKENS}
    return Ours(**{**usual, **more})  # type: ignore[arg-type]


def pairs(again_ms: float = 2000.0) -> list[RequestRecord]:
    """Canaries: new requests take 2,080 ms."""
    told = []
    for number in range(8):
        unique = shot(2 * number, planned_at=AT + 10 * number)
        told += [unique, replace(twin(unique, 2 * number + 1), e2e_ms=again_ms)]
    return told


def seen_of(looked: Sequence[Scrape]) -> CounterStretch:
    seen = stretch(looked, S, S + SECONDS - 1)
    assert seen is not None
    return seen


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(st.integers(1, 24), st.floats(0.05, 40), st.floats(5, 30), st.integers(0, 2**32))
def test_an_honest_host_is_never_accused(
    users: int, longest_s: float, every_s: float, seed: int
) -> None:
    rng = random.Random(seed)
    users = min(users, max(1, int(40 * longest_s)))  # at most 80 requests a second
    requests = traffic(rng, users, longest_s)
    seen = stretch(looks(rng, requests, every_s), S, S + SECONDS - 1)
    if seen is not None:
        counted = ours(rng, requests, users)
        assert hidden_backend(seen, counted, pairs()) is None
        assert foreign_traffic(seen, counted, 0) is None
        # and once there are enough answers its counters hold them
        found = counted_of(seen, counted, pairs(), lambda: 0)
        assert found.holds or "answers between two looks" in (found.gap or "")


def half_hidden(again_ms: float = 2000.0, **more: Any) -> Verdict | None:
    """A host that hands every second request to an engine whose counters it does not show."""
    rng = random.Random(3)
    requests = traffic(rng, 8, 4.0)
    seen = seen_of(looks(rng, requests[::2]))
    return hidden_backend(seen, ours(rng, requests, 8, **more), pairs(again_ms))


def test_an_engine_that_made_half_of_the_answers_is_told() -> None:
    found = half_hidden()
    assert found is not None
    assert (found.code, found.confidence) == ("hidden_backend", "medium")
    assert "repeated requests take as long as new ones" in found.evidence


def test_what_a_cache_may_have_answered_accuses_nobody() -> None:
    # its twins come sooner; it says so; nobody could judge
    assert half_hidden(again_ms=900.0) is None
    assert half_hidden(cache_hits=30) is None
    assert half_hidden(cache_known=100) is None


def test_tokens_that_lack_without_requests_are_no_proof() -> None:
    rng = random.Random(3)
    requests = traffic(rng, 8, 4.0)
    fewer = [replace(each, tokens=each.tokens // 4) for each in requests]
    assert hidden_backend(seen_of(looks(rng, fewer)), ours(rng, requests, 8), pairs()) is None


def test_load_that_is_not_ours_is_told_and_canaries_are_ours() -> None:
    rng = random.Random(3)
    own, others = traffic(rng, 8, 4.0), traffic(rng, 8, 4.0)
    seen, counted = seen_of(looks(rng, own + others)), ours(rng, own, 8)
    assert surplus(seen, counted) >= 50
    found = foreign_traffic(seen, counted, 0)
    assert found is not None
    assert found.code == "foreign_traffic"
    # as many canaries explain it
    assert foreign_traffic(seen, counted, int(surplus(seen, counted))) is None


def test_a_few_requests_of_others_are_no_news() -> None:
    rng = random.Random(3)
    own, others = traffic(rng, 8, 4.0), traffic(rng, 1, 8.0)
    assert foreign_traffic(seen_of(looks(rng, own + others)), ours(rng, own, 8), 0) is None


# which looks are compared


def at(second: float, requests: float, **more: Any) -> Scrape:
    return look([], second, requests=requests, generation_tokens=10 * requests, **more)


def test_the_longest_stretch_of_one_process_is_compared() -> None:
    row = [at(10 * n, 5.0 * n) for n in range(1, 6)]
    row += [at(10 * n, n - 6.0, started_at=S + 55.0) for n in range(6, 20)]
    seen = seen_of(row)
    assert (seen.first_at - S, seen.last_at - S) == (60, 190)
    assert (seen.requests, seen.tokens) == (13, 130)
    # six seconds of grace on either side
    assert seen.inside == (S + 66, S + 184)
    assert seen.around == (S + 54, S + 196)


def test_a_host_that_was_down_in_between_may_be_the_same_process() -> None:
    row = [at(10 * n, 5.0 * n) for n in range(1, 20)]
    row[8] = row[8]._replace(is_down=True, requests=None, generation_tokens=None, started_at=None)
    assert seen_of(row).last_at - S == 190


def test_counters_that_fall_are_two_hosts_behind_one_address() -> None:
    row = [at(10 * n, (5.0 if n % 2 else 3.0) * n) for n in range(1, 20)]
    assert stretch(row, S, S + SECONDS - 1) is None


def test_few_looks_or_looks_at_the_edge_tell_nothing() -> None:
    row = [at(30 * n, 5.0 * n) for n in range(1, 5)]
    assert seen_of(row).requests == 15
    assert stretch(row[:3], S, S + SECONDS - 1) is None
    # the last one is less than six seconds before the end of what was counted
    assert stretch(row, S, S + 125) is None
    assert stretch([at(n, n) for n in range(10, 25)], S, S + SECONDS - 1) is None
    assert seen_of([at(n, n) for n in range(10, 26)]).requests == 15


def test_before_a_runs_start_and_after_its_end_nothing_was_sent() -> None:
    row = [at(5 * n, 5.0 * n) for n in range(5)]
    assert stretch(row, S, S + 20) is None
    seen = stretch(row, S, S + 20, from_start=True, to_end=True)
    assert seen is not None
    assert (seen.requests, seen.inside) == (20, (S + 6, S + 14))
    # of a run that goes on the last looks are not compared yet
    assert stretch(row, S, S + 20, from_start=True) is None


# whether counters hold what was answered


def whole(answers: int, requests: float, in_flight: int = 8) -> CounterDeltas:
    """So many answers in the 20 s that surely lie between two looks, the counters rose by `requests`."""
    seen = CounterStretch(
        first_at=S + 4.0, last_at=S + 36.0, requests=requests, tokens=10 * requests
    )
    seconds = np.zeros((3, 40), dtype=np.int64)
    seconds[:, 20] = answers, 0, 10 * answers
    return counted_of(
        seen,
        Ours(
            from_s=S,
            seconds=seconds,
            cache_known=answers,
            cache_hits=0,
            in_flight=in_flight,
            max_tokens=10,
        ),
        [],
        lambda: 0,
    )


def test_counters_hold_what_they_rose_by_or_it_is_said_why_nobody_knows() -> None:
    assert whole(100, 100).holds
    # eight may be half done, and of 100 fewer than 20 may lack for a reason that nobody thought of
    assert whole(100, 73).holds
    lacks = whole(100, 72)
    assert lacks.lacks
    assert lacks.gap == (
        "its counters lack 20 of 100 answered requests, and nobody can tell"
        " whether a response cache kept them from the engine"
    )
    # nine are too few; and of 20 all but 16 could be half done, which would hide an engine that made none
    assert whole(9, 9, in_flight=1).gap == "only 9 answers between two looks at its counters so far"
    assert whole(20, 20, in_flight=16).holds
    assert not whole(20, 20, in_flight=17).holds


# one engine behind two addresses


def test_looks_that_contradict_each_other_are_two_engines() -> None:
    one = [at(10 * n, 50.0 * n, config_hash="c") for n in range(6)]
    other = [at(10 * n + 7, 50.0 * n + 35, config_hash="c") for n in range(6)]
    assert are_one_engine(one, other)
    assert not are_one_engine(one, [each._replace(config_hash="d") for each in other])
    assert not are_one_engine(one, [each._replace(config_hash=None) for each in other])
    assert not are_one_engine(one, [each._replace(started_at=S - 100.0) for each in other])
    # the second address counts less than the first one did seven seconds before
    assert not are_one_engine(one, [each._replace(requests=each.requests - 36) for each in other])  # type: ignore[operator]
