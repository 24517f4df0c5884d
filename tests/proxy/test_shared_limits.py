"""However proxies take and give of a limit that they share, it holds; what Redis makes of it is held by tests/contract/redis."""

import random

from hypothesis import given
from hypothesis import strategies as st

from toolkit.proxy.shared_limits import plan


@given(
    blocks=st.integers(1, 12),
    proxies=st.integers(1, 4),
    loads=st.lists(st.integers(0, 20), min_size=4, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_in_any_order_no_more_are_used_than_there_are_and_everybody_gets_a_share(
    blocks: int, proxies: int, loads: list[int], seed: int
) -> None:
    """A model of Redis: each proxy looks in turn; calls end by chance, and as many wait again."""
    chance = random.Random(seed)
    holders: list[bytes | None] = [None] * blocks
    names = [b"%d" % number for number in range(proxies)]
    busy = dict.fromkeys(names, 0)
    served = dict.fromkeys(names, 0)
    wishes: dict[str, bytes] = {}
    for turn in range(60):
        wishes = {} if turn % 3 == 0 else wishes
        for number in chance.sample(range(proxies), proxies):
            name, load = names[number], loads[number]
            busy[name] = sum(chance.random() < 0.5 for _ in range(busy[name]))
            waiting = max(0, load - busy[name])
            found = plan(
                holders,
                name,
                proxies=proxies,
                busy=busy[name],
                waiting=waiting,
                others_short=wishes.get("short", name) != name,
                others_want=wishes.get("more", name) != name,
            )
            for block in found.give:
                holders[block] = None
            for block in found.take:
                assert holders[block] is None
                holders[block] = name
            usable = min(found.use, len(found.keep)) + len(found.take)
            begun = max(0, min(waiting, usable - busy[name]))
            busy[name] += begun
            served[name] += begun
            if found.wants_more:
                wishes["more"] = name
            if found.is_short:
                wishes["short"] = name
            assert busy[name] <= holders.count(name)
            assert sum(busy.values()) <= blocks
    for number, name in enumerate(names):
        # of fewer blocks than proxies chance says who is next
        assert served[name] > 0 or not loads[number] or blocks < proxies
