"""Admission: who gets a slot, who waits, who is turned away and with what, request by request."""

import pytest

from toolkit.proxy.calls.admission import Admission, Ask, Due, Slot, Waiting, ask_of
from toolkit.proxy.calls.rejections import REJECTIONS, STATUS, WORDS, rejection_of
from toolkit.proxy.exchange import Job, Rejection
from toolkit.proxy.settings import AdmissionSetting, TeamSetting


def admission(*teams: TeamSetting, **setting: object) -> Admission:
    return Admission(AdmissionSetting(**setting), teams)  # type: ignore[arg-type]


def slot(of: Admission, team: str = "a", now: float = 0.0, priority: int = 0) -> Slot:
    got = of.ask(Ask(arrived_s=now, team=team, priority=priority), now)
    assert isinstance(got, Slot)
    return got


def place(
    of: Admission,
    team: str = "a",
    now: float = 0.0,
    priority: int = 0,
    arrived_s: float | None = None,
    ends_s: float | None = None,
) -> Waiting:
    arrived_s = now if arrived_s is None else arrived_s
    ask = Ask(arrived_s=arrived_s, team=team, priority=priority, ends_s=ends_s)
    got = of.ask(ask, now)
    assert isinstance(got, Waiting)
    return got


def no(of: Admission, team: str = "a", now: float = 0.0, **more: int) -> Rejection:
    got = of.ask(Ask(arrived_s=now, team=team, **more), now)  # type: ignore[arg-type]
    assert isinstance(got, Rejection)
    return got


def served(due: Due) -> list[Waiting]:
    return [waiting for waiting, _ in due.served]


def hold(of: Admission, seconds: float, team: str = "a", now: float = 0.0) -> None:
    """A service time for it to remember."""
    of.release(slot(of, team, now), now + seconds)


def test_without_limits_nobody_waits() -> None:
    free = admission()
    assert all(isinstance(slot(free, str(team)), Slot) for team in range(2000))
    assert (free.in_use, free.waiting, free.served) == (2000, 0, 2000)


def test_the_system_has_so_many_slots_and_the_next_one_waits() -> None:
    two = admission(concurrency=2)
    first, _ = slot(two), slot(two, "b")
    waiting = place(two, "c", now=1.0)
    assert two.due(1.5) == Due()
    two.release(first, 3.0)
    ((who, got),) = two.due(3.0).served
    assert who is waiting
    assert (got.team, got.began_s, got.waited_s) == ("c", 3.0, 2.0)
    assert (two.in_use, two.waiting) == (2, 0)


def test_a_team_has_so_many_slots_and_others_go_past_its_queue() -> None:
    house = admission(TeamSetting(name="a", concurrency=1), concurrency=3)
    first = slot(house)
    waiting = place(house)
    slot(house, "b")
    slot(house, "b")
    house.release(first, 1.0)
    assert served(house.due(1.0)) == [waiting]


def test_waiting_counts_from_when_the_request_arrived_and_not_from_when_it_was_understood() -> None:
    one = admission(concurrency=1, wait_s=10.0)
    first = slot(one, now=0.0)
    late = place(one, now=4.0, arrived_s=1.0)
    assert late.ends_s == 11.0
    one.release(first, 6.0)
    assert one.due(6.0).served[0][1].waited_s == 5.0


def test_a_slot_that_is_free_is_given_to_a_request_that_was_long_on_its_way() -> None:
    one = admission(concurrency=1, wait_s=10.0)
    got = one.ask(Ask(arrived_s=0.0), 50.0)
    assert isinstance(got, Slot)
    assert got.waited_s == 50.0


def test_a_slot_is_freed_once_however_often_it_is_released() -> None:
    one = admission(concurrency=1)
    first = slot(one)
    one.release(first, 1.0)
    second = slot(one, now=1.0)
    one.release(first, 2.0)
    assert one.in_use == 1
    place(one, now=2.0)
    assert one.due(2.0) == Due()
    one.release(second, 3.0)
    one.release(second, 3.0)
    assert len(one.due(3.0).served) == 1
    assert one.in_use == 1


def test_who_comes_between_a_release_and_its_due_does_not_take_the_slot_of_who_waits() -> None:
    one = admission(concurrency=1)
    first = slot(one)
    patient = place(one)
    one.release(first, 1.0)
    hasty = place(one, now=1.0)
    assert served(one.due(1.0)) == [patient]
    assert not hasty.is_over


def test_in_a_team_who_came_first_goes_first() -> None:
    one = admission(concurrency=1)
    held = slot(one)
    queue = [place(one) for _ in range(5)]
    order = []
    for now in range(1, 6):
        one.release(held, float(now))
        ((who, held),) = one.due(float(now)).served
        order.append(who)
    assert order == queue


