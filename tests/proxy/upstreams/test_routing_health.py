"""Routing: who is left, when it is tried again, and who is asked when all were left."""

import pytest

from toolkit.proxy.settings import RoutingSetting, UpstreamSetting
from toolkit.proxy.upstreams.routing import Look, Outcome, Reason, Routing, UpstreamState


def upstream(name: str, **more: object) -> UpstreamSetting:
    return UpstreamSetting(name=name, url=f"http://{name}", **more)  # type: ignore[arg-type]


def routing(*upstreams: UpstreamSetting | str, **setting: object) -> Routing:
    those = [upstream(each) if isinstance(each, str) else each for each in upstreams]
    return Routing(those, RoutingSetting(back_s=5.0, **setting))  # type: ignore[arg-type]


def pair() -> Routing:
    """x and y; a long request at y makes x the less loaded one."""
    two = routing("x", "y")
    two.started("y", 0.0)
    return two


def request(of: Routing, name: str, outcome: Outcome, now: float) -> None:
    of.started(name, now)
    of.ended(name, outcome, now)


def state(of: Routing, name: str, now: float) -> UpstreamState:
    return next(each for each in of.states(now) if each.name == name)


def reason(of: Routing, name: str = "x", now: float = 0.0) -> Reason | None:
    return state(of, name, now).reason


def stuck(of: Routing, name: str, now: float) -> None:
    """Bring it there: work, 4 s of silence, a probe that fails."""
    of.started(name, now - 7.0)
    assert of.wants_probe(now - 3.0) == (name,)
    of.probed(name, ok=False, now=now)


def test_one_refused_connection_is_enough() -> None:
    two = routing("x", "y")
    request(two, "x", "refused", 0.0)
    assert reason(two) == "unreachable"
    assert [two.choose("m", None, now) for now in (0.0, 4.9)] == ["y", "y"]


@pytest.mark.parametrize("outcome", ["error", "timeout", "cut"])
def test_other_failures_count_in_a_row_and_an_answer_between_them_clears(outcome: Outcome) -> None:
    two = routing("x", "y")
    for each in (outcome, outcome, "ok", outcome, outcome):
        request(two, "x", each, 0.0)  # type: ignore[arg-type]
        assert reason(two) is None
    request(two, "x", outcome, 0.0)
    assert reason(two) == "failing"


def test_clients_that_leave_say_nothing_about_the_upstream() -> None:
    two = routing("x", "y")
    for each in ("error", "left", "error", "left", "left"):
        request(two, "x", each, 0.0)  # type: ignore[arg-type]
    assert reason(two) is None
    request(two, "x", "error", 0.0)
    assert reason(two) == "failing"


def test_one_that_was_left_is_tried_with_one_request_and_back_after_its_answer() -> None:
    two = pair()
    request(two, "x", "refused", 0.0)
    assert state(two, "x", 1.0).back_in_s == 4.0
    assert two.choose("m", None, 4.9) == "y"
    assert two.choose("m", None, 5.0) == "x"
    two.started("x", 5.0)
    assert state(two, "x", 5.0).state == "trying"
    assert two.choose("m", None, 5.1) == "y"
    two.ended("x", "ok", 6.0)
    assert state(two, "x", 6.0).state == "up"
    assert two.choose("m", None, 6.0) == "x"


def test_each_try_in_vain_doubles_the_time_up_to_a_minute_and_an_answer_begins_anew() -> None:
    two = routing("x", "y")
    now, waits = 0.0, []
    for _ in range(6):
        request(two, "x", "refused", now)
        waits.append(state(two, "x", now).back_in_s)
        now += 100.0
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    request(two, "x", "ok", now)
    request(two, "x", "refused", now)
    assert state(two, "x", now).back_in_s == 5.0


def test_a_trial_that_fails_otherwise_leaves_it_at_once() -> None:
    two = routing("x", "y")
    request(two, "x", "refused", 0.0)
    request(two, "x", "error", 5.0)
    assert state(two, "x", 5.0).back_in_s == 10.0


def test_a_trial_whose_client_left_makes_room_for_another() -> None:
    two = pair()
    request(two, "x", "refused", 0.0)
    request(two, "x", "left", 5.0)
    assert two.choose("m", None, 5.1) == "x"


