"""The Locust user of one host: its one task sends a request and reads the answer, whenever the worker lets users send.

Which request, and what came of it, is the handler's part. Every host has a user class of its own: Locust spreads users
evenly over classes, and a slow host keeps only its own users busy.
"""

from typing import Any, ClassVar

from blast_handler import HostHandler, UserSession
from blast_worker import Worker
from locust import FastHttpUser, task
from locust.exception import StopUser

PAUSED_POLL_S = 0.05
"""How often a user looks whether it may send, while the worker lets nobody."""


class BlastUser(FastHttpUser):
    """What the users of all hosts have in common; `user_class` makes the class of each host."""

    abstract = True
    handler: ClassVar[HostHandler]
    worker: ClassVar[Worker]

    def __init__(self, environment: Any) -> None:
        """Open no connection: the first request does."""
        super().__init__(environment)
        self._session = UserSession(self.handler.place)
        self._counts_for_rate = self._is_sending = self._stops_after_answer = False

    def on_start(self) -> None:
        """Count as one of the users that share the host's rate."""
        self.handler.users += 1
        self._counts_for_rate = True

    def on_stop(self) -> None:
        """Count no more, and close the connection."""
        self._leave_rate()
        self._session.connection.close()

    def stop(self, force: bool = False) -> bool:
        """Stop, but let a request in flight finish: the server has counted it already, so its answer must count here."""
        if not self._is_sending:
            return bool(super().stop(force))
        # for Locust and for the host's rate the user is gone now; its greenlet ends itself after the answer
        self._stops_after_answer = True
        self._leave_rate()
        self._group.discard(self._greenlet)
        return True

    def wait_time(self) -> float:
        """Think, or back off after failures; while nobody may send, only until the next look."""
        if not self.worker.may_send:
            return PAUSED_POLL_S
        return self._session.pause_s(paced=self.handler.is_paced)

    @task
    def ask(self) -> None:
        """Wait for a planned moment, send one request and read its answer."""
        if not self.worker.may_send:
            return
        planned_s = self.handler.wait_for_slot()
        if not self.worker.may_send:  # the run may have ended during the wait
            return
        self._is_sending = True
        try:
            self.worker.track(lambda: self.handler.send_next(self._session, planned_s))
        finally:
            self._is_sending = False
        if self._stops_after_answer:
            raise StopUser

    def _leave_rate(self) -> None:
        if self._counts_for_rate:
            self._counts_for_rate = False
            self.handler.users -= 1


def user_class(handler: HostHandler, worker: Worker) -> type[BlastUser]:
    """The class of a host's users; its name is the host's, and Locust shows it."""
    host = handler.host
    fields = {
        "handler": handler,
        "worker": worker,
        "host": host.url,
        "weight": 1,
        "abstract": False,
    }
    return type(host.name, (BlastUser,), fields)
