"""Where a proxy of several workers is listened to: one port, and one socket of it for each worker. It opens sockets.

With SO_REUSEPORT the kernel deals connections out by their addresses. One socket for all spread them badly: of 64 that came at once
three workers under uvloop took 15, 24 and 25, but of 96 in eights 3, 5 and 88, two workers 2 and 94 (with SO_REUSEPORT 41 and 55).
"""

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolkit.errors import ToolkitError

BACKLOG: Final = 1024
PRIVATE_BACKLOG: Final = 4096
"""Linux cuts it to net.core.somaxconn; a worker's connection beyond it would be refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one of several workers stands."""

    number: int
    """0 is the owner."""
    folder: Path
    """This user's alone; the workers' private sockets are there."""
    clients: Sequence[socket.socket]
    """They listen already."""
    admin: Sequence[socket.socket] = ()
    """The owner's."""


def doors(host: str, port: int, count: int, *, joins: bool = False) -> list[list[socket.socket]]:
    """`count` times a socket for each address of a host, all of one port. Raises ToolkitError.

    A port that somebody listens on is refused, though two proxies could share it; unless it is one's own, which another `joins`.
    """
    opened: list[list[socket.socket]] = [[] for _ in range(count)]
    try:
        addresses = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, address in dict.fromkeys(addresses):
            with _unless_alone(bool(opened[0])):
                port = _open(opened, family, (address[0], port, *address[2:]), joins=joins)
    except OSError as error:
        for mine in opened:
            for each in mine:
                each.close()
        raise cannot_listen(host, port, error) from error
    return opened


def cannot_listen(host: str, port: int, error: OSError) -> ToolkitError:
    """What the user is told of a port that can't be had."""
    return ToolkitError(
        f"cannot listen on {host}:{port}: {error.strerror or error}",
        "Choose another with --port or --admin-port",
    )


def _open(
    opened: list[list[socket.socket]], family: int, address: tuple[Any, ...], *, joins: bool
) -> int:
    """Add a socket for one address to each; its port."""
    host, port, *rest = address
    chosen: int = port
    if port and not joins:
        _listening(family, address, shares=False).close()
    for mine in opened:
        mine.append(_listening(family, (host, chosen, *rest), shares=True))
        chosen = mine[-1].getsockname()[1]
    return chosen


@contextmanager
def _unless_alone(has_others: bool) -> Iterator[None]:
    """Do without an address that the machine has only by name, e.g., `localhost` by IPv6, if there is another."""
    try:
        yield
    except OSError as error:
        if not has_others or error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise


def _listening(family: int, address: tuple[Any, ...], *, shares: bool) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.setblocking(False)
        opened.bind(address)
        opened.listen(BACKLOG)
    except BaseException:
        opened.close()
        raise
    return opened


async def private_listener(
    made: Callable[[], asyncio.Protocol], path: Path
) -> asyncio.AbstractServer:
    """Listen on a unix socket, in a folder that is this user's alone, in the place of one that a dead process left."""
    loop = asyncio.get_running_loop()
    path.unlink(missing_ok=True)  # noqa: ASYNC240 (a folder in memory or near it, once)
    return await loop.create_unix_server(made, str(path), backlog=PRIVATE_BACKLOG)
