"""When an engine is in trouble, and above all when it is not. All times are made up."""

from collections.abc import Iterable
from typing import Any

import pytest

from toolkit.serving.stack import GuardSetting
from toolkit.serving.watchdog import EngineProgress, ProbeResult, ended


def progress() -> EngineProgress:
    return EngineProgress(GuardSetting(stuck_s=30.0, answer_s=30.0, refused_s=5.0, ask_s=60.0))


def counted(
    tokens: float, *, kv: float = 0.5, under_way: float | None = 3, prompt: float = 7
) -> ProbeResult:
    return ProbeResult(answer="came", signs=(prompt, tokens, tokens, kv), under_way=under_way)


def pages(answer: Any) -> ProbeResult:
    return ProbeResult(answer=answer)


def course(one: EngineProgress, looks: Iterable[tuple[float, ProbeResult]]) -> list[str | None]:
    return [one.probed(at, look) for at, look in looks]


def asks_at(one: EngineProgress, looks: Iterable[tuple[float, ProbeResult]]) -> list[float]:
    """When it wants a token; each is answered None at once: it could not be asked for."""
    times = []
    for at, look in looks:
        assert one.probed(at, look) is None
        if one.wants_token(at):
            times.append(at)
            one.token(at, None)
    return times


# --- its end --------------------------------------------------------------------------------------------


def test_an_exit_code_says_how_it_ended() -> None:
    assert ended(-9) == "its process was ended by signal 9"
    assert ended(0) == "its process ended by itself with exit code 0"


def test_connections_must_be_refused_for_a_while() -> None:
    one = progress()
    told = course(one, [(at, pages("refused")) for at in (0.0, 1.0, 4.9)])
    assert told == [None, None, None]
    assert one.probed(5.0, pages("refused")) == "connections were refused for 5.0 s"


@pytest.mark.parametrize("answer", ["came", "late"])
def test_a_page_between_two_refused_connections_begins_anew(answer: Any) -> None:
    one = progress()
    told = course(one, [(0, pages("refused")), (4, pages(answer)), (8, pages("refused"))])
    assert told == [None, None, None]
    assert one.probed(12.9, pages("refused")) is None


def test_an_engine_that_calls_itself_ill_and_then_closes_its_port_is_down_all_the_while() -> None:
    one = progress()
    assert course(one, [(0, pages("ill")), (3, pages("refused"))]) == [None, None]
    told = one.probed(5, pages("ill"))
    assert told == "/health said 5xx for 5.0 s"


def test_a_page_that_comes_too_late_is_never_a_refused_connection() -> None:
    one = progress()
    assert not any(course(one, [(float(at), pages("late")) for at in range(3600)]))


# --- a hang ---------------------------------------------------------------------------------------------


def test_tokens_that_stand_still_while_requests_run_and_no_token_on_asking_is_a_hang() -> None:
    one = progress()
    # the counters are seen to move at 10 for the last time
    course(one, [(0, counted(100)), (10, counted(110))])
    assert not any(course(one, [(at, counted(110)) for at in (20, 30, 39.9)]))
    assert not one.wants_token(39.9)
    one.probed(40, counted(110))
    assert one.wants_token(40)
    assert not one.wants_token(41), "it is being asked"
    one.probed(69, counted(110))
    assert (
        one.token(70, made=False)
        == "3 requests under way, and no token for 60.0 s, nor one when it was asked"
    )


def test_one_that_is_down_is_asked_nothing() -> None:
    one = progress()
    course(one, [(0, counted(1)), (40, pages("refused"))])
    assert not one.wants_token(40)


def test_it_is_not_asked_again_while_a_question_is_out_however_long() -> None:
    one = progress()
    course(one, [(0, counted(1)), (40, counted(1))])
    assert one.wants_token(40)
    one.probed(400, counted(1))
    assert not one.wants_token(400)


def test_a_token_that_comes_on_asking_clears_it() -> None:
    one = progress()
    course(one, [(0, counted(1)), (40, counted(1))])
    assert one.wants_token(40)
    assert one.token(45, made=True) is None
    # and it counts as a sign: the next question comes 30 s after it
    one.probed(74, counted(1))
    assert not one.wants_token(74)
    one.probed(75, counted(1))
    assert one.wants_token(75)


