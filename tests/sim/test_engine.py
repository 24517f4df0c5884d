"""The timing model: each step's time by hand, queue, preemption and prefix cache by vLLM's rules, and a recorded run."""

import bisect
import itertools
import random
from collections import Counter

import pytest

from toolkit.sim.engine import EngineConfig, EngineCore, EngineRequest

# 10 ms a step, 1 ms a token of prefill, 2 ms a decoding request: sums that can be done by heart
PLAIN = EngineConfig(step_overhead_s=0.010, prefill_s_per_token=0.001, decode_s_per_sequence=0.002)


def replace(config, **changes):
    return EngineConfig(**(config.model_dump() | changes))


def request(name, prompt, answer, *, max_tokens=1000, at=0.0):
    """`prompt` and `answer` are token counts or the ids themselves."""
    if isinstance(prompt, int):
        prompt = random.Random(name).choices(range(10**6), k=prompt)
    if isinstance(answer, int):
        answer = random.Random(name + "!").choices(range(10**6), k=answer)
    return EngineRequest(
        id=name,
        prompt_ids=tuple(prompt),
        max_tokens=max_tokens,
        output_ids=tuple(answer),
        arrived_at=at,
    )


def one_step(engine, now):
    """Plan and finish a step; the time after it and what it told."""
    step = engine.plan(now)
    return now + step.duration_s, engine.finish(step, now + step.duration_s)


def run(engine, now=0.0):
    """Run until nothing is left: the requests' ends by id, and all (time, id) of tokens."""
    ends: dict[str, EngineRequest] = {}
    said = []
    for _ in range(10_000):
        step = engine.plan(now)
        if step is None:
            return ends, said
        now += step.duration_s
        for each in engine.finish(step, now):
            if each.waited_s is not None:
                said.append((now, each.request.id))
            if each.reason:
                ends[each.request.id] = each.request
    raise AssertionError("the engine did not come to an end")


def times_of(said, name):
    return [at for at, each in said if each == name]


# --- time, worked out by hand -------------------------------------------------------------------


def test_one_request_takes_one_prefill_step_and_a_step_for_every_further_token():
    engine = EngineCore(PLAIN)
    engine.submit(request("a", 10, 4))
    ends, said = run(engine)
    # 10 + 10 * 1 = 20 ms to the first token, then 10 + 2 = 12 ms each
    assert times_of(said, "a") == pytest.approx([0.020, 0.032, 0.044, 0.056])
    end = ends["a"]
    times = [end.scheduled_at, end.first_token_at, end.last_token_at, end.ended_at]
    assert times == pytest.approx([0.0, 0.020, 0.056, 0.056])
    assert (end.reason, end.cached_tokens, end.output_tokens, end.preemptions) == ("stop", 0, 4, 0)


def test_a_newcomer_joins_the_running_batch_and_slows_it_by_its_prefill():
    engine = EngineCore(PLAIN)
    engine.submit(request("a", 10, 3))
    now, _ = one_step(engine, 0.0)
    engine.submit(request("b", 6, 2, at=now))
    ends, said = run(engine, now)
    # step 2: 10 + 2 (a) + 6 (b) = 18 ms; step 3: 10 + 2 + 2 = 14 ms
    assert times_of(said, "a") == pytest.approx([0.038, 0.052])
    assert times_of(said, "b") == pytest.approx([0.038, 0.052])
    assert ends["b"].scheduled_at == pytest.approx(0.020)


def test_a_long_prompt_is_read_in_chunks_of_the_token_budget():
    engine = EngineCore(replace(PLAIN, max_num_batched_tokens=8))
    engine.submit(request("a", 20, 1))
    _, said = run(engine)
    # 8 + 8 + 4 tokens: 18 + 18 + 14 ms
    assert times_of(said, "a") == pytest.approx([0.050])


def test_running_requests_take_their_tokens_from_the_budget_before_a_prompt_does():
    engine = EngineCore(replace(PLAIN, max_num_batched_tokens=8))
    engine.submit(request("a", 4, 5))
    now, _ = one_step(engine, 0.0)
    engine.submit(request("b", 14, 1))
    step = engine.plan(now)
    assert (step.decode_tokens, step.prefill_tokens) == (1, 7)
    # 10 + 1 * 2 + 7 * 1
    assert step.duration_s == pytest.approx(0.019)
    engine.finish(step, now)
    step = engine.plan(now)
    assert (step.decode_tokens, step.prefill_tokens) == (1, 7)
    assert [each.request.id for each in engine.finish(step, now)] == ["a", "b"]


