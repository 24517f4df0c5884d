"""Routing: whose load counts how long, when one that was left is tried again, and who is stuck, on a clock of the test's."""

import pytest

from toolkit.proxy.config import RoutingSetting, UpstreamSetting
from toolkit.proxy.upstream.routing import (
    EngineLoad,
    Outcome,
    Reason,
    Routing,
    Signs,
    UpstreamState,
)


def upstream(name: str, **more: object) -> UpstreamSetting:
    return UpstreamSetting(name=name, url=f"http://{name}", **more)  # type: ignore[arg-type]


def routing(*upstreams: UpstreamSetting | str, **setting: object) -> Routing:
    those = [upstream(each) if isinstance(each, str) else each for each in upstreams]
    return Routing(those, RoutingSetting(**{"back_s": 5.0} | setting))  # type: ignore[arg-type]


def test_what_others_had_there_counts_half_after_three_looks_that_did_not_come() -> None:
    one = routing("x", look_s=1.0)
    one.scraped("x", EngineLoad(running=8.0, waiting=0.0), 100.0)
    # the first second is the time to the next look; then 8 * 0.5 ** (t / 3)
    told = [one.states(now)[0].others for now in (100.0, 101.0, 104.0, 107.0, 1000.0)]
    assert told == pytest.approx([8.0, 8.0, 4.0, 2.0, 0.0])
    slow = routing("x", look_s=5.0)
    slow.scraped("x", EngineLoad(running=8.0, waiting=0.0), 100.0)
    assert [slow.states(now)[0].others for now in (105.0, 120.0)] == pytest.approx([8.0, 4.0])


def test_prefixes_keep_their_home_in_another_process_and_in_another_order_of_upstreams() -> None:
    one = routing("w", "x", "y", "z", affinity=True)
    other = routing("z", "y", "w", "x", affinity=True)
    for prefix in (0, 1, 2**63, -5, 2**70):
        assert one.choose("m", prefix, 0.0) == other.choose("m", prefix, 0.0)
    # blake2b of the name, keyed by the prefix in 8 bytes, worked out with b2sum's function by hand
    from hashlib import blake2b

    def rank(name: str) -> bytes:
        return blake2b(name.encode(), key=(7).to_bytes(8, "big"), digest_size=8).digest()

    assert one.choose("m", 7, 0.0) == max("wxyz", key=rank)


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


ASKED = ("x",)


def one() -> Routing:
    """An upstream x that is suspect after 4 s of silence; a probe takes at most 3 s."""
    setting = RoutingSetting(look_s=1.0, stuck_s=4.0, probe_s=3.0)
    return Routing([UpstreamSetting(name="x", url="http://x")], setting)


def scrape(of: Routing, now: float, *signs: float | None, busy: bool = True) -> None:
    told: Signs = signs
    of.scraped("x", EngineLoad(running=3.0 if busy else 0.0, signs=told), now)


def test_silence_counts_from_the_first_work_and_not_from_the_last_token_before_it() -> None:
    x = one()
    x.got_bytes("x", 0.0)
    x.started("x", 1000.0)
    assert x.wants_probe(1003.9) == ()
    assert x.wants_probe(1004.0) == ASKED


def test_a_prefill_of_34_seconds_as_vllm_showed_it_is_never_suspect() -> None:
    # vLLM 0.32, a prompt of 8,000 tokens in steps of 256, a look each 1.03 s: 511 KV blocks, so many of them in use.
    # prompt_tokens_total, generation_tokens_total and the steps stood at 20, 1 and 1 until its end
    blocks = "0 24 40 56 72 88 104 120 128 136 144 144 152 168 176 176 184 184 192 192 192 200 208 208 216 216 224 224 224 232 232 240 248"
    x = one()
    x.started("x", 0.0)
    for number, used in enumerate(blocks.split()):
        now = number * 1.03
        assert x.wants_probe(now) == ()
        scrape(x, now, 20.0, 1.0, 1.0, int(used) / 511, busy=number > 0)


def test_a_probe_that_is_answered_clears_a_long_prefill_for_another_four_seconds() -> None:
    x = one()
    x.started("x", 0.0)
    assert x.wants_probe(4.0) == ASKED
    x.probed("x", ok=True, now=5.0)
    assert x.wants_probe(8.9) == ()
    assert x.wants_probe(9.0) == ASKED


def test_a_probe_that_only_waited_behind_others_whose_tokens_moved_says_nothing() -> None:
    x = one()
    scrape(x, 0.0, 100.0)
    assert x.wants_probe(4.0) == ASKED
    scrape(x, 5.0, 101.0)
    x.probed("x", ok=False, now=7.0)
    assert x.states(7.0)[0].reason is None


class Engine:
    """A server that answers its pages always, and makes tokens until it hangs."""

    def __init__(self, hangs_s: float, *, prefill_s: float = 0.0) -> None:
        self.hangs_s, self.prefill_s = hangs_s, prefill_s

    def look(self, now: float) -> EngineLoad:
        made = min(now, self.hangs_s)
        tokens = max(0.0, made - self.prefill_s) * 100
        return EngineLoad(running=3.0, waiting=0.0, signs=(9.0, tokens))


def left_s(engine: Engine, *, answers_probes: bool, phase_s: float) -> float | None:
    """When it is left, by looks and questions each second and probes that take 3 s; None: not within two minutes."""
    routing = one()
    routing.started("x", 0.0)
    ends_s: float | None = None
    for step in range(1200):
        now = step / 10
        if ends_s is not None and now >= ends_s:
            routing.probed("x", answers_probes, now)
            ends_s = None
        if (step + round(phase_s * 10)) % 10 == 0:
            routing.scraped("x", engine.look(now), now)
        if (step + 5) % 10 == 0 and routing.wants_probe(now):
            ends_s = now + (0.5 if answers_probes else 3.0)
        if routing.states(now)[0].state == "left":
            return now
    return None


def test_a_server_that_hangs_at_any_moment_is_left_within_ten_seconds() -> None:
    for tenth in range(60):
        hangs_s = 20 + tenth / 10
        for phase_s in (0.0, 0.3, 0.7):
            at_s = left_s(Engine(hangs_s), answers_probes=False, phase_s=phase_s)
            assert at_s is not None
            assert hangs_s < at_s < hangs_s + 10.0


def test_a_long_prefill_whose_counts_stand_still_is_not_left_where_a_probe_is_answered() -> None:
    engine = Engine(1000.0, prefill_s=60.0)
    assert left_s(engine, answers_probes=True, phase_s=0.0) is None
