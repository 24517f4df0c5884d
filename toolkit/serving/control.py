"""How `toolkit serve status|restart|swap|reload|stop` reach the serve that runs in a folder: a unix socket. It decides nothing.

    asked      {"order": "swap", "engine": "qwen", ...}
    answered   {"say": "starting the new engine"} ...        as often as there is something to say
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

from toolkit.errors import ToolkitError, reason_of

SOCKET, LOCK = "serve.sock", "serve.lock"
LONGEST_LINE = 2**20
LONGEST_PATH = 107
"""Bytes of a unix socket's path that the system takes (man 7 unix)."""
CONNECT_S = 5.0
TRIES, PAUSE_S = 5, 0.02
"""Who asks whether the folder is served holds its lock for a moment."""

Order = Mapping[str, Any]
Carry = Callable[[Order, Callable[[str], None]], Awaitable[Mapping[str, Any]]]
"""Does what an order says, and returns its result; meanwhile it may show lines. A ToolkitError is shown as one."""


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
            f"`{folder}` cannot be written: {reason_of(error)}",
            "Name another with --folder",
        ) from error
    try:
        for left in reversed(range(TRIES)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if left:
                    time.sleep(PAUSE_S)
                    continue
            pid = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            raise ToolkitError(
                f"another serve{f' (pid {pid})' if pid.isdigit() else ''} runs in `{folder}`",
                "End it with `toolkit serve stop`, or name another folder with --folder",
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


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


@contextlib.asynccontextmanager
async def heard(folder: Path, carry: Carry) -> AsyncIterator[None]:
    """Take orders until the end of the block; the folder must be held. Orders under way are cancelled then."""
    under_way: set[asyncio.Task[None] | None] = set()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def write(said: Mapping[str, Any]) -> None:
            if not writer.is_closing():
                writer.write(json.dumps(said).encode() + b"\n")

        task = asyncio.current_task()
        under_way.add(task)
        try:
            try:
                order = json.loads(await reader.readline())
                assert isinstance(order, dict)
            except (ValueError, AssertionError):
                return  # nobody of ours
            try:
                write({"done": dict(await carry(order, lambda line: write({"say": line})))})
            except ToolkitError as error:
                write({"error": error.message, "hint": error.hint})
            except Exception as error:  # noqa: BLE001 (who asked must hear of it, and the stack go on)
                write(
                    {"error": f"{type(error).__name__}: {error}", "hint": "This is a bug of serve"}
                )
            await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass  # it went away, or the end has come: nobody is left to be told
        finally:
            under_way.discard(task)
            writer.close()

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
            f"no orders can be heard at `{path}`: {reason_of(error)}",
            "Name another folder with --folder, on a disk that takes sockets",
        ) from error
    server = await asyncio.start_unix_server(meet, sock=listener, limit=LONGEST_LINE)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)
        tasks = [task for task in under_way if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def give(folder: Path, order: Order, say: Callable[[str], None]) -> dict[str, Any]:
    """Give an order to the serve in a folder, wait, and return its result."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(CONNECT_S)
        try:
            with _short(folder / SOCKET) as address:
                caller.connect(address)
        except PermissionError as error:
            raise ToolkitError(
                f"the serve in `{folder}` takes no orders from you",
                "Give them as the user who started it",
            ) from error
        except OSError as error:
            if is_served(folder):
                raise ToolkitError(
                    f"the serve in `{folder}` takes no orders yet, or none any more",
                    "Wait a moment: it listens as soon as it has begun, and until it ends",
                ) from error
            raise ToolkitError(
                f"no serve runs in `{folder}`",
                "Start one with `toolkit serve`, or name its folder with --folder",
            ) from error
        caller.settimeout(None)
        # OSError: it was killed; ValueError: in the midst of a line
        with contextlib.suppress(OSError, ValueError), caller.makefile("rwb") as lines:
            lines.write(json.dumps(order).encode() + b"\n")
            lines.flush()
            for line in lines:
                said = json.loads(line)
                if "error" in said:
                    raise ToolkitError(said["error"], said["hint"] or "")
                if "done" in said:
                    return dict(said["done"])
                say(said["say"])
    raise ToolkitError(
        f"the serve in `{folder}` ended before it had answered", "Its own words tell why"
    )


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