def test_time_scale_multiplies_every_step():
    engine = EngineCore(replace(PLAIN, time_scale=0.1))
    engine.submit(request("a", 10, 2))
    _, said = run(engine)
    assert times_of(said, "a") == pytest.approx([0.0020, 0.0032])


def test_the_first_step_at_each_new_power_of_two_of_the_batch_is_cold():
    engine = EngineCore(replace(PLAIN, cold_s=5.0))
    durations = []
    for size in (1, 2, 3, 4, 3, 5, 8, 1):
        for number in range(size):
            engine.submit(request(str(number), 1, 1))
        step = engine.plan(0.0)
        assert len(step.work) == size
        durations.append(step.duration_s)
        engine.finish(step, 0.0)
    # sizes 1, 2, 3 (graph of 4) and 5 (graph of 8) are new; 10 + size * 1 ms beside the 5 s
    assert durations == pytest.approx(
        [5.011, 5.012, 5.013, 0.014, 0.013, 5.015, 0.018, 0.011],
    )


def test_jitter_stays_inside_its_share_and_repeats_with_the_seed():
    def durations(seed):
        engine = EngineCore(replace(PLAIN, jitter=0.2, seed=seed))
        engine.submit(request("a", 10, 200))
        _, said = run(engine)
        times = [0.0, *times_of(said, "a")]
        return [after - before for before, after in itertools.pairwise(times)][1:]

    first = durations(1)
    assert durations(1) == first
    assert durations(2) != first
    # 12 ms, 20 % more or less
    assert 0.0096 - 1e-9 < min(first) < 0.0105
    assert 0.0135 < max(first) < 0.0144 + 1e-9


# --- how a request ends -------------------------------------------------------------------------


def test_a_prompt_as_long_as_the_model_ends_in_an_error_and_holds_up_nobody():
    engine = EngineCore(replace(PLAIN, max_model_len=12))
    engine.submit(request("a", 12, 1))
    engine.submit(request("b", 5, 2))
    ends, _ = run(engine)
    assert (ends["a"].reason, ends["a"].output_tokens) == ("error", 0)
    assert ends["a"].error == "12 tokens do not fit: the model takes 12, the KV cache 16368"
    assert ends["a"].scheduled_at is None
    assert ends["b"].reason == "stop"


def test_an_error_alone_is_told_by_a_step_that_takes_no_time():
    # 3 usable blocks of 4 hold 12 tokens
    engine = EngineCore(replace(PLAIN, block_size=4, num_gpu_blocks=4))
    engine.submit(request("a", 13, 1))
    step = engine.plan(1.0)
    assert (step.duration_s, step.work) == (0.0, [])
    (told,) = engine.finish(step, 1.0)
    assert (told.waited_s, told.reason) == (None, "error")
    assert engine.plan(1.0) is None


def test_an_aborted_id_may_come_again_while_the_old_step_still_runs():
    engine = EngineCore(PLAIN)
    engine.submit(request("a", 5, 9))
    step = engine.plan(0.0)
    engine.abort("a", 0.001)
    engine.submit(request("a", 5, 2, at=0.002))
    assert engine.finish(step, 0.020) == []
    ends, said = run(engine, 0.020)
    assert ends["a"].output_tokens == len(said) == 2


# --- KV blocks, prefix cache, preemption --------------------------------------------------------


def test_kv_usage_is_the_share_of_usable_blocks_held():
    # 10 usable blocks of 4
    engine = EngineCore(replace(PLAIN, block_size=4, num_gpu_blocks=11))
    engine.submit(request("a", 8, 2))
    now, _ = one_step(engine, 0.0)
    assert engine.kv_usage == pytest.approx(0.2)
    # the first token's own KV needs a third block; the second token ends it all
    step = engine.plan(now)
    assert engine.kv_usage == pytest.approx(0.3)
    engine.finish(step, now)
    assert engine.kv_usage == 0


