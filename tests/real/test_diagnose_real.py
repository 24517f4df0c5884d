"""A real vLLM with too small a KV cache is diagnosed as what it is, from its own page."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
WAIT_S = 120.0

pytestmark = pytest.mark.slow


def wait_for_a_queue(server: Any) -> None:
    """Until a request waits: from then on the load is there."""
    until = time.monotonic() + WAIT_S
    with server.client() as client:
        while time.monotonic() < until:
            rows = client.get("/metrics").text.splitlines()
            if any(
                row.startswith("vllm:num_requests_waiting{") and not row.endswith(" 0.0")
                for row in rows
            ):
                return
            time.sleep(0.2)
    pytest.fail(f"within {WAIT_S:g} s no request waited")


def test_a_real_server_with_few_kv_blocks_is_found_out(
    serving: Callable[..., Any], vllm_home: Path, tmp_path: Path
) -> None:
    # 19 blocks of 32 tokens, one reserved: prompts of about 70 tokens take three each, so six of twelve fit
    flags = ("--num-gpu-blocks-override", "20")
    with serving(vllm_home, "tiny-slow", *flags) as server:
        load = [TOOLKIT, "bench", server.url, "--duration", "300s", "--concurrency", "12"]
        load += ["--max-tokens", "128", "--ignore-eos", "--unique", "--no-store", "--json"]
        with subprocess.Popen(load, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bench:
            try:
                wait_for_a_queue(server)
                done = subprocess.run(
                    [TOOLKIT, "diagnose", server.url, "--interval", "15s", "--json"],
                    capture_output=True,
                    text=True,
                    check=True,
                    cwd=tmp_path,
                )
            finally:
                bench.kill()
    found = {each["code"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert "kv_cache_small" in found, done.stdout
    # the server says all that a page can say: only what no page tells is open
    open_facts = {each["fact"] for each in found["not_known"]["unknown"]}
    told = {"kv_cache_usage_max", "waiting_share", "gap_stretch", "api_cpu_cores", "prefix_caching"}
    assert not told & open_facts, done.stdout
