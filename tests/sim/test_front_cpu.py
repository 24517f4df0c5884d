"""The one core of an API process: turns, what they cost, and how `/metrics` tells it."""

import pytest
from support.simulated import Sim, Start

from toolkit.sim.front_cpu import FrontCpu
from toolkit.sim.personalities import BOTTLENECKS, PERSONALITIES, Front, personality


def test_requests_take_turns_on_the_one_core() -> None:
    cpu = FrontCpu()
    # three at once of 0.25 s each; a fourth that comes when all is quiet waits for nobody
    assert [cpu.through_at(10.0, 0.25) for _ in range(3)] == [10.25, 10.5, 10.75]
    assert cpu.through_at(12.0, 0.25) == 12.25


def test_cpu_time_is_counted_as_it_is_spent_and_not_when_it_is_asked_for() -> None:
    cpu = FrontCpu()
    for _ in range(4):
        cpu.through_at(0.0, 0.5)
    # of two seconds of turns, one is over after a second; after three all are
    assert cpu.spent_s(1.0) == 1.0
    assert cpu.spent_s(3.0) == 2.0
    # a core is never busier than a core: from 0 to 2 exactly 2
    assert cpu.spent_s(2.0) - cpu.spent_s(0.0) == 2.0


def test_a_front_without_a_core_of_its_own_costs_nothing() -> None:
    assert Front().cpu_s_per_request == 0
    with pytest.raises(ValueError, match="cpu_s_per_request"):
        Front(cpu_s_per_request=-1)


def test_the_page_tells_the_cpu_that_requests_took(start_sim: Start) -> None:
    plain, bound = start_sim("gptq-int4"), start_sim("cpu_bound", cpu_s_per_request=50.0)
    before = cpu_s(bound) - cpu_s(plain)
    # 50 simulated seconds at a hundredth are half of one of ours
    assert bound.chat().status_code == 200
    after = cpu_s(bound) - cpu_s(plain)
    # both servers are this one process, so that its own time cancels, but for the time between two pages
    assert after - before == pytest.approx(0.5, abs=0.25)


def cpu_s(sim: Sim) -> float:
    return sim.numbers()["process_cpu_seconds_total"]


def test_each_bottleneck_is_a_personality_of_its_own_and_none_of_the_contests() -> None:
    assert not BOTTLENECKS.keys() & PERSONALITIES.keys()
    healthy = PERSONALITIES["gptq-int4"]
    for name, each in BOTTLENECKS.items():
        assert personality(name) == each
        assert (each.name, bool(each.summary)) == (name, True)
        assert (each.engine, each.front) != (healthy.engine, healthy.front)
        # vLLM refuses to start otherwise
        assert (each.engine.num_gpu_blocks - 1) * each.engine.block_size >= each.max_model_len
