"""A real vLLM with too small a KV cache is diagnosed as what it is, from its own page."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))

pytestmark = pytest.mark.slow


def test_a_real_server_with_few_kv_blocks_is_found_out(fresh_server: Any, tmp_path: Path) -> None:
    # 64 blocks of 32 are 2,048 tokens; twelve requests of about 70 and 400 tokens would be 5,600
    load = [TOOLKIT, "bench", fresh_server.url, "--duration", "60s", "--concurrency", "12"]
    load += ["--max-tokens", "400", "--ignore-eos", "--unique", "--no-store", "--json"]
    with subprocess.Popen(load, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bench:
        try:
            done = subprocess.run(
                [TOOLKIT, "diagnose", fresh_server.url, "--interval", "30s", "--json"],
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
