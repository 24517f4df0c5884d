"""Simulated servers in a process of their own: the one thing of `toolkit` that contract tests import is the simulator's start.

    python fleets.py '[["name", "preset", {"setting": value}], ...]'

prints its hosts file and an empty line, then serves until it is killed.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fleet:
    """Servers that run: `hosts` is the text of a hosts file, `urls` says who listens where."""

    hosts: str
    urls: dict[str, str]
    process: "subprocess.Popen[str]"

    def write(self, folder: Path) -> Path:
        """Write `hosts.txt` there."""
        file = folder / "hosts.txt"
        file.write_text(self.hosts)
        return file


@contextmanager
def fleet(members: Mapping[str, str | tuple[str, dict[str, Any]]]) -> Iterator[Fleet]:
    """Host name -> preset, or preset and changed settings; `toolkit sim list` and `toolkit sim serve --help` name both."""
    plain = [[n, p, {}] if isinstance(p, str) else [n, p[0], p[1]] for n, p in members.items()]
    command = [sys.executable, str(Path(__file__)), json.dumps(plain)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            hosts = "".join(iter(process.stdout.readline, "\n"))
            lines = [line.split() for line in hosts.splitlines()]
            urls = {w[0]: w[1] for w in lines if len(w) > 1 and w[1].startswith("http")}
            assert urls.keys() == members.keys(), hosts
            yield Fleet(hosts, urls, process)
        finally:
            process.kill()


async def _serve(members: list[Any]) -> None:
    import asyncio

    from toolkit.sim.app import Fleet as Simulated
    from toolkit.sim.presets import setup_for

    setups = {name: setup_for(preset, **changes) for name, preset, changes in members}
    async with Simulated(setups) as running:
        print(running.hosts(), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    import asyncio

    asyncio.run(_serve(json.loads(sys.argv[1])))
