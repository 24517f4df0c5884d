"""What holds for every schedule: random servers, random requests, aborts in between."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.sim.engine import EngineConfig, EngineCore, EngineRequest

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
def test_every_request_ends_once_with_the_tokens_it_was_to_say(config, plans):
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


@settings(max_examples=100, deadline=None)
@given(CONFIGS, PLANS)
def test_the_counters_are_the_sums_over_the_finished_requests(config, plans):
    engine, outcome = drive(config, plans)
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


@settings(max_examples=100, deadline=None)
@given(CONFIGS, PLANS)
def test_the_prefix_cache_finds_full_blocks_of_what_others_said_and_nothing_else(config, plans):
    _, outcome = drive(config, plans)
    for number, plan in enumerate(plans):
        (end,) = outcome.ends[str(number)]
        longest = max(
            (
                shared_length(plan.prompt, other.prompt + other.answer)
                for index, other in enumerate(plans)
                if index != number
            ),
            default=0,
        )
        assert end.cached_tokens <= min(longest, len(plan.prompt) - 1)
        assert end.cached_tokens % config.block_size == 0
        assert config.prefix_caching or end.cached_tokens == 0


@settings(max_examples=60, deadline=None)
@given(CONFIGS, PLANS)
def test_times_follow_each_other_and_first_come_is_first_served(config, plans):
    _, outcome = drive(config, plans)
    starts = []
    in_order_of_arrival = sorted(range(len(plans)), key=lambda each: plans[each].comes_at_step)
    for number in in_order_of_arrival:
        (end,) = outcome.ends[str(number)]
        times = [end.arrived_at, end.scheduled_at, end.first_token_at, end.last_token_at]
        times = [each for each in (*times, end.ended_at) if each is not None]
        assert times == sorted(times)
        if end.scheduled_at is not None:
            starts.append(end.scheduled_at)
    assert starts == sorted(starts)
