"""One worker process of `toolkit proxy --workers N`: started by the parent, told by it what to be, and ended by it or with it."""

import asyncio
import contextlib
import json
import math
import os
import pickle
import shutil
import signal
import socket
import sys
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.cli.output import to_stderr
from toolkit.cli.proxy.process import run_loop, telemetry_of
from toolkit.errors import ToolkitError
from toolkit.proxy.app import Proxy
from toolkit.proxy.auth import TeamKey
from toolkit.proxy.config import Settings
from toolkit.proxy.telemetry import Telemetry

FAILED = 1
LONGEST_LINE = 64 * 2**20
ORPHAN_S = 2.0
"""As long may closing the files take once the parent is dead; then the port must be free for another one."""


def main() -> None:
    """Read what to be, and be it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # the parent hears these, and says what is to be done
        signal.signal(number, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    size = int.from_bytes(channel.recv(8, socket.MSG_WAITALL))
    try:
        packet = pickle.loads(channel.recv(size, socket.MSG_WAITALL))  # noqa: S301 (from the parent)
    except (EOFError, pickle.UnpicklingError):
        return  # it is dead
    with contextlib.ExitStack() as opened:
        telemetry = telemetry_of(
            packet["settings"], opened, run_id=packet.pop("run_id"), parent=True
        )
        code = run_loop(_serve(channel, telemetry, **packet))
    sys.exit(code)


async def _serve(
    channel: socket.socket,
    telemetry: Telemetry,
    *,
    settings: Settings,
    variables: Mapping[str, str],
    keys: Sequence[TeamKey],
    number: int,
    folder: Path,
    clients: Sequence[int],
    admin: Sequence[int],
) -> int:
    """Be the primary, or one of the others, until the parent says or is no more."""
    to_clients, to_admin = ([socket.socket(fileno=n) for n in each] for each in (clients, admin))
    reader, writer = await asyncio.open_connection(sock=channel, limit=LONGEST_LINE)
    words: asyncio.Queue[list[str]] = asyncio.Queue()
    worker: Proxy | None = None

    async def answer(word: str, said: object) -> None:
        with contextlib.suppress(OSError):
            writer.write(json.dumps({word: said}).encode() + b"\n")
            await writer.drain()

    async def listen() -> None:
        """Hear what the parent says, word by word; once it is dead, this process ends."""
        while line := await reader.readline():
            found = line.decode().split()
            if found[0] not in ("reopen", "reload"):
                words.put_nowait(found)
            elif worker is not None and found[0] == "reopen":
                worker.reopen_logs()
            elif worker is not None:
                await worker.reload(*pickle.loads(b64decode(found[1])))  # noqa: S301 (from the parent)
        # nobody is left to end this process, and another proxy may want the port
        for each in (*to_clients, *to_admin):
            each.close()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ORPHAN_S):
                if worker is not None:
                    await worker.stop(0.0)
        if telemetry.log is not None:
            telemetry.log.close()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(FAILED)

    listening = asyncio.create_task(listen())
    try:
        worker = Proxy(
            settings,
            variables=variables,
            keys=list(keys),
            telemetry=telemetry,
            say=to_stderr,
            number=number,
            folder=folder,
            clients=to_clients,
            admin=to_admin,
        )
        await worker.start()
        await answer("open", True)
        if number:
            await words.get()  # shut: what is under way the primary answers, which ends after it
            await worker.stop(math.inf)
        else:
            while (word := await words.get())[0] == "shut":
                worker.shut()
            await worker.stop(float(word[1]))
        await answer("counters", telemetry.counters.as_dict())
    except ToolkitError as error:
        if worker is not None:
            await worker.stop(0.0)
        await answer("error", [error.message, error.hint])
        return FAILED
    finally:
        listening.cancel()
    return 0


if __name__ == "__main__":
    main()
