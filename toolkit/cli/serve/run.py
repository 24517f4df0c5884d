"""A stack that is served: its engines, its proxy, its events and the signals that end it."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli.catalog import profile_from
from toolkit.cli.children import TOOLKIT
from toolkit.cli.output import to_stderr
from toolkit.cli.places import SERVE_FOLDER
from toolkit.cli.proxy.process import ENDING, REACHED_AT, meaning, proxy_of, secrets_of
from toolkit.cli.serve.events import ServeEvents, blast_on
from toolkit.cli.serve.machine import refuse_unfit
from toolkit.cli.signals import end_in_order
from toolkit.cli.stack_read import preset_flags
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.proxy.app import Proxy
from toolkit.proxy.cache.sqlite import SqliteCache
from toolkit.proxy.config import Settings
from toolkit.proxy.upstream.fingerprint import Fingerprints
from toolkit.serving.control import held
from toolkit.serving.engine_command import LaunchConfig, found, interpreter
from toolkit.serving.gate import TrafficGate
from toolkit.serving.notify import Notify
from toolkit.serving.stack import Stack, changed
from toolkit.serving.supervisor import Outside, StackSupervisor
from toolkit.serving.tiny_model import tiny
from toolkit.units import counted

if TYPE_CHECKING:
    from toolkit.proxy.workers import Workers


def engine_lines(stack: Stack) -> Iterator[str]:
    """What each engine is, by what, and where."""
    for each in stack.engines:
        what = each.model or "a tiny random model"
        by = {"sim": "the simulator", "tiny": f"`{each.vllm}` on the CPU"}
        spare = "" if each.spare_port is None else f", its successors in turn at {each.spare_port}"
        yield f"Engine {each.name}: {what}, by {by.get(each.kind, f'`{each.vllm}`')}, at {each.url}{spare}"


async def serve_stack(stack: Stack, notify: Notify, read_again: Callable[[], Stack]) -> None:
    """Serve it until a signal or an order ends it; `read_again` describes it anew for a reload."""
    folder = Path(stack.folder)
    for line in engine_lines(stack):
        to_stderr(line)
    with held(folder), ServeEvents(stack) as events, contextlib.ExitStack() as signs:
        starting = signs.enter_context(waiting_for("Starting"))
        made = None
        for setting in stack.engines:
            if setting.kind == "tiny":
                to_stderr("Making a tiny random model, unless it is there")
                made = await tiny(folder / "models", interpreter(found(setting.vllm)))
        launch = LaunchConfig(
            toolkit=TOOLKIT,
            folder=folder,
            tiny_model=made,
            media_hosts=() if stack.proxy is None else stack.proxy.media_hosts,
            warm=stack.warm,
            guard=stack.guard,
            tell=events.add,
            say=to_stderr,
            profile=profile_from(stack.warm.profile) if stack.warm.profile else None,
        )
        outside = Outside(
            launch=launch,
            gate=ServedProxy(),
            read=read_again,
            preflight=lambda: refuse_unfit(stack, to_stderr),
            changed=lambda setting, words: changed(setting, words, preset_flags, "the swap"),
            blasting=lambda: blast_on(stack.database),
        )
        supervisor = StackSupervisor(stack, outside)
        starting.figures = supervisor.states

        def end() -> None:
            signs.close()
            to_stderr(ENDING)
            signs.enter_context(waiting_for("Ending")).figures = supervisor.states
            supervisor.stopping.set()

        # at a second signal each engine's reaper sees that we are gone, and ends its family
        end_in_order(end)

        def ready(url: str) -> None:
            signs.close()
            events.opened(url)
            default = "" if str(folder) == SERVE_FOLDER else f" --folder {folder}"
            engines = counted(len(stack.engines), "engine")
            to_stderr(f"Ready: clients on {url}; {engines}; `toolkit serve status{default}`")
            # the one line of data; nobody need read it, and a stack that serves must not end for that
            with contextlib.suppress(OSError):
                click.echo(url)
            notify.ready(supervisor.in_a_line())

        async with notify.telling(
            supervisor.in_a_line, supervisor.is_well, supervisor.stopping.wait
        ):
            await supervisor.run(ready)
    to_stderr("All ended")


class ServedProxy(TrafficGate):
    """The proxy of a stack, which runs in this process; its front workers, where it has some, in theirs."""

    def __init__(self) -> None:
        super().__init__()
        self._opened = contextlib.ExitStack()
        self._served: Proxy | Workers | None = None

    async def open(self, settings: Settings, *, is_others: bool) -> None:
        """Let clients in; `is_others`: another model's answers may lie in the file."""
        if is_others and settings.cache.file is not None:
            await asyncio.to_thread(_forget_stored, settings)
            to_stderr(
                "Another model or other flags than the last time: what is stored of those is not shown"
            )
        variables, keys = secrets_of(settings)
        self._served = proxy_of(settings, variables, keys, self._opened, primary_here=True)
        try:
            await self._served.start()
        except ToolkitError as error:
            # serve has no such option as `toolkit proxy` has
            hint = error.hint.replace("--admin-port", "the proxy's `admin_port`")
            raise ToolkitError(error.message, hint) from error
        # a port that the system chose is known only now
        port, admin = ports = self._served.ports
        for line in meaning(replace(settings, port=port, admin_port=admin)):
            to_stderr(line)
        # an address to ask at, of one that is listened on
        hosts = [REACHED_AT.get(each, each) for each in (settings.host, settings.admin_host)]
        self.url, self.admin_url = (
            f"http://{f'[{host}]' if ':' in host else host}:{port}"
            for host, port in zip(hosts, ports, strict=True)
        )
        self.proxy = self._served if isinstance(self._served, Proxy) else self._served.primary

    async def reload(self, settings: Settings) -> None:
        """Take over other settings. Raises ToolkitError, and then nothing has changed."""
        variables, keys = secrets_of(settings)
        assert self._served is not None
        await self._served.reload(settings, variables, keys)

    async def stop(self) -> None:
        """Take no more, end what is under way, and close."""
        try:
            if self._served is not None:
                await self._served.stop()
        finally:
            await asyncio.to_thread(self._opened.close)


def _forget_stored(settings: Settings) -> None:
    """Have none of the answers in the file found: the proxy takes that over when it starts."""
    cache = settings.cache
    assert cache.file is not None
    with contextlib.closing(SqliteCache(cache.file, cache.file_bytes)) as file:
        Fingerprints(settings, file=file, changed=lambda: None, event=lambda *_: None).raise_all()
