"""`toolkit proxy` in front of a real vLLM that ends and is started again: noticed, and hits go on meanwhile.

In a file of its own, as no other test can use these servers.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.proxy_verb import Verb, proxying

STORY = [{"role": "user", "content": "Tell a story"}]


def test_a_restart_begins_a_new_generation_and_hits_go_on_meanwhile(
    vllm_home: Path, serving: Callable[..., Any], tmp_path: Path
) -> None:
    body = {"model": "tiny", "messages": STORY, "max_tokens": 5, "temperature": 0}
    with serving(vllm_home, "tiny") as first:
        port = int(first.url.rpartition(":")[2])
        with proxying("--upstream", first.url, cwd=tmp_path) as proxy:
            assert "fwd=miss" in proxy.ask(body)[1]["cache-status"]
            assert "; hit" in proxy.ask(body)[1]["cache-status"]
            generation = epochs(proxy)
            first.process.terminate()
            first.process.wait(60)
            assert "; hit" in proxy.ask(body)[1]["cache-status"], "down, and answered all the same"
            with serving(vllm_home, "tiny", port=port):
                give_up = time.monotonic() + 60
                while epochs(proxy) == generation:
                    assert time.monotonic() < give_up
                    time.sleep(0.2)
                status, headers, _ = proxy.ask(body)
                assert (status, "fwd=miss" in headers["cache-status"]) == (200, True)
                assert "; hit" in proxy.ask(body)[1]["cache-status"]


def epochs(proxy: Verb) -> dict[str, int]:
    told: dict[str, int] = json.loads(proxy.get("/state", admin=True)[2])["epochs"]
    return told
