"""A proxy as `toolkit proxy`, each of its workers and `toolkit serve` start it: keys, what its settings mean, what it writes to, its loop."""

import asyncio
import gc
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from toolkit.cli.output import to_stderr
from toolkit.errors import ToolkitError
from toolkit.proxy.app import Proxy
from toolkit.proxy.auth import TeamKey, from_environment, from_file, refuse_open
from toolkit.proxy.config import Settings, admin_port, checked
from toolkit.proxy.telemetry import Telemetry
from toolkit.proxy.telemetry.access_log import AccessLog
from toolkit.proxy.telemetry.store_feed import StoreFeed
from toolkit.proxy.workers import Workers
from toolkit.records import Run, Seen
from toolkit.serving.processes import identity
from toolkit.units import span

Result = TypeVar("Result")
WORKER = "toolkit.cli.proxy.worker"
ENDING = "Ending: what is under way is finished first; a second Ctrl-C ends at once"
REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (asked at, not bound)
SWITCH_S = 0.0005
"""A hit waits so long at most for a thread that works: writing the file, reading a page. Python's own default is 5 ms."""


def meaning(settings: Settings) -> Iterator[str]:
    """What the settings mean, in a few lines."""

    def address(host: str, port: int, path: str = "") -> str:
        return f"http://{host}:{port}{path}" if port else f"a free port of {host}"

    names = ", ".join(each.url for each in settings.upstreams)
    yield f"Proxy on {address(settings.host, settings.port)} in front of {names}"
    cache = settings.cache
    ttl = "without end" if cache.ttl_s is None else f"for {span(cache.ttl_s)}"
    kept = f"{ttl}, in memory" + ("" if cache.file is None else f" and `{cache.file}`")
    yield {
        "off": "Nothing is stored (policy off)",
        "declared": f"Answers to requests with temperature 0 or a seed are kept {kept}",
        "all": f"Every complete answer is kept {kept}, and given to every client that asks the same, sampled ones included",
    }[cache.policy]
    if not settings.teams:
        yield "No team has a key: everybody may ask, and all share the answers"
    else:
        yield f"Teams: {', '.join(team.name for team in settings.teams)}"
    yield f"Admin: {address(settings.admin_host, admin_port(settings), '/metrics')}"


def secrets_of(settings: Settings) -> tuple[dict[str, str], list[TeamKey]]:
    """The variables that the settings name, with their values, and the teams' keys: those in variables, and those in the file.

    Raises ToolkitError for what is missing, or readable by others; and for several workers with nothing in which they
    could find each other's answers.
    """
    if settings.workers > 1 and settings.cache.file is None:
        raise ToolkitError(
            f"{settings.workers} workers share stored answers in a file, and there is none",
            "Name a --cache-file, or use one worker",
        )
    variables = checked(settings, os.environ)
    keys = from_environment(settings.teams, os.environ)
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
        keys += from_file(text, str(path), settings.teams)
    return variables, keys


def proxy_of(
    settings: Settings,
    variables: Mapping[str, str],
    keys: list[TeamKey],
    opened: ExitStack,
    *,
    primary_here: bool = False,
) -> Proxy | Workers:
    """One process, or the parent of several, not started yet. `opened` closes what it writes to, once it has stopped.

    `primary_here`: of several the one that asks upstream is this process.
    """

    def primary(settings: Settings, run_id: str | None, **where: Any) -> Proxy:
        telemetry = telemetry_of(settings, opened, run_id=run_id)
        return Proxy(
            settings, variables=variables, keys=keys, telemetry=telemetry, say=to_stderr, **where
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
        say=to_stderr,
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
        log = AccessLog(settings.tell.log, say=to_stderr)
        opened.callback(log.close)
    if settings.tell.database is not None:
        path, owner = Path(settings.tell.database), os.getppid() if parent else os.getpid()
        opens = _storing(path, run_id or secrets.token_hex(6), owner, shares=run_id is not None)
        feed = StoreFeed(opens, server=f"{settings.host}:{settings.port}", say=to_stderr)
        opened.callback(feed.close)
    return Telemetry(log, feed)


def _storing(path: Path, run_id: str, owner: int, *, shares: bool = False) -> Callable[[], Any]:
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


def run_loop(serving: Coroutine[Any, Any, Result]) -> Result:
    """Run in the quicker loop, where it is there."""
    sys.setswitchinterval(SWITCH_S)
    # answers live long and are no garbage; a hit that waits for a search among them is late
    gc.set_threshold(50_000, 20, 50)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serving)
    return uvloop.run(serving)