@pytest.mark.parametrize(
    ("prompt_tokens", "block_size", "cached"),
    [
        (48, 16, 32),  # three full blocks, but the last token is computed anew: two
        (49, 16, 48),
        (15, 16, 0),
        (153, 32, 128),  # recorded from vLLM 0.32.0: 153 prompt tokens, 128 cached
    ],
)
def test_a_repeated_prompt_finds_its_full_blocks_but_never_its_last_token(
    prompt_tokens, block_size, cached
):
    engine = EngineCore(replace(PLAIN, block_size=block_size))
    engine.submit(request("a", range(prompt_tokens), 1))
    run(engine)
    engine.submit(request("b", range(prompt_tokens), 1))
    step = engine.plan(1.0)
    assert step.prefill_tokens == prompt_tokens - cached
    (told,) = engine.finish(step, 1.0)
    assert told.request.cached_tokens == cached
    assert engine.prefix_queries_total == 2 * prompt_tokens
    assert engine.prefix_hits_total == engine.prompt_tokens_cached_total == cached
    assert engine.prompt_tokens_total == 2 * prompt_tokens


def test_twins_in_the_same_step_share_their_prefix():
    engine = EngineCore(PLAIN)
    engine.submit(request("a", range(40), 1))
    engine.submit(request("b", range(40), 1))
    # 40 + (40 - 32) tokens, in 3 + 1 blocks
    assert engine.plan(0.0).prefill_tokens == 48
    assert engine.kv_usage == pytest.approx(4 / 1023)


def test_the_next_turn_of_a_conversation_finds_the_answer_cached_too():
    engine = EngineCore(PLAIN)
    engine.submit(request("a", range(20), range(100, 130)))
    run(engine)
    prompt = [*range(20), *range(100, 130), *range(50)]
    engine.submit(request("b", prompt, 1))
    ends, _ = run(engine)
    # 20 + 29 tokens were computed (the last one said never is): three full blocks of 16
    assert ends["b"].cached_tokens == 48


def test_without_prefix_caching_nothing_is_looked_up_or_found():
    engine = EngineCore(replace(PLAIN, prefix_caching=False))
    for name in ("a", "b"):
        engine.submit(request(name, range(64), 1))
        ends, _ = run(engine)
    assert ends["b"].cached_tokens == 0
    assert engine.prefix_queries_total == engine.prefix_hits_total == 0


@pytest.mark.parametrize(("prefix_caching", "computed_again"), [(True, 1), (False, 9)])
def test_a_preempted_request_waits_at_the_front_and_is_computed_again(
    prefix_caching, computed_again
):
    # 5 usable blocks of 4: both prompts of 8 fit, one of them may grow
    config = replace(PLAIN, block_size=4, num_gpu_blocks=6, prefix_caching=prefix_caching)
    engine = EngineCore(config)
    engine.submit(request("a", 8, 4))
    engine.submit(request("b", 8, 4))
    engine.submit(request("c", 8, 4))
    now, _ = one_step(engine, 0.0)
    assert (engine.running, engine.waiting, engine.preemptions_total) == (2, 1, 0)
    # a takes the fifth block; b, started last, gives way to itself and goes before c
    step = engine.plan(now)
    assert (engine.running, engine.waiting, engine.preemptions_total) == (1, 2, 1)
    assert engine.kv_usage == pytest.approx(3 / 5)
    now += step.duration_s
    engine.finish(step, now)
    for _ in range(2):
        now, told = one_step(engine, now)
    assert [(each.request.id, each.output_tokens) for each in told] == [("a", 4)]
    # a is gone; b has said one token and now needs 3 blocks for 9 tokens; c's prompt fits beside it
    step = engine.plan(now)
    assert step.prefill_tokens + step.decode_tokens == computed_again + 8
    told = engine.finish(step, now)
    assert [(each.request.id, each.output_tokens) for each in told] == [("b", 2), ("c", 1)]
    ends, _ = run(engine, now)
    assert (ends["b"].preemptions, ends["b"].cached_tokens, ends["b"].scheduled_at) == (1, 0, 0.0)


