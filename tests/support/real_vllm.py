"""Real vLLM servers on loopback: started, awaited, stopped, nothing left behind. The fixtures are in tests/real/conftest.py."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from contract.harness.programs import free_port, runs

from toolkit.cli.real_vllm import environment

START_LIMIT_S = 420.0
"""Two cores take 21 to 55 s to `/health`, 97 s on the very first start while the system's caches are cold;
over 240 s at a load of 16."""
ANSWER_LIMIT_S = 300.0
"""Of one request: the first one for logprobs took over a minute while three other engines started on the same two cores."""
STOP_LIMIT_S = 60.0
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
    process: subprocess.Popen[bytes]

    def family(self) -> list[psutil.Process]:
        """The server's processes, orphans included, by the session that it was started in."""
        return [one for one in psutil.process_iter() if session_of(one.pid) == self.process.pid]

    def client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        # a connection for each request: vLLM closes one that was idle for 5 s, and on a busy machine a request may be
        # on its way at that very moment
        return httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=ANSWER_LIMIT_S,
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )


def engine_environment(home: Path, folder: Path) -> dict[str, str]:
    """The demo's, but for what vLLM found out about its own models: that is kept beside the install.

    It imports itself once more to look at a model's class, unless its cache has it: 12 s of a core, a quarter of a start.
    """
    return environment(folder) | {"VLLM_CACHE_ROOT": str(home / "cache")}


@contextmanager
def a_server(
    home: Path,
    model: str,
    *flags: str,
    key: str | None = None,
    dies: bool = False,
    port: int | None = None,
) -> Iterator[Server]:
    """Start a server and see it end; one that `dies` on purpose may leave something for us to clear."""
    # a short path: vLLM's sockets live in it, and a socket's path may have 107 bytes
    folder = Path(tempfile.mkdtemp(prefix="vllm-"))
    try:
        port, log = port or free_port(), folder / "log.txt"
        all_flags = [*COMMON_FLAGS, *flags, *(["--api-key", key] if key else [])]
        process = launch(home, model, port, all_flags, log)
        server = Server(
            url=f"http://127.0.0.1:{port}", model=model, key=key, log=log, process=process
        )
        shared: set[Path] = set()
        try:
            wait_until_healthy(server)
            shared = shared_memory(server.family())
            yield server
        finally:
            left = stop(server, shared)
        if left and not dies:
            pytest.fail(f"after SIGTERM vLLM left {left} behind:\n{tail(log)}")
    finally:
        shutil.rmtree(folder)


def launch(
    home: Path, model: str, port: int, flags: list[str], log: Path
) -> subprocess.Popen[bytes]:
    # a test run that is killed outright must not leave 1.6 GB of server behind
    tied_to_us = ["setpriv", "--pdeathsig", "TERM"]
    command = [
        *(str(home / "bin" / "vllm"), "serve", str(home / "models" / model)),
        *("--served-model-name", model, "--host", "127.0.0.1", "--port", str(port)),
    ]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*tied_to_us, *command, *flags],
            env=engine_environment(home, log.parent),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the tests, which then stop the server in order; and the session's number tells later
            # which processes are its own, orphans included
            start_new_session=True,
        )


def wait_until_healthy(server: Server) -> None:
    give_up_at = time.monotonic() + START_LIMIT_S
    with server.client() as client:
        while time.monotonic() < give_up_at:
            if server.process.poll() is not None:
                code = server.process.returncode
                pytest.fail(f"vLLM ended with {code} while starting:\n{tail(server.log)}")
            try:
                if client.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass  # the port opens last
            time.sleep(0.25)
    pytest.fail(f"vLLM was not healthy after {START_LIMIT_S:.0f} s:\n{tail(server.log)}")


def stop(server: Server, shared: set[Path]) -> list[str]:
    """SIGTERM, then whoever is left by process id; name what did not go by itself.

    Killing only the server would orphan its engine, worker and tracker, and leave its shared memory.
    """
    family = server.family()
    shared |= shared_memory(family)
    server.process.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.process.wait(STOP_LIMIT_S)
    give_up = time.monotonic() + STOP_LIMIT_S
    while (
        stubborn := [member for member in family if runs(member.pid)]
    ) and time.monotonic() < give_up:
        time.sleep(0.05)
    for member in stubborn:
        member.kill()
    server.process.wait(STOP_LIMIT_S)
    left = [path for path in shared if path.exists()]
    for path in left:
        path.unlink(missing_ok=True)
    return [str(one) for one in (*stubborn, *left)]


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def shared_memory(members: list[psutil.Process]) -> set[Path]:
    """The files in /dev/shm that the processes have mapped: 420 MB apparent for each server."""
    return {path for member in members for path in mapped(member.pid) if path.exists()}


def mapped(pid: int) -> list[Path]:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return []  # it has gone
    lines = (line.split(maxsplit=5) for line in maps.splitlines())
    return [Path(words[5]) for words in lines if words[5:] and words[5].startswith("/dev/shm/")]


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])