def test_a_counter_that_moved_while_it_was_asked_clears_it_though_the_token_is_late() -> None:
    one = progress()
    course(one, [(0, counted(1)), (40, counted(1))])
    assert one.wants_token(40)
    one.probed(60, counted(2))
    assert one.token(70, made=False) is None


def test_a_question_that_could_not_be_put_proves_nothing() -> None:
    one = progress()
    course(one, [(0, counted(1)), (40, counted(1))])
    assert one.wants_token(40)
    assert one.token(41, made=None) is None


def test_one_that_froze_with_its_pages_is_found_by_the_question() -> None:
    # the last sign is the page at 0
    one = progress()
    one.probed(0, counted(1))
    for at in (10, 20, 29):
        assert one.probed(at, pages("late")) is None
        assert not one.wants_token(at)
    assert one.probed(30, pages("late")) is None
    assert one.wants_token(30)
    told = one.token(60, made=False)
    assert told == "no page for 60.0 s, and no token when it was asked for one"


def test_one_that_froze_while_it_had_nothing_to_do_is_found_too() -> None:
    # idle at 0; from 10 on no page comes, so that something may be under way; asked 30 s after
    one = progress()
    one.probed(0, counted(1, under_way=0))
    for at in (10, 20, 30, 39):
        one.probed(at, pages("late"))
        assert not one.wants_token(at)
    one.probed(40, pages("late"))
    assert one.wants_token(40)
    assert one.token(70, made=False) is not None


def test_an_engine_that_hangs_idle_says_that_it_is_idle_so_it_is_asked_now_and_then() -> None:
    one = progress()
    idle = [(float(at), counted(1, under_way=0)) for at in range(0, 200, 10)]
    assert asks_at(one, idle) == [60, 120, 180]
    one = progress()
    course(one, idle[:7])
    assert one.wants_token(60)
    one.probed(70, counted(1, under_way=0))
    told = one.token(90, made=False)
    assert told is not None
    assert told == "idle, it says, and no token for 30.0 s, nor one when it was asked"


def test_work_that_comes_after_an_idle_question_is_not_held_against_it() -> None:
    one = progress()
    course(one, [(0, counted(1, under_way=0)), (60, counted(1, under_way=0))])
    assert one.wants_token(60)
    # many came meanwhile: our token waits behind them, but theirs move
    course(one, [(61, counted(9, under_way=500)), (89, counted(99, under_way=500))])
    assert one.token(90, made=False) is None
    assert not one.wants_token(91)


# --- busy is no trouble -----------------------------------------------------------------------------------


def test_a_saturated_server_is_never_even_asked() -> None:
    # an hour at one token in 25 s, 900 requests waiting
    one = progress()
    looks = [(float(at), counted(at // 25, under_way=900)) for at in range(3600)]
    assert asks_at(one, looks) == []


def test_a_long_prefill_moves_no_token_for_minutes_but_fills_blocks() -> None:
    # 128K tokens in steps of 2,048: 64 steps; at 5 s a step that is more than 5 minutes without a token
    one = progress()
    looks = [(float(at), counted(1, kv=(at // 5) / 64)) for at in range(64 * 5)]
    assert asks_at(one, looks) == []


def test_an_engine_without_counters_is_never_called_stuck() -> None:
    # /metrics is off: a token that does not come may wait behind a thousand others
    one = progress()
    looks = [(float(at), pages("came")) for at in range(0, 130, 10)]
    course(one, looks[:7])
    assert one.wants_token(60)
    assert one.token(90, made=False) is None
    one.probed(160, pages("refused"))
    assert one.probed(165, pages("refused")) is not None, "but it may end"


def test_counters_that_begin_anew_are_a_sign_of_life() -> None:
    one = progress()
    course(one, [(0, counted(900)), (29, counted(900)), (31, counted(0))])
    assert not one.wants_token(40)
