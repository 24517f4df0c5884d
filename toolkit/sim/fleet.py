"""Several simulated servers in one process, and the hosts.txt that names them. Sockets are `app`'s business."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from toolkit.sim.app import SimServer
from toolkit.sim.life import Setup, setup_for
from toolkit.sim.personalities import PERSONALITIES


def setups_for(
    words: Iterable[str], *, port: int = 0, seed: int = 0, **changes: Any
) -> dict[str, Setup]:
    """Read `cached` or `alice=cached`: host name -> Setup, in order; no words mean the whole cast.

    Ports count up from `port`, unless that is 0; seeds count up, too, so that no two hosts roll the same
    dice. Raises ValueError on an unknown personality and on a name that stands twice.
    """
    setups: dict[str, Setup] = {}
    for index, word in enumerate(tuple(words) or PERSONALITIES):
        name, _, person = word.rpartition("=")
        host = name or person
        if not person:
            raise ValueError(f"`{word}` names no personality")
        if host in setups:
            raise ValueError(f"the name `{host}` stands twice")
        if not host.strip() or any(sign.isspace() or sign in "#=" for sign in host):
            raise ValueError(f"`{host}` is no name for a host")
        setups[host] = setup_for(
            person, port=port + index if port else 0, seed=seed + index, **changes
        )
    return setups


class Fleet:
    """`async with Fleet(setups) as fleet:` starts all servers; they listen when it is entered."""

    def __init__(self, setups: dict[str, Setup]) -> None:
        self.servers: dict[str, SimServer] = {
            name: SimServer(setup) for name, setup in setups.items()
        }
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for server in self.servers.values():
                await stack.enter_async_context(server)
            await asyncio.gather(*(server.listening.wait() for server in self.servers.values()))
            self._stack = stack.pop_all()  # all are up: only now keep them
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def change_now(self) -> None:
        """Let every switcher fall at once."""
        for server in self.servers.values():
            server.change_now()

    def hosts(self, option: str = "") -> str:
        """The text of a hosts.txt: a name, a URL, and an option like `api_key_env=KEY` on each line."""
        rows = [(name, server.url) for name, server in self.servers.items()]
        return hosts_text(rows, option)


def hosts_text(hosts: Sequence[tuple[str, str]], option: str = "") -> str:
    """Lay out names and URLs in two columns."""
    width = max(len(name) for name, _ in hosts)
    return "".join(f"{name:<{width}} {url} {option}".rstrip() + "\n" for name, url in hosts)
