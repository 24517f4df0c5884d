"""A real vLLM whose KV cache is too small for its load is diagnosed as what it is, from its own page, and unloaded as idle."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
KEY_VARIABLE = "DIAGNOSED_KEY"
WAIT_S = 120.0

pytestmark = pytest.mark.slow


def gauge(server: Any, name: str) -> float:
    with server.client() as client:
        rows = client.get("/metrics").text.splitlines()
    return sum(float(row.rpartition(" ")[2]) for row in rows if row.startswith(f"vllm:{name}{{"))


def wait_for(server: Any, *, queue: bool) -> None:
    """Until a request waits, from when on the load is there; or until nothing is left of it."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        if queue and gauge(server, "num_requests_waiting") > 0:
            return
        if not queue and gauge(server, "num_requests_running") == 0:
            return
        time.sleep(0.2)
    pytest.fail(f"within {WAIT_S:g} s {'no request waited' if queue else 'the load did not end'}")


def diagnosed(folder: Path, interval: str, env: dict[str, str]) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [TOOLKIT, "diagnose", "hosts.txt", "--interval", interval, "--json"],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=env,
    )
    assert env[KEY_VARIABLE] not in done.stdout + done.stderr
    return {each["code"]: each for each in map(json.loads, done.stdout.splitlines())}


def test_a_real_server_with_few_kv_blocks_is_found_out(
    vllm_home: Path, serving: Callable[..., AbstractContextManager[Any]], tmp_path: Path
) -> None:
    # 32 blocks of 32 tokens: prompts of about 70 tokens and 256 of answer take eleven each in the end, so that three to ten of
    # the sixteen that --max-num-seqs lets run find room, and others wait. The slow model: the quick one is done with
    # them before the client has read them, and its pages show it idle in between
    with serving(vllm_home, "tiny-slow", "--num-gpu-blocks-override", "33", key="secret") as server:
        (tmp_path / "hosts.txt").write_text(f"real {server.url} api_key_env={KEY_VARIABLE}\n")
        env = dict(os.environ) | {KEY_VARIABLE: server.key}
        load = [TOOLKIT, "bench", "hosts.txt", "--duration", "300s", "--concurrency", "24"]
        load += ["--max-tokens", "256", "--ignore-eos", "--unique", "--no-store", "--json"]
        silent = subprocess.DEVNULL
        with subprocess.Popen(load, stdout=silent, stderr=silent, cwd=tmp_path, env=env) as bench:
            try:
                wait_for(server, queue=True)
                found = diagnosed(tmp_path, "8s", env)
            finally:
                bench.kill()
        assert "kv_cache_small" in found, found
        assert not {"seq_limited", "stands_still", "too_little_load"} & found.keys(), found
        # the server says all that a page can say: only what no page tells is open
        open_facts = {each["fact"] for each in found["not_known"]["unknown"]}
        told = {
            "kv_cache_usage_max",
            "waiting_share",
            "gap_stretch",
            "api_cpu_cores",
            "prefix_caching",
        }
        assert not told & open_facts, found

        wait_for(server, queue=False)
        idle = diagnosed(tmp_path, "2s", env)
        assert set(idle) - {"not_known"} == {"too_little_load"}
