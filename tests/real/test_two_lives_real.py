"""Two lives of a real vLLM at one address: the first is scouted at work from its first request on, the second has a KV cache that is
too small for its load and is diagnosed so, and a proxy in front of both notices that the one follows the other.

What scout says must equal what these tests sent and what `usage` answered.
"""

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.proxy_verb import Verb, proxying
from support.scout_verb import codes, scout

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
SHARED_PROMPT = " ".join(f"item {number} is in the list" for number in range(12))
"""Sent again and again, and longer than two blocks of 32 tokens, so that the prefix cache hits."""
REQUESTS = 64
CONCURRENCY = 24
"""More than --max-num-seqs 16, so that some wait."""
MOST_LOOKS = 20
STORY = [{"role": "user", "content": "Tell a story"}]
KEY_VARIABLE, KEY = "DIAGNOSED_KEY", "secret"
"""Of the second life."""
WAIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What one answer's `usage` said."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """A server that did a known amount of work, scouted while it did and afterwards."""

    used: list[Used]
    during: list[dict[str, Any]]
    after: dict[str, Any]


def ask(client: httpx.Client, number: int) -> Used:
    """Request `number` of the mix: a quarter each of chat and completions, whole and streamed."""
    prompt = (
        SHARED_PROMPT if number % 3 == 0 else f"{number} " + "and another word " * (number % 11)
    )
    body: dict[str, Any] = {"model": "tiny-slow", "max_tokens": 1 + (37 * number) % 190}
    # without ignore_eos some answers end by themselves: finished_reason stop as well as length
    body["ignore_eos"] = number % 5 != 0
    if number % 2:
        path, body["prompt"] = "/v1/completions", prompt
    else:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": prompt}]
    if number % 4 > 1:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        return used(streamed_usage(client, path, body))
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return used(answer.json()["usage"])


