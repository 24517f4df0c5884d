"""What `toolkit proxy` does once its command line is read: settings, keys, the database, one process, its end."""

import asyncio
import gc
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from toolkit.cli.exit_codes import INTERRUPTED
from toolkit.cli.inputs import allow_open_files
from toolkit.cli.proxy.said import ENDING, say, summary
from toolkit.cli.proxy.standing import ServiceStatus
from toolkit.errors import ToolkitError
from toolkit.proxy.app import Proxy
from toolkit.proxy.auth import Keyring, TeamKey, from_environment, from_file, refuse_open
from toolkit.proxy.config import Settings, admin_port, checked, read
from toolkit.proxy.telemetry import Telemetry
from toolkit.proxy.telemetry.access_log import AccessLog
from toolkit.proxy.telemetry.store_feed import StoreFeed
from toolkit.proxy.workers import Workers
from toolkit.records import Run, Seen
from toolkit.serving.notify import Notify
from toolkit.serving.processes import identity
from toolkit.units import span

WORKER = "toolkit.cli.proxy.worker"
SWITCH_S = 0.0005
"""A hit waits so long at most for a thread that works: writing the file, reading a page. Python's own default is 5 ms."""


def settings_of(config: Path | None, options: Mapping[str, Any]) -> Settings:
    """The file's settings with the command line's over them."""
    text = ""
    if config is not None:
        try:
            text = config.read_text()
        except OSError as error:
            raise ToolkitError(
                f"`{config}` cannot be read: {(error.strerror or str(error)).lower()}",
                "Name a TOML file",
            ) from error
        except UnicodeDecodeError as error:
            raise ToolkitError(f"`{config}` is not UTF-8", "Save it as UTF-8 text") from error
    flags = {
        "upstream": options["upstream"],
        "port": options["port"],
        "host": options["host"],
        "admin_port": options["admin_port"],
        "workers": options["workers"],
        "cache.policy": options["policy"],
        "cache.ttl": options["ttl"],
        "cache.memory": options["memory"],
        "cache.replay": options["replay"],
        "cache.file": "none" if options["no_cache_file"] else options["cache_file"],
        "admission.concurrency": options["concurrency"],
        "admission.queue": options["queue"],
        "admission.wait": options["wait"],
        "tell.log": options["log"],
        "tell.database": options["database"],
    }
    return read(text, str(config) if config else "the command line", flags)


def run_proxy(settings: Settings, *, only_check: bool) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    refuse_without_file(settings)
    variables = checked(settings, os.environ)
    keys = team_keys(settings)
    for line in told(settings):
        click.echo(line, err=True)
    if only_check:
        if settings.teams:
            Keyring(settings.teams, keys)
        click.echo("These settings are good", err=True)
        return
    notify = Notify.from_environment(os.environ)
    allow_open_files()
    with ExitStack() as opened:
        proxy = proxy_of(settings, variables, keys, opened, say)
        code = run_loop(_serve(proxy, settings, notify))
    sys.exit(code)


def proxy_of(
    settings: Settings,
    variables: Mapping[str, str],
    keys: list[TeamKey],
    opened: ExitStack,
    say: Callable[[str], None],
    *,
    primary_here: bool = False,
) -> Proxy | Workers:
    """One process, or the parent of several, not started yet. `opened` closes what it writes to, once it has stopped.

    `primary_here`: of several the one that asks upstream is this process.
    """

    def primary(settings: Settings, run_id: str | None, **where: Any) -> Proxy:
        telemetry = telemetry_of(settings, opened, run_id=run_id)
        return Proxy(
            settings, variables=variables, keys=keys, telemetry=telemetry, say=say, **where
        )

    if settings.workers == 1:
        return primary(settings, None)
    return Workers(
        settings,
        variables=variables,
        keys=keys,
        # -P: a `toolkit` in the folder in which it is started is not this one
        command=[sys.executable, "-P", "-m", WORKER],
        environ=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        say=say,
        make_primary=primary if primary_here else None,
    )


def telemetry_of(
    settings: Settings, opened: ExitStack, *, run_id: str | None = None, parent: bool = False
) -> Telemetry:
    """Open the log and the way to the database, where they are wanted; `opened` closes them.

    `run_id`: the run that workers share, which is `parent`'s, this process's parent, or this process's own.
    """
    log = feed = None
    if settings.tell.log is not None:
        log = AccessLog(settings.tell.log, say=say)
        opened.callback(log.close)
    if settings.tell.database is not None:
        path, owner = Path(settings.tell.database), os.getppid() if parent else os.getpid()
        opens = storing(path, run_id or secrets.token_hex(6), owner, shares=run_id is not None)
        feed = StoreFeed(opens, server=f"{settings.host}:{settings.port}", say=say)
        opened.callback(feed.close)
    return Telemetry(log, feed)