def test_a_higher_priority_goes_first_and_a_lower_one_after_eight_turns_at_the_latest() -> None:
    one = admission(concurrency=1)
    held = slot(one)
    low = [place(one, priority=-1) for _ in range(3)]
    high = [place(one, priority=3) for _ in range(20)]
    order = []
    for now in range(1, 24):
        one.release(held, float(now))
        ((who, held),) = one.due(float(now)).served
        order.append(who)
    # 8 high, 1 low, 8 high, 1 low, the last 4 high, the last low
    assert order == [*high[:8], low[0], *high[8:16], low[1], *high[16:], low[2]]


def test_a_team_with_fewer_slots_for_its_limit_goes_first() -> None:
    # a: 2 of 4 in use, b: 2 of 8: a quarter against a half
    house = admission(
        TeamSetting(name="a", concurrency=4), TeamSetting(name="b", concurrency=8), concurrency=5
    )
    slot(house, "a"), slot(house, "a"), slot(house, "b"), slot(house, "b")
    other = slot(house, "c")
    place(house, "a")
    light = place(house, "b")
    house.release(other, 1.0)
    assert served(house.due(1.0)) == [light]


def test_with_one_slot_teams_take_turns_however_long_their_queues_are() -> None:
    one = admission(concurrency=1, queue=1000)
    held = slot(one, "flood")
    for _ in range(500):
        place(one, "flood")
    place(one, "small"), place(one, "small")
    order = []
    for now in range(1, 6):
        one.release(held, float(now))
        ((_, held),) = one.due(float(now)).served
        order.append(held.team)
    assert order == ["small", "flood", "small", "flood", "flood"]


def test_a_teams_full_queue_is_its_own_limit_and_the_systems_is_not() -> None:
    house = admission(TeamSetting(name="a", queue=2), concurrency=1, queue=3)
    slot(house, "b")
    place(house, "a"), place(house, "a")
    mine = no(house, "a")
    assert (mine.reason, mine.status) == ("team_queue_full", 429)
    assert "`a`" in mine.message
    place(house, "b")
    theirs = no(house, "b")
    assert (theirs.reason, theirs.status) == ("queue_full", 503)
    assert house.rejected == {("team_queue_full", "a"): 1, ("queue_full", "b"): 1}


def test_a_queue_that_one_team_fills_has_room_for_another_at_its_youngests_cost() -> None:
    house = admission(concurrency=1, queue=4)
    slot(house, "flood")
    queue = [place(house, "flood") for _ in range(4)]
    small = place(house, "small")
    assert house.waiting == 4
    ((pushed, rejection),) = house.due(0.0).rejected
    assert pushed is queue[-1]
    assert (rejection.reason, rejection.status) == ("queue_full", 503)
    assert house.rejected == {("queue_full", "flood"): 1}
    # 3 of flood and 1 of small: a second of small makes 3 and 2; a third would only turn the tables
    place(house, "small")
    assert [who for who, _ in house.due(0.0).rejected] == [queue[-2]]
    assert no(house, "small").reason == "queue_full"
    assert not small.is_over


def test_a_full_queue_has_room_for_a_higher_priority_and_none_for_a_lower_one() -> None:
    house = admission(concurrency=1, queue=2)
    slot(house)
    low, lower = place(house, priority=0), place(house, priority=-1)
    place(house, priority=1)
    assert [who for who, _ in house.due(0.0).rejected] == [lower]
    assert no(house, priority=-1).reason == "queue_full"
    place(house, priority=1)
    assert [who for who, _ in house.due(0.0).rejected] == [low]
    assert no(house, priority=1).reason == "queue_full"


def test_of_a_full_queue_a_ninth_is_kept_for_each_priority_also_for_the_lowest() -> None:
    house = admission(concurrency=1, queue=18)
    slot(house)
    high = [place(house, priority=1) for _ in range(18)]
    low = [place(house, priority=0), place(house, priority=0)]
    assert [who for who, _ in house.due(0.0).rejected] == [high[17], high[16]]
    assert no(house, priority=0).reason == "queue_full"
    # nor does a high one take the places of these two: 2 is a ninth of 18
    assert no(house, priority=1).reason == "queue_full"
    assert not any(each.is_over for each in low)
    house.cancel(high[0])
    place(house, priority=0)
    place(house, priority=1)  # but the third is one too many
    assert len(house.due(0.0).rejected) == 1
    assert not any(each.is_over for each in low)


def test_who_was_pushed_out_and_leaves_before_it_is_told_is_not_told() -> None:
    house = admission(concurrency=1, queue=1)
    slot(house)
    low = place(house, priority=0)
    place(house, priority=1)
    house.cancel(low)
    assert house.due(0.0) == Due()
    assert house.waiting == 1


