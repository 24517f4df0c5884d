"""`toolkit proxy --workers N`: the parent's part of it, with its signals and what it says."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from toolkit.cli.proxy.said import ENDING, INTERRUPTED, say, summary
from toolkit.cli.proxy.standing import Standing
from toolkit.proxy.keyring import TeamKey
from toolkit.proxy.processes.workers import Workers
from toolkit.proxy.settings import Settings
from toolkit.serving.house.notify import Notify

WORKER = "toolkit.cli.proxy.worker"


def run_workers(
    settings: Settings, variables: Mapping[str, str], keys: Sequence[TeamKey], notify: Notify
) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    workers = workers_of(settings, variables, keys, say)
    began = time.monotonic()
    asyncio.run(_serve(workers, settings, notify))
    say(summary(workers.counters, time.monotonic() - began))
    return 0


def workers_of(
    settings: Settings,
    variables: Mapping[str, str],
    keys: Sequence[TeamKey],
    say: Callable[[str], None],
) -> Workers:
    """The workers of a proxy, each a process of this toolkit; none is started yet."""
    return Workers(
        settings,
        variables=variables,
        keys=keys,
        # -P: a `toolkit` in the folder in which it is started is not this one
        command=[sys.executable, "-P", "-m", WORKER],
        environ=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        say=say,
    )


async def _serve(workers: Workers, settings: Settings, notify: Notify) -> None:
    loop = asyncio.get_running_loop()
    asked: list[bool] = []

    def end() -> None:
        if asked:
            workers.kill()
            os._exit(INTERRUPTED)
        asked.append(True)
        say(ENDING)
        workers.end()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    if settings.tell.log is not None:
        loop.add_signal_handler(signal.SIGHUP, workers.reopen_logs)
    standing = Standing(settings)

    def ready(port: int, admin: int) -> None:
        say(f"{standing.opened(port, admin)}, {settings.workers} workers")
        notify.ready(standing.in_a_line())

    async with notify.telling(standing.in_a_line, standing.is_well, workers.wanted_to_end):
        await workers.run(ready)