def test_a_prompt_is_started_only_when_all_of_it_fits():
    # 5 usable blocks of 4; a holds 3, and 8 of b's 12 tokens would fit the other two
    engine = EngineCore(replace(PLAIN, block_size=4, num_gpu_blocks=6, max_num_batched_tokens=12))
    engine.submit(request("a", 9, 2))
    one_step(engine, 0.0)
    engine.submit(request("b", 12, 1))
    step = engine.plan(1.0)
    assert (step.decode_tokens, step.prefill_tokens) == (1, 0)
    assert engine.waiting == 1


def test_nobody_overtakes_the_head_of_the_queue():
    engine = EngineCore(replace(PLAIN, block_size=4, num_gpu_blocks=6))
    engine.submit(request("a", 9, 2))
    one_step(engine, 0.0)
    engine.submit(request("big", 12, 1))
    engine.submit(request("small", 2, 1))
    step = engine.plan(1.0)
    assert len(step.work) == 1
    assert engine.waiting == 2


# --- misuse -------------------------------------------------------------------------------------


def test_steps_are_planned_and_finished_one_at_a_time():
    engine = EngineCore(PLAIN)
    engine.submit(request("a", 5, 9))
    step = engine.plan(0.0)
    with pytest.raises(RuntimeError, match="unfinished"):
        engine.plan(0.0)
    engine.finish(step, 0.0)
    with pytest.raises(RuntimeError, match="not the planned one"):
        engine.finish(step, 0.0)


def test_an_idle_engine_has_nothing_to_plan():
    assert EngineCore(PLAIN).plan(0.0) is None


@pytest.mark.parametrize(("prompt", "answer", "limit"), [([], 1, 1), (1, [], 1), (1, 1, 0)])
def test_a_request_with_nothing_to_read_or_say_is_refused(prompt, answer, limit):
    with pytest.raises(ValueError, match="`a` has nothing"):
        EngineCore(PLAIN).submit(request("a", prompt, answer, max_tokens=limit))


def test_an_id_that_is_alive_is_refused():
    engine = EngineCore(PLAIN)
    engine.submit(request("a", 5, 9))
    with pytest.raises(ValueError, match="`a` is alive"):
        engine.submit(request("a", 5, 9))


# --- a real server's run, step for step -----------------------------------------------------------


def test_a_recorded_run_of_vllm_is_repeated_step_for_step():
    """vLLM 0.32.0 with 128 blocks of 32, 16 sequences, 32 clients, 64 requests of 128 tokens.

    Its prompts were 11,702 tokens in all: 64 of 183, but for ten tokens. The expected numbers are
    from its /metrics after the run, less one later request of 15 and 38 tokens (that is 38 steps: 37
    of one token in the first bucket and one of 16 in the third).
    """
    config = EngineConfig(
        max_model_len=512,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        block_size=32,
        num_gpu_blocks=128,
    )
    engine = EngineCore(config)
    queue = [request(str(number), 183, 200, max_tokens=128) for number in range(64)]
    engine.submit(queue.pop())
    edges = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
    step, now = engine.plan(0.0), 0.0  # the first one came alone
    for _ in range(31):
        engine.submit(queue.pop())
    iterations, preemptions, seen = Counter(), Counter(), set()
    while step:
        now += step.duration_s
        for told in engine.finish(step, now):
            if told.reason:
                preemptions[told.request.preemptions] += 1
                if queue:
                    engine.submit(queue.pop())
        iterations[edges[bisect.bisect_left(edges, engine.iteration_tokens)]] += 1
        step = engine.plan(now)
        seen.add((engine.running, engine.waiting, round(engine.kv_usage * 127)))
    # vllm:iteration_tokens_total: 679 - 38 steps; buckets 164 - 37, 662 - 164 - 1, 670, 673, 679
    assert iterations == {8: 127, 16: 497, 256: 8, 1024: 3, 2048: 6}
    # vllm:request_num_preemptions: 62 up to one, 63 up to two, 64 up to three; 18 in all
    assert preemptions == {0: 49, 1: 13, 2: 1, 3: 1}
    assert engine.preemptions_total == 18
    # the gauges of seconds 2 to 5 and 10: running, waiting, blocks held of 127 (0.882 is 112, ...)
    assert seen >= {(16, 16, 112), (15, 17, 120), (14, 18, 126), (12, 20, 120), (14, 18, 124)}
    assert engine.generation_tokens_total == 8192
    assert engine.prefix_queries_total == engine.prompt_tokens_total
