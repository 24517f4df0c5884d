"""Stuck or not: signs of life, silence, probes, on a clock of whole seconds."""

from toolkit.proxy.config import RoutingSetting, UpstreamSetting
from toolkit.proxy.upstream.routing import EngineLoad, Routing, Signs

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


def test_bytes_of_ours_are_a_sign_where_no_page_tells() -> None:
    x = one()
    x.started("x", 0.0)
    x.got_bytes("x", 3.0)
    assert x.wants_probe(6.9) == ()
    assert x.wants_probe(7.0) == ASKED


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


def test_others_requests_that_stand_still_make_it_suspect_without_one_of_ours() -> None:
    x = one()
    scrape(x, 0.0, 100.0, busy=False)
    scrape(x, 10.0, 100.0)
    scrape(x, 13.0, 100.0)
    assert x.wants_probe(13.9) == ()
    assert x.wants_probe(14.0) == ASKED


def test_a_count_that_is_not_told_this_time_is_no_sign() -> None:
    x = one()
    scrape(x, 0.0, 100.0, None)
    scrape(x, 2.0, None, 5.0)
    assert x.wants_probe(4.0) == ASKED


def test_a_server_that_does_not_answer_its_pages_in_time_is_not_idle() -> None:
    x = one()
    scrape(x, 0.0, 100.0, busy=False)
    x.scrape_failed("x", "timeout", 1.0)
    x.scrape_failed("x", "timeout", 3.0)
    assert x.wants_probe(4.9) == ()
    assert x.wants_probe(5.0) == ASKED
    scrape(x, 11.5, 100.0, busy=False)
    assert x.wants_probe(60.0) == ()


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


def test_a_probe_that_could_not_be_asked_is_repeated_only_after_another_silence() -> None:
    x = one()
    x.started("x", 0.0)
    assert x.wants_probe(4.0) == ASKED
    x.probed("x", None, 4.5)
    assert x.states(4.5)[0].reason is None
    assert x.wants_probe(8.4) == ()
    assert x.wants_probe(8.5) == ASKED


def test_one_probe_at_a_time_and_a_lost_one_is_repeated() -> None:
    x = one()
    x.started("x", 0.0)
    assert x.wants_probe(4.0) == ASKED
    assert x.wants_probe(9.9) == ()
    assert x.wants_probe(10.0) == ASKED


def test_when_the_last_of_its_work_is_over_it_is_not_suspect() -> None:
    x = one()
    x.started("x", 0.0)
    x.started("x", 1.0)
    x.ended("x", "left", 2.0)
    x.ended("x", "left", 2.0)
    assert x.wants_probe(50.0) == ()


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
