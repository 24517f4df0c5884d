"""What `toolkit watchdog` does once its command line is read: a process of ours, or somebody else's; events; the end."""

import asyncio
import os
import signal
from dataclasses import replace

import click

from toolkit.cli.catalog import profile_from
from toolkit.cli.exit_codes import FAILED, INTERRUPTED, WORKED
from toolkit.cli.inputs import allow_open_files, keys_for, occupy_standard_files
from toolkit.cli.waiting import waiting_for
from toolkit.cli.warmup.verb import MOST_AT_ONCE
from toolkit.cli.watchdog.events import WatchdogEvents
from toolkit.cli.watchdog.options import WatchdogOptions
from toolkit.errors import ToolkitError
from toolkit.hosts import one_host
from toolkit.profiles import Profile
from toolkit.records import Host
from toolkit.serving.launch import Process, answer, ready
from toolkit.serving.stack import GuardSetting, WarmSetting
from toolkit.serving.startup_log import cause
from toolkit.serving.warmup import Warmed, Warming, doubling
from toolkit.serving.watchdog import LivenessProbe, Watchdog, ended, event, noticed, well_again

ENDING = "Ending: the engine is stopped first; a second Ctrl-C ends at once"


def run_watchdog(options: WatchdogOptions) -> int:
    """Watch until Ctrl-C or SIGTERM, or until there is no sense in it; the exit code."""
    host = replace(one_host(options.url), model=options.model, api_key_env=options.api_key_env)
    host = replace(host, name=options.name) if options.name else host
    key = keys_for([host]).get(host.name)
    profile = profile_from(options.profile) if options.profile else None
    allow_open_files()
    occupy_standard_files()
    with WatchdogEvents(
        None if options.no_store else options.database, as_json=options.as_json
    ) as events:
        post = WatchedCommand(options, host, key, profile, events)
        return asyncio.run(_until_stopped(post))


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


class WatchedCommand:
    """A server that is watched, and the command that starts it, where it is ours (watchdog.Watched)."""

    def __init__(
        self,
        options: WatchdogOptions,
        host: Host,
        key: str | None,
        profile: Profile | None,
        events: WatchdogEvents,
    ) -> None:
        self.process: Process | None = None
        self.in_trouble = False
        self._options, self.host, self._key = options, host, key
        self._profile, self._events = profile, events
        self._guard = guard_of(options)

    async def run(self) -> int:
        """Watch; the exit code when it ends by itself."""
        async with LivenessProbe(self.host, self._guard, key=self._key) as probe:
            if not self._options.command:
                with waiting_for(f"Watching {self.host.name}"):
                    return await self._only_watch(probe)
            await self._start_first()
            why = await Watchdog(self, probe, self._guard, self._events.add).run()
        raise ToolkitError(f"`{self.host.name}` stays down: {why}", f"See `{self._options.log}`")

    async def stop(self) -> None:
        """End what was started."""
        if self.process is not None:
            await self.process.stop(self._options.stop_within)

    def code(self) -> int | None:
        """How its process ended; None while it runs."""
        return None if self.process is None else self.process.code

    def fell(self, cause: str) -> None:
        """Its event says it."""

    async def back(self) -> None:
        """As `fell`."""

    def gave_up(self, cause: str) -> None:
        """The error says it."""

    async def _only_watch(self, probe: LivenessProbe) -> int:
        while True:
            trouble = await noticed(probe, self._guard)
            self.in_trouble = True
            self._events.add(event(self.host, "mark", f"in trouble: {trouble}"))
            if self._options.until_trouble:
                return FAILED
            await well_again(probe, self._guard.look_s)
            self.in_trouble = False
            self._events.add(event(self.host, "mark", "well again"))

    async def _start_first(self) -> None:
        """As after a restart; what does not come up the first time is the user's to mend."""
        url, loop = self.host.url, asyncio.get_running_loop()
        if (await answer(url, self._key)).startswith("HTTP"):
            raise ToolkitError(
                f"somebody answers at `{url}` already, so it would not be known who is ready",
                "Stop that one, or watch it without a command",
            )
        began_s = loop.time()
        await self.start()
        took_s = loop.time() - began_s
        self._events.add(event(self.host, "mark", f"ready after {took_s:.1f} s"))
        warmed = await self.warm()
        if warmed is not None:
            self._events.add(event(self.host, "mark", warmed.sentence()))
        click.echo(f"Watching {self.host.name} at {self.host.url}", err=True)

    async def start(self) -> None:
        """Start the command and wait until it is ready. Raises ToolkitError with the cause."""
        log = self._options.log
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            process = self.process = await Process.start(
                self._options.command, os.environ, log, within_s=self._options.stop_within
            )
        except OSError as error:
            reason = (error.strerror or "no reason given").lower()
            raise ToolkitError(
                f"the log `{log}` cannot be written: {reason}", "Give another file: `--log FILE`"
            ) from error
        try:
            with waiting_for(f"Starting {self.host.name}"):
                await ready(
                    self.host.url, self._key, self._options.ready, lambda: process.code is None
                )
        except ToolkitError:
            if process.code is None:
                raise
            found = cause(process.said(), process.code)
            raise ToolkitError(f"{found.sentence} ({ended(process.code)})", found.hint) from None

    async def warm(self) -> Warmed | None:
        """As the command line says."""
        if not self._options.warm:
            return None
        warm = Warming(
            host=self.host,
            setting=WarmSetting(
                concurrency=doubling(self._options.max_num_seqs or MOST_AT_ONCE),
                limit_s=self._options.warm_limit,
            ),
            key=self._key,
            model=self._options.model,
            max_num_seqs=self._options.max_num_seqs,
            profile=self._profile,
            log=self._options.log,
            say=lambda line: click.echo(line, err=True),
        )
        return await warm.run()


def guard_of(options: WatchdogOptions) -> GuardSetting:
    """What the command line says of it."""
    return GuardSetting(
        look_s=options.look,
        stuck_s=options.stuck,
        answer_s=options.answer,
        ask_s=options.idle,
        refused_s=options.refused,
        backoff_s=options.backoff,
        backoff_most_s=options.backoff_most,
        restarts=options.restarts,
        restarts_s=options.within,
        stop_s=options.stop_within,
    )
