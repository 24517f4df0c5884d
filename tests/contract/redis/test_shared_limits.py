"""A team's limit, held together by two proxies on one Redis: whole for one alone, shared by two, and kept where one or Redis dies."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from contract.harness.clients import BODY, Client, request
from contract.harness.programs import until
from contract.harness.proxies import Proxy, proxy
from contract.harness.servers import Asked, chat, server
from contract.redis.test_redis import SETTINGS, Redis, redis_server

LIMIT = 6
SHARED = (
    SETTINGS
    + f"""
[admission]
wait = "10m"
[[team]]
name = "red"
key_env = "RED"
concurrency = {LIMIT}
"""
)


class Engine:
    """Answers while it is let; knows how many it has at a time, and how many it ever had."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._let = 0
        self.at_work = self.most = 0

    def __call__(self, asked: Asked) -> None:
        with self._changed:
            self.at_work += 1
            self.most = max(self.most, self.at_work)
            self._changed.wait_for(lambda: self._let > 0, timeout=180)
            self._let -= 1
            self.at_work -= 1
        asked.send(chat(f"for seed {json.loads(asked.body)['seed']}"))

    def let(self, count: int) -> None:
        """So many are answered from now on."""
        with self._changed:
            self._let = count
            self._changed.notify_all()


class Crowd:
    """Requests of one client each, all different."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._numbers = stack, iter(range(10**6))
        self.waiting: list[tuple[int, Client]] = []

    def ask(self, door: Proxy, count: int) -> None:
        for _ in range(count):
            number, client = next(self._numbers), self._stack.enter_context(Client(door.url, 180))
            client.send(request(BODY | {"seed": number}, key="key-of-red"))
            self.waiting.append((number, client))

    def are_all_answered(self) -> None:
        for number, client in self.waiting:
            answer = client.reply()
            assert (answer.status, answer.text) == (200, f"for seed {number}")
        self.waiting.clear()


@contextmanager
def two_proxies(folder: Path) -> Iterator[tuple[list[Proxy], Engine, Crowd, Redis]]:
    engine = Engine()
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(folder))
        upstream = stack.enter_context(server({"*": engine}))
        doors = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            env = {"CACHE": redis.url, "RED": "key-of-red"}
            doors.append(
                stack.enter_context(proxy(upstream.url, SHARED, cwd=folder / name, env=env))
            )
        yield doors, engine, Crowd(stack), redis


def have_their_shares(engine: Engine, doors: list[Proxy]) -> bool:
    """Whether each has half of it in use; one call more is answered, so that a place becomes free."""
    engine.let(1)
    return all(door.total("toolkit_proxy_slots_in_use") == LIMIT / 2 for door in doors)


def test_two_proxies_let_through_as_much_as_one(tmp_path: Path) -> None:
    with two_proxies(tmp_path) as (doors, engine, crowd, _):
        # one alone with something to do has all of it
        crowd.ask(doors[0], 10 * LIMIT)
        until(lambda: engine.at_work == LIMIT)

        # the other gets its share as places become free, and never one more
        crowd.ask(doors[1], 10 * LIMIT)
        until(lambda: have_their_shares(engine, doors), step_s=0.2)
        until(lambda: engine.at_work == LIMIT)
        engine.let(10**4)
        crowd.are_all_answered()
        assert engine.most == LIMIT

        # a killed one's places are the other's after a while
        engine.let(0)
        doors[1].program.destroy()
        crowd.ask(doors[0], 2 * LIMIT)
        until(lambda: engine.at_work == LIMIT)
        engine.let(10**4)
        crowd.are_all_answered()
        assert engine.most == LIMIT


def test_without_redis_each_proxy_goes_on_with_its_share(tmp_path: Path) -> None:
    with two_proxies(tmp_path) as (doors, engine, crowd, redis):
        for door in doors:
            crowd.ask(door, 10 * LIMIT)
        until(lambda: engine.at_work == LIMIT)
        until(lambda: have_their_shares(engine, doors), step_s=0.2)
        redis.kill()
        until(lambda: all(door.total("toolkit_proxy_redis_breaker_open") for door in doors))
        until(lambda: have_their_shares(engine, doors), step_s=0.2)
        redis.start()
        until(lambda: not any(door.total("toolkit_proxy_redis_breaker_open") for door in doors))
        engine.let(10**4)
        crowd.are_all_answered()
        assert engine.most == LIMIT
        # and one alone has all of it again
        engine.let(0)
        crowd.ask(doors[1], 2 * LIMIT)
        until(lambda: engine.at_work == LIMIT)
        engine.let(10**4)
        crowd.are_all_answered()