def test_who_waited_until_its_deadline_is_turned_away_at_that_moment_and_not_served() -> None:
    one = admission(concurrency=1, wait_s=10.0)
    held = slot(one)
    waiting = place(one, now=1.0)
    assert one.due(10.9) == Due()
    one.release(held, 11.0)
    due = one.due(11.0)
    assert due.served == ()
    ((who, rejection),) = due.rejected
    assert who is waiting
    assert (rejection.reason, rejection.status) == ("expired", 503)
    assert one.due(12.0) == Due()


def test_a_wait_that_ended_for_the_teams_own_limit_says_so() -> None:
    house = admission(TeamSetting(name="a", concurrency=1), concurrency=9, wait_s=10.0)
    slot(house)
    place(house)
    ((_, rejection),) = house.due(10.0).rejected
    assert (rejection.reason, rejection.status) == ("team_expired", 429)


def test_a_deadline_of_its_own_counts_if_it_is_sooner() -> None:
    one = admission(concurrency=1, wait_s=10.0)
    slot(one)
    soon, late = place(one, ends_s=3.0), place(one, ends_s=300.0)
    assert [who for who, _ in one.due(3.0).rejected] == [soon]
    assert [who for who, _ in one.due(10.0).rejected] == [late]


def test_a_queue_that_cannot_be_served_in_time_is_not_joined() -> None:
    # services of 4 s, one slot: the second in the queue is served after 8 s, 10 with the doubt of a quarter
    one = admission(concurrency=1, wait_s=10.0)
    hold(one, 4.0)
    slot(one, now=4.0)
    place(one, now=4.0)
    place(one, now=4.0)
    rejection = no(one, now=4.0)
    assert (rejection.reason, rejection.status) == ("too_slow", 503)
    assert rejection.retry_after_s == pytest.approx(12.0)


def test_a_team_whose_own_slots_are_too_slow_gets_its_own_status() -> None:
    house = admission(TeamSetting(name="a", concurrency=2), concurrency=100, wait_s=9.0)
    hold(house, 8.0)
    slot(house, now=8.0), slot(house, now=8.0)
    place(house, now=8.0)  # 8 s / 2 slots = 4 s, the next one 8 s: with a quarter more 10
    rejection = no(house, now=8.0)
    assert (rejection.reason, rejection.status) == ("team_too_slow", 429)
    assert rejection.retry_after_s == pytest.approx(8.0)
    slot(house, "b", now=8.0)


def test_what_its_arrival_cost_is_taken_off_the_time_it_can_wait() -> None:
    one = admission(concurrency=1, wait_s=10.0)
    hold(one, 4.0)
    slot(one, now=4.0)
    assert isinstance(one.ask(Ask(arrived_s=0.0), 4.0), Waiting)  # 4 s + a quarter by 10 s
    one.due(4.0)
    got = one.ask(Ask(arrived_s=-2.0), 4.0)
    assert isinstance(got, Rejection)
    assert got.reason == "too_slow"


def test_before_anything_ended_nothing_is_foretold() -> None:
    one = admission(concurrency=1, queue=2, wait_s=1.0)
    slot(one)
    place(one), place(one)
    assert one.wait_s("a", 0, 0.0) is None
    assert no(one).retry_after_s is None


def test_a_newcomer_waits_for_its_own_queue_and_its_share_and_not_for_anothers_flood() -> None:
    house = admission(concurrency=4, queue=1000, wait_s=1e6)
    hold(house, 8.0)
    for _ in range(4):
        slot(house, "flood", now=8.0)
    for _ in range(100):
        place(house, "flood", now=8.0)
    # the small team's share is 2 of the 4 slots, and it has none: the next slot is its own, in 8 / 4 = 2 s
    assert house.wait_s("small", 0, 8.0) == pytest.approx(2.0)
    # the flood alone: 101 turns at 4 slots in 8 s
    assert house.wait_s("flood", 0, 8.0) == pytest.approx(202.0)
    assert house.wait_s("small", 1, 8.0) == pytest.approx(2.0)
    # below the flood it goes after eight of it, with the turn after them: 8 + 1 turns of 2 s
    assert house.wait_s("small", -1, 8.0) == pytest.approx(18.0)


def test_a_server_that_stands_still_makes_the_wait_longer_than_what_it_was() -> None:
    one = admission(concurrency=4, queue=100, wait_s=1e6)
    for _ in range(10):
        hold(one, 1.0)
    for _ in range(4):
        slot(one, now=1.0)
    place(one, now=1.0)
    assert one.wait_s("a", 0, 1.0) == pytest.approx(2 / 4)
    # nothing ended for 60 s, where 4 slots should have ended 240: at least 60 * 4 / 6 = 40 s each
    assert one.wait_s("a", 0, 61.0) == pytest.approx(2 * 40 / 4)
    # nothing that runs is older than the 60 s, however long nothing ended
    assert one.wait_s("a", 0, 601.0) == pytest.approx(2 * 400 / 4)


