"""A real vLLM whose engine dies in the middle of a stream, and the simulator's: both end it in the same words."""

from collections.abc import Callable
from functools import partial
from typing import Any

import httpx

from toolkit.sim.app import serve_in_thread

CHAT = {"ignore_eos": True, "messages": [{"role": "user", "content": "count to five"}]}


def last_words(client: httpx.Client, model: str, kill: Callable[[], None]) -> list[str]:
    """Kill the engine once a stream has said three tokens; what follows the tokens, byte for byte."""
    fields = CHAT | {"model": model, "max_tokens": 400, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=fields) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        for _ in zip(range(8), lines, strict=False):
            pass  # the role and three tokens, each with an empty line behind it
        kill()
        rest = [line for line in lines if line]
    return [line for line in rest if '"choices"' not in line]


def test_a_stream_whose_engine_dies_ends_in_the_same_words(doomed_roomy_server: Any) -> None:
    server = doomed_roomy_server
    with server.client() as client:
        engine = next(one for one in server.family() if "EngineCore" in one.name())
        real_words = last_words(client, "tiny-slow", engine.kill)
    with serve_in_thread("gptq-int4", model="tiny") as sim_server:
        kill = partial(sim_server.call, sim_server.server.kill_engine)
        with httpx.Client(base_url=sim_server.url, trust_env=False) as client:
            sim_words = last_words(client, "tiny", kill)
    assert len(real_words) == 2
    assert sim_words == real_words
