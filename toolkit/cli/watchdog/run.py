"""What `toolkit watchdog` does once its command line is read: a process of ours, or somebody else's; events; the end."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from toolkit.cli.catalog import profile_from
from toolkit.cli.event_keeper import EventKeeper
from toolkit.cli.exit_codes import FAILED, INTERRUPTED, WORKED
from toolkit.cli.inputs import allow_open_files, keys_for, occupy_standard_files
from toolkit.cli.output import print_json
from toolkit.cli.waiting import waiting_for
from toolkit.cli.warmup.verb import MOST_AT_ONCE
from toolkit.errors import ToolkitError
from toolkit.hosts import one_host
from toolkit.records import Event, Host
from toolkit.serving.launch import Process, answer, ready
from toolkit.serving.stack import GuardSetting, WarmSetting
from toolkit.serving.startup_log import cause
from toolkit.serving.warmup import Warmed, Warming, doubling
from toolkit.serving.watchdog import GuardedEngine, LivenessProbe, ended, noticed, well_again
from toolkit.units import time_of_day

ENDING = "Ending: the engine is stopped first; a second Ctrl-C ends at once"


def run_watchdog(
    *,
    command: tuple[str, ...],
    url: str,
    name: str | None,
    api_key_env: str | None,
    model: str | None,
    ready_s: float,
    warm: bool,
    profile: str | None,
    max_num_seqs: int | None,
    warm_limit: float,
    log: Path,
    until_trouble: bool,
    as_json: bool,
    database: Path,
    no_store: bool,
    **guard: Any,
) -> int:
    """Watch until Ctrl-C or SIGTERM, or until there is no sense in it; the exit code. `guard`: the fields of GuardSetting."""
    host = replace(one_host(url), model=model, api_key_env=api_key_env)
    host = replace(host, name=name) if name else host
    key = keys_for([host]).get(host.name)
    prompts = profile_from(profile) if profile else None
    allow_open_files()
    occupy_standard_files()
    with EventKeeper(None if no_store else database) as keeper:

        def tell(event: Event) -> None:
            if as_json:
                print_json(asdict(event))
            else:
                what = "" if event.kind == "mark" else f"{event.kind}: "
                click.echo(f"{time_of_day(event.at)} {event.name}: {what}{event.text}")
            keeper.keep(lambda store: store.add_event(event))

        def warming() -> Warming:
            return Warming(
                host=host,
                setting=WarmSetting(
                    concurrency=doubling(max_num_seqs or MOST_AT_ONCE), limit_s=warm_limit
                ),
                key=key,
                model=model,
                max_num_seqs=max_num_seqs,
                profile=prompts,
                log=log,
                say=lambda line: click.echo(line, err=True),
            )

        watched = WatchedCommand(
            host,
            key,
            GuardSetting(**guard),
            tell,
            command=command,
            log=log,
            ready_s=ready_s,
            warming=warming if warm else None,
            until_trouble=until_trouble,
        )
        return asyncio.run(_until_stopped(watched))


async def _until_stopped(post: "WatchedCommand") -> int:
    """Run it; the first Ctrl-C ends it in order, a second one at once."""
    task = asyncio.create_task(post.run())
    loop = asyncio.get_running_loop()

    def end() -> None:
        if task.cancelling():
            os._exit(INTERRUPTED)
        if post.process is not None:
            click.echo(ENDING, err=True)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    try:
        return await task
    except asyncio.CancelledError:
        return FAILED if post.in_trouble else WORKED
    finally:
        await post.stop()


class WatchedCommand(GuardedEngine):
    """A server that is watched, and the command that starts it, where it is ours."""

    def __init__(
        self,
        host: Host,
        key: str | None,
        guard: GuardSetting,
        tell: Callable[[Event], None],
        *,
        command: Sequence[str],
        log: Path,
        ready_s: float,
        warming: Callable[[], Warming] | None,
        until_trouble: bool,
    ) -> None:
        """`command`: none where it is somebody else's; `warming` None: nobody wants it warmed up."""
        super().__init__(host, key, guard, tell)
        self.in_trouble = False
        self._command, self._log, self._ready_s = command, log, ready_s
        self._warming, self._until_trouble = warming, until_trouble

    async def run(self) -> int:
        """Watch; the exit code when it ends by itself."""
        async with LivenessProbe(self.host, self.guard, key=self.key) as probe:
            if not self._command:
                with waiting_for(f"Watching {self.host.name}"):
                    return await self._only_watch(probe)
            # a first start that fails is the user's to mend
            if (await answer(self.host.url, self.key)).startswith("HTTP"):
                raise ToolkitError(
                    f"somebody answers at `{self.host.url}` already, so it would not be known who is ready",
                    "Stop that one, or watch it without a command",
                )
            await self.begin(must_answer=False)
            click.echo(f"Watching {self.host.name} at {self.host.url}", err=True)
            why = await self.watch(probe)
        raise ToolkitError(f"`{self.host.name}` stays down: {why}", f"See `{self._log}`")

    async def _only_watch(self, probe: LivenessProbe) -> int:
        while True:
            trouble = await noticed(probe, self.guard)
            self.in_trouble = True
            self.event("mark", f"in trouble: {trouble}")
            if self._until_trouble:
                return FAILED
            await well_again(probe, self.guard.look_s)
            self.in_trouble = False
            self.event("mark", "well again")

    async def start(self) -> float:
        """Start the command and wait until it is ready. Raises ToolkitError with the cause."""
        log = self._log
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            process = self.process = await Process.start(
                self._command, os.environ, log, within_s=self.guard.stop_s
            )
        except OSError as error:
            reason = (error.strerror or "no reason given").lower()
            raise ToolkitError(
                f"the log `{log}` cannot be written: {reason}", "Give another file: `--log FILE`"
            ) from error
        try:
            with waiting_for(f"Starting {self.host.name}"):
                return await ready(
                    self.host.url, self.key, self._ready_s, lambda: process.code is None
                )
        except ToolkitError:
            if process.code is None:
                raise
            found = cause(process.said(), process.code)
            raise ToolkitError(f"{found.sentence} ({ended(process.code)})", found.hint) from None

    async def warm(self) -> Warmed | None:
        """As the command line says."""
        return None if self._warming is None else await self._warming().run()
