"""The owner's desk for what other workers hand on: requests of clients whose key was checked, over the owner's private socket.

It reads what the worker told of each request, and the proxy's own desk does the rest, as if the client had come here.
"""

from toolkit.proxy.desk.answering import Answering
from toolkit.proxy.desk.desk import Desk
from toolkit.proxy.error_json import CONTENT_TYPE, error_body
from toolkit.proxy.exchange import Reply, Request
from toolkit.proxy.processes import relay_header


class RelayedDesk:
    """A desk for a front of its own."""

    def __init__(self, desk: Desk, answering: Answering) -> None:
        self._desk, self._answering = desk, answering

    def recall(self, data: bytes) -> None:
        """Nothing is known by its bytes: no two are equal."""
        del data

    def refused(self, status: int, reason: str, peer: str) -> None:
        """A worker sends no such thing; and if it did, its client would hear of it, and be counted there."""

    def admits(self, request: Request) -> bool:
        """All: the worker has checked its client's key."""
        del request
        return True

    def take(self, request: Request, reply: Reply) -> None:
        """Answer a client of another worker."""
        told = relay_header.read(request.header(relay_header.NAME))
        if told is None:
            reply.whole(400, [CONTENT_TYPE], error_body(400, "Only workers ask here"))
            return
        if told.looks:
            self._answering.choose_next()
        asked = Request(
            method=request.method,
            path=request.path,
            query=request.query,
            headers=[*told.headers, (b"x-request-id", told.request_id.encode())],
            body=request.body,
            peer=told.peer,
            arrived_s=told.arrived_s,
        )
        # who answers keeps it no longer than need be
        request.body = b""
        self._desk.take_relayed(asked, reply, told.team)
