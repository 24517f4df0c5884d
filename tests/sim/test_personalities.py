"""The cast of the contest: as fast as it was there, and changed in whatever part a test or a user names."""

import itertools
import random
from typing import get_args

import pytest

from toolkit.sim.engine import Engine, EngineConfig, EngineRequest
from toolkit.sim.life import SETTINGS, read_setting, setup_for
from toolkit.sim.personalities import PERSONALITIES, Front, personality

CLIENTS = 64
PROMPT_TOKENS = 25
ANSWER_TOKENS = 256


def request(number: int, now: float) -> EngineRequest:
    dice = random.Random(number)
    return EngineRequest(
        id=str(number),
        prompt_ids=tuple(dice.choices(range(9999), k=PROMPT_TOKENS)),
        max_tokens=ANSWER_TOKENS,
        output_ids=tuple(dice.choices(range(9999), k=ANSWER_TOKENS)),
        arrived_at=now,
    )


def saturated_tokens_per_s(config: EngineConfig) -> float:
    """64 clients, each sending its next request when it has its answer; simulated seconds 20 to 50."""
    engine = Engine(config)
    numbers = itertools.count()
    for _ in range(CLIENTS):
        engine.submit(request(next(numbers), 0.0))
    now = 0.0
    tokens_before = since = None
    while now < 50:
        step = engine.plan(now)
        now += step.duration_s
        for progress in engine.finish(step, now):
            if progress.finished:
                engine.submit(request(next(numbers), now))
        if tokens_before is None and now > 20:
            tokens_before, since = engine.generation_tokens_total, now
    return (engine.generation_tokens_total - tokens_before) / (now - since)


def first_token_s(engine: Engine, first_id: int, count: int, now: float) -> float:
    """Send `count` requests at once; seconds until the last of them has its first token."""
    for number in range(first_id, first_id + count):
        engine.submit(request(number, now))
    step = engine.plan(now)
    told = engine.finish(step, now + step.duration_s)
    assert [each.first_token for each in told] == [True] * count
    for each in told:
        engine.abort(each.request_id, now + step.duration_s)
    return step.duration_s


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("num_gpu_blocks", "64", 64),
        ("prefix_caching", "False", False),
        ("prefix_caching", "true", True),
        ("jitter", "0", 0.0),
        ("model", "7", "7"),
        ("down_after_s", "1.5", 1.5),
        ("drip_bytes_per_s", "none", None),
        ("engines", "2", 2),
    ],
)
def test_a_setting_is_read_by_its_kind(name, text, value):
    read = read_setting(name, text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("num_gpu_blocks", "1.5", "must be a whole number, not `1.5`"),
        ("prefix_caching", "maybe", "must be true or false, not `maybe`"),
        ("jitter", "nan", "must be a number, not `nan`"),
        ("jitter", "none", "must be a number, not `none`"),
    ],
)
def test_a_setting_of_the_wrong_kind_is_refused(name, text, message):
    with pytest.raises(ValueError, match=f"`{name}` {message}"):
        read_setting(name, text)


def test_every_setting_can_be_read_and_set():
    texts = {bool: "true", int: "2", float: "0.5", str: "x"}
    for name, kind in SETTINGS.items():
        plain, *_ = get_args(kind) or (kind,)  # `float` of `float | None`
        setup_for("cached", **{name: read_setting(name, texts[plain])})
    assert {"num_gpu_blocks", "response_cache", "model", "cache_header"} <= set(SETTINGS)
    assert not {"name", "port", "api_key", "later"} & set(SETTINGS)


def test_a_change_holds_also_for_what_a_switcher_becomes():
    switcher = personality("switcher", model="tiny", time_scale=0.5)
    assert (switcher.later.name, switcher.later.model) == ("gptq-int4", "tiny")
    assert switcher.later.engine.time_scale == 0.5
    assert switcher.later.engine.num_gpu_blocks > switcher.engine.num_gpu_blocks


def test_the_whole_cast_of_the_contest_is_there():
    assert list(PERSONALITIES) == [
        *("fp8", "awq", "gptq-int4", "cached", "first-token", "switcher", "cold", "flaky", "drip")
    ]
    assert all(each.name == name and each.summary for name, each in PERSONALITIES.items())