def refuse_without_file(settings: Settings) -> None:
    """Raise for several workers with nothing in which they could find each other's answers."""
    if settings.workers > 1 and settings.cache.file is None:
        raise ToolkitError(
            f"{settings.workers} workers share stored answers in a file, and there is none",
            "Name a --cache-file, or use one worker",
        )


def run_loop(serving: Any) -> int:
    """Run in the quicker loop, where it is there."""
    sys.setswitchinterval(SWITCH_S)
    # answers live long and are no garbage; a hit that waits for a search among them is late
    gc.set_threshold(50_000, 20, 50)
    try:
        import uvloop
    except ImportError:
        return int(asyncio.run(serving))
    return int(uvloop.run(serving))


async def _serve(proxy: Proxy | Workers, settings: Settings, notify: Notify) -> int:
    stop, began = asyncio.Event(), time.monotonic()
    loop = asyncio.get_running_loop()
    starting = loop.create_task(proxy.start())

    def end() -> None:
        if stop.is_set():
            if isinstance(proxy, Workers):
                proxy.kill()
            os._exit(INTERRUPTED)
        say(ENDING)
        stop.set()
        starting.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    if settings.tell.log is not None:
        loop.add_signal_handler(signal.SIGHUP, proxy.reopen_logs)
    standing = ServiceStatus(settings)
    async with notify.telling(standing.in_a_line, standing.is_well, stop.wait):
        try:
            await asyncio.wait([starting])
            if not starting.cancelled():
                starting.result()
                say(standing.opened(*proxy.ports))
                notify.ready(standing.in_a_line())
                await stop.wait()
        finally:
            await proxy.stop()
    counters = proxy.counters if isinstance(proxy, Workers) else proxy.telemetry.counters
    say(summary(counters, time.monotonic() - began))
    return 0


def told(settings: Settings) -> Iterator[str]:
    """What the settings mean, in a few lines."""
    names = ", ".join(each.url for each in settings.upstreams)
    yield f"Proxy on http://{settings.host}:{settings.port} in front of {names}"
    cache = settings.cache
    ttl = "without end" if cache.ttl_s is None else f"for {span(cache.ttl_s)}"
    where = "in memory" if cache.file is None else f"in memory and `{cache.file}`"
    if cache.policy == "off":
        yield "Nothing is stored (policy off)"
    elif cache.policy == "declared":
        yield f"Answers to requests with temperature 0 or a seed are kept {ttl}, {where}"
    else:
        yield f"Every complete answer is kept {ttl}, {where}, and given to whoever asks the same: sampled ones, too"
    if not settings.teams:
        yield "No team has a key: everybody may ask, and all share the answers"
    else:
        yield f"Teams: {', '.join(team.name for team in settings.teams)}"
    yield f"Admin: http://{settings.admin_host}:{admin_port(settings)}/metrics"


def team_keys(settings: Settings) -> list[TeamKey]:
    """The teams' keys: those in variables, and those in the file."""
    found = from_environment(settings.teams, os.environ)
    if settings.keys_file is not None:
        path = Path(settings.keys_file)
        try:
            mode, text = path.stat().st_mode, path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ToolkitError(
                f"cannot read the keys in `{path}`: {getattr(error, 'strerror', None) or 'not UTF-8'}",
                "Name a file with a line `TEAM KEY` for each key",
            ) from error
        refuse_open(mode, str(path))
        found += from_file(text, str(path), settings.teams)
    return found


def storing(path: Path, run_id: str, owner: int, *, shares: bool = False) -> Callable[[], Any]:
    """Opens the database where the feed wants it, with a run that its requests belong to; it may be one that others share.

    It is opened again after a failure, and goes on with the same run. The run says which process it is, its
    `owner`: a proxy may wait for its next request for days.
    """
    noted = json.dumps({"process": identity(owner)})
    run = Run(id=run_id, verb="proxy", started_at=time.time(), settings=noted)
    known = False

    @contextmanager
    def opened() -> Iterator[Callable[[Sequence[Seen]], None]]:
        from toolkit.store import Store

        with Store.open(path) as store:

            def hand(rows: Sequence[Seen]) -> None:
                nonlocal known
                if not known:
                    with suppress(*([ToolkitError] if shares else [])):
                        store.add_run(run)
                    known = True
                store.add_seen(run_id, rows)

            yield hand
            if known:
                store.end_run(run_id, ended_at=time.time(), client_ok=None)

    return opened
