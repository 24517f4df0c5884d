"""The parent of several workers: opens the doors, starts a process for each, starts those again that die, and ends them in order.

It serves no request and knows none. One socket pair leads to each worker: what the worker is comes first, then a word at a time.
When the parent dies, however, the pair ends, and the worker with it. Signals are the parent's alone: a service manager or a
terminal sends them to all processes at once, and the order of the end would be chance.
"""

import asyncio
import json
import pickle
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolkit.errors import ToolkitError
from toolkit.proxy.keyring import TeamKey
from toolkit.proxy.processes.doors import doors
from toolkit.proxy.processes.hit_server import shared_out
from toolkit.proxy.settings import Settings
from toolkit.proxy.settings_file import admin_port
from toolkit.proxy.told.counters import Counters

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
"""Before a worker that died is started again; doubles each time."""
STEADY_S: Final = 60.0
"""One that lived for so long begins with the first pause again."""
SHUT_S: Final = 1.0
"""A worker that is away for longer has its door closed: nobody is to wait behind it."""
GRACE_S: Final = 8.0
"""After the time that the settings give, for what is to be written: the log takes 2 s at most, the store 5."""
LONGEST_PATH: Final = 88
"""Bytes; a unix socket's path ends at 107, and its own name takes some."""
LONGEST_LINE: Final = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """What a worker is, as it is told."""

    settings: Settings
    variables: Mapping[str, str]
    keys: Sequence[TeamKey]
    number: int
    folder: Path
    clients: Sequence[int]
    """Descriptors of sockets that listen."""
    admin: Sequence[int]
    run_id: str
    """Of the database's run."""


def receive(channel: socket.socket) -> Packet:
    """The packet, at a worker's beginning; EOFError if the parent is gone."""
    with channel.makefile("rb", buffering=0) as stream:
        size = int.from_bytes(_exactly(stream, 8))
        packet = pickle.loads(_exactly(stream, size))  # noqa: S301 (over a socket pair from the parent)
    assert isinstance(packet, Packet)
    return packet


