"""What `toolkit sim` does once its command line is read: serve until told to stop, or beside a command."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import click

from toolkit.errors import ToolkitError
from toolkit.sim.app import Fleet, SimServer
from toolkit.sim.presets import Setup


def run_server(setup: Setup, seconds: float | None) -> None:
    """Serve one until a signal or for some seconds; print its URL once it listens."""
    asyncio.run(_serve(setup, seconds))


def run_fleet(setups: dict[str, Setup], out: Path | None, seconds: float | None, key: str) -> None:
    """Serve a fleet until a signal or for some seconds; print or write its hosts.txt first."""
    asyncio.run(_serve_fleet(setups, out, seconds, key))


def run_beside(setups: dict[str, Setup], words: Sequence[str], out: Path | None, key: str) -> int:
    """Run a command while the fleet serves; return its exit code as a shell would tell it."""
    return asyncio.run(_run_beside(setups, words, out, key))


async def _serve(setup: Setup, seconds: float | None) -> None:
    async with _stop_signal() as stop, SimServer(setup) as server, _change_signal(server):
        listening = asyncio.create_task(server.listening.wait())
        stopped = asyncio.create_task(_wait(stop, seconds))
        await asyncio.wait((listening, stopped), return_when=asyncio.FIRST_COMPLETED)
        if listening.done():
            click.echo(server.url)
        await stopped
        listening.cancel()


async def _serve_fleet(
    setups: dict[str, Setup], out: Path | None, seconds: float | None, key: str
) -> None:
    async with _stop_signal() as stop:
        serving = asyncio.create_task(_serve_published(setups, out, seconds, key))
        stopped = asyncio.create_task(stop.wait())
        # a signal ends a fleet that is still starting, too
        await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
        for task in (serving, stopped):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def _serve_published(
    setups: dict[str, Setup], out: Path | None, seconds: float | None, key: str
) -> None:
    async with Fleet(setups) as running, _change_signal(running):
        _publish(running.hosts(key), out)
        await _wait(asyncio.Event(), seconds)


def _publish(hosts: str, out: Path | None) -> None:
    """Print the hosts.txt, or write a file whole or not at all."""
    if out is None:
        click.echo(hosts, nl=False)
        return
    try:
        if out.is_symlink() or (out.exists() and not out.is_file()):
            # `/dev/stdout`, a pipe: what stands for something else must stay that
            out.write_text(hosts, encoding="utf-8")
        else:
            _write_whole(out, hosts)
    except OSError as error:
        raise ToolkitError(
            f"`{out}` cannot be written: {(error.strerror or str(error)).lower()}",
            "Name another file with `--out`",
        ) from error


def _write_whole(out: Path, text: str) -> None:
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)


async def _run_beside(
    setups: dict[str, Setup], words: Sequence[str], out: Path | None, key: str
) -> int:
    with tempfile.TemporaryDirectory(prefix="toolkit-") as folder:
        path = Path(folder) / "hosts.txt"
        async with Fleet(setups) as running, _change_signal(running):
            for file in (path, out):
                if file:
                    _publish(running.hosts(key), file)
            child = await _start([word.replace("{hosts}", str(path)) for word in words], path)
            with _signals_left_to(child):
                code = await child.wait()
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def _signals_left_to(child: asyncio.subprocess.Process) -> Iterator[None]:
    """Let the command decide when to end: a terminal's Ctrl-C reaches it anyway, SIGTERM is passed on."""

    def pass_on() -> None:
        if child.returncode is None:
            child.terminate()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    loop.add_signal_handler(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _start(words: Sequence[str], hosts: Path) -> asyncio.subprocess.Process:
    beside = str(Path(sys.executable).parent)  # where this environment keeps `toolkit`
    path = os.pathsep.join((beside, os.environ.get("PATH", os.defpath)))
    environment = os.environ | {"PATH": path, "TOOLKIT_HOSTS": str(hosts)}
    try:
        return await asyncio.create_subprocess_exec(*words, env=environment)
    except OSError as error:
        raise ToolkitError(
            f"`{words[0]}` cannot be started: {(error.strerror or 'no reason given').lower()}",
            "Write the command after `--` as you would in a shell",
        ) from error


@contextlib.asynccontextmanager
async def _stop_signal() -> AsyncIterator[asyncio.Event]:
    """Set the event on Ctrl-C or SIGTERM, so that everything is closed and the exit code is 0."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _change_signal(running: SimServer | Fleet) -> AsyncIterator[None]:
    """Let switchers fall on SIGUSR1: practice for the moment at which somebody else's server goes down."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, running.change_now)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)


async def _wait(stop: asyncio.Event, seconds: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
