"""Cold, full, or failing fast: told by ratio and by difference, so that noise is no accusation."""

from dataclasses import replace

import pytest
from support.shots import AT, accused, books, failed, no_books, replayed, shot, step, told, uniques

from toolkit.records import RequestRecord
from toolkit.stats import Sketch

# cold


def after_a_first_wave(first_ms: float, **more: object) -> list[RequestRecord]:
    """Eight requests that take so long to their first token, then a minute later 24 usual ones."""
    later = [shot(n, planned_at=AT + 600 + n // 8 * 2.5, **more) for n in range(8, 32)]
    return [*(shot(n, first_ms=first_ms, **more) for n in range(8)), *later]


def test_a_first_wave_that_took_far_longer_is_cold() -> None:
    found = told(after_a_first_wave(89_000.0))
    assert found.keys() - {"not_judged"} == {"cold"}
    assert found["cold"].confidence == "medium"
    assert found["cold"].evidence == (
        "the fastest of the first 8 took 89.0 s, later ones 100 ms (median)"
    )


def test_a_cold_warm_up_tells_of_it_too() -> None:
    warmup = [shot(n, kind="warmup", first_ms=20_000.0) for n in range(4)]
    later = [shot(n, planned_at=AT + 60 + n // 8 * 2.5) for n in range(16)]
    assert accused([*warmup, *later]) == {"cold": "medium"}


def test_a_single_slow_start_is_a_hint() -> None:
    later = [shot(n, planned_at=AT + 60 + n) for n in range(1, 16)]
    assert accused([shot(0, first_ms=2000.0), *later]) == {"cold": "low"}


def test_whole_answers_show_it_by_their_end() -> None:
    assert accused(after_a_first_wave(89_000.0, stream=False)) == {"cold": "medium"}


def test_first_requests_that_gave_up_waited_as_long() -> None:
    shots = after_a_first_wave(0.0)
    lost = [failed(n, "timeout", took_ms=120_000.0) for n in range(8)]
    assert accused([*lost, *shots[8:]], books(shots[8:])) == {"cold": "medium"}


@pytest.mark.parametrize(
    "first_ms",
    [
        200.0,  # twice as slow
        590.0,  # 490 ms more
        799.0,  # eight prompts read one after the other: eight times 100 ms for the last
    ],
)
def test_a_slower_first_wave_is_not_cold(first_ms: float) -> None:
    assert accused(after_a_first_wave(first_ms)) == {}


def test_ratio_and_difference_must_both_be_large() -> None:
    # 100 ms -> 801 ms is eight times and 701 ms more; 1 s -> 5 s is 4 s more but five times
    assert accused(after_a_first_wave(801.0)) == {"cold": "medium"}
    slow = [replace(each, ttft_ms=each.ttft_ms * 10) for each in after_a_first_wave(500.0)]
    assert accused(slow) == {}


@pytest.mark.parametrize(
    ("first_ms", "later", "is_cold"),
    [
        (600.0, 3, True),  # six times as long, and 500 ms more
        (599.0, 3, False),
        (600.0, 2, False),  # too few to know what is usual
    ],
)
def test_a_first_wave_of_two_beside_later_ones(first_ms: float, later: int, is_cold: bool) -> None:
    first = [shot(n, first_ms=first_ms) for n in range(2)]
    shots = [*first, *(shot(n, planned_at=AT + 60 + n) for n in range(2, 2 + later))]
    assert ("cold" in accused(shots)) is is_cold


@pytest.mark.parametrize(("tokens", "is_cold"), [(80, True), (79, False)])
def test_later_answers_are_comparable_with_four_fifths_of_the_tokens(
    tokens: int, is_cold: bool
) -> None:
    first = [shot(n, stream=False, first_ms=89_000.0) for n in range(8)]
    later = [shot(n, stream=False, tokens=tokens, planned_at=AT + 600) for n in range(8, 16)]
    assert ("cold" in accused([*first, *later])) is is_cold


def cold_throughout(quick: int = 2, **more: object) -> list[RequestRecord]:
    """Two waves of 50 tokens of prompt each that both stand still for 9 s; some get in at once."""
    waves = [shot(n, first_ms=9000.0 * (2 - n // 8), prompt_tokens=50, **more) for n in range(16)]
    waves = [
        replace(s, planned_at=AT + n // 8 * 60, sent_at=AT + n // 8 * 60)
        for n, s in enumerate(waves)
    ]
    return [*waves[: 16 - quick], *(replace(s, ttft_ms=5.0) for s in waves[16 - quick :])]


def test_a_run_too_short_to_become_warm_is_told_by_the_pace_of_writing() -> None:
    found = told(cold_throughout(token_ms=2.0))
    # 8 prompts of 50 tokens at 2 ms a token: 800 ms, and five times that are less than 18 s
    assert found["cold"].confidence == "medium"
    assert found["cold"].evidence == (
        "the fastest of the first 8 took 18.0 s to its first token, where reading all their prompts"
        " takes 800 ms even at the pace of writing"
    )


def test_a_pace_is_that_of_most_gaps_and_not_of_a_stall_between_them() -> None:
    sketch = Sketch()
    sketch.add(2.0, 98)
    sketch.add(9000.0)
    shots = cold_throughout(token_ms=90.0, itl=sketch.to_bytes())
    assert "cold" in accused(shots)
    assert "cold" not in accused([replace(each, itl=None) for each in shots])


def test_long_prompts_may_take_that_long_to_read() -> None:
    # 8 * 250 tokens at 2 ms: 4 s, of which 18 s are not five times
    assert accused([replace(s, prompt_tokens=250) for s in cold_throughout(token_ms=2.0)]) == {}
    assert accused([replace(s, prompt_tokens=None) for s in cold_throughout(token_ms=2.0)]) == {}


def test_a_gateway_that_holds_every_request_is_slow_and_not_cold() -> None:
    found = told(cold_throughout(quick=1, token_ms=2.0))
    assert set(found) == {"not_judged"}
    assert found["not_judged"].evidence.startswith(
        "response_cache: no request was answered twice; cold: the first answers stood still"
    )
    at_the_end = told(cold_throughout(quick=1, token_ms=0.09))
    assert "cold" not in at_the_end["not_judged"].evidence


def test_short_answers_of_a_host_that_streams_at_the_end_show_nothing() -> None:
    shots = cold_throughout(token_ms=0.01)
    short = [replace(s, output_tokens=2) for s in shots[14:]]
    assert accused([*shots[:14], *short]) == {}


def test_replays_do_not_show_that_a_host_can_be_quick() -> None:
    first = cold_throughout(quick=0, token_ms=2.0)
    # 0.6 ms a token: too slow to be told from an engine that is alone, too fast for this one's
    took = {"e2e_ms": 62.0, "took_ms": 62.0, "tpot_ms": 0.6, "planned_at": AT + 90}
    memory = [replayed(first[n], 16 + n, sent_at=AT + 90, **took) for n in range(6)]
    assert accused([*first, *memory], no_books()) == {}


@pytest.mark.parametrize(("waited", "is_cold"), [(7, True), (2, True), (1, False)])
def test_a_first_wave_that_waited_in_part_is_cold_and_a_single_hiccup_is_not(
    waited: int, is_cold: bool
) -> None:
    # the others of the eight were answered at once, e.g., by a replica that was warm
    quick = [shot(n) for n in range(8 - waited)]
    shots = [*quick, *after_a_first_wave(89_000.0)[8 - waited :]]
    assert ("cold" in accused(shots)) is is_cold
    # later ones wait as long, in turns: that is a queue
    queue = [replace(each, ttft_ms=50_000.0) if n % 2 else each for n, each in enumerate(shots)]
    assert "cold" not in accused([*shots[:8], *queue[8:]])


def test_long_prompts_first_and_short_ones_later_are_no_comparison() -> None:
    shots = after_a_first_wave(20_000.0)
    long = [replace(each, prompt_tokens=30_000) for each in shots[:8]]
    assert accused([*long, *shots[8:]]) == {}


def test_long_whole_answers_first_and_short_ones_later_are_no_comparison() -> None:
    first = [shot(n, stream=False, tokens=256, token_ms=100.0) for n in range(8)]
    later = [shot(n, stream=False, tokens=2, planned_at=AT + 600) for n in range(8, 24)]
    assert accused([*first, *later]) == {}


def test_twins_from_memory_make_no_host_look_cold() -> None:
    first = uniques(8, first_ms=5000.0)
    memory = [replayed(first[n % 8], 8 + n, answer_id=f"m-{n}") for n in range(8)]
    found = told([*first, *memory], no_books())
    assert "cold" not in found
    assert "cold: no new request followed" in found["not_judged"].evidence


def test_a_run_of_one_wave_is_not_judged() -> None:
    assert "cold" in told(uniques(8))["not_judged"].evidence


# saturated


def test_a_ladder_that_ends_flat_is_saturated() -> None:
    levels = [step(1, 0.5, 2000.0), step(8, 4.0, 2000.0), step(32, 4.1, 7800.0)]
    found = told(uniques(16), levels=levels)
    assert found["saturated"].confidence == "medium"
    assert found["saturated"].evidence == (
        "beyond 8 requests at once it answers no more a second (4.00, with 32 4.10) and takes"
        " longer (2,000 ms, then 7,800 ms)"
    )


def test_a_ladder_that_still_climbs_is_not() -> None:
    levels = [step(1, 0.5, 2000.0), step(8, 4.0, 2000.0), step(32, 12.0, 2700.0)]
    assert accused(uniques(16), levels=levels) == {}


def open_loop(*e2e_ms: float) -> list[RequestRecord]:
    """One request a second whatever the answers take; streams with 100 ms to their first token."""
    loop = {"concurrency": None, "tokens": 2}
    return [
        shot(n, **loop, planned_at=AT + n, sent_at=AT + n, token_ms=ms - 100.0)
        for n, ms in enumerate(e2e_ms)
    ]


def test_answers_that_fall_ever_further_behind_the_plan_are_saturated() -> None:
    found = told(open_loop(*(500.0 + 400.0 * n for n in range(24))))
    # thirds of eight: 500 + 400 * 3.5, 500 + 400 * 11.5, 500 + 400 * 19.5
    assert found["saturated"].evidence == (
        "answers fell ever further behind the plan, from 1,900 ms in the first third"
        " to 8,300 ms in the last (medians)"
    )


@pytest.mark.parametrize(
    "e2e_ms",
    [
        [2000.0] * 24,
        [500.0] * 8 + [2000.0] * 16,  # an idle host fills up, and then holds
        [2000.0] * 20 + [9000.0] * 4,  # one slow moment at the end: not half of a third
        [100.0 + n * 15 for n in range(24)],  # doubles, within half a second
        [9000.0 - 300 * n for n in range(24)],
        [500.0 + 400.0 * n for n in range(11)],  # too few to tell
    ],
)
def test_an_open_loop_that_keeps_up_is_not(e2e_ms: list[float]) -> None:
    assert accused(open_loop(*e2e_ms)) == {}


@pytest.mark.parametrize(
    ("thirds", "each", "is_told"),
    [
        ((1000.0, 1500.0, 2000.0), 4, True),
        ((1000.0, 1500.0, 1999.0), 4, False),  # not twice
        ((400.0, 600.0, 899.0), 4, False),  # 499 ms more
        ((1000.0, 1299.0, 2500.0), 4, False),  # held, and then one slow moment
        ((1000.0, 2000.0, 2599.0), 4, False),
        ((1000.0, 1500.0, 2000.0), 3, False),  # nine requests
    ],
)
def test_an_open_loop_falls_behind_from_third_to_third(
    thirds: tuple[float, ...], each: int, is_told: bool
) -> None:
    shots = open_loop(*(ms for ms in thirds for _ in range(each)))
    assert ("saturated" in accused(shots)) is is_told


def test_timeouts_count_as_the_waiting_that_they_were() -> None:
    shots = open_loop(*(1000.0 + 1000.0 * n for n in range(16)))
    lost = [
        failed(n, "timeout", took_ms=30_000.0, concurrency=None, planned_at=AT + n)
        for n in range(16, 24)
    ]
    assert "saturated" in accused([*shots, *lost], books(shots))


def test_the_servers_own_queue_tells() -> None:
    # an answer takes 100 + 99 * 20 = 2,080 ms
    found = told(uniques(16), books(uniques(16), queue_mean_ms=700.0, waiting_max=25))
    assert found["saturated"].evidence == (
        "requests waited 700 ms of their 2,080 ms in the server's queue (means), 25 of them at once"
    )


@pytest.mark.parametrize(
    "figures",
    [
        {"queue_mean_ms": 700.0, "waiting_max": 0},
        {"queue_mean_ms": 700.0, "waiting_max": None},
        {"queue_mean_ms": 400.0, "waiting_max": 9},
        {"queue_mean_ms": None, "waiting_max": 9},
        {"preemptions": 0},
    ],
)
def test_a_queue_that_is_short_or_was_never_seen_is_not(figures: dict[str, float | None]) -> None:
    assert accused(uniques(16), books(uniques(16), **figures)) == {}


def test_waiting_for_the_running_step_is_no_queue() -> None:
    # one token each, 64 ms: a step is at most that long, and 14 ms of waiting is less than one
    shots = uniques(16, tokens=1, max_tokens=1, first_ms=64.0)
    assert accused(shots, books(shots, queue_mean_ms=14.0, waiting_max=25)) == {}
    # 40 ms of 64 are most of the time, and that is not a step's
    assert set(accused(shots, books(shots, queue_mean_ms=40.0, waiting_max=25))) == {"saturated"}


def test_a_queue_of_ours_stands_all_the_time_and_serves_in_turns() -> None:
    # room for two of eight: they are served two by two, the last ones after four times as long
    shots = [shot(n, token_ms=20.0 * (1 + n % 8 // 2)) for n in range(16)]
    # e2e: 100 + 99 * (20, 40, 60, 80) ms, 5,050 on average; six of eight wait, 0.75 * 5,050 = 3,788
    full = books(shots, queue_mean_ms=3700.0, waiting_max=6)
    assert accused(shots, full) == {"saturated": "medium"}
    # 0.3 * 8 = 2.4 wait on average: less than half of six
    assert accused(shots, replace(full, queue_mean_ms=1500.0)) == {}


@pytest.mark.parametrize(("queued_ms", "is_told"), [(1777.0, False), (1778.0, True)])
def test_prompts_that_came_all_at_once_and_were_read_in_turn_are_no_want_of_room(
    queued_ms: float, is_told: bool
) -> None:
    # a first wave of 1, 2, ... 8 s before the usual 2,080 ms, and two waves without a queue
    first = [shot(n, first_ms=100.0 + 1000 * (n + 1), stream=False) for n in range(8)]
    later = [shot(n, planned_at=AT + 60 + n // 8 * 10, stream=False) for n in range(8, 24)]
    shots = [*first, *later]
    # that is 36 s more for the first; the mean answer took 2,080 + 36,000 / 24 = 3,580 ms.
    # 24 * queued - 36,000 would have to be a fifth of the later ones' 16 * 2,080, so queued 1,777.3 ms
    crowded = books(shots, queue_mean_ms=queued_ms, waiting_max=1)
    assert ("saturated" in accused(shots, crowded)) is is_told


def test_a_queue_behind_a_stall_is_no_want_of_room() -> None:
    # the whole first wave stood still together, 7 of 8 in the queue
    together = [shot(n, first_ms=18_000.0, stream=False) for n in range(8)]
    later = [shot(n, first_ms=9000.0, stream=False, planned_at=AT + 60) for n in range(8, 16)]
    shots = [*together, *later]
    # 0.6 of 15.6 s: (20,080 - 100 + 11,080 - 100) / 2 = 15,480
    assert accused(shots, books(shots, queue_mean_ms=9000.0, waiting_max=7)) == {}
    # one stall of three in a long run: most answers took 2 s
    some = [shot(n, first_ms=40_000.0 if 8 <= n < 16 else 100.0) for n in range(32)]
    assert accused(some, books(some, queue_mean_ms=5000.0, waiting_max=4)) == {}


@pytest.mark.parametrize(("gap_s", "is_full"), [(0.03, False), (0.3, True)])
def test_an_open_loop_that_was_sent_before_the_first_answer_shows_no_queue(
    gap_s: float, is_full: bool
) -> None:
    # 64 requests in 2 s or in 19 s; the first answer took 2.08 s, so all or 7 of them were sent before it
    sent = [AT + n * gap_s for n in range(64)]
    shots = [
        replace(s, concurrency=None, planned_at=at, sent_at=at)
        for s, at in zip(uniques(64), sent, strict=True)
    ]
    queued = books(shots, queue_mean_ms=900.0, waiting_max=15)
    assert ("saturated" in accused(shots, queued)) is is_full


def test_while_a_host_is_cold_its_queue_says_nothing() -> None:
    shots = after_a_first_wave(89_000.0)
    ledger = books(shots, queue_mean_ms=40_000.0, waiting_max=7)
    assert accused(shots, ledger) == {"cold": "medium"}


def test_preemptions_say_that_work_was_done_twice() -> None:
    shots = uniques(40)
    assert accused(shots, books(shots, preemptions=1)) == {}
    assert accused(shots, books(shots, preemptions=2)) == {"saturated": "medium"}
    both = books(shots, preemptions=2, queue_mean_ms=700.0, waiting_max=25)
    assert accused(shots, both) == {"saturated": "high"}


# fast failures


def test_failures_that_end_sooner_than_answers_look_like_speed() -> None:
    # as a flaky host's: status 500 at once, streams that break after a few tokens
    bad = [failed(14), failed(15, "cut", took_ms=300.0), failed(13, "stream_error", took_ms=200.0)]
    shots = [*uniques(13), *bad]
    ledger = books(shots, requests=14, generation_tokens=1300 + 12)
    found = told(shots, ledger)
    assert found.keys() - {"not_judged"} == {"fast_failures"}
    assert found["fast_failures"].confidence == "high"
    assert found["fast_failures"].evidence == (
        "3 of 16 requests failed (`cut`, `http_500`, `stream_error`) after 200 ms"
        " where answers take 2,080 ms (medians)"
    )


def test_a_failure_in_half_the_time_of_an_answer_is_fast() -> None:
    bad = [failed(n, took_ms=1040.0) for n in (14, 15)]
    assert accused([*uniques(14), *bad], books(uniques(14))) == {"fast_failures": "high"}


@pytest.mark.parametrize("took_ms", [1041.0, 120_000.0])
def test_failures_that_take_their_time_are_not_fast(took_ms: float) -> None:
    bad = [failed(n, "timeout", took_ms=took_ms) for n in (14, 15)]
    assert accused([*uniques(14), *bad], books(uniques(14))) == {}


def test_a_single_failure_moves_no_median() -> None:
    assert accused([*uniques(15), failed(15)], books(uniques(15))) == {}


def test_two_failures_of_fifty_move_none_either() -> None:
    shots = [*uniques(48), failed(48), failed(49)]
    assert accused(shots) == {}
    assert accused(shots[10:]) == {"fast_failures": "high"}  # 2 of 40


def test_a_host_that_refuses_everybody_is_dead_and_not_fast() -> None:
    found = told([failed(n, "connect") for n in range(16)], no_books())
    assert set(found) == {"not_judged"}
    assert found["not_judged"].evidence == "most codes: nothing was answered"


def test_requests_that_never_left_are_the_clients() -> None:
    unsent = [replace(failed(n, "not_sent"), sent_at=None, took_ms=None) for n in range(8, 16)]
    assert accused([*uniques(8), *unsent], books(uniques(8))) == {}


def test_failing_warm_up_is_not_measured() -> None:
    bad = [failed(n, kind="http_500") for n in range(4)]
    warmup = [replace(each, kind="warmup") for each in bad]
    assert accused([*warmup, *uniques(16)]) == {}


def test_replays_do_not_make_failures_look_slow() -> None:
    first = uniques(8)
    memory = [replayed(first[n], 8 + n) for n in range(8)]
    bad = [failed(n, took_ms=20.0) for n in range(16, 20)]
    shots = [*first, *memory, *bad]
    found = accused(shots, books(shots, without=memory))
    assert found == {"response_cache": "high", "fast_failures": "high"}
