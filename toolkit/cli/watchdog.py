"""`toolkit watchdog`: restart a server that makes no progress, and warm it up before anybody is told that it is back."""

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolkit.cli.exit_codes import FAILED, WORKED
from toolkit.cli.help_page import Command, advanced
from toolkit.cli.inputs import allow_open_files, host_from, keys_for, occupy_standard_files
from toolkit.cli.options import DURATION, HOSTS, PROFILE, VARIABLE, database_option, json_option
from toolkit.cli.output import to_stderr
from toolkit.cli.warmup import MOST_AT_ONCE
from toolkit.errors import ToolkitError, reason_of

if TYPE_CHECKING:
    from toolkit.records import Event, Host
    from toolkit.serving.stack import GuardSetting
    from toolkit.serving.warmup import Warmed, Warming

F = TypeVar("F", bound=Callable[..., Any])


def duration(
    option: str,
    name: str,
    default: str,
    help: str,  # noqa: A002 (click's own word)
    *aliases: str,
) -> Callable[[F], F]:
    """An option that is a time; `name`: of the parameter, as GuardSetting has it."""
    return advanced(option, name, aliases=aliases, type=DURATION, default=default, help=help)


@click.command(
    "watchdog", cls=Command, short_help="Restart a server that makes no progress, and warm it up."
)
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option(
    "--url",
    required=True,
    metavar="URL",
    type=HOSTS,
    help="The engine's URL (no proxy's), or its name.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="Its name in events.  [default: from hosts file or URL]",
)
@advanced("--api-key-env", type=VARIABLE, help="Environment variable that holds its API key.")
@advanced("--model", metavar="NAME", help="Ask for this model.  [default: what it serves]")
@duration("--interval", "look_s", "1s", "Time between two checks.", "--look")
@duration(
    "--stall-timeout",
    "stuck_s",
    "30s",
    "With requests running and no progress for this long, it is asked for a token.",
    "--stuck",
)
@duration(
    "--answer",
    "answer_s",
    "30s",
    "Longest wait for that token; give more where it compiles while it serves.",
)
@duration("--idle", "ask_s", "60s", "Time between two such tokens while it is idle.")
@duration(
    "--refused", "refused_s", "5s", "How long connections are refused before it is restarted."
)
@duration(
    "--backoff",
    "backoff_s",
    "2s",
    "Wait before the first restart; doubled before each that follows.",
)
@duration("--backoff-most", "backoff_most_s", "60s", "Longest wait before a restart.")
@advanced(
    "--restarts",
    type=click.IntRange(min=0),
    default=5,
    help="Most restarts within --within; one more is a crash loop, and it stays down.",
)
@duration("--within", "restarts_s", "10m", "Time in which --restarts are counted.")
@duration("--stop-within", "stop_s", "10s", "Time from SIGTERM to SIGKILL.")
@duration("--ready", "ready_s", "30m", "Longest wait for /health.")
@click.option("--warm/--no-warm", default=True, help="Warm it up after each start.")
@click.option("--profile", type=PROFILE, help="Whose prompts, as `toolkit warmup` has it.")
@advanced(
    "--max-num-seqs", type=click.IntRange(1, 4096), help="Highest concurrency of the warm-up."
)
@duration("--warm-limit", "warm_limit", "10m", "Time limit of the warm-up.")
@click.option(
    "--log",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("data/watchdog.log"),
    help="COMMAND's output.",
)
@click.option("--until-trouble", is_flag=True, help="Without COMMAND: end at the first trouble.")
@json_option("event")
@database_option
@advanced("--no-store", is_flag=True, help="Do not store anything.")
def command(
    *,
    command: tuple[str, ...],
    url: str,
    name: str | None,
    api_key_env: str | None,
    model: str | None,
    warm: bool,
    profile: str | None,
    max_num_seqs: int | None,
    warm_limit: float,
    log: Path,
    ready_s: float,
    until_trouble: bool,
    as_json: bool,
    database: Path,
    no_store: bool,
    **guard: Any,
) -> None:
    """Start COMMAND, warm its server up, and watch it: when it ends, refuses connections, or has requests under way while nothing that it
    counts moves and a token that it is asked for does not come, all its processes are ended, started again, and warmed up. A busy server
    is never restarted. Without COMMAND it only watches and reports. Events are printed, and kept for the leaderboard.

    \b
      toolkit watchdog --url 127.0.0.1:8000 -- vllm serve MODEL --port 8000
      toolkit watchdog --url 127.0.0.1:8000 --name alice -- sh serve.sh
      toolkit watchdog --url 127.0.0.1:8000 --json   1: it ended in trouble
      toolkit watchdog --url 127.0.0.1:8000 --until-trouble; echo "in trouble"
    """
    # `guard`: the fields of GuardSetting
    if until_trouble and command:
        raise click.UsageError("--until-trouble goes without a command: with one it is restarted")

    import asyncio

    from toolkit.cli.catalog import profile_from
    from toolkit.cli.event_keeper import EventKeeper
    from toolkit.cli.output import print_json
    from toolkit.serving.stack import GuardSetting, WarmSetting
    from toolkit.serving.warmup import Warming, doubling
    from toolkit.units import time_of_day

    listed = host_from(url)
    host = replace(
        listed, model=model or listed.model, api_key_env=api_key_env or listed.api_key_env
    )
    host = replace(host, name=name) if name else host
    key = keys_for([host]).get(host.name)
    prompts = profile_from(profile) if profile else None

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
            say=to_stderr,
        )

    allow_open_files()
    occupy_standard_files()
    with EventKeeper(None if no_store else database) as keeper:

        def report(event: "Event") -> None:
            if as_json:
                print_json(asdict(event))
            else:
                what = "" if event.kind == "mark" else f"{event.kind}: "
                click.echo(f"{time_of_day(event.at)} {event.name}: {what}{event.text}")
            keeper.keep(lambda store: store.add_event(event))

        watching = _watch(
            host,
            key,
            GuardSetting(**guard),
            report,
            command=command,
            log=log,
            ready_s=ready_s,
            warming=warming if warm else None,
            until_trouble=until_trouble,
        )
        code = asyncio.run(watching)
    sys.exit(code)


