"""A simulated server under a load, in simulated time: clients that ask again when they are answered, and looks at its page.

    samples = looks_at("kv_starved", seed=3)                         32 clients, the contest's prompts, six looks
    samples = looks_at("gptq-int4", seed=3, clients=1)
    samples = looks_at("long_prefill", seed=3, asks=mixed)           prompts of one's own

Engine, metrics and page are the simulator's own, so that what is read here is what a socket would tell.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from toolkit.metrics.parser import read_page
from toolkit.sim.engine import EngineCore, EngineRequest
from toolkit.sim.metrics_page import EngineMetrics, HttpMetrics, page
from toolkit.sim.presets import Setup, setup_for
from toolkit.sim.state import FrontCpu
from toolkit.tuning.evidence import LoadSample, sample_of_page

Ask = tuple[tuple[int, ...], int]
"""Ids of a prompt, and tokens of its answer."""
Asks = Callable[[int, random.Random], Ask]
"""By the request's number."""

STARTED_AT = 1_750_000_000.0
MOST_STEPS = 20_000


def contest(number: int, dice: random.Random) -> Ask:  # noqa: ARG001 (as the others)
    """25 tokens that nobody else asks, and 128 to 256 of answer."""
    return tuple(dice.choices(range(99_999), k=25)), dice.randint(128, 256)


def mixed(number: int, dice: random.Random) -> Ask:
    """One prompt in ten has 16,000 tokens."""
    return tuple(dice.choices(range(99_999), k=16_000 if number % 10 == 9 else 25)), 128


def one_beginning(number: int, dice: random.Random) -> Ask:  # noqa: ARG001 (as the others)
    """960 tokens that all share, and 40 of one's own: 96 %."""
    return (*range(960), *dice.choices(range(1000, 99_999), k=40)), 32


def many_beginnings(number: int, dice: random.Random) -> Ask:
    """24 beginnings of 800 tokens in turn, and 40 tokens of one's own: 95 %."""
    start = 10_000 * (number % 24)
    return (*range(start, start + 800), *dice.choices(range(300_000, 399_999), k=40)), 32


def robot_or_capital(number: int, dice: random.Random) -> Ask:  # noqa: ARG001 (as the others)
    """Two prompts in turn, as the contest's clients sent them."""
    return tuple(range(25 * (number % 2), 25 * (number % 2) + 25)), 256


class _House:
    """One server and its clients."""

    def __init__(self, setup: Setup, asks: Asks, seed: int) -> None:
        self.setup = setup
        self.engine = EngineCore(setup)
        self.metrics = EngineMetrics("v1", setup.max_model_len, STARTED_AT)
        self.cpu = FrontCpu()
        self.http = HttpMetrics("v1", STARTED_AT)
        self.coming: list[tuple[float, int, EngineRequest]] = []
        self._asks, self._dice, self._numbers = asks, random.Random(seed), itertools.count()

    def ask(self, now: float) -> None:
        """Send a request, which is with the engine once the API process is through with it."""
        number = next(self._numbers)
        prompt, answer = self._asks(number, self._dice)
        at = self.cpu.through_at(now, self.setup.cpu_s_per_request)
        request = EngineRequest(
            id=str(number),
            prompt_ids=prompt,
            max_tokens=answer,
            output_ids=tuple(range(answer + 1)),
            arrived_at=at,
        )
        heapq.heappush(self.coming, (at, number, request))

    def let_in(self, now: float) -> None:
        """Hand the engine all that is through by now."""
        while self.coming and self.coming[0][0] <= now:
            self.engine.submit(heapq.heappop(self.coming)[2])

    def sample(self, now: float) -> LoadSample:
        process = (
            "# TYPE process_cpu_seconds_total counter\n"
            f"process_cpu_seconds_total {5.0 + self.cpu.spent_s(now) + 0.1 * now}\n"
            "# TYPE process_start_time_seconds gauge\n"
            f"process_start_time_seconds {STARTED_AT}\n"
        )
        text = page(self.setup, [(self.engine, self.metrics)], self.http, process).decode()
        found = sample_of_page(
            read_page(text),
            at_s=now,
            max_model_len=self.setup.max_model_len,
        )
        assert found is not None
        return found


def looks_at(
    name: str,
    *,
    seed: int,
    clients: int = 32,
    asks: Asks = contest,
    warm_s: float = 3.0,
    looks: int = 6,
    pause_s: float = 0.0,
    **changes: Any,
) -> Sequence[LoadSample]:
    """Load a server, and look at it once a simulated second after the first `warm_s`."""
    house = _House(setup_for(name, seed=seed, **changes), asks, seed)
    ready = [(0.0, number) for number in range(clients)]
    due = [warm_s + second for second in range(looks)]
    samples: list[LoadSample] = []
    now = 0.0
    for _ in range(MOST_STEPS):
        while ready and ready[0][0] <= now:
            heapq.heappop(ready)
            house.ask(now)
        house.let_in(now)
        step = house.engine.plan(now)
        nexts = [ready[0][0]] if ready else []
        nexts += [house.coming[0][0]] if house.coming else []
        after = now + step.duration_s if step else min(nexts, default=due[-1] + 1)
        while due[len(samples)] <= after:
            samples.append(house.sample(due[len(samples)]))
            if len(samples) == len(due):
                return samples
        now = after
        if step is None:
            continue
        results = house.engine.finish(step, now)
        house.metrics.count(house.engine, results)
        for each in results:
            if each.reason:
                heapq.heappush(ready, (now + pause_s, int(each.request.id)))
    raise AssertionError("the load never got to its last look")