def _exactly(stream: Any, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = stream.read(size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


class _Worker:
    """One process, from its start to its end."""

    def __init__(self, number: int, process: "subprocess.Popen[bytes]") -> None:
        self.number, self.process = number, process
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.awaits_go = self.is_open = False

    def send(self, word: str) -> None:
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(word.encode() + b"\n")


class Workers:
    """All of them. `run` ends when `end` was called, or raises what keeps one from its first start."""

    def __init__(
        self,
        settings: Settings,
        *,
        variables: Mapping[str, str],
        keys: Sequence[TeamKey],
        command: Sequence[str],
        environ: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        """`command` starts a worker; the descriptor of its end of the pair and its name follow as arguments."""
        self.counters = Counters()
        """What all of them counted; whole after `run`."""
        self._settings = shared_out(settings, settings.workers)
        self._variables, self._keys = dict(variables), list(keys)
        self._command, self._environ, self._say = command, environ, say
        self._run_id = secrets.token_hex(6)
        self._doors: list[list[socket.socket]] = []
        self._admin: list[socket.socket] = []
        self._workers: dict[int, _Worker] = {}
        self._is_ready = False
        self._owner_opened = False
        self._moved = asyncio.Event()
        self._ends = asyncio.Event()
        self._failure: ToolkitError | None = None

    # --- from beginning to end ---------------------------------------------------------------------

    async def run(self, ready: Callable[[int, int], None]) -> None:
        """Start all, call `ready` with the ports once all listen, and go on until `end`."""
        settings = self._settings
        self._folder = _private_folder()
        tasks: list[asyncio.Task[None]] = []
        try:
            self._doors = doors(settings.host, settings.port, settings.workers)
            self._port = self._doors[0][0].getsockname()[1]
            (self._admin,) = doors(settings.admin_host, admin_port(settings), 1)
            tasks += [asyncio.create_task(self._keep(each)) for each in range(settings.workers)]
            await self._until_ready()
            if self._failure is not None:
                raise self._failure
            self._is_ready = True
            if not self._ends.is_set():
                ready(self._port, self._admin[0].getsockname()[1])
            await self._until_end(tasks)
            await self._end_in_order(tasks)
        finally:
            self._ends.set()
            self.kill()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._close_doors()
            shutil.rmtree(self._folder, ignore_errors=True)

    def end(self) -> None:
        """Let what is under way be answered, then end."""
        self._ends.set()
        self._moved.set()

    async def wanted_to_end(self) -> None:
        """Wait until somebody wants the end."""
        await self._ends.wait()

    def kill(self) -> None:
        """End at once, and leave nothing behind."""
        for worker in self._workers.values():
            worker.process.kill()
        if self._workers:  # before the first there is no folder
            shutil.rmtree(self._folder, ignore_errors=True)

    def reopen_logs(self) -> None:
        """Have each worker go on in a new file."""
        for worker in self._workers.values():
            worker.send("reopen")

    async def _until_ready(self) -> None:
        while not (self._failure or self._ends.is_set()):
            open_ones = [worker for worker in self._workers.values() if worker.is_open]
            if len(open_ones) == self._settings.workers:
                return
            self._moved.clear()
            await self._moved.wait()

    async def _until_end(self, tasks: Sequence["asyncio.Task[None]"]) -> None:
        """Return when it is to end; or raise what no worker's task should."""
        waiting = asyncio.create_task(self._ends.wait())
        try:
            await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        for each in tasks:
            if each.done():
                each.result()

    async def _end_in_order(self, tasks: Sequence["asyncio.Task[None]"]) -> None:
        """First those that hand on, then the owner, on which they wait."""
        ends_s = time.monotonic() + self._settings.drain_s
        self._close_doors()
        for worker in self._workers.values():
            worker.send("shut")
        owner, *others = tasks
        if others:
            await asyncio.wait(others, timeout=self._settings.drain_s)
        left_s = max(0.0, ends_s - time.monotonic())
        if 0 in self._workers:
            self._workers[0].send(f"end {left_s:.3f}")
        await asyncio.wait([owner], timeout=left_s + GRACE_S)
        # what they waited for is answered now, with an error where it took too long
        if others:
            await asyncio.wait(others, timeout=GRACE_S)

    def _close_doors(self) -> None:
        for each in (*self._admin, *(one for mine in self._doors for one in mine)):
            each.close()

    # --- one of them -------------------------------------------------------------------------------

    async def _keep(self, number: int) -> None:
        """Have a worker run until the end."""
        pause_s = FIRST_PAUSE_S
        while not self._ends.is_set():
            began_s = time.monotonic()
            why = await self._live(number)
            if self._ends.is_set():
                return
            if not self._is_ready:
                self._fail(ToolkitError(why, "What it said stands above"))
                return
            if time.monotonic() - began_s >= STEADY_S:
                pause_s = FIRST_PAUSE_S
            self._say(f"{why}; it is started again in {pause_s:g} s")
            await self._pause(number, pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _live(self, number: int) -> str:
        """One process from its start to its end; how it ended."""
        try:
            worker = await self._start(number)
        except OSError as error:
            return f"{_name(number)} could not be started: {error.strerror or error}"
        await self._follow(worker)
        code = await asyncio.to_thread(_code, worker.process)
        del self._workers[number]
        return f"{_name(number)} (process {worker.process.pid}) {_ended(code)}"

    async def _pause(self, number: int, pause_s: float) -> None:
        """Wait, and let nobody wait behind a door that nobody opens for long."""
        is_long = pause_s >= SHUT_S
        if is_long:
            for each in self._doors[number]:
                each.close()
        await self._wait(pause_s)
        while is_long and not self._ends.is_set():
            try:
                (self._doors[number],) = doors(self._settings.host, self._port, 1, joins=True)
            except ToolkitError as error:
                self._say(error.message)
                await self._wait(pause_s)
            else:
                return

    async def _wait(self, pause_s: float) -> None:
        """So long, or until it is to end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._ends.wait()

    async def _start(self, number: int) -> _Worker:
        ours, theirs = socket.socketpair()
        clients = [each.fileno() for each in self._doors[number]]
        admin = [each.fileno() for each in self._admin] if number == 0 else []
        packet = Packet(
            settings=self._settings,
            variables=self._variables,
            keys=self._keys,
            number=number,
            folder=self._folder,
            clients=clients,
            admin=admin,
            run_id=self._run_id,
        )
        with theirs, _closed_unless_started(ours):
            process = subprocess.Popen(  # noqa: ASYNC220, S603 (nobody is served here; our own command)
                [*self._command, str(theirs.fileno()), f"worker-{number}"],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *clients, *admin],
                env=dict(self._environ),
                # a terminal's Ctrl-C is the parent's alone
                start_new_session=True,
            )
        worker = self._workers[number] = _Worker(number, process)
        worker.reader, worker.writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        data = pickle.dumps(packet)
        worker.writer.write(len(data).to_bytes(8) + data)
        return worker

    async def _follow(self, worker: _Worker) -> None:
        """Hear what it says, until it is gone."""
        assert worker.reader is not None
        assert worker.writer is not None
        with suppress(OSError, ValueError):
            while line := await worker.reader.readline():
                for word, told in json.loads(line).items():
                    self._hear(worker, word, told)
        worker.writer.close()
        with suppress(OSError):
            await worker.writer.wait_closed()

    def _hear(self, worker: _Worker, word: str, told: Any) -> None:
        match word:
            case "started":
                worker.awaits_go = True
            case "open":
                worker.is_open = True
                self._owner_opened |= worker.number == 0
            case "error":
                self._hear_error(worker, *told)
            case "counters":
                self.counters.merge(told)
        # nobody is let in before the owner has looked at the upstreams: what is stored may be of before their restart
        for each in self._workers.values():
            if each.awaits_go and self._owner_opened:
                each.awaits_go = False
                each.send("go")
        self._moved.set()

    def _hear_error(self, worker: _Worker, message: str, hint: str) -> None:
        if self._is_ready:
            self._say(f"{_name(worker.number)}: {message}. {hint}")
        else:
            self._fail(ToolkitError(message, hint))

    def _fail(self, error: ToolkitError) -> None:
        self._failure = self._failure or error
        self._moved.set()


@contextmanager
def _closed_unless_started(ours: socket.socket) -> Iterator[None]:
    try:
        yield
    except OSError:
        ours.close()
        raise


def _code(process: "subprocess.Popen[bytes]") -> int:
    """How a process ended that has closed its end of the pair, and so hears nothing any more."""
    try:
        return process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _private_folder() -> Path:
    """For the workers' sockets: this user's alone."""
    made = Path(tempfile.mkdtemp(prefix="toolkit-proxy-"))
    if len(bytes(made)) > LONGEST_PATH:
        made.rmdir()
        made = Path(tempfile.mkdtemp(prefix="toolkit-proxy-", dir="/tmp"))
    return made


def _name(number: int) -> str:
    return f"Worker {number}" if number else "Worker 0, which asks upstream"


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"