async def _watch(
    host: "Host",
    key: str | None,
    guard: "GuardSetting",
    report: "Callable[[Event], None]",
    *,
    command: tuple[str, ...],
    log: Path,
    ready_s: float,
    warming: "Callable[[], Warming] | None",
    until_trouble: bool,
) -> int:
    """Watch until Ctrl-C or SIGTERM, or until there is no sense in it; the exit code. Raises ToolkitError where it stays down."""
    import asyncio

    from toolkit.cli.signals import end_in_order
    from toolkit.cli.waiting import waiting_for
    from toolkit.serving.launch import Process, answer, ready
    from toolkit.serving.startup_log import cause
    from toolkit.serving.watchdog import (
        GuardedEngine,
        LivenessProbe,
        ended,
        wait_for_trouble,
        wait_until_well,
    )

    class CommandEngine(GuardedEngine):
        """The server that the command starts."""

        async def start(self) -> float:
            """Start the command and wait until it is ready. Raises ToolkitError with the cause."""
            try:
                log.parent.mkdir(parents=True, exist_ok=True)
                process = self.process = await Process.start(
                    command, os.environ, log, within_s=guard.stop_s
                )
            except OSError as error:
                raise ToolkitError(
                    f"the log `{log}` cannot be written: {reason_of(error)}",
                    "Give another file: `--log FILE`",
                ) from error
            try:
                with waiting_for(f"Starting {host.name}"):
                    return await ready(host.url, key, ready_s, lambda: process.code is None)
            except ToolkitError:
                if process.code is None:
                    raise
                found = cause(process.said(), process.code)
                raise ToolkitError(
                    f"{found.sentence} ({ended(process.code)})", found.hint
                ) from None

        async def warm(self) -> "Warmed | None":
            """As the command line says."""
            return None if warming is None else await warming().run()

    engine = CommandEngine(host, key, guard, report)
    in_trouble = False

    async def run() -> int:
        nonlocal in_trouble
        async with LivenessProbe(host, guard, key=key) as probe:
            if command:
                # a first start that fails is the user's to mend
                if (await answer(host.url, key)).startswith("HTTP"):
                    raise ToolkitError(
                        f"a server answers at `{host.url}` already, so it would not be clear which one is ready",
                        "Stop that one, or watch it without a command",
                    )
                await engine.begin(must_answer=False)
                click.echo(f"Watching {host.name} at {host.url}", err=True)
                why = await engine.watch(probe)
                raise ToolkitError(f"`{host.name}` stays down: {why}", f"See `{log}`")
            with waiting_for(f"Watching {host.name}", endless=True):
                while True:
                    trouble = await wait_for_trouble(probe, guard)
                    in_trouble = True
                    engine.event("mark", f"in trouble: {trouble}")
                    if until_trouble:
                        return FAILED
                    await wait_until_well(probe, guard.look_s)
                    in_trouble = False
                    engine.event("mark", "well again")

    task = asyncio.create_task(run())

    def end() -> None:
        if engine.process is not None:
            click.echo(
                "Ending: the engine is stopped first; a second Ctrl-C ends at once", err=True
            )
        task.cancel()

    end_in_order(end)
    try:
        return await task
    except asyncio.CancelledError:
        return FAILED if in_trouble else WORKED
    finally:
        await engine.stop()
