"""Which worker gets which host's users: every worker some of every host, so that no host hangs on one of them.

Locust deals users and workers out in two circles that run side by side: with 8 hosts and 2 workers all users of every
second host would be on one worker, and die with it.
"""

from collections.abc import Iterator
from itertools import count
from math import lcm
from typing import Any

from locust.dispatch import UsersDispatcher


class EvenDispatcher(UsersDispatcher):
    """Locust's, with another order of workers: user i is one of host i mod H, on worker (i + i // lcm(H, W)) mod W."""

    def __init__(self, worker_nodes: list[Any], user_classes: list[Any]) -> None:
        """As Locust's."""
        super().__init__(worker_nodes, user_classes)
        self._worker_node_generator = self._dealt()

    def _distribute_users(self, target_user_count: int) -> tuple[Any, ...]:
        """As Locust's, which begins anew when a worker comes or goes."""
        names = [one.__name__ for one in self._original_user_classes]
        dealt: dict[str, dict[str, int]] = {
            node.id: dict.fromkeys(names, 0) for node in self._worker_nodes
        }
        active, users, workers = [], self._user_gen(), self._dealt()
        for _ in range(target_user_count):
            name, node = next(users), next(workers)
            if not name:
                break
            dealt[node.id][name] += 1
            active.append((node, name))
        return dealt, users, workers, active

    def _dealt(self) -> Iterator[Any]:
        nodes = list(self._worker_nodes)
        circle = lcm(len(self._user_classes), len(nodes))
        for number in count():
            # after a full circle hosts and workers would meet the same way again
            yield nodes[(number + number // circle) % len(nodes)]
