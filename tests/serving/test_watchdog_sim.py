"""Real simulated engines in processes of their own: frozen ones are noticed, busy ones never, however slow."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from support.chat import hang, until
from support.raw_server import RawServer, http, vllm_pages

from toolkit.records import Host
from toolkit.serving.stack import GuardSetting
from toolkit.serving.watchdog import LivenessProbe, noticed

SHORT: dict[str, Any] = {
    "look_s": 0.1,
    "stuck_s": 1.0,
    "answer_s": 1.5,
    "ask_s": 2.0,
    "refused_s": 1.0,
}
"""Much shorter than anybody would want them: what is busy for longer than these must still be left alone."""
MODEL = "Qwen3.5-35B-A3B"


@dataclass
class Sim:
    url: str
    process: "subprocess.Popen[str]"

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def tokens(self) -> float:
        """Output tokens that it counts."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as page:
            lines = page.read().decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("vllm:generation_tokens_total{")
        )


@contextmanager
def sim(*words: str) -> Iterator[Sim]:
    """`toolkit sim serve`, as a user runs it."""
    command = [
        sys.executable,
        "-c",
        "from toolkit.cli import main; main()",
        "sim",
        "serve",
        "--port",
        "0",
    ]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Sim(url=process.stdout.readline().strip(), process=process)
        finally:
            process.kill()


async def watched(url: str, *, page_s: float = 1.0, **guard: Any) -> str:
    setting = GuardSetting(**(SHORT | guard))
    host = Host(name="alice", url=url)
    async with LivenessProbe(host, setting, limit_s=page_s) as probe:
        return await noticed(probe, setting)


async def trouble_until(url: str, over: Coroutine[Any, Any, Any], **guard: Any) -> str | None:
    """The trouble that was noticed before something was over, if any."""
    watching = asyncio.create_task(watched(url, **guard))
    waiting = asyncio.create_task(over)
    done, _ = await asyncio.wait({watching, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in (watching, waiting):
        task.cancel()
    await asyncio.gather(watching, waiting, return_exceptions=True)
    return watching.result() if watching in done else None


async def answered(url: str, **body: Any) -> dict[str, Any]:
    """Ask a completion and wait for all of it, as long as that takes."""

    def asked() -> dict[str, Any]:
        request = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps({"model": MODEL, "ignore_eos": True, "temperature": 0} | body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=100) as answer:
            return json.loads(answer.read())

    return await asyncio.to_thread(asked)


# --- noticed --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_engine_that_hangs_behind_pages_that_answer_is_noticed() -> None:
    # as recorded of a vLLM with its engine processes stopped: /health and /metrics answer, nothing moves
    async def run() -> str:
        pages = vllm_pages() | {"/v1/completions": hang}
        async with RawServer(pages) as server:
            return await asyncio.wait_for(watched(server.url), 60)

    told = asyncio.run(run())
    assert "nor one when it was asked" in told


# --- never noticed ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_saturated_engine_with_a_long_queue_is_left_alone() -> None:
    # 64 clients, four at a time: our token would wait behind sixty, far longer than `answer_s`; steps of 0.4 s
    words = ("--load", "64", "--set", "max_num_seqs=4", "--set", "step_overhead_s=0.4")
    with sim(*words) as one:

        async def many_tokens_later() -> None:
            enough = one.tokens() + 32  # 32 / 4 = eight steps of 0.4 s
            while await asyncio.to_thread(one.tokens) < enough:  # noqa: ASYNC110 (another process counts them)
                # a page is made by the CPU that the engine needs
                await asyncio.sleep(0.1)

        assert asyncio.run(trouble_until(one.url, many_tokens_later())) is None


@pytest.mark.slow
def test_a_prefill_much_longer_than_the_limits_is_left_alone() -> None:
    # 4,096 tokens, 256 a step: 16 steps of 0.2 s = 3.2 s without a token, and a question would wait behind all of them
    words = (
        "max_num_batched_tokens=256 prefill_s_per_token=0.0008 step_overhead_s=0 jitter=0".split()
    )
    with sim(*(word for each in words for word in ("--set", each))) as one:
        prompt = [n % 1000 for n in range(4096)]
        over = answered(one.url, prompt=prompt, max_tokens=1)
        assert asyncio.run(trouble_until(one.url, over)) is None


@pytest.mark.slow
def test_a_step_longer_than_the_silence_allowed_is_asked_and_left_alone() -> None:
    # each step takes 1.8 s: silent for longer than `stuck_s`, but the token comes within `answer_s`
    with sim("--set", "step_overhead_s=1.8", "--set", "jitter=0") as one:
        over = answered(one.url, prompt="Hi", max_tokens=2)
        assert asyncio.run(trouble_until(one.url, over, answer_s=20.0)) is None


@pytest.mark.slow
def test_a_metrics_page_that_never_comes_in_time_is_not_refused_nor_stuck_while_tokens_come() -> (
    None
):
    async def run() -> str | None:
        token = http('{"choices": [{"text": "a"}]}', content_type="application/json")
        async with RawServer(vllm_pages() | {"/metrics": hang, "/v1/completions": token}) as server:

            async def three_questions() -> None:
                await until(lambda: server.paths().count("/v1/completions") == 3)

            return await trouble_until(server.url, three_questions(), page_s=0.2, stuck_s=0.5)

    assert asyncio.run(run()) is None
