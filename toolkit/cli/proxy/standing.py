"""How a proxy that runs is, in one line and in one word: for the screen, and for the service manager."""

import asyncio
import contextlib

from toolkit.proxy.config import Settings

PING = b"GET /ping HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


class ServiceStatus:
    """How a proxy is, for the service manager."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._admin = settings, 0
        self._told = "Looks at its upstreams"

    def opened(self, port: int, admin: int) -> str:
        """It listens; the line that says so."""
        self._admin = admin
        told = ready_line(self._settings, port, admin)
        if self._settings.workers > 1:
            told += f", {self._settings.workers} workers"
        self._told = told.removeprefix("Ready: ")
        return told

    def in_a_line(self) -> str:
        """What it does."""
        return self._told

    async def is_well(self) -> bool:
        """Whether its admin answers: of several workers the one that all others need."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(  # noqa: S104
            self._settings.admin_host, self._settings.admin_host
        )
        try:
            reader, writer = await asyncio.open_connection(host, self._admin)
            with contextlib.closing(writer):
                writer.write(PING)
                return b" 200 " in await reader.readline()
        except OSError:
            return False


def ready_line(settings: Settings, port: int, admin: int) -> str:
    """Where it listens."""
    clients, admins = f"http://{settings.host}:{port}", f"http://{settings.admin_host}:{admin}"
    return f"Ready: clients on {clients}, admin on {admins}"
