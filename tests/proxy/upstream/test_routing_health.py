"""Routing: who is left, when it is tried again, and who is asked when all were left."""

import pytest

from toolkit.proxy.config import RoutingSetting, UpstreamSetting
from toolkit.proxy.upstream.routing import EngineLoad, Outcome, Reason, Routing, UpstreamState


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


@pytest.mark.parametrize("why", ["timeout", "other"])
def test_a_look_that_was_late_or_not_understood_is_no_failure(why: str) -> None:
    one = routing("x")
    for now in range(50):
        one.scrape_failed("x", why, float(now))  # type: ignore[arg-type]
    assert reason(one) is None


def test_a_look_does_not_bring_back_one_whose_answers_fail() -> None:
    two = pair()
    for _ in range(3):
        request(two, "x", "error", 0.0)
    two.scraped("x", EngineLoad(running=0.0, signs=(5.0,)), 1.0)
    assert two.choose("m", None, 1.0) == "y"
    assert two.choose("m", None, 5.0) == "x"


def test_one_that_failed_and_then_died_comes_back_as_another_with_its_first_look() -> None:
    two = pair()
    for _ in range(3):
        request(two, "x", "error", 0.0)
    two.scrape_failed("x", "refused", 1.0)
    two.scraped("x", EngineLoad(running=0.0), 2.0)
    assert two.choose("m", None, 2.0) == "x"


def test_one_that_was_stuck_is_asked_by_probes_and_not_by_requests() -> None:
    two = routing("x", "y")
    two.scraped("x", EngineLoad(running=0.0), 2.0)
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
    one.scraped("x", EngineLoad(running=0.0), 2.0)
    stuck(one, "x", 10.0)
    assert one.wants_probe(15.0) == ("x",)
    one.probed("x", None, 15.1)
    assert one.wants_probe(15.2) == ()
    assert one.wants_probe(25.1) == ("x",)


def test_one_that_cannot_be_reached_is_not_asked_for_a_token() -> None:
    one = routing("x")
    one.started("x", 0.0)
    one.scrape_failed("x", "refused", 1.0)
    assert one.wants_probe(60.0) == ()


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
