"""A started simulator, and what a test reads from it. The reading shares no code with the toolkit."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from toolkit.sim.app import SimThread, serve_in_thread

RECORDINGS = Path(__file__).parents[1] / "data" / "vllm-0.32.0-cpu"

WAIT_S = 60
"""Longest wait for something that takes milliseconds."""


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


def numbers_of(page: str) -> dict[str, float]:
    lines = [line for line in page.splitlines() if line and not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def events_of(body: bytes) -> list[dict[str, Any]]:
    """The JSON of each event of a stream, which must end with `[DONE]`."""
    *events, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert all(event.startswith(b"data: ") for event in events)
    return [json.loads(event[6:]) for event in events]


@pytest.fixture
def start_sim() -> Iterator[Callable[..., Sim]]:
    """Start servers of the cast, a hundred times as fast as life, named `tiny` and 512 tokens long."""
    with ExitStack() as stack:

        def start(name: str = "gptq-int4", **changes: Any) -> Sim:
            chosen = {"model": "tiny", "max_model_len": 512, "time_scale": 0.01} | changes
            thread = stack.enter_context(serve_in_thread(name, **chosen))
            client = httpx.Client(base_url=thread.url, timeout=30, trust_env=False)
            return Sim(thread, stack.enter_context(client))

        yield start


@pytest.fixture
def sim(start_sim: Callable[..., Sim]) -> Sim:
    return start_sim()


@pytest.fixture(scope="session")
def recorded() -> Callable[[str], bytes]:
    """The bytes of a recording of vLLM 0.32.0."""
    return lambda name: (RECORDINGS / name).read_bytes()


@pytest.fixture(scope="session")
def read_numbers() -> Callable[[str], dict[str, float]]:
    return numbers_of


@pytest.fixture(scope="session")
def read_events() -> Callable[[bytes], list[dict[str, Any]]]:
    return events_of


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], bool]], bool]:
    return becomes_true


@pytest.fixture(scope="session")
def refuses() -> Callable[[str], bool]:
    return refuses_connections