def test_many_requests_that_fail_together_count_as_one_failure() -> None:
    two = routing("x", "y")
    for _ in range(50):
        two.started("x", 0.0)
    for _ in range(50):
        two.ended("x", "refused", 1.0)
    assert state(two, "x", 1.0).back_in_s == 5.0


def test_after_coming_back_failures_count_from_none() -> None:
    two = routing("x", "y")
    for _ in range(3):
        request(two, "x", "error", 0.0)
    request(two, "x", "ok", 5.0)
    request(two, "x", "error", 5.0)
    request(two, "x", "error", 5.0)
    assert reason(two) is None


@pytest.mark.parametrize("why", ["refused", "unhealthy"])
def test_a_look_that_says_dead_is_enough_and_one_that_comes_brings_it_back(why: str) -> None:
    two = routing("x", "y")
    two.failed_look("x", why, 0.0)  # type: ignore[arg-type]
    assert reason(two) == "unreachable"
    # no request has to find out: the next look does, long before or after the time is over
    assert two.choose("m", None, 100.0) == "y"
    two.looked("x", Look(running=0.0), 101.0)
    assert two.choose("m", None, 101.0) == "x"


@pytest.mark.parametrize("why", ["timeout", "other"])
def test_a_look_that_was_late_or_not_understood_is_no_failure(why: str) -> None:
    one = routing("x")
    for now in range(50):
        one.failed_look("x", why, float(now))  # type: ignore[arg-type]
    assert reason(one) is None


def test_a_look_does_not_bring_back_one_whose_answers_fail() -> None:
    two = pair()
    for _ in range(3):
        request(two, "x", "error", 0.0)
    two.looked("x", Look(running=0.0, generation_tokens_total=5.0), 1.0)
    assert two.choose("m", None, 1.0) == "y"
    assert two.choose("m", None, 5.0) == "x"


def test_one_that_failed_and_then_died_comes_back_as_another_with_its_first_look() -> None:
    two = pair()
    for _ in range(3):
        request(two, "x", "error", 0.0)
    two.failed_look("x", "refused", 1.0)
    two.looked("x", Look(running=0.0), 2.0)
    assert two.choose("m", None, 2.0) == "x"


def test_one_that_is_stuck_is_left_and_its_calls_are_given_up_once() -> None:
    two = routing("x", "y")
    stuck(two, "x", 10.0)
    assert reason(two) == "stuck"
    assert two.given_up() == ("x",)
    assert two.given_up() == ()
    assert two.choose("m", None, 10.0) == "y"


def test_one_that_was_stuck_is_asked_by_probes_and_not_by_requests() -> None:
    two = routing("x", "y")
    two.looked("x", Look(running=0.0), 2.0)
    stuck(two, "x", 10.0)
    assert two.given_up() == ("x",)
    assert two.wants_probe(14.9) == ()
    assert two.wants_probe(15.0) == ("x",)
    assert two.choose("m", None, 16.0) == "y"
    two.probed("x", ok=False, now=18.0)
    assert state(two, "x", 18.0).back_in_s == 10.0
    assert two.given_up() == ()
    assert two.wants_probe(28.0) == ("x",)
    two.probed("x", ok=True, now=28.5)
    assert reason(two) is None


def test_a_probe_that_could_not_be_asked_waits_like_one_in_vain() -> None:
    one = routing("x")
    one.looked("x", Look(running=0.0), 2.0)
    stuck(one, "x", 10.0)
    assert one.wants_probe(15.0) == ("x",)
    one.probed("x", None, 15.1)
    assert one.wants_probe(15.2) == ()
    assert one.wants_probe(25.1) == ("x",)


def test_tokens_that_move_again_bring_back_one_that_was_stuck() -> None:
    two = routing("x", "y")
    two.looked("x", Look(running=1.0, generation_tokens_total=100.0), 2.0)
    stuck(two, "x", 10.0)
    two.looked("x", Look(running=1.0, generation_tokens_total=100.0), 11.0)
    assert reason(two) == "stuck"
    two.looked("x", Look(running=1.0, generation_tokens_total=101.0), 12.0)
    assert reason(two) is None


def test_an_upstream_without_probes_is_never_asked_for_a_token() -> None:
    one = routing(upstream("x", probes=False))
    one.started("x", 0.0)
    assert one.wants_probe(1000.0) == ()


def test_one_that_cannot_be_reached_is_not_asked_for_a_token() -> None:
    one = routing("x")
    one.started("x", 0.0)
    one.failed_look("x", "refused", 1.0)
    assert one.wants_probe(60.0) == ()