def test_hours_without_work_are_no_standstill() -> None:
    one = admission(concurrency=1, queue=100, wait_s=1e6)
    hold(one, 1.0)
    slot(one, now=10_000.0)
    place(one, now=10_000.5)
    assert one.wait_s("a", 0, 10_000.5) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("team", "prompt", "output", "reason", "status"),
    [
        ("a", 101, None, "prompt_too_long", 413),
        ("a", 100, 51, "output_too_long", 400),
        ("b", 1001, None, "prompt_too_long", 413),
        ("b", None, 501, "output_too_long", 400),
        ("c", 1001, None, "prompt_too_long", 413),
    ],
)
def test_what_is_too_long_for_team_or_system_is_refused_whatever_is_free(
    team: str, prompt: int | None, output: int | None, reason: str, status: int
) -> None:
    house = admission(
        TeamSetting(name="a", max_prompt_tokens=100, max_output_tokens=50),
        TeamSetting(name="b", max_prompt_tokens=5000),
        max_prompt_tokens=1000,
        max_output_tokens=500,
    )
    ask = Ask(arrived_s=0.0, team=team, prompt_tokens=prompt, output_tokens=output)
    rejection = house.ask(ask, 0.0)
    assert isinstance(rejection, Rejection)
    assert (rejection.reason, rejection.status) == (reason, status)
    assert rejection.retry_after_s is None
    assert house.rejected == {(reason, team): 1}


def test_what_is_just_short_enough_or_of_unknown_length_passes() -> None:
    house = admission(max_prompt_tokens=1000, max_output_tokens=500)
    ask = Ask(arrived_s=0.0, prompt_tokens=1000, output_tokens=500)
    assert isinstance(house.ask(ask, 0.0), Slot)
    assert isinstance(house.ask(Ask(arrived_s=0.0), 0.0), Slot)


def test_who_leaves_the_queue_makes_room_and_is_not_served() -> None:
    house = admission(TeamSetting(name="a", queue=1), concurrency=1)
    held = slot(house)
    gone = place(house)
    house.cancel(gone)
    house.cancel(gone)
    assert house.waiting == 0
    stays = place(house)
    house.release(held, 1.0)
    assert served(house.due(1.0)) == [stays]
    assert house.due(100.0) == Due()


def test_cancelling_who_has_its_slot_leaves_the_slot_to_its_release() -> None:
    one = admission(concurrency=1)
    held = slot(one)
    waiting = place(one)
    one.release(held, 1.0)
    ((_, got),) = one.due(1.0).served
    one.cancel(waiting)
    assert one.in_use == 1
    one.release(got, 2.0)
    assert one.in_use == 0


def test_cancelling_who_was_turned_away_changes_nothing() -> None:
    one = admission(concurrency=1, wait_s=1.0)
    slot(one)
    waiting = place(one)
    one.due(1.0)
    one.cancel(waiting)
    assert (one.in_use, one.waiting) == (1, 0)


def test_requests_that_come_and_leave_while_nothing_moves_leave_nothing_behind() -> None:
    one = admission(concurrency=1, queue=10)
    slot(one)
    for _ in range(5000):
        one.cancel(place(one))
    assert len(one._ends) < 100


def test_every_reason_has_a_status_and_another_parts_are_counted_with_them() -> None:
    assert set(STATUS) == set(REJECTIONS)
    assert {rejection_of(each, "a").reason for each in REJECTIONS[2:]} >= set(WORDS)
    house = admission()
    rejection = house.refuse(rejection_of("no_upstream", "a"), "a")
    assert (rejection.status, rejection.message) == (503, "no upstream can be asked")
    assert house.rejected == {("no_upstream", "a"): 1}


def test_teams_are_told_with_what_they_use() -> None:
    house = admission(TeamSetting(name="a", concurrency=2, queue=5), concurrency=2)
    slot(house), slot(house), place(house), place(house, "b")
    use = {team.team: team for team in house.teams()}
    assert (use["a"].in_use, use["a"].waiting, use["a"].limit, use["a"].queue) == (2, 1, 2, 5)
    assert (use["b"].in_use, use["b"].waiting, use["b"].limit, use["b"].queue) == (0, 1, None, None)


def test_a_job_asks_for_what_it_is() -> None:
    job = Job(
        path="/v1/chat/completions",
        body=b"{}",
        team="a",
        priority=2,
        arrived_s=5.0,
        prompt_tokens=7,
        output_tokens=9,
    )
    assert ask_of(job) == Ask(team="a", priority=2, arrived_s=5.0, prompt_tokens=7, output_tokens=9)
