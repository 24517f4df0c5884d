"""What `toolkit watchdog` does once its command line is read: a process of ours, or somebody else's; events; the end."""

import asyncio
import os
import signal
from dataclasses import replace

import click

from toolkit.cli.catalog import profile_from
from toolkit.cli.inputs import allow_open_files, keys_for, occupy_standard_files
from toolkit.cli.waiting import waiting_for
from toolkit.cli.warmup.options import MOST_AT_ONCE
from toolkit.cli.watchdog.events import Events
from toolkit.cli.watchdog.options import Options
from toolkit.errors import ToolkitError
from toolkit.hosts import one_host
from toolkit.profiles import Profile
from toolkit.records import Host
from toolkit.serving.stack import GuardSetting, WarmSetting
from toolkit.serving.start.causes import cause
from toolkit.serving.start.launch import Process
from toolkit.serving.start.readiness import answer, ready
from toolkit.serving.warm.warm import warm
from toolkit.serving.warm.warm_rounds import Warmed, doubling, sentence
from toolkit.serving.watch.progress import ended
from toolkit.serving.watch.pulse import LOOK_LIMIT_S, EnginePulse
from toolkit.serving.watch.watchdog import Deeds, Senses, Watchdog, event, noticed, well_again

WORKED, IN_TROUBLE, INTERRUPTED = 0, 1, 130
ENDING = "Ending: the engine is stopped first; a second Ctrl-C ends at once"


def run_watchdog(options: Options) -> int:
    """Watch until Ctrl-C or SIGTERM, or until there is no sense in it; the exit code."""
    host = replace(one_host(options.url), model=options.model, api_key_env=options.api_key_env)
    host = replace(host, name=options.name) if options.name else host
    key = keys_for([host]).get(host.name)
    profile = profile_from(options.profile) if options.profile else None
    allow_open_files()
    occupy_standard_files()
    with Events(None if options.no_store else options.database, as_json=options.as_json) as events:
        post = Post(options, host, key, profile, events)
        return asyncio.run(_until_stopped(post))


async def _until_stopped(post: "Post") -> int:
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
        return IN_TROUBLE if post.in_trouble else WORKED
    finally:
        await post.stop()


class Post:
    """One watchdog at its post, with all that it needs."""

    def __init__(
        self, options: Options, host: Host, key: str | None, profile: Profile | None, events: Events
    ) -> None:
        self.process: Process | None = None
        self.in_trouble = False
        self._options, self._host, self._key = options, host, key
        self._profile, self._events = profile, events
        self._guard = guard_of(options)

    async def run(self) -> int:
        """Watch; the exit code when it ends by itself."""
        look_s = min(LOOK_LIMIT_S, self._guard.stuck_s)
        async with EnginePulse(
            self._host, answer_s=self._guard.answer_s, key=self._key, look_s=look_s
        ) as pulse:
            senses = Senses(look=pulse.look, token=pulse.token, code=self._code)
            if not self._options.command:
                with waiting_for(f"Watching {self._host.name}"):
                    return await self._only_watch(senses)
            await self._start_first()
            why = await Watchdog(
                self._host, self._guard, senses, self._deeds(), self._events.add
            ).run()
        raise ToolkitError(f"`{self._host.name}` stays down: {why}", f"See `{self._options.log}`")

    async def stop(self) -> None:
        """End what was started."""
        if self.process is not None:
            await self.process.stop(self._options.stop_within)

    def _code(self) -> int | None:
        return None if self.process is None else self.process.code

    async def _only_watch(self, senses: Senses) -> int:
        while True:
            trouble = await noticed(senses, self._guard)
            self.in_trouble = True
            self._events.add(event(self._host, "mark", f"in trouble: {trouble.text}"))
            if self._options.until_trouble:
                return IN_TROUBLE
            await well_again(senses, self._guard.look_s)
            self.in_trouble = False
            self._events.add(event(self._host, "mark", "well again"))

    def _deeds(self) -> Deeds:
        return Deeds(start=self._start, stop=self.stop, warm=self._warm)

    async def _start_first(self) -> None:
        """As after a restart; what does not come up the first time is the user's to mend."""
        url, loop = self._host.url, asyncio.get_running_loop()
        if (await answer(url, self._key)).startswith("HTTP"):
            raise ToolkitError(
                f"somebody answers at `{url}` already, so it would not be known who is ready",
                "Stop that one, or watch it without a command",
            )
        began_s = loop.time()
        await self._start()
        took_s = loop.time() - began_s
        self._events.add(event(self._host, "mark", f"ready after {took_s:.1f} s"))
        warmed = await self._warm()
        if warmed is not None:
            self._events.add(event(self._host, "mark", sentence(warmed)))
        click.echo(f"Watching {self._host.name} at {self._host.url}", err=True)

    async def _start(self) -> None:
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
            with waiting_for(f"Starting {self._host.name}"):
                await ready(
                    self._host.url, self._key, self._options.ready, lambda: process.code is None
                )
        except ToolkitError:
            if process.code is None:
                raise
            found = cause(process.said(), process.code)
            raise ToolkitError(f"{found.sentence} ({ended(process.code)})", found.hint) from None

    async def _warm(self) -> Warmed | None:
        if not self._options.warm:
            return None
        return await warm(
            self._host.url,
            setting=WarmSetting(
                concurrency=doubling(self._options.max_num_seqs or MOST_AT_ONCE),
                limit_s=self._options.warm_limit,
            ),
            name=self._host.name,
            key=self._key,
            model=self._options.model,
            max_num_seqs=self._options.max_num_seqs,
            profile=self._profile,
            log=self._options.log,
            say=lambda line: click.echo(line, err=True),
        )


def guard_of(options: Options) -> GuardSetting:
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
