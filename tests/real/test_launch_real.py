"""Launch meets a real vLLM: its flags, its startup log, its end by SIGTERM, and its orphans after SIGKILL."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.harness.programs import runs
from support.real_vllm import engine_environment
from support.served import free_port

from toolkit.serving import processes
from toolkit.serving.engine_command import Installed, installed
from toolkit.serving.flags import known
from toolkit.serving.launch import Process, answer, ready
from toolkit.serving.startup_log import Startup, cause
from toolkit.serving.tiny_model import tiny

RECORDED = Path(__file__).parents[1] / "data" / "startup" / "help-0.32.0.txt"
READY_S = 420.0
FLAGS = (
    *(("max-model-len", "0.5k"), ("max_num_seqs", "16"), ("enforce-eager", True)),
    *(("block-size", "32"), ("num-gpu-blocks-override", "64"), ("disable-log-requests", True)),
)
"""Spelled as people do; two of them are not this version's."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: vLLM's sockets live in it, and a socket's path may have 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="vllm-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def there(vllm_home: Path) -> Installed:
    return asyncio.run(installed(str(vllm_home / "bin" / "vllm")))


def argv(there: Installed, model: Path, port: int, *more: tuple[str, str | bool]) -> list[str]:
    flags = there.arguments([*FLAGS, ("served-model-name", "tiny"), ("port", str(port)), *more])
    return [there.command, "serve", str(model), "--host", "127.0.0.1", *flags.argv]


def left_behind(shared: set[processes.SharedFile]) -> list[str]:
    return [file.path for file in shared if Path(file.path).exists()]


async def up(process: Process, url: str) -> Startup:
    """Wait until it serves, and read what it said meanwhile."""
    await ready(url, None, READY_S, lambda: process.code is None)
    startup = Startup()
    for line in process.said():
        startup.feed(line)
    return startup


def test_the_installed_one_knows_the_flags_that_were_recorded(there: Installed) -> None:
    assert there.version.startswith("0.32.0")
    assert there.known == known(RECORDED.read_text())
    script = "import json, vllm, torch; print(json.dumps(vllm.__version__))"
    found = subprocess.run([there.python, "-c", script], capture_output=True, check=True)
    assert json.loads(found.stdout.splitlines()[-1]).startswith("0.32.0")


def test_it_starts_tells_its_facts_and_ends_on_sigterm_leaving_nothing(
    there: Installed, vllm_home: Path, folder: Path
) -> None:
    async def story() -> None:
        model = await tiny(folder, there.python)
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        process = await Process.start(
            argv(there, model, port), engine_environment(vllm_home, folder), folder / "log"
        )
        try:
            startup = await up(process, url)
            members = process.members()
            shared = processes.shared_files(one.pid for one in members)
        finally:
            await process.stop(30)
        # 64 blocks of 32 tokens; 2048 / 500 would be 4.096, but a request of 500 takes 16 blocks: 64 / 16 = 4
        assert (startup.facts.max_model_len, startup.facts.kv_tokens) == (500, 2000)
        assert startup.step is not None
        assert startup.step.code == "serve"
        assert len(members) >= 3  # front, engine core, worker
        assert process.code == 0
        assert process.members() == []
        assert not left_behind(shared)
        assert await answer(url) == "connection refused"

    asyncio.run(story())


def test_a_killed_front_leaves_no_orphan_and_no_shared_memory(
    there: Installed, vllm_home: Path, folder: Path
) -> None:
    async def story() -> None:
        port = free_port()
        words = argv(there, vllm_home / "models" / "tiny", port)
        process = await Process.start(words, engine_environment(vllm_home, folder), folder / "log")
        try:
            await up(process, f"http://127.0.0.1:{port}")
            members = process.members()
            shared = processes.shared_files(one.pid for one in members)
            assert any("psm_" in file.path for file in shared)
            os.kill(process.pid, signal.SIGKILL)
            assert await process.ended() == -signal.SIGKILL
        finally:
            await process.stop(30)
        assert not [one for one in members if runs(one.pid)]
        assert not left_behind(shared)
        assert cause(process.said(), process.code).code == "killed"

    asyncio.run(story())


def test_a_start_that_fails_is_told_by_its_cause(
    there: Installed, vllm_home: Path, folder: Path
) -> None:
    """One for all: the logs of the others are recorded, and read in tests/contract/serve/test_failed_starts.py."""

    async def story() -> None:
        more = ("max-model-len", "1M")
        words = argv(there, vllm_home / "models" / "tiny", free_port(), more)
        process = await Process.start(words, engine_environment(vllm_home, folder), folder / "log")
        try:
            status = await asyncio.wait_for(process.ended(), READY_S)
        finally:
            await process.stop(30)
        assert cause(process.said(), status).code == "too_long"

    asyncio.run(story())


def test_a_taken_port_is_told(there: Installed, vllm_home: Path, folder: Path) -> None:
    async def story(port: int) -> None:
        words = argv(there, vllm_home / "models" / "tiny", port)
        process = await Process.start(words, engine_environment(vllm_home, folder), folder / "log")
        try:
            status = await asyncio.wait_for(process.ended(), READY_S)
        finally:
            await process.stop(30)
        assert cause(process.said(), status).code == "port_taken"

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        asyncio.run(story(listener.getsockname()[1]))
