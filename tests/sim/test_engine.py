"""The timing model: a step's time by hand, preemption by vLLM's rules, a recorded run, and what holds for every schedule."""

import bisect
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from toolkit.sim.engine import BlockPool, EngineConfig, EngineCore, EngineRequest, block_hashes

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


# --- KV blocks, prefix cache, preemption --------------------------------------------------------


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


CONFIGS = st.builds(
    EngineConfig,
    max_model_len=st.integers(8, 40),
    max_num_seqs=st.integers(1, 5),
    max_num_batched_tokens=st.integers(1, 24),
    block_size=st.integers(1, 5),
    num_gpu_blocks=st.integers(2, 24),
    prefix_caching=st.booleans(),
    cold_s=st.sampled_from([0.0, 1.0]),
    jitter=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 3),
)
# two token ids only: shared prefixes are common
IDS = st.lists(st.integers(0, 1), min_size=1, max_size=16).map(tuple)


@dataclass(frozen=True)
class Plan:
    """When a request comes, what it wants, and when, if ever, its client goes away."""

    comes_at_step: int
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    max_tokens: int
    goes_at_step: int | None
    while_a_step_runs: bool


PLANS = st.lists(
    st.builds(
        Plan,
        comes_at_step=st.integers(0, 20),
        prompt=IDS,
        answer=IDS,
        max_tokens=st.integers(1, 12),
        goes_at_step=st.one_of(st.none(), st.integers(0, 30)),
        while_a_step_runs=st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@dataclass
class Outcome:
    ends: dict[str, list[EngineRequest]] = field(default_factory=dict)
    said: dict[str, list[int]] = field(default_factory=dict)
    iteration_tokens: int = 0
    steps: int = 0

    def note(self, ended):
        if ended:
            self.ends.setdefault(ended.id, []).append(ended)


def check_the_books(engine):
    """Look inside: blocks, queue and batch must agree at any moment."""
    pool = engine._pool
    held = {block for each in engine._running for block in each.blocks}
    assert pool.free + len(pool._holders) == engine.config.num_gpu_blocks - 1
    assert len(pool._holders) == len(held)
    assert 0 not in held
    assert not any(each.blocks for each in engine._waiting)
    assert engine.running <= engine.config.max_num_seqs
    assert 0 <= engine.kv_usage <= 1
    for each in engine._running:
        assert each.computed <= len(each.blocks) * engine.config.block_size


def abort_those_who_go(engine, plans, outcome, now, *, while_a_step_runs):
    for number, plan in enumerate(plans):
        if plan.goes_at_step == outcome.steps and plan.while_a_step_runs == while_a_step_runs:
            outcome.note(engine.abort(str(number), now))


def drive(config, plans):
    engine, outcome, now = EngineCore(config), Outcome(), 0.0
    last_arrival = max(plan.comes_at_step for plan in plans)
    for _ in range(3000):
        for number, plan in enumerate(plans):
            if plan.comes_at_step == outcome.steps:
                engine.submit(
                    EngineRequest(
                        id=str(number),
                        prompt_ids=plan.prompt,
                        max_tokens=plan.max_tokens,
                        output_ids=plan.answer,
                        arrived_at=now,
                    )
                )
        abort_those_who_go(engine, plans, outcome, now, while_a_step_runs=False)
        step = engine.plan(now)
        check_the_books(engine)
        if step is None and outcome.steps >= last_arrival:
            return engine, outcome
        if step:
            assert step.prefill_tokens + step.decode_tokens <= config.max_num_batched_tokens
            assert len(step.work) <= config.max_num_seqs
            assert (step.duration_s > 0) == bool(step.work)
            abort_those_who_go(engine, plans, outcome, now, while_a_step_runs=True)
            now += step.duration_s
            for told in engine.finish(step, now):
                if told.waited_s is not None:
                    said = outcome.said.setdefault(told.request.id, [])
                    said.append(told.request.ids[-1])
                    assert told.output_tokens == len(said)
                outcome.note(told.request if told.reason else None)
            check_the_books(engine)
            outcome.iteration_tokens += engine.iteration_tokens
        outcome.steps += 1
    raise AssertionError("the engine did not come to an end")


def shared_length(one, other):
    for length, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return length
    return min(len(one), len(other))


@settings(max_examples=150, deadline=None)
@given(CONFIGS, PLANS)
def test_every_request_ends_once_with_its_tokens_and_all_counts_and_times_agree(config, plans):
    engine, outcome = drive(config, plans)
    assert set(outcome.ends) == {str(number) for number in range(len(plans))}
    assert all(len(ends) == 1 for ends in outcome.ends.values())
    assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0)
    usable = (config.num_gpu_blocks - 1) * config.block_size
    for number, plan in enumerate(plans):
        (end,) = outcome.ends[str(number)]
        said = outcome.said.get(str(number), [])
        assert tuple(said) == plan.answer[: len(said)]
        assert end.output_tokens == len(said)
        room = config.max_model_len - len(plan.prompt)
        whole = min(plan.max_tokens, len(plan.answer), room)
        if end.reason == "abort":
            assert plan.goes_at_step is not None
            assert len(said) < whole or whole < 1
        elif end.reason == "error":
            # too long for the model, or the KV of all but the last token said has no place
            assert room < 1 or len(plan.prompt) + len(said) > usable
            assert end.error
        else:
            assert len(said) == whole
            assert end.reason == ("stop" if whole == len(plan.answer) else "length")

    counters_are_sums(engine, outcome, config)
    starts = []
    for number in sorted(range(len(plans)), key=lambda each: plans[each].comes_at_step):
        (end,) = outcome.ends[str(number)]
        others = [plan.prompt + plan.answer for n, plan in enumerate(plans) if n != number]
        # the prefix cache finds full blocks of what others said and nothing else
        longest = max((shared_length(end.prompt_ids, other) for other in others), default=0)
        assert end.cached_tokens <= min(longest, len(end.prompt_ids) - 1)
        assert end.cached_tokens % config.block_size == 0
        assert config.prefix_caching or end.cached_tokens == 0
        times = [end.arrived_at, end.scheduled_at, end.first_token_at, end.last_token_at]
        times = [each for each in (*times, end.ended_at) if each is not None]
        assert times == sorted(times)
        starts += [end.scheduled_at] * (end.scheduled_at is not None)
    assert starts == sorted(starts), "first come is first served"


def counters_are_sums(engine, outcome, config):
    ends = [end for (end,) in outcome.ends.values()]
    started = [end for end in ends if end.scheduled_at is not None]
    answered = [end for end in ends if end.first_token_at is not None]
    assert engine.generation_tokens_total == sum(end.output_tokens for end in ends)
    assert engine.prompt_tokens_total == sum(len(end.prompt_ids) for end in answered)
    assert engine.prompt_tokens_cached_total == sum(end.cached_tokens for end in answered)
    assert engine.preemptions_total == sum(end.preemptions for end in ends)
    computed = sum(len(end.prompt_ids) - end.cached_tokens for end in answered)
    assert outcome.iteration_tokens == computed + engine.generation_tokens_total
    looked_up = sum(len(end.prompt_ids) for end in started) if config.prefix_caching else 0
    assert engine.prefix_queries_total == looked_up
    assert engine.prefix_hits_total == sum(end.cached_tokens for end in ends)


def test_the_longest_unused_block_is_forgotten_first_and_a_prefix_after_what_followed_it():
    pool = BlockPool(4)
    one, two, three = pool.take(3)
    for block, its_hash in ((one, 100), (two, 200), (three, 300)):
        pool.remember(block, its_hash)
    pool.release([three])
    pool.release([one, two])
    # eviction order: 3, then 2 (released last-first), then 1
    assert pool.take(1) == [three]
    assert pool.match([300]) == []
    assert pool.take(1) == [two]
    assert pool.match([100, 200]) == [one]


@given(st.lists(st.integers(0, 9)), st.integers(1, 5), st.integers(0, 50))
def test_hashes_worked_out_in_two_goes_are_the_same(ids, size, first):
    full = len(ids) // size
    whole = block_hashes(ids, size, blocks=full)
    begun = block_hashes(ids, size, blocks=min(first, full))
    assert block_hashes(ids, size, known=begun, blocks=full) == whole
    assert whole[: len(begun)] == begun


class PoolAgainstBookkeeping(RuleBasedStateMachine):
    """Any order of taking, sharing and giving back keeps the books."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(9)
        self.holders: list[list[int]] = []
        self.next_hash = 1

    @rule(count=st.integers(0, 5))
    def take(self, count):
        free = self.pool.free
        blocks = self.pool.take(count)
        assert (blocks is None) == (count > free)
        if blocks:
            assert not {each for held in self.holders for each in held} & set(blocks)
            self.holders.append(blocks)
            for block in blocks:
                self.pool.remember(block, self.next_hash)
                self.next_hash += 1

    @rule(its_hash=st.integers(1, 60))
    def share_what_is_known(self, its_hash):
        matched = self.pool.match([its_hash])
        if matched and self.pool.fits(matched, 0):
            self.pool.share(matched)
            self.holders.append(matched)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data):
        index = data.draw(st.integers(0, len(self.holders) - 1))
        self.pool.release(self.holders.pop(index))

    @invariant()
    def every_block_is_either_free_or_held(self):
        held = {each for blocks in self.holders for each in blocks}
        assert self.pool.free + len(held) == self.pool.usable == 8


TestPoolAgainstBookkeeping = PoolAgainstBookkeeping.TestCase
TestPoolAgainstBookkeeping.settings = settings(max_examples=40, stateful_step_count=30)
