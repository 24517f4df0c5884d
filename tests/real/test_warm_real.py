"""A real vLLM under `toolkit watchdog`: warmed up, seeded, frozen and saturated; test_serve_lives_real.py kills one.

One server for all of it, started by the watchdog itself with the model that takes 25 ms a token.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from contract.harness.programs import free_port
from support.dogs import Dog, watchdog
from support.real_vllm import ANSWER_LIMIT_S, engine_environment

from toolkit.metrics.parser import read_page
from toolkit.profiles import Profile, Prompt
from toolkit.records import Host
from toolkit.serving.stack import GuardSetting, WarmSetting
from toolkit.serving.warmup import Warming
from toolkit.serving.watchdog import LivenessProbe, wait_for_trouble

MODEL = "tiny-slow"
SEQS = 8
FLAGS = (
    *("--max-model-len", "512", "--max-num-seqs", str(SEQS), "--enforce-eager"),
    *("--block-size", "32", "--num-gpu-blocks-override", "64", "--enable-prompt-tokens-details"),
)
BACK_S = 600.0
LONG_TEXT = "The keeper climbed the stairs with the oil and trimmed the wick. " * 3
"""More than a block of 32 tokens."""


class Guarded:
    """The server, and the watchdog around it."""

    def __init__(self, dog: Dog, url: str, log: Path) -> None:
        self.dog, self.url, self.log = dog, url, log
        self.port = int(url.rpartition(":")[2])

    def api_server(self) -> psutil.Process:
        """vLLM's own process: whoever listens."""
        (pid,) = {
            each.pid
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr.port == self.port
        }
        return psutil.Process(pid)

    def family(self) -> list[psutil.Process]:
        first = self.api_server()
        return [first, *first.children(recursive=True)]

    def engine_core(self) -> list[psutil.Process]:
        """Everybody but the API server."""
        return self.family()[1:]

    def number(self, name: str) -> float:
        page = httpx.get(f"{self.url}/metrics", timeout=ANSWER_LIMIT_S, trust_env=False).text
        return read_page(page).total(name) or 0.0

    def chat(self, text: str, **more: Any) -> dict[str, Any]:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8}
        answer = httpx.post(
            f"{self.url}/v1/chat/completions",
            json=body | more,
            timeout=ANSWER_LIMIT_S,
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told


@pytest.fixture(scope="module")
def guarded(vllm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    port = free_port()
    folder = tmp_path_factory.mktemp("dog")
    url, log = f"http://127.0.0.1:{port}", folder / "vllm.log"
    engine = [str(vllm_home / "bin" / "vllm"), "serve", str(vllm_home / "models" / MODEL)]
    engine += [
        "--served-model-name",
        MODEL,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *FLAGS,
    ]
    limits = ("--stuck", "2m", "--answer", "2m", "--refused", "2s", "--backoff", "200ms")
    words = (
        "--url",
        url,
        "--log",
        log,
        "--no-store",
        "--max-num-seqs",
        SEQS,
        *limits,
        "--",
        *engine,
    )
    with watchdog(
        *words, cwd=folder, env=engine_environment(vllm_home, folder), patience_s=BACK_S
    ) as dog:
        dog.wait_for("ready after ", "cold TTFT ")
        yield Guarded(dog, url, log)
        assert dog.end() == 0
    assert not [each for each in psutil.process_iter() if _names(each, str(port))]


def _names(one: psutil.Process, word: str) -> bool:
    try:
        return word in one.cmdline()
    except psutil.Error:
        return False


def test_a_real_server_is_told_cold_and_warm_and_every_kind_is_answered(guarded: Guarded) -> None:
    setting = WarmSetting(concurrency=(1, 4, SEQS), structured=True, long_prompts=True, rounds=20)
    told = asyncio.run(
        Warming(host=Host(name="a", url=guarded.url), setting=setting, log=guarded.log).run()
    )
    assert (told.errors, told.model) == (0, MODEL)
    assert {each.kind for each in told.levels} == {"plain", "structured", "long"}
    assert told.warm_ttft_ms is not None
    # it streams: a first token of one request comes long before 32 tokens of 25 ms
    (one,) = [each for each in told.levels if (each.kind, each.concurrency) == ("plain", 1)]
    assert one.warm_ms is not None
    assert one.warm_ms < 32 * 25
    assert told.late_compilations == [], "the CPU compiles nothing while it serves"


def test_our_own_requests_hit_no_prefix_cache_and_the_clients_first_one_does(
    guarded: Guarded,
) -> None:
    text = f"{time.time()} {LONG_TEXT}"
    profile = Profile(
        name="p",
        prompts=(Prompt(name="x", messages=({"role": "user", "content": text},)),),
        max_tokens=8,
    )
    hits = guarded.number("vllm:prefix_cache_hits_total")
    setting = WarmSetting(concurrency=(1, 4), max_tokens=4, rounds=1)
    told = asyncio.run(
        Warming(host=Host(name="a", url=guarded.url), setting=setting, profile=profile).run()
    )
    assert told.seeded == 2
    # of all that was asked, only the second view of the clients' own may have hit: its whole blocks, of one prompt
    own = guarded.chat(text)["usage"]
    assert own["prompt_tokens_details"]["cached_tokens"] >= 32
    gained = guarded.number("vllm:prefix_cache_hits_total") - hits
    assert gained <= 2 * own["prompt_tokens"]


class Load:
    """Clients that ask until the block ends; nothing of what they are told matters."""

    def __init__(self, guarded: Guarded, clients: int) -> None:
        self._guarded, self._stop = guarded, threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(clients)]

    def _ask(self) -> None:
        while not self._stop.is_set():
            with suppress(httpx.HTTPError, AssertionError, json.JSONDecodeError):
                self._guarded.chat(f"{time.time()} {LONG_TEXT}", max_tokens=64, ignore_eos=True)

    def __enter__(self) -> None:
        for each in self._threads:
            each.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join(BACK_S)


async def trouble_within(guarded: Guarded, seconds: float, **guard: float) -> str | None:
    """What a second pair of eyes with short limits notices in so long."""
    setting = GuardSetting(**({"look_s": 0.25} | guard))
    host = Host(name="real", url=guarded.url, model=MODEL)
    async with LivenessProbe(host, setting, limit_s=5.0) as probe:
        with suppress(TimeoutError):
            return await asyncio.wait_for(wait_for_trouble(probe, setting), seconds)
    return None


def test_saturated_with_three_times_what_it_runs_at_once_it_is_left_alone(guarded: Guarded) -> None:
    with Load(guarded, 3 * SEQS):
        found = asyncio.run(trouble_within(guarded, 20.0, stuck_s=3.0, answer_s=3.0))
    assert found is None


def test_frozen_behind_pages_that_answer_it_is_noticed_and_thawed_it_goes_on(
    guarded: Guarded,
) -> None:
    frozen = guarded.engine_core()
    with Load(guarded, 4):
        while guarded.number("vllm:num_requests_running") < 1:
            time.sleep(0.05)
        try:
            for each in frozen:
                each.suspend()
            found = asyncio.run(trouble_within(guarded, 120.0, stuck_s=3.0, answer_s=3.0))
        finally:
            for each in frozen:
                each.resume()
    assert found is not None
    assert "no token" in found
    assert guarded.chat("Hi")["choices"]


def test_frozen_while_it_had_nothing_to_do_it_is_noticed_by_a_question(guarded: Guarded) -> None:
    guarded.chat("Hi")
    frozen = guarded.engine_core()
    try:
        for each in frozen:
            each.suspend()
        found = asyncio.run(trouble_within(guarded, 120.0, stuck_s=3.0, answer_s=3.0, ask_s=2.0))
    finally:
        for each in frozen:
            each.resume()
    assert found is not None
    assert found.startswith("idle, it says")
