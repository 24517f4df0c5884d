"""A fleet of simulated servers in a process of its own, so that they share no interpreter with what times them.

    python sim_fleet.py '[["name", "personality", {"setting": value}], ...]'

prints its hosts file and an empty line, then serves until it is stopped.
"""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.sim.app import Fleet
from toolkit.sim.presets import setup_for

Spec = Mapping[str, tuple[str, dict[str, Any]]]
"""Host name -> personality and what is changed in it."""


async def serve(spec: list[Any]) -> None:
    setups = {name: setup_for(person, **changes) for name, person, changes in spec}
    async with Fleet(setups) as fleet:
        print(fleet.hosts(), flush=True)
        await asyncio.Event().wait()


@contextmanager
def running(spec: Spec, *, enter: Sequence[str] = ()) -> Iterator[str]:
    """Start such a fleet; the hosts file's text. `enter`: a command that starts it elsewhere."""
    words = json.dumps([[name, person, changes] for name, (person, changes) in spec.items()])
    command = [*enter, sys.executable, str(Path(__file__)), words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield "".join(itertools.takewhile(lambda line: line != "\n", process.stdout))
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
