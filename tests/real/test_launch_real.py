"""Launch meets a real vLLM: its flags, and why it did not start. One that starts, ends and is killed: test_serve_lives_real.py."""

import asyncio
import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.real_vllm import engine_environment

from toolkit.serving.engine_command import Installed, installed, interpreter
from toolkit.serving.flags import known
from toolkit.serving.launch import Process
from toolkit.serving.startup_log import cause

RECORDED = Path(__file__).parents[1] / "data" / "startup" / "help-0.32.0.txt"
ENDED_S = 420.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: vLLM's sockets live in it, and a socket's path may have 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="vllm-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def there(vllm_home: Path) -> Installed:
    return asyncio.run(installed(str(vllm_home / "bin" / "vllm")))


def test_the_installed_one_knows_the_flags_that_were_recorded(there: Installed) -> None:
    assert there.version.startswith("0.32.0")
    assert there.known == known(RECORDED.read_text())
    script = "import json, vllm, torch; print(json.dumps(vllm.__version__))"
    found = subprocess.run(
        [interpreter(Path(there.command)), "-c", script], capture_output=True, check=True
    )
    assert json.loads(found.stdout.splitlines()[-1]).startswith("0.32.0")


def test_a_taken_port_is_told(there: Installed, vllm_home: Path, folder: Path) -> None:
    """One for all: the logs of others that fail are recorded, and read in tests/contract/serve/test_failed_starts.py."""

    async def story(port: int) -> None:
        flags = there.arguments([("port", str(port)), ("max-model-len", "512")])
        model = str(vllm_home / "models" / "tiny")
        words = [there.command, "serve", model, "--host", "127.0.0.1", *flags.argv]
        process = await Process.start(words, engine_environment(vllm_home, folder), folder / "log")
        try:
            status = await asyncio.wait_for(process.ended(), ENDED_S)
        finally:
            await process.stop(30)
        assert cause(process.said(), status).code == "port_taken"

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        asyncio.run(story(listener.getsockname()[1]))
