"""A real redis-server on a socket of its own, to be killed, frozen and brought back."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="needs Redis: apt-get install redis-server"
)


START_LIMIT_S = 60.0


class RedisServer:
    """One server, on 127.0.0.1 at a free port and on a Unix socket in `folder`; it writes nothing to disk."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.socket = folder / "redis.sock"
        self._place = _kept_place()
        self.port = int(self._place.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", ""]
        command += ["--unixsocket", str(self.socket), "--dir", str(self.socket.parent)]
        self._process = subprocess.Popen(
            [*command, *self._options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_LIMIT_S
        while self._asked(b"PING\r\n")[:1] not in (b"+", b"-"):  # -NOAUTH is an answer, too
            assert time.monotonic() < deadline, "redis-server does not come up"
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill it, and let its port go."""
        self.kill()
        self._place.close()

    def freeze(self) -> None:
        """SIGSTOP: connections are taken by the kernel, and nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def command(self, *words: str) -> str:
        """What redis-cli says."""
        line = ["redis-cli", "-p", str(self.port), *words]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()

    def _asked(self, data: bytes) -> bytes:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as sock:
            sock.sendall(data)
            return sock.recv(100)
        return b""


def _kept_place() -> socket.socket:
    """A port that nobody else is given, while Redis is up and while it is not: both may bind it, as both say REUSEADDR."""
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", 0))
    return place


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[RedisServer]:
    """Run one; it is killed at the end, frozen or not."""
    server = RedisServer(folder, *options)
    try:
        server.start()
        yield server
    finally:
        server.close()
