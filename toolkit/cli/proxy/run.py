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

from toolkit.cli.inputs import allow_open_files
from toolkit.cli.proxy.said import ENDING, INTERRUPTED, say, summary
from toolkit.cli.proxy.standing import Standing
from toolkit.errors import ToolkitError
from toolkit.proxy.keyring import TeamKey, from_environment, from_file, keyring, refuse_open
from toolkit.proxy.processes.server import Proxy
from toolkit.proxy.settings import Settings
from toolkit.proxy.settings_file import admin_port, checked, read
from toolkit.proxy.told.request_log import RequestLog
from toolkit.proxy.told.store_feed import StoreFeed
from toolkit.records import Run, Seen
from toolkit.serving.house.notify import Notify
from toolkit.serving.start.processes import identity
from toolkit.wording import span

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
        "cache.file": "none" if options["no_cache_file"] else options["cache_file"],
        "cache.replay": options["replay"],
        "cache.verify_share": options["verify"],
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
            keyring(settings.teams, keys, secret=b"")
        click.echo("These settings are good", err=True)
        return
    notify = Notify.from_environment(os.environ)
    allow_open_files()
    if settings.workers > 1:
        from toolkit.cli.proxy.workers import run_workers

        sys.exit(run_workers(settings, variables, keys, notify))
    with ExitStack() as opened:
        log, feed = tellers(settings, opened)
        proxy = Proxy(settings, variables=variables, keys=keys, log=log, feed=feed, say=say)
        code = run_loop(_serve(proxy, log, notify))
    sys.exit(code)


def tellers(settings: Settings, opened: ExitStack) -> tuple[RequestLog | None, StoreFeed | None]:
    """Open the log and the way to the database, where they are wanted; `opened` closes them."""
    log = feed = None
    if settings.tell.log is not None:
        log = RequestLog(settings.tell.log)
        opened.callback(log.close)
    if settings.tell.database is not None:
        feed = StoreFeed(
            storing(Path(settings.tell.database), secrets.token_hex(6)),
            server=f"{settings.host}:{settings.port}",
        )
        opened.callback(feed.close)
    return log, feed


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


async def _serve(proxy: Proxy, log: RequestLog | None, notify: Notify) -> int:
    stop, began = asyncio.Event(), time.monotonic()
    loop = asyncio.get_running_loop()

    def end() -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        say(ENDING)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    if log is not None:
        loop.add_signal_handler(signal.SIGHUP, log.reopen)
    standing = Standing(proxy.settings)
    async with notify.telling(standing.in_a_line, standing.is_well, stop.wait):
        try:
            await proxy.start()
            say(standing.opened(*proxy.ports))
            notify.ready(standing.in_a_line())
            await stop.wait()
        finally:
            await proxy.stop()
    say(summary(proxy.kit.counters, time.monotonic() - began))
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


def storing(path: Path, run_id: str, *, shares: bool = False) -> Callable[[], Any]:
    """Opens the database where the feed wants it, with a run that its requests belong to; it may be one that others share.

    It is opened again after a failure, and goes on with the same run. The run says whose it is, the parent's where workers share
    it: a proxy may wait for its next request for days.
    """
    noted = json.dumps({"process": identity(os.getppid() if shares else os.getpid())})
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
