"""Simulators that end with their test."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from support.simulated import Sim, Start

from toolkit.sim.app import serve_in_thread


@pytest.fixture
def start_sim() -> Iterator[Start]:
    """Start servers of any preset, a hundred times as fast as life, named `tiny` and 512 tokens long."""
    with ExitStack() as stack:

        def start(name: str = "gptq-int4", **changes: Any) -> Sim:
            chosen = {"model": "tiny", "max_model_len": 512, "time_scale": 0.01} | changes
            thread = stack.enter_context(serve_in_thread(name, **chosen))
            client = httpx.Client(base_url=thread.url, timeout=30, trust_env=False)
            return Sim(thread, stack.enter_context(client))

        yield start


@pytest.fixture
def sim(start_sim: Start) -> Sim:
    return start_sim()
