"""A user of one host: a Locust user whose one task is a turn at its host's desk.

There is a class for each host, so that Locust deals the users out evenly, and a slow host holds only its own.
"""

from typing import Any, ClassVar

from blast_desk import Desk, LoadUser
from blast_worker import Worker
from locust import FastHttpUser, task
from locust.exception import StopUser

WAIT_FOR_TURN_S = 0.05
"""How often a user looks whether it may send, while nobody may."""


class BlastUser(FastHttpUser):
    """What the users of all hosts have in common."""

    abstract = True
    desk: ClassVar[Desk]
    worker: ClassVar[Worker]

    def __init__(self, environment: Any) -> None:
        """Take a seat; the connection is opened with the first request."""
        super().__init__(environment)
        self._seat = LoadUser(self.desk.place)
        self._is_asking = self._is_leaving = False

    def on_start(self) -> None:
        """Be counted among those who share the host's rate."""
        self.desk.users += 1
        self._is_counted = True

    def on_stop(self) -> None:
        """Be counted no more."""
        self._leave()
        self._seat.wire.close()

    def stop(self, force: bool = False) -> bool:
        """End; a request that is under way is not cut off, for its host has counted it already."""
        if self._is_asking:
            self._is_leaving = True
            self._leave()
            self._group.discard(self._greenlet)
            return True
        return bool(super().stop(force))

    def wait_time(self) -> float:
        """Think, or wait after failures."""
        if not self.worker.takes_turns:
            return WAIT_FOR_TURN_S
        return self._seat.pause_s(paced=self.desk.is_paced)

    @task
    def ask(self) -> None:
        """Send one request and read its answer."""
        if not self.worker.takes_turns:
            return
        planned_s = self.desk.wait_for_slot()
        if not self.worker.takes_turns:
            return
        self._is_asking = True
        try:
            self.worker.turn(lambda: self.desk.serve(self._seat, planned_s))
        finally:
            self._is_asking = False
        if self._is_leaving:
            raise StopUser

    def _leave(self) -> None:
        if getattr(self, "_is_counted", False):
            self._is_counted = False
            self.desk.users -= 1


def user_class(desk: Desk, worker: Worker) -> type[BlastUser]:
    """The class of a host's users, named after the host."""
    host = desk.host
    fields = {"desk": desk, "worker": worker, "host": host.url, "weight": 1, "abstract": False}
    return type(host.name, (BlastUser,), fields)
