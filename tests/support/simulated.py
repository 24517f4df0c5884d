"""A started simulator, and what a test reads from it. The reading shares no code with the toolkit."""

import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx

from toolkit.sim.app import SimThread

WAIT_S = 60
"""Longest wait for something that takes milliseconds."""


class Sim:
    """A running simulator and a client for it."""

    def __init__(self, thread: SimThread, client: httpx.Client) -> None:
        self.thread = thread
        self.url = thread.url
        self.client = client

    def chat(self, text: str = "Tell me about the garden", **fields: Any) -> httpx.Response:
        """Ask one question; four tokens of answer unless said otherwise."""
        body = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
        return self.client.post("/v1/chat/completions", json=body | fields)

    def numbers(self) -> dict[str, float]:
        """Read `/metrics` line by line: everything before the last blank is the name."""
        return numbers_of(self.client.get("/metrics").text)


Start = Callable[..., Sim]
"""The fixture `start_sim`: one of the cast, with changes."""


def numbers_of(page: str) -> dict[str, float]:
    lines = [line for line in page.splitlines() if line and not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def becomes_true(condition: Callable[[], bool]) -> bool:
    """Ask again until it is so; False when it does not become so."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False


def refuses_connections(url: str) -> bool:
    parts = urlsplit(url)
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname, parts.port)) != 0
