"""`toolkit proxy --workers N`: the parent's part of it, with its signals and what it says."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from toolkit.cli.proxy_run import ENDING, INTERRUPTED, ready_line, say, summary
from toolkit.proxy.keyring import TeamKey
from toolkit.proxy.settings import Settings
from toolkit.proxy.workers import Workers

WORKER = "toolkit.cli.proxy_worker"


def run_workers(settings: Settings, variables: Mapping[str, str], keys: Sequence[TeamKey]) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    workers = Workers(
        settings,
        variables=variables,
        keys=keys,
        # -P: a `toolkit` in the folder in which it is started is not this one
        command=[sys.executable, "-P", "-m", WORKER],
        environ=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        say=say,
    )
    began = time.monotonic()
    asyncio.run(_serve(workers, settings))
    say(summary(workers.counters, time.monotonic() - began))
    return 0


async def _serve(workers: Workers, settings: Settings) -> None:
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
    await workers.run(
        lambda port, admin: say(f"{ready_line(settings, port, admin)}, {settings.workers} workers")
    )
