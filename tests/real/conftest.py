"""Real vLLM servers on loopback for the tests beside this file: started, awaited, stopped, nothing left behind.

install_vllm.sh puts vLLM where these fixtures look. Where it is missing, the tests skip with the command that
brings it; in CI (the variable `CI`) they fail instead. At most two servers run at once: one for the whole session
behind a key, and one of a module's own whose counters start at zero.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

INSTALL = "tests/real/install_vllm.sh"
START_LIMIT_S = 240.0
"""Two cores take 21 to 55 s to `/health`, 97 s on the very first start while the system's caches are cold."""
STOP_LIMIT_S = 30.0
"""SIGTERM takes about 2 s."""

COMMON_FLAGS = (
    *("--max-model-len", "512", "--max-num-seqs", "16", "--enforce-eager"),
    # the CPU's smallest block (its default, 128, hits the prefix cache only on longer prompts than ours), and few
    # enough blocks that the gauges move: 64 x 32 = 2048 tokens
    *("--block-size", "32", "--num-gpu-blocks-override", "64"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A real vLLM that answers."""

    url: str
    model: str
    key: str | None
    log: Path

    def client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60.0, trust_env=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A server's start counts towards the first test that asks for it."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(2 * START_LIMIT_S))


@pytest.fixture(scope="session")
def vllm_home() -> Path:
    """Where install_vllm.sh put vLLM; the same rule stands there."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = Path(os.environ.get("TOOLKIT_VLLM_HOME") or Path(cache) / "toolkit" / "vllm-0.32.0")
    if not (home / "finished").is_file():
        missing = f"no real vLLM at {home}; run {INSTALL}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return home


@pytest.fixture(scope="session")
def locked_server(vllm_home: Path) -> Iterator[Server]:
    """A server behind a key, with the fast model; nothing depends on what its counters say."""
    with serving(vllm_home, "tiny", key="secret") as server:
        yield server


@pytest.fixture(scope="module")
def fresh_server(vllm_home: Path) -> Iterator[Server]:
    """A server that has served nothing yet, with the model that takes 25 ms a token, so that requests queue."""
    with serving(vllm_home, "tiny-slow", "--enable-prompt-tokens-details") as server:
        yield server


@contextmanager
def serving(home: Path, model: str, *flags: str, key: str | None = None) -> Iterator[Server]:
    # a short path: vLLM's sockets live in it, and a socket's path may have 107 bytes
    folder = Path(tempfile.mkdtemp(prefix="vllm-"))
    try:
        port = free_port()
        server = Server(
            url=f"http://127.0.0.1:{port}", model=model, key=key, log=folder / "log.txt"
        )
        all_flags = [*COMMON_FLAGS, *flags, *(["--api-key", key] if key else [])]
        process = launch(home, server, port, all_flags)
        try:
            wait_until_healthy(server, process)
            yield server
        finally:
            stop(process, server.log)
    finally:
        shutil.rmtree(folder)


def launch(home: Path, server: Server, port: int, flags: list[str]) -> psutil.Popen:
    # a test run that is killed outright must not leave 1.6 GB of server behind
    tied_to_us = ["setpriv", "--pdeathsig", "TERM"]
    command = [
        *(str(home / "bin" / "vllm"), "serve", str(home / "models" / server.model)),
        *("--served-model-name", server.model, "--host", "127.0.0.1", "--port", str(port)),
    ]
    with server.log.open("wb") as log:
        return psutil.Popen(
            [*tied_to_us, *command, *flags],
            env=environment(server.log.parent),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the tests; they then stop the server in order
            start_new_session=True,
        )


def environment(folder: Path) -> dict[str, str]:
    """All that vLLM writes beside its own folder (caches, sockets, telemetry's files) goes into `folder`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VLLM_", "XDG_", "HF_"))
    }
    return kept | {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until_healthy(server: Server, process: psutil.Popen) -> None:
    give_up_at = time.monotonic() + START_LIMIT_S
    with server.client() as client:
        while time.monotonic() < give_up_at:
            if process.poll() is not None:
                pytest.fail(
                    f"vLLM ended with {process.returncode} while starting:\n{tail(server.log)}"
                )
            try:
                if client.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass  # the port opens last
            time.sleep(0.25)
    pytest.fail(f"vLLM was not healthy after {START_LIMIT_S:.0f} s:\n{tail(server.log)}")


def stop(process: psutil.Popen, log: Path) -> None:
    """SIGTERM, then whoever is left by process id: killing only the server orphans its engine, worker and tracker."""
    family = [process, *children(process)]
    shared = {path for member in family for path in shared_memory(member)}
    process.terminate()
    _, stubborn = psutil.wait_procs(family, timeout=STOP_LIMIT_S)
    for member in stubborn:
        member.kill()
    psutil.wait_procs(stubborn, timeout=STOP_LIMIT_S)
    left = [path for path in shared if path.exists()]
    for path in left:
        path.unlink(missing_ok=True)
    if stubborn or left:
        pytest.fail(f"after SIGTERM vLLM left {stubborn or left} behind:\n{tail(log)}")


def children(process: psutil.Popen) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def shared_memory(member: psutil.Process) -> set[Path]:
    """The files in /dev/shm that a process has mapped: 420 MB apparent for each server."""
    try:
        maps = Path(f"/proc/{member.pid}/maps").read_text()
    except OSError:
        return set()
    words = (line.split(maxsplit=5) for line in maps.splitlines())
    paths = (word[5] for word in words if len(word) == 6)
    return {
        Path(path)
        for path in paths
        if path.startswith("/dev/shm/") and not path.endswith("(deleted)")
    }


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])
