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

from toolkit.board.counters import (
    Comparison,
    Rise,
    Sent,
    are_one_engine,
    compared,
    longest_rise,
)
from toolkit.board.scrapes import Scrape
from toolkit.records import RequestRecord

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


def scrape(served: Sequence[Request], at: float, **more: Any) -> Scrape:
    """What the engine's counters say at a moment; a token is counted when it is made, a request when it ended."""
    made = sum(
        int(each.tokens * min(1.0, max(0.0, (at - each.began) / (each.ended - each.began))))
        for each in served
    )
    usual = dict.fromkeys(Scrape._fields)
    usual |= {"at": S + at, "is_down": False, "started_at": S - 900.0, "models": (), "settings": ()}
    usual |= {"requests": float(sum(each.ended <= at for each in served))}
    return Scrape(**{**usual, "generation_tokens": float(made), **more})


def scrapes(rng: random.Random, requests: Sequence[Request], every_s: float = 10.0) -> list[Scrape]:
    """Scrapes whose moment is noted up to 5 s before or after the counters were read."""
    times = [every_s * n + rng.random() for n in range(int(SECONDS / every_s))]
    found = [scrape(requests, at)._replace(at=S + at + rng.uniform(-5, 5)) for at in times]
    return sorted(found, key=lambda each: each.at)


def sent_of(rng: random.Random, requests: Sequence[Request], users: int, **more: Any) -> Sent:
    """What the blast counts: each request in the second of its end, or in one beside it."""
    seconds = np.zeros((3, SECONDS), dtype=np.int64)
    for each in requests:
        second = int(each.ended + rng.uniform(-0.9, 0.9))
        if 0 <= second < SECONDS:
            seconds[:, second] += each.ok, not each.ok, each.tokens * each.ok
    usual = {"from_s": S, "seconds": seconds, "cache_known": seconds[0].sum(), "cache_hits": 0}
    usual |= {"in_flight": users, "max_tokens": MAX_TOKENS}
    return Sent(**{**usual, **more})  # type: ignore[arg-type]


def pairs(again_ms: float = 2000.0) -> list[RequestRecord]:
    """Canaries: new requests take 2,080 ms."""
    found = []
    for number in range(8):
        unique = shot(2 * number, planned_at=AT + 10 * number)
        found += [unique, replace(twin(unique, 2 * number + 1), e2e_ms=again_ms)]
    return found


def rise_of(found: Sequence[Scrape]) -> Rise:
    rise = longest_rise(found, S, S + SECONDS - 1)
    assert rise is not None
    return rise


def codes(comparison: Comparison) -> list[str]:
    return [each.code for each in comparison.accusations]


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(st.integers(1, 24), st.floats(0.05, 40), st.floats(5, 30), st.integers(0, 2**32))
def test_an_honest_host_is_never_accused(
    users: int, longest_s: float, every_s: float, seed: int
) -> None:
    rng = random.Random(seed)
    users = min(users, max(1, int(40 * longest_s)))  # at most 80 requests a second
    requests = traffic(rng, users, longest_s)
    rise = longest_rise(scrapes(rng, requests, every_s), S, S + SECONDS - 1)
    if rise is not None:
        found = compared(rise, sent_of(rng, requests, users), pairs(), lambda: 0)
        # and once there are enough answers its counters hold them
        assert found == Comparison() or "answers between two looks" in (found.gap or "")
        assert not found.accusations


def half_hidden(again_ms: float = 2000.0, **more: Any) -> Comparison:
    """A host that hands every second request to an engine whose counters it does not show."""
    rng = random.Random(3)
    requests = traffic(rng, 8, 4.0)
    rise = rise_of(scrapes(rng, requests[::2]))
    return compared(rise, sent_of(rng, requests, 8, **more), pairs(again_ms), lambda: 0)


def test_an_engine_that_made_half_of_the_answers_is_accused_unless_a_cache_may_have_them() -> None:
    (found,) = half_hidden().accusations
    assert (found.code, found.confidence) == ("hidden_backend", "medium")
    assert "repeated requests take as long as new ones" in found.evidence
    # its duplicates come sooner; it says so; nobody could judge
    for lacking in (half_hidden(900.0), half_hidden(cache_hits=30), half_hidden(cache_known=100)):
        assert (lacking.accusations, lacking.lacks) == ((), True)


