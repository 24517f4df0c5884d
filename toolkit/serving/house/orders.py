"""How `toolkit serve status|restart|swap|stop` reach the serve that runs in a folder: a unix socket, lines of JSON. It decides nothing.

    asked      {"order": "swap", "engine": "qwen", ...}
    answered   {"say": "starting the new engine"} ...        as often as there is something to say
               {"ask": {...}}  ->  {"answer": true}          a question back, at most one at a time
               {"done": {...}}  or  {"error": "...", "hint": "..."}

Whoever holds the lock of the folder serves there; the system drops it with the process, whatever ended that. So a socket
that is left behind belongs to nobody, and goes. Socket and lock are its owner's alone (0600).
"""

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError

SOCKET, LOCK = "serve.sock", "serve.lock"
LONGEST_LINE = 2**20
LONGEST_PATH = 107
"""Bytes of a unix socket's path that the system takes (man 7 unix)."""
CONNECT_S = 5.0
TRIES, PAUSE_S = 5, 0.02
"""Who asks whether the folder is served holds its lock for a moment."""

Order = Mapping[str, Any]
Carry = Callable[["Asker", Order], Awaitable[Mapping[str, Any]]]
"""Does what an order says, and returns what is to be told; a ToolkitError is told as one."""


class Asker:
    """Whoever gave an order, while it is carried out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def say(self, sentence: str) -> None:
        """Tell what happens; nobody need listen any more."""
        self.write({"say": sentence})

    async def agrees_to(self, question: Mapping[str, Any]) -> bool:
        """Ask back, and wait; who went away says no."""
        self.write({"ask": question})
        answer = await _line(self._reader)
        return answer is not None and answer.get("answer") is True

    def write(self, told: Mapping[str, Any]) -> None:
        """One line."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(told).encode() + b"\n")


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder for one serve; raise if another has it."""
    try:
        # logs may hold prompts: what it makes is its owner's alone, as are socket and lock
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # no link is followed: it would be somebody else's file that is emptied
        how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(folder / LOCK, how, 0o600)
    except OSError as error:
        raise ToolkitError(
            f"`{folder}` cannot be written: {(error.strerror or 'no reason given').lower()}",
            "Name another with --folder",
        ) from error
    try:
        if not any(_locked(lock) for _ in range(TRIES)):
            raise ToolkitError(
                f"another serve{_pid_in(lock)} runs in `{folder}`",
                "End it with `toolkit serve stop`, or name another folder with --folder",
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


@contextlib.asynccontextmanager
async def heard(folder: Path, carry: Carry) -> AsyncIterator[None]:
    """Hear orders until the end of the block; the folder must be held. Orders under way are cancelled then."""
    under_way: set[asyncio.Task[None]] = set()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        under_way.add(task)
        try:
            await _carried(reader, writer, carry)
        except (OSError, asyncio.CancelledError):
            pass  # it went away, or the end has come: nobody is left to be told
        finally:
            under_way.discard(task)
            writer.close()

    listener = _listener(folder)
    server = await asyncio.start_unix_server(meet, sock=listener, limit=LONGEST_LINE)
    try:
        yield
    finally:
        server.close()
        (folder / SOCKET).unlink(missing_ok=True)
        for task in tuple(under_way):
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def give(
    folder: Path,
    order: Order,
    say: Callable[[str], None],
    agree: Callable[[Mapping[str, Any]], bool] = lambda _: False,
) -> dict[str, Any]:
    """Give an order to the serve in a folder, and return what it tells; `agree` answers its questions, and may take its time."""
    reader, writer = await _connected(folder)
    try:
        writer.write(json.dumps(order).encode() + b"\n")
        while (told := await _line(reader)) is not None:
            if "say" in told:
                say(str(told["say"]))
            elif "ask" in told:
                answer = agree(told["ask"])
                writer.write(json.dumps({"answer": answer}).encode() + b"\n")
            elif "error" in told:
                raise ToolkitError(str(told["error"]), str(told.get("hint") or ""))
            else:
                return dict(told.get("done") or {})
    except OSError as error:
        raise _ended(folder) from error
    finally:
        writer.close()
    raise _ended(folder)


def is_served(folder: Path) -> bool:
    """Whether a serve holds the folder."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


# --- inside --------------------------------------------------------------------------------------------


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        time.sleep(PAUSE_S)
        return False
    return True


async def _carried(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, carry: Carry
) -> None:
    order = await _line(reader)
    if order is None:
        return
    asker = Asker(reader, writer)
    try:
        asker.write({"done": dict(await carry(asker, order))})
    except ToolkitError as error:
        asker.write({"error": error.message, "hint": error.hint})
    except Exception as error:  # noqa: BLE001 (who asked must hear of it, and the stack go on)
        asker.write({"error": f"{type(error).__name__}: {error}", "hint": "This is a bug of serve"})
    await writer.drain()


async def _line(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next object; None at the end, and for what is none."""
    try:
        line = await reader.readline()
        told = json.loads(line) if line else None
    except (ValueError, OSError):
        return None
    return told if isinstance(told, dict) else None


def _listener(folder: Path) -> socket.socket:
    path = folder / SOCKET
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        with _short(path) as address:
            listener.bind(address)
            # nobody can connect before it listens: there is no moment at which others may
            path.chmod(0o600)
            listener.listen(16)
    except OSError as error:
        listener.close()
        raise ToolkitError(
            f"no orders can be heard at `{path}`: {(error.strerror or 'no reason given').lower()}",
            "Name another folder with --folder, on a disk that takes sockets",
        ) from error
    listener.setblocking(False)
    return listener


async def _connected(folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    caller = socket.socket(socket.AF_UNIX)
    caller.settimeout(CONNECT_S)
    try:
        with _short(folder / SOCKET) as address:
            caller.connect(address)
    except OSError as error:
        caller.close()
        if isinstance(error, PermissionError):
            raise ToolkitError(
                f"the serve in `{folder}` takes no orders from you",
                "Give them as the user who started it",
            ) from error
        if is_served(folder):
            raise ToolkitError(
                f"the serve in `{folder}` takes no orders yet, or none any more",
                "Wait a moment: it listens as soon as it has begun, and until it ends",
            ) from error
        raise ToolkitError(
            f"no serve runs in `{folder}`",
            "Start one with `toolkit serve`, or name its folder with --folder",
        ) from error
    caller.setblocking(False)
    return await asyncio.open_unix_connection(sock=caller, limit=LONGEST_LINE)


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """An address that fits: through the folder's descriptor, where the path itself is too long."""
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _pid_in(lock: int) -> str:
    text = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
    return f" (pid {text})" if text.isdigit() else ""


def _ended(folder: Path) -> ToolkitError:
    return ToolkitError(
        f"the serve in `{folder}` ended before it had answered", "Its own words tell why"
    )