# The contest's own figures in tokens a second.
@pytest.mark.parametrize(("name", "expected"), [("fp8", 1070), ("awq", 1211), ("gptq-int4", 3114)])
def test_a_saturated_model_is_as_fast_as_it_was_in_the_contest(name, expected):
    speed = saturated_tokens_per_s(personality(name).engine)
    # each within 2.4 %: then every ratio of two is within 5 %
    assert speed == pytest.approx(expected, rel=0.024)


def test_a_model_with_few_kv_blocks_runs_few_requests_and_preempts():
    small, large = Engine(personality("fp8").engine), Engine(personality("gptq-int4").engine)
    for engine in (small, large):
        for number in range(64):
            engine.submit(request(number, 0.0))
        now = 0.0
        for _ in range(240):
            step = engine.plan(now)
            now += step.duration_s
            engine.finish(step, now)
    # 25 + 240 tokens are 17 blocks: 396 / 17 = 23 requests, and 1,096 / 17 = 64
    assert small.running == 23
    assert small.preemptions_total >= 64 - 23
    assert large.running == 64
    assert large.preemptions_total == 0


def test_cold_requests_wait_407_times_as_long_as_warm_ones():
    engine = Engine(personality("cold", jitter=0.0).engine)
    cold = first_token_s(engine, 0, 64, 0.0)
    warm = first_token_s(engine, 100, 64, 1000.0)
    # 0.012 + 64 * 25 * 0.000129 = 0.2184 s warm; the contest saw 219 ms and 89 s
    assert warm == pytest.approx(0.2184)
    assert cold == pytest.approx(89.0, abs=0.01)
    assert cold / warm == pytest.approx(407, abs=1)


def test_the_winners_host_looks_as_it_was_scraped():
    winner = personality("cached")
    assert winner.gpu_memory_utilization == 0.46
    assert winner.engine.num_gpu_blocks == 661
    assert winner.cache_dtype == "fp8_e4m3"
    assert winner.front.response_cache
    assert winner.front.cache_hit_s < 0.005


def test_only_the_named_trick_is_played():
    honest = Front()
    assert personality("gptq-int4").front == honest
    assert personality("first-token").front == Front(first_token_only=True)
    assert personality("switcher").front.down_for_s == 300
    assert personality("drip").front.drip_bytes_per_s == 200
    flaky = personality("flaky").front
    assert flaky.error_share + flaky.cut_share + flaky.stream_error_share == pytest.approx(0.2)


def test_every_kv_cache_holds_at_least_one_request_of_full_length():
    # vLLM refuses to start otherwise
    for each in PERSONALITIES.values():
        usable = (each.engine.num_gpu_blocks - 1) * each.engine.block_size
        assert usable >= each.max_model_len


def test_a_change_reaches_the_record_that_has_the_field():
    changed = personality("switcher", time_scale=0.01, down_for_s=5, model="mine", seed=7)
    assert changed.engine.time_scale == 0.01
    assert changed.front.down_for_s == 5
    assert changed.model == "mine"
    assert (changed.engine.seed, changed.front.seed) == (7, 7)
    assert changed.engine.num_gpu_blocks == personality("switcher").engine.num_gpu_blocks
    assert personality("switcher").model == "Qwen3.5-35B-A3B"


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(ValueError, match=r"`fp4` is no personality; known are fp8, awq, .*drip"):
        personality("fp4")


@pytest.mark.parametrize("word", ["time_scales", "engine", "front"])
def test_an_unknown_setting_is_refused(word):
    with pytest.raises(ValueError, match=f"`fp8` has no setting `{word}`"):
        personality("fp8", **{word: 1})


def test_a_bad_value_is_refused():
    with pytest.raises(ValueError, match="`time_scale` must"):
        personality("fp8", time_scale=-1)
    with pytest.raises(ValueError, match="shares"):
        personality("flaky", error_share=0.95)
    with pytest.raises(ValueError, match="drip"):
        personality("drip", drip_bytes_per_s=0)