def streamed_usage(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with client.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    usage: dict[str, Any] = json.loads(lines[-2])["usage"]
    return usage


def used(usage: dict[str, Any]) -> Used:
    details = usage["prompt_tokens_details"] or {}
    return Used(
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=details.get("cached_tokens") or 0,
        completion_tokens=usage["completion_tokens"],
    )


def is_busy(look: dict[str, Any]) -> bool:
    return (look["running"] or 0) + (look["waiting"] or 0) > 0


def looks_until_busy(look: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """Look at least twice, and on until two looks met work; one look may take as long as a short load, or fall before
    a cold server's first step.
    """
    looks = [look(), look()]
    while sum(map(is_busy, looks)) < 2 and len(looks) < MOST_LOOKS:
        looks.append(look())
    return looks


def asks_until(
    enough: threading.Event, client: httpx.Client, numbers: Iterator[int]
) -> Iterator[Used]:
    """One of the load's clients: the planned requests, and more of the mix for as long as somebody still looks."""
    for number in numbers:
        if number >= REQUESTS and enough.is_set():
            return
        yield ask(client, number)


@pytest.fixture(scope="module")
def fresh_server(vllm_home: Path, serving: Callable[..., Any]) -> Iterator[Any]:
    """A server that has served nothing yet, with the model that takes 25 ms a token, so that requests queue."""
    with serving(vllm_home, "tiny-slow", "--enable-prompt-tokens-details") as server:
        yield server


@pytest.fixture(scope="module")
def worked(fresh_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Worked:
    folder = tmp_path_factory.mktemp("worked")
    line = f"real {fresh_server.url}"
    enough = threading.Event()
    # itertools.count hands each number to one thread only
    numbers = itertools.count()
    with fresh_server.client() as client, ThreadPoolExecutor(CONCURRENCY) as pool:
        loads = [
            pool.submit(lambda: list(asks_until(enough, client, numbers)))
            for _ in range(CONCURRENCY)
        ]
        try:
            during = looks_until_busy(lambda: scout(line, folder))
        finally:
            enough.set()
        everything = [one for load in loads for one in load.result()]
        refused = client.post(
            "/v1/completions", json={"model": "tiny-slow", "prompt": "x", "max_tokens": 5000}
        )
    assert refused.status_code == 400
    assert len(everything) >= REQUESTS
    return Worked(used=everything, during=during, after=scout(line, folder))


def test_the_counters_equal_what_was_sent_and_what_usage_said(worked: Worked) -> None:
    assert worked.after["requests_total"] == len(worked.used)
    assert worked.after["prompt_tokens_total"] == sum(one.prompt_tokens for one in worked.used)
    assert worked.after["generation_tokens_total"] == sum(
        one.completion_tokens for one in worked.used
    )


def test_the_prefix_hit_ratio_equals_the_cached_tokens_that_usage_named(worked: Worked) -> None:
    cached = sum(one.cached_tokens for one in worked.used)
    assert cached > 0
    ratio = cached / sum(one.prompt_tokens for one in worked.used)
    assert worked.after["prefix_hit_ratio"] == pytest.approx(ratio, rel=1e-9)


def test_the_configuration_is_what_the_server_was_started_with(worked: Worked) -> None:
    expected = {
        "name": "real",
        "status": "ok",
        "error": None,
        "engine": "vllm",
        "dialect": "v1",
        "version": "0.32.0",
        "model": "tiny-slow",
        "models": ["tiny-slow"],
        "max_model_len": 512,
        "block_size": 32,
        "num_gpu_blocks": 64,
        # 64 blocks of 32 tokens
        "kv_cache_tokens": 2048,
        "prefix_caching": True,
        # V1 has no swap space to tell of
        "swap_space_gib": None,
    }
    assert {key: worked.after[key] for key in expected} == expected


def test_a_busy_server_is_seen_busy_and_an_idle_one_idle(worked: Worked) -> None:
    busy = [look["running"] + look["waiting"] for look in worked.during]
    assert max(busy) > 0, busy
    assert max(look["kv_cache_usage"] for look in worked.during) > 0
    assert (worked.after["running"], worked.after["waiting"]) == (0, 0)


def test_the_counters_only_grow_from_look_to_look(worked: Worked) -> None:
    looks = [*worked.during, worked.after]
    for key in ("requests_total", "prompt_tokens_total", "generation_tokens_total"):
        totals = [look[key] for look in looks]
        assert totals == sorted(totals)
    # the last look of a load and the one after it both stand for the same process and settings
    assert len({look["config_hash"] for look in looks}) == 1
    assert len({look["started_at"] for look in looks}) == 1


def test_the_waits_of_a_full_server_show_in_its_times(worked: Worked) -> None:
    # 24 at once and 16 admitted: at least one in twenty waited for a place, which frees up only after whole answers
    # of dozens of 25 ms tokens
    assert worked.after["ttft_p95_ms"] > 100
    assert worked.after["queue_mean_ms"] > 0


def test_a_cache_that_ran_out_shows_as_preemptions_and_miscounts_nothing(worked: Worked) -> None:
    # 16 requests of about 53 prompt and 95 output tokens want 2368 tokens at the end; the cache holds 2048
    assert worked.after["preemptions_total"] > 0
    assert "preemptions" in codes(worked.after)


def test_nothing_is_found_changed_on_a_server_that_did_not_change(worked: Worked) -> None:
    found = set().union(*(codes(look) for look in [*worked.during, worked.after]))
    assert "metrics_open" in found
    assert not found & {"restarted", "config_changed", "prefix_caching_off", "inference_open"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """The server's second life, and what its proxy told of each: headers of answers to one request, and its generations."""

    server: Any
    before: list[str]
    while_down: str
    after: list[str]
    generations: list[dict[str, int]]


@pytest.fixture(scope="module")
def restarted(
    fresh_server: Any,
    worked: Worked,
    vllm_home: Path,
    serving: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Restarted]:
    """End the first life, once it was scouted, and begin the second, behind a key and with few blocks."""
    assert worked.after["status"] == "ok"
    folder = tmp_path_factory.mktemp("proxy")
    settings = folder / "proxy.toml"
    settings.write_text(
        f'[[upstream]]\nname = "real"\nurl = "{fresh_server.url}"\nkey_env = "{KEY_VARIABLE}"\n'
    )
    body = {"model": "tiny-slow", "messages": STORY, "max_tokens": 5, "temperature": 0}

    def cache_status(proxy: Verb) -> str:
        status, headers, _ = proxy.ask(body)
        assert status == 200
        return headers["cache-status"]

    with proxying("--config", settings, cwd=folder, **{KEY_VARIABLE: KEY}) as proxy:
        before = [cache_status(proxy), cache_status(proxy)]
        generations = [epochs(proxy)]
        fresh_server.process.terminate()
        fresh_server.process.wait(60)
        while_down = cache_status(proxy)
        # 32 blocks of 32 tokens: prompts of about 70 tokens and 256 of answer take eleven each in the end, so that three to
        # ten of the sixteen that --max-num-seqs lets run find room, and others wait. The slow model: the quick one is done
        # with them before the client has read them, and its pages show it idle in between
        few = ("--num-gpu-blocks-override", "33")
        port = int(fresh_server.url.rpartition(":")[2])
        with serving(vllm_home, "tiny-slow", *few, key=KEY, port=port) as second:
            give_up = time.monotonic() + WAIT_S
            while epochs(proxy) == generations[0]:
                assert time.monotonic() < give_up
                time.sleep(0.2)
            generations.append(epochs(proxy))
            after = [cache_status(proxy), cache_status(proxy)]
            assert proxy.end() == 0
            yield Restarted(
                server=second,
                before=before,
                while_down=while_down,
                after=after,
                generations=generations,
            )


def epochs(proxy: Verb) -> dict[str, int]:
    told: dict[str, int] = json.loads(proxy.get("/state", admin=True)[2])["epochs"]
    return told


def test_a_restart_begins_a_new_generation_and_hits_go_on_meanwhile(restarted: Restarted) -> None:
    for first, second in (restarted.before, restarted.after):
        assert "fwd=miss" in first
        assert "; hit" in second
    assert "; hit" in restarted.while_down, "down, and answered all the same"
    assert restarted.generations[0] != restarted.generations[1]


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
    restarted: Restarted, tmp_path: Path
) -> None:
    server = restarted.server
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