def test_a_single_upstream_is_tried_whatever_happened_to_it() -> None:
    for why in ("refused", "error"):
        one = routing("x")
        for _ in range(3):
            request(one, "x", why, 0.0)  # type: ignore[arg-type]
        assert not one.is_ready("m", 1.0)
        assert one.choose("m", None, 1.0) == "x"
    one = routing("x")
    stuck(one, "x", 10.0)
    assert one.choose("m", None, 11.0) == "x"


def test_when_all_were_left_the_least_bad_is_asked() -> None:
    three = routing("stuck", "gone", "ill")
    stuck(three, "stuck", 10.0)
    request(three, "gone", "refused", 10.0)
    for _ in range(3):
        request(three, "ill", "error", 10.0)
    order: list[str] = []
    while (name := three.choose("m", None, 11.0, frozenset(order))) is not None:
        order.append(name)
    assert order == ["ill", "gone", "stuck"]


def test_the_fallback_is_asked_when_all_others_were_left_and_not_when_one_is_back() -> None:
    house = routing("x", upstream("f", fallback=True))
    assert house.choose("m", None, 0.0) == "x"
    request(house, "x", "refused", 0.0)
    assert house.choose("m", None, 1.0) == "f"
    assert house.is_ready("m", 1.0)
    request(house, "x", "ok", 5.0)
    assert house.choose("m", None, 5.0) == "x"


def test_when_the_fallback_was_left_too_the_least_bad_of_all_is_asked() -> None:
    house = routing("x", upstream("f", fallback=True))
    request(house, "x", "refused", 0.0)
    for _ in range(3):
        request(house, "f", "error", 0.0)
    assert house.choose("m", None, 1.0) == "f"
    assert not house.is_ready("m", 1.0)


def test_one_that_was_left_keeps_its_limit() -> None:
    one = routing(upstream("x", concurrency=1))
    request(one, "x", "refused", 0.0)
    one.started("x", 1.0)
    assert one.choose("m", None, 1.0) is None


def test_a_state_tells_all_of_one() -> None:
    one = routing(upstream("x", concurrency=7, fallback=True))
    one.looked("x", Look(running=3.0, waiting=1.0, models=frozenset({"m"})), 10.0)
    one.started("x", 10.5)
    request(one, "x", "error", 10.5)
    assert state(one, "x", 11.0) == UpstreamState(
        name="x",
        state="up",
        reason=None,
        draining=False,
        in_flight=1,
        running=3.0,
        waiting=1.0,
        others=4.0,
        limit=7,
        fallback=True,
        failures=1,
        back_in_s=None,
        looked_s_ago=1.0,
        models=frozenset({"m"}),
    )


def test_one_whose_requests_have_all_ended_is_not_asked_for_a_token() -> None:
    one = routing("x")
    request(one, "x", "ok", 0.0)
    assert one.wants_probe(60.0) == ()


def test_a_probe_of_which_nothing_is_heard_is_asked_again_after_twice_its_time() -> None:
    one = routing("x")
    one.looked("x", Look(running=0.0), 2.0)
    stuck(one, "x", 10.0)
    assert one.wants_probe(15.0) == ("x",)
    assert one.wants_probe(20.9) == ()
    assert one.wants_probe(21.0) == ("x",)


def test_one_that_is_left_says_so_until_its_time_is_over_or_it_is_tried() -> None:
    one = routing("x")
    request(one, "x", "refused", 0.0)
    assert state(one, "x", 4.9).state == "left"
    assert state(one, "x", 5.0).state == "trying"
    assert state(one, "x", 5.0).back_in_s is None
    one.started("x", 1.0)  # it is the only one, so it is asked all the same
    assert state(one, "x", 1.0).state == "trying"


def test_a_single_request_of_others_that_stands_still_has_the_server_asked_for_a_token() -> None:
    one = routing("x")
    for now in (0.0, 2.0, 4.0):
        one.looked("x", Look(running=1.0, waiting=0.0, generation_tokens_total=7.0), now)
    assert one.wants_probe(4.0) == ("x",)
    other = routing("x")
    for now in (0.0, 2.0, 4.0):
        other.looked("x", Look(running=0.0, waiting=0.0, generation_tokens_total=7.0), now)
    assert other.wants_probe(4.0) == ()
