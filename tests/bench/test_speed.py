"""Cold, full, or failing fast: told by ratio and by difference, so that noise is no accusation."""

from dataclasses import replace
from typing import Any

import pytest
from support.shots import AT, accused, books, failed, no_books, replayed, shot, step, told, uniques

from toolkit.records import RequestRecord
from toolkit.stats import Sketch

Records = list[RequestRecord]

# cold


def after_a_first_wave(first_ms: float, **more: Any) -> Records:
    """Eight requests that take so long to their first token, then minutes later 24 usual ones, 100 ms."""
    later = [shot(n, planned_at=AT + 600 + n // 8 * 2.5, **more) for n in range(8, 32)]
    return [*(shot(n, first_ms=first_ms, **more) for n in range(8)), *later]


def first_and_later(first: int, first_ms: float, later: int, **more: Any) -> Records:
    return [
        *(shot(n, first_ms=first_ms, **more) for n in range(first)),
        *(shot(n, planned_at=AT + 60 + n) for n in range(first, first + later)),
    ]


def cold_throughout(quick: int = 2, **more: Any) -> Records:
    """Two waves of 50 tokens of prompt each that both stand still for 9 s; some get in at once."""
    waves = [
        shot(
            n,
            first_ms=9000.0 * (2 - n // 8),
            planned_at=AT + n // 8 * 60,
            **{"prompt_tokens": 50, "token_ms": 2.0} | more,
        )
        for n in range(16)
    ]
    return [*waves[: 16 - quick], *(replace(s, ttft_ms=5.0) for s in waves[16 - quick :])]


def gaps(*counted: tuple[float, int]) -> bytes:
    sketch = Sketch()
    for gap_ms, count in counted:
        sketch.add(gap_ms, count)
    return sketch.to_bytes()


WAVE = after_a_first_wave(89_000.0)
TIMED_OUT = [failed(n, "timeout", took_ms=120_000.0) for n in range(8)]
STALLED = cold_throughout(token_ms=90.0)
LONG_FIRST = [replace(each, prompt_tokens=30_000) for each in WAVE[:8]]
AT_THE_END = cold_throughout(token_ms=0.01)


@pytest.mark.parametrize(
    ("records", "confidence"),
    [
        (WAVE, "medium"),
        (after_a_first_wave(89_000.0, stream=False), "medium"),  # by their end
        ([*TIMED_OUT, *WAVE[8:]], "medium"),  # which waited as long
        ([*(shot(n, kind="warmup", first_ms=20_000.0) for n in range(4)), *WAVE[8:]], "medium"),
        (first_and_later(1, 2000.0, 15), "low"),
        # ratio and difference must both be large: eight prompts read one after the other take 8 times 100 ms
        (after_a_first_wave(200.0), None),
        (after_a_first_wave(590.0), None),
        (after_a_first_wave(799.0), None),
        (after_a_first_wave(801.0), "medium"),
        ([replace(s, ttft_ms=(s.ttft_ms or 0) * 10) for s in after_a_first_wave(500.0)], None),
        # of two: six times as long and 500 ms more, beside three later ones
        (first_and_later(2, 600.0, 3), "medium"),
        (first_and_later(2, 599.0, 3), None),
        (first_and_later(2, 600.0, 2), None),
        # later answers are comparable with four fifths of the tokens, prompt and answer
        ([*after_a_first_wave(89_000.0, stream=False)[:8],
          *(shot(n, stream=False, tokens=80, planned_at=AT + 600) for n in range(8, 16))], "medium"),
        ([*after_a_first_wave(89_000.0, stream=False)[:8],
          *(shot(n, stream=False, tokens=79, planned_at=AT + 600) for n in range(8, 16))], None),
        ([*LONG_FIRST, *WAVE[8:]], None),
        # in part: the others of the eight were answered at once, e.g., by a replica that was warm
        ([*uniques(1), *WAVE[1:]], "medium"),
        ([*uniques(6), *WAVE[6:]], "medium"),
        ([*uniques(7), *WAVE[7:]], None),  # a hiccup
        # later ones wait as long, in turns: that is a queue
        ([*uniques(6), *WAVE[6:8],
          *(s if n % 3 else replace(s, ttft_ms=50_000.0) for n, s in enumerate(WAVE[8:]))], None),
        # too short to become warm: 8 prompts of 50 tokens at 2 ms a token are 800 ms, not 18 s; of 250, 4 s
        (cold_throughout(), "medium"),
        (cold_throughout(prompt_tokens=250), None),
        (cold_throughout(prompt_tokens=None), None),
        (cold_throughout(quick=1), None),  # a gateway that holds every request
        # a pace is that of most gaps and not of a stall between them
        (cold_throughout(token_ms=90.0, itl=gaps((2.0, 98), (9000.0, 1))), "medium"),
        (STALLED, None),
        # short answers of a host that streams only at the end show nothing
        ([*AT_THE_END[:14], *(replace(s, output_tokens=2) for s in AT_THE_END[14:])], None),
    ],
)  # fmt: skip
def test_a_start_is_cold_where_it_took_far_longer(records: Records, confidence: str | None) -> None:
    assert accused(records).get("cold") == confidence
    assert set(accused(records)) <= {"cold"}


def test_replays_do_not_show_that_a_host_can_be_quick() -> None:
    first = cold_throughout(quick=0)
    # 0.6 ms a token: too slow to be told from an engine that is alone, too fast for this one's
    took = {"e2e_ms": 62.0, "took_ms": 62.0, "tpot_ms": 0.6, "planned_at": AT + 90}
    memory = [replayed(first[n], 16 + n, sent_at=AT + 90, **took) for n in range(6)]
    assert accused([*first, *memory], no_books()) == {}
    slow = uniques(8, first_ms=5000.0)
    found = told([*slow, *(replayed(slow[n], 8 + n) for n in range(8))], no_books())
    assert "cold" not in found
    assert "cold: no new request followed" in found["not_judged"].evidence


def test_a_start_is_told_with_what_it_is_held_against() -> None:
    assert told(WAVE)["cold"].evidence == (
        "the fastest of the first 8 took 89.0 s, later ones 100 ms (median)"
    )
    assert told(cold_throughout())["cold"].evidence == (
        "the fastest of the first 8 took 18.0 s to its first token, where reading all their prompts"
        " takes 800 ms even at the pace of writing"
    )
    assert told([*uniques(6), *WAVE[6:]])["cold"].evidence == (
        "2 of 8 requests of the first wave took 89.0 s or more, later ones 100 ms (median)"
    )


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (uniques(8), "cold: no new request followed the first answers"),
        (cold_throughout(quick=1), "cold: the first answers stood still"),
        (cold_throughout(quick=1, token_ms=0.09), None),  # it streams only at the end
    ],
)
def test_a_start_that_nothing_follows_is_not_judged(records: Records, why: str | None) -> None:
    evidence = told(records)["not_judged"].evidence
    assert why in evidence if why else "cold" not in evidence


# saturated


def open_loop(*e2e_ms: float) -> Records:
    """One request a second whatever the answers take; streams with 100 ms to their first token."""
    return [
        shot(n, concurrency=None, tokens=2, planned_at=AT + n, token_ms=ms - 100.0)
        for n, ms in enumerate(e2e_ms)
    ]


def thirds(*e2e_ms: float, each: int = 4) -> Records:
    return open_loop(*(ms for ms in e2e_ms for _ in range(each)))


@pytest.mark.parametrize(
    ("records", "is_told"),
    [
        (open_loop(*(500.0 + 400.0 * n for n in range(24))), True),
        (open_loop(*(500.0 + 400.0 * n for n in range(11))), False),  # too few to tell
        (open_loop(*[2000.0] * 24), False),
        (open_loop(*[500.0] * 8, *[2000.0] * 16), False),  # an idle host fills up, and then holds
        (open_loop(*[2000.0] * 20, *[9000.0] * 4), False),  # not half of a third
        (open_loop(*(9000.0 - 300 * n for n in range(24))), False),
        (thirds(1000.0, 1500.0, 2000.0), True),
        (thirds(1000.0, 1500.0, 1999.0), False),  # not twice
        (thirds(400.0, 600.0, 899.0), False),  # 499 ms more
        (thirds(1000.0, 1299.0, 2500.0), False),  # held, and then one slow moment
        (thirds(1000.0, 2000.0, 2599.0), False),
        (thirds(1000.0, 1500.0, 2000.0, each=3), False),  # nine requests
        # timeouts count as the waiting that they were
        ([*open_loop(*(1000.0 + 1000.0 * n for n in range(16))),
          *(failed(n, "timeout", took_ms=30_000.0, concurrency=None, planned_at=AT + n)
            for n in range(16, 24))], True),
    ],
)  # fmt: skip
def test_an_open_loop_that_falls_ever_further_behind_is_saturated(
    records: Records, is_told: bool
) -> None:
    assert accused(records) == ({"saturated": "medium"} if is_told else {})


# an answer takes 100 + 99 * 20 = 2,080 ms, one of one token 64: a step is at most that long
ONE_TOKEN = uniques(16, tokens=1, max_tokens=1, first_ms=64.0)
# room for two of eight: they are served two by two, the last ones after four times as long;
# e2e: 100 + 99 * (20, 40, 60, 80) ms, 5,050 on average; six of eight wait, 0.75 * 5,050 = 3,788
IN_TURNS = [shot(n, token_ms=20.0 * (1 + n % 8 // 2)) for n in range(16)]
# a first wave of 1, 2, ... 8 s before the usual 2,080 ms, and two waves without a queue: 36 s more for the first, and
# the mean answer took 3,580 ms. 24 * queued - 36,000 would have to be a fifth of the later ones' 16 * 2,080: 1,777.3 ms
ALL_AT_ONCE = [
    *(shot(n, first_ms=100.0 + 1000 * (n + 1), stream=False) for n in range(8)),
    *(shot(n, planned_at=AT + 60 + n // 8 * 10, stream=False) for n in range(8, 24)),
]
# the whole first wave stood still together, 7 of 8 in the queue; and one stall of three in a long run
STOOD_STILL = [
    *(shot(n, first_ms=18_000.0, stream=False) for n in range(8)),
    *(shot(n, first_ms=9000.0, stream=False, planned_at=AT + 60) for n in range(8, 16)),
]
ONE_STALL = [shot(n, first_ms=40_000.0 if 8 <= n < 16 else 100.0) for n in range(32)]


def every(gap_s: float) -> Records:
    """64 requests of an open loop; the first answer took 2.08 s."""
    return [shot(n, concurrency=None, planned_at=AT + n * gap_s) for n in range(64)]


@pytest.mark.parametrize(
    ("records", "queued_ms", "waiting", "is_told"),
    [
        (uniques(16), 700.0, 25, True),
        (uniques(16), 700.0, 0, False),
        (uniques(16), 700.0, None, False),
        (uniques(16), 400.0, 9, False),  # less than a fifth
        (uniques(16), None, 9, False),
        (ONE_TOKEN, 14.0, 25, False),  # waiting for the running step
        (ONE_TOKEN, 40.0, 25, True),  # most of the time
        (IN_TURNS, 3700.0, 6, True),
        (IN_TURNS, 1500.0, 6, False),  # 0.3 * 8 = 2.4 wait on average: less than half of six
        (ALL_AT_ONCE, 1777.0, 1, False),
        (ALL_AT_ONCE, 1778.0, 1, True),
        (STOOD_STILL, 9000.0, 7, False),
        (ONE_STALL, 5000.0, 4, False),
        (every(0.03), 900.0, 15, False),  # all were sent before the first answer: maybe a cold start
        (every(0.3), 900.0, 15, True),
    ],
)  # fmt: skip
def test_the_servers_own_queue_tells_where_it_stands_all_the_time(
    records: Records, queued_ms: float | None, waiting: float | None, is_told: bool
) -> None:
    ledger = books(records, queue_mean_ms=queued_ms, waiting_max=waiting)
    assert accused(records, ledger) == ({"saturated": "medium"} if is_told else {})


def test_while_a_host_is_cold_its_queue_says_nothing() -> None:
    for records, queued_ms in ((WAVE, 40_000.0), (cold_throughout(), 9000.0)):
        ledger = books(records, queue_mean_ms=queued_ms, waiting_max=9)
        assert accused(records, ledger) == {"cold": "medium"}


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        ({"preemptions": 1}, {}),  # of 40 requests
        ({"preemptions": 2}, {"saturated": "medium"}),
        ({"preemptions": 2, "queue_mean_ms": 700.0, "waiting_max": 25}, {"saturated": "high"}),
    ],
)
def test_preemptions_say_that_work_was_done_twice(
    counted: dict[str, float], expected: dict[str, str]
) -> None:
    assert accused(uniques(40), books(uniques(40), **counted)) == expected


def test_saturation_is_told_with_its_figures() -> None:
    def evidence(records: Records, ledger: Any = None, **more: Any) -> str:
        return told(records, ledger, **more)["saturated"].evidence

    flat = [step(1, 0.5, 2000.0), step(8, 4.0, 2000.0), step(32, 4.1, 7800.0)]
    assert evidence(uniques(16), levels=flat) == (
        "beyond 8 requests at once it answers no more a second (4.00, with 32 4.10) and takes"
        " longer (2,000 ms, then 7,800 ms)"
    )
    climbing = [step(1, 0.5, 2000.0), step(8, 4.0, 2000.0), step(32, 12.0, 2700.0)]
    assert accused(uniques(16), levels=climbing) == {}
    # thirds of eight: 500 + 400 * 3.5, and 500 + 400 * 19.5
    assert evidence(open_loop(*(500.0 + 400.0 * n for n in range(24)))) == (
        "answers fell ever further behind the plan, from 1,900 ms in the first third"
        " to 8,300 ms in the last (medians)"
    )
    assert evidence(uniques(16), books(uniques(16), queue_mean_ms=700.0, waiting_max=25)) == (
        "requests waited 700 ms of their 2,080 ms in the server's queue (means), 25 of them at once"
    )


# fast failures

BAD = [failed(14), failed(15, "cut", took_ms=300.0), failed(13, "stream_error", took_ms=200.0)]


@pytest.mark.parametrize(
    ("records", "is_told"),
    [
        ([*uniques(13), *BAD], True),
        ([*uniques(14), *(failed(n, took_ms=1040.0) for n in (14, 15))], True),  # half of 2,080 ms
        ([*uniques(14), *(failed(n, took_ms=1041.0) for n in (14, 15))], False),
        ([*uniques(14), *(failed(n, "timeout", took_ms=120_000.0) for n in (14, 15))], False),
        ([*uniques(15), failed(15)], False),  # a single one moves no median
        ([*uniques(48), failed(48), failed(49)], False),
        ([*uniques(48)[10:], failed(48), failed(49)], True),  # 2 of 40
        # requests that never left are the client's
        ([*uniques(8), *(replace(failed(n), sent_at=None, took_ms=None) for n in range(8, 16))], False),
        ([*(replace(failed(n), kind="warmup") for n in range(4)), *uniques(16)], False),
    ],
)  # fmt: skip
def test_failures_that_end_sooner_than_answers_look_like_speed(
    records: Records, is_told: bool
) -> None:
    assert accused(records) == ({"fast_failures": "high"} if is_told else {})


def test_fast_failures_are_told_with_their_kinds_and_dead_hosts_are_not_fast() -> None:
    assert told([*uniques(13), *BAD])["fast_failures"].evidence == (
        "3 of 16 requests failed (`cut`, `http_500`, `stream_error`) after 200 ms"
        " where answers take 2,080 ms (medians)"
    )
    found = told([failed(n, "connect") for n in range(16)], no_books())
    assert set(found) == {"not_judged"}
    assert found["not_judged"].evidence == "most codes: nothing was answered"


def test_replays_do_not_make_failures_look_slow() -> None:
    first = uniques(8)
    memory = [replayed(first[n], 8 + n) for n in range(8)]
    records = [*first, *memory, *(failed(n, took_ms=600.0) for n in range(16, 20))]
    found = accused(records, books(records, without=memory))
    assert found == {"response_cache": "high", "fast_failures": "high"}
