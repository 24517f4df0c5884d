"""A service manager played by the test: a real datagram socket, and what was told to it."""

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 60.0


@dataclass
class Manager:
    """What a process told it, datagram by datagram."""

    address: str
    socket: socket.socket

    def next(self, patience_s: float = PATIENCE_S) -> dict[str, str]:
        """The next datagram's words."""
        self.socket.settimeout(patience_s)
        lines = self.socket.recv(65536).decode().split("\n")
        return dict(line.split("=", 1) for line in lines)

    def until(self, word: str) -> list[dict[str, str]]:
        """All datagrams up to the first with that word."""
        found = [self.next()]
        while word not in found[-1]:
            found.append(self.next())
        return found

    def waiting(self) -> list[dict[str, str]]:
        """What has come and was not read."""
        found = []
        try:
            while True:
                found.append(self.next(0.0))
        except BlockingIOError:
            return found


@contextmanager
def manager(folder: Path | None = None) -> Iterator[Manager]:
    """One at a path in a folder, else at an abstract address, as systemd has either."""
    address = str(folder / "notify") if folder else f"@toolkit-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(address.replace("@", "\0", 1) if folder is None else address)
        yield Manager(address, found)
