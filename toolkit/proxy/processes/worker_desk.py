"""What a worker does for the owner, over the worker's own private socket: tells its counters, takes epochs, forgets, drains.

POST /look {"epochs": {"tiny": 3}}     -> what it counted and holds
POST /forget {"key": "0f3c..."} or {}  -> what it held in memory is asked of the file again
POST /drain, /undrain
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import orjson

from toolkit.proxy.error_json import CONTENT_TYPE as JSON
from toolkit.proxy.exchange import Reply, Request
from toolkit.proxy.told.metrics import Gauges


class Ordered(Protocol):
    """The worker."""

    name: str
    """Another one after each start."""

    def counted(self) -> Mapping[str, Any]:
        """Counters.as_dict."""

    def gauges(self) -> Gauges:
        """What it holds."""

    def raise_epochs(self, numbers: Mapping[str, int]) -> None:
        """Take higher numbers over."""

    def forget(self, key: bytes | None) -> None:
        """Let go what is in memory, of one key or of all."""

    def drain(self) -> None:
        """Answers close their connection from now on."""

    def undrain(self) -> None:
        """They do not any more."""


class WorkerDesk:
    """A desk for a front of its own."""

    def __init__(self, worker: Ordered) -> None:
        self._worker = worker

    def recall(self, data: bytes) -> None:
        """Nothing is known by its bytes."""
        del data

    def refused(self, status: int, reason: str, peer: str) -> None:
        """The owner sends no such thing."""

    def admits(self, request: Request) -> bool:
        """Whatever the owner sends."""
        del request
        return True

    def take(self, request: Request, reply: Reply) -> None:
        """Do as the owner says."""
        act = self._acts().get(request.path)
        if act is None:
            reply.whole(404, (), b"")
            return
        told = act(orjson.loads(request.body or b"{}"))
        reply.whole(200, (JSON,), orjson.dumps(told))

    def _acts(self) -> dict[str, Callable[[dict[str, Any]], Any]]:
        return {
            "/look": self._look,
            "/forget": self._forget,
            "/drain": lambda _: self._worker.drain(),
            "/undrain": lambda _: self._worker.undrain(),
        }

    def _look(self, told: dict[str, Any]) -> dict[str, Any]:
        self._worker.raise_epochs(told["epochs"])
        return {
            "name": self._worker.name,
            "counters": self._worker.counted(),
            "gauges": asdict(self._worker.gauges()),
        }

    def _forget(self, told: dict[str, Any]) -> None:
        key = told.get("key")
        self._worker.forget(None if key is None else bytes.fromhex(key))
