"""HTTP/1.1 to clients: makes a protocol for each connection, ends what waits too long, drains.

It touches the network, and the clock. What a request asks, it never looks at; where one ends, `framing` decides. There is
no timer per connection: `sweep` is called once a second.
"""

import asyncio

from toolkit.proxy.http.connection import Connection
from toolkit.proxy.http.front_state import Desk, FrontState, never

__all__ = ["Desk", "Front"]


class Front(FrontState):
    """The clients' side: makes the protocol of each connection."""

    def __call__(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        return Connection(self)

    def sweep(self) -> None:
        """Once a second: end what waits too long."""
        now = self.clock()
        for connection in tuple(self._open):
            connection.look(now)

    def drain(self) -> None:
        """From now on answers close their connection; those that wait for nothing are closed."""
        self.is_draining = True
        self.recall = never
        for connection in tuple(self._open):
            connection.drain()

    def reopen(self) -> None:
        """Keep connections again after an answer."""
        self.is_draining = False
        self.recall = self.desk.recall