def test_tokens_that_lack_without_requests_are_no_proof() -> None:
    rng = random.Random(3)
    requests = traffic(rng, 8, 4.0)
    fewer = [replace(each, tokens=each.tokens // 4) for each in requests]
    sent = sent_of(rng, requests, 8)
    assert compared(rise_of(scrapes(rng, fewer)), sent, pairs(), lambda: 0) == Comparison()


def test_load_that_is_not_ours_is_seen_and_canaries_are_ours() -> None:
    rng = random.Random(3)
    own, others, few = traffic(rng, 8, 4.0), traffic(rng, 8, 4.0), traffic(rng, 1, 8.0)
    rise, sent = rise_of(scrapes(rng, own + others)), sent_of(rng, own, 8)
    assert codes(compared(rise, sent, [], lambda: 0)) == ["foreign_traffic"]
    # as many canaries explain it, and a few requests of others are no news
    assert codes(compared(rise, sent, [], lambda: int(rise.surplus(sent)))) == []
    assert codes(compared(rise_of(scrapes(rng, own + few)), sent, [], lambda: 0)) == []


# which scrapes are compared


def at(second: float, requests: float, **more: Any) -> Scrape:
    return scrape([], second, requests=requests, generation_tokens=10 * requests, **more)


def test_the_longest_stretch_of_one_process_is_compared() -> None:
    row = [at(10 * n, 5.0 * n) for n in range(1, 6)]
    row += [at(10 * n, n - 6.0, started_at=S + 55.0) for n in range(6, 20)]
    assert rise_of(row) == Rise(first_at=S + 60, last_at=S + 190, requests=13, tokens=130)
    # six seconds of grace on either side
    assert rise_of(row).around == (S + 54, S + 196)
    # one that was down in between may be the same process
    down = {"is_down": True, "requests": None, "generation_tokens": None, "started_at": None}
    row[8] = row[8]._replace(**down)
    assert (rise_of(row).first_at, rise_of(row).last_at) == (S + 60, S + 190)
    # counters that fall are two hosts behind one address
    turns = [at(10 * n, (5.0 if n % 2 else 3.0) * n) for n in range(1, 20)]
    assert longest_rise(turns, S, S + SECONDS - 1) is None


def test_few_scrapes_or_scrapes_at_the_edge_show_nothing() -> None:
    row = [at(30 * n, 5.0 * n) for n in range(1, 5)]
    assert rise_of(row).requests == 15
    assert longest_rise(row[:3], S, S + SECONDS - 1) is None
    # the last one is less than six seconds before the end of what was counted
    assert longest_rise(row, S, S + 125) is None
    assert longest_rise([at(n, n) for n in range(10, 25)], S, S + SECONDS - 1) is None
    assert rise_of([at(n, n) for n in range(10, 26)]).requests == 15


def test_before_a_runs_start_and_after_its_end_nothing_was_sent() -> None:
    row = [at(5 * n, 5.0 * n) for n in range(5)]
    assert longest_rise(row, S, S + 20) is None
    rise = longest_rise(row, S, S + 20, from_start=True, to_end=True)
    assert rise is not None
    assert rise.requests == 20
    # of a run that goes on the last scrapes are not compared yet
    assert longest_rise(row, S, S + 20, from_start=True) is None


# whether counters hold what was answered


def whole(answers: int, requests: float, in_flight: int = 8, errors: int = 0) -> Comparison:
    """So many answers in the 20 s that surely lie between two scrapes, the counters rose by `requests`."""
    rise = Rise(first_at=S + 4.0, last_at=S + 36.0, requests=requests, tokens=10 * requests)
    seconds = np.zeros((3, 40), dtype=np.int64)
    seconds[:, 20] = answers, errors, 10 * answers
    counted = {"cache_known": seconds[0].sum(), "cache_hits": np.int64(0)}
    sent = Sent(from_s=S, seconds=seconds, in_flight=in_flight, max_tokens=10, **counted)
    return compared(rise, sent, [], lambda: 0)


def test_counters_hold_what_they_rose_by_or_it_is_said_why_nobody_knows() -> None:
    holds = Comparison()
    assert whole(100, 100) == holds
    # eight may be half done, and of 100 fewer than 20 may lack for a reason that nobody thought of
    assert whole(100, 73) == holds
    assert whole(100, 72) == Comparison(
        gap=(
            "its counters lack 20 of 100 answered requests, and nobody can tell"
            " whether a response cache kept them from the engine"
        ),
        lacks=True,
    )
    # failed requests reached it, too
    assert whole(100, 168, errors=60) == holds
    assert codes(whole(100, 168)) == ["foreign_traffic"]
    # nine are too few; and of 20 all but 16 could be half done, which would hide an engine that made none
    assert whole(9, 9, in_flight=1).gap == "only 9 answers between two looks at its counters"
    assert whole(20, 20, in_flight=16) == holds
    assert whole(20, 20, in_flight=17) != holds


def test_tokens_that_half_done_requests_may_have_made_are_no_proof() -> None:
    # 100 answers of 10 tokens, of which 50 requests lack; eight in flight may have made 80 tokens more than was answered
    for tokens, accused in ((770, []), (690, ["hidden_backend"])):
        rise = Rise(first_at=S + 4.0, last_at=S + 36.0, requests=50, tokens=tokens)
        seconds = np.zeros((3, 40), dtype=np.int64)
        seconds[:, 20] = 100, 0, 1000
        counted = {"cache_known": seconds[0].sum(), "cache_hits": np.int64(0)}
        sent = Sent(from_s=S, seconds=seconds, in_flight=8, max_tokens=10, **counted)
        assert codes(compared(rise, sent, pairs(), lambda: 0)) == accused


def test_scrapes_that_contradict_each_other_are_two_engines() -> None:
    one = [at(10 * n, 50.0 * n, config_hash="c") for n in range(6)]
    other = [at(10 * n + 7, 50.0 * n + 35, config_hash="c") for n in range(6)]
    assert are_one_engine(one, other)
    for change in ({"config_hash": "d"}, {"config_hash": None}, {"started_at": S - 100.0}):
        assert not are_one_engine(one, [each._replace(**change) for each in other])  # type: ignore[arg-type]
    # the second address counts less than the first one did seven seconds before
    assert not are_one_engine(one, [each._replace(requests=each.requests - 36) for each in other])  # type: ignore[operator]
