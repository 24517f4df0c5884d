"""`toolkit proxy`: a response cache, queues and routing in front of one or several vLLM servers."""

import os
import signal
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.help_page import Command, advanced, option
from toolkit.cli.options import DURATION, FILE, SIZE, Written

if TYPE_CHECKING:
    from toolkit.proxy.app import Proxy
    from toolkit.proxy.config import Settings
    from toolkit.proxy.telemetry.metrics import Counters
    from toolkit.proxy.workers import Workers
    from toolkit.serving.notify import Notify

POLICIES = ("all", "declared", "off")
PING = b"GET /ping HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def pace_of(text: str) -> float | str | None:
    """`instant`, or tokens a second."""
    if text == "instant":
        return text
    try:
        speed = float(text)
    except ValueError:
        return None
    return speed if 0 < speed < float("inf") else None


PACE = Written("instant|N", pace_of, "is no pace; write `instant` or tokens a second, e.g., `40`")


@click.command(
    "proxy", cls=Command, short_help="Answer repeats from a cache; queue and route the rest."
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings in TOML; options override it.",
)
@click.option(
    "--upstream",
    metavar="[NAME=]URL",
    multiple=True,
    help="A server that answers what is not stored; may be repeated.",
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port for clients.  [default: 8000]")
@advanced("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
@advanced(
    "--admin-port",
    type=click.IntRange(0, 65535),
    help="For /metrics, /state, /purge, /explain, /drain, on 127.0.0.1.  [default: the next one]",
)
@click.option(
    "--policy",
    "cache__policy",
    type=click.Choice(POLICIES),
    help="Which answers are stored.  [default: all]",
)
@advanced("--ttl", "cache__ttl", type=DURATION, help="Lifetime of a stored answer.  [default: 1h]")
@advanced(
    "--memory", "cache__memory", type=SIZE, help="Memory for stored answers.  [default: 256MiB]"
)
@advanced(
    "--cache-file",
    "cache__file",
    type=FILE,
    help="Answers that survive a restart.  [default: data/proxy-cache.db]",
)
@advanced("--no-cache-file", is_flag=True, help="Keep answers in memory only.")
@advanced(
    "--replay",
    "cache__replay",
    type=PACE,
    help="How fast a stored stream is sent: at once, or N tokens/s.  [default: instant]",
)
@option(
    "--max-concurrency",
    "admission__concurrency",
    aliases=["--concurrency"],
    type=click.IntRange(1),
    help="Requests upstream at a time.  [default: no limit]",
)
@advanced(
    "--queue",
    "admission__queue",
    type=click.IntRange(0),
    help="Most requests that wait for a slot.  [default: 1024]",
)
@advanced(
    "--wait", "admission__wait", type=DURATION, help="Longest wait for a slot.  [default: 30s]"
)
@click.option(
    "--log", "tell__log", type=FILE, help="File for a JSON line per request; `-`: standard output."
)
@advanced(
    "--db",
    "tell__database",
    type=FILE,
    envvar="TOOLKIT_PROXY_DB",
    show_envvar=True,
    help="Store each request in this database, too, as `toolkit capture` does.",
)
@advanced(
    "--workers",
    type=click.IntRange(1, 64),
    help="Processes that answer hits; one of them makes all calls upstream.  [default: 1]",
)
@click.option("--check", is_flag=True, help="Check and explain the settings, then exit.")
def command(*, config: Path | None, no_cache_file: bool, check: bool, **flags: Any) -> None:
    """Stand between clients and vLLM: answer what was asked before from memory, ask once what many ask
    at the same time, share slots and queues fairly between teams, choose the least loaded server, log all.

    \b
      toolkit proxy --upstream http://127.0.0.1:8001 --port 8000
      toolkit proxy --upstream http://gpu1:8000 --upstream http://gpu2:8000 \\
          --max-concurrency 64
      toolkit proxy --config proxy.toml        teams, keys, limits: see the manual
    \f
    \b
      toolkit proxy --upstream http://127.0.0.1:8001 --policy declared --ttl 10m \\
          --log requests.jsonl
      toolkit proxy --config proxy.toml --check
          check and explain the settings, then exit
      toolkit workload --from requests.jsonl   what follows from its log
      curl http://127.0.0.1:8002/metrics
          what it counts, on the next free port

    By default every complete answer is stored and given again for equal requests, sampled ones
    included; --policy declared stores only what was asked with temperature 0 or a seed.
    """
    # `flags`: settings by their names in the file, where `cache__ttl` is `ttl` in `[cache]`
    if flags["cache__file"] and no_cache_file:
        raise click.UsageError("--cache-file names what --no-cache-file does without")

    from toolkit.cli.inputs import allow_open_files, text_of
    from toolkit.cli.output import to_stderr
    from toolkit.cli.proxy.process import meaning, proxy_of, run_loop, secrets_of
    from toolkit.proxy.auth import Keyring
    from toolkit.proxy.config import read
    from toolkit.serving.notify import Notify
    from toolkit.units import share, span

    given = {name.replace("__", "."): value for name, value in flags.items()}
    if no_cache_file:
        given["cache.file"] = "none"
    text = text_of(str(config), "Name a TOML file") if config else ""
    settings = read(text, str(config) if config else "the command line", given)
    variables, keys = secrets_of(settings)
    for line in meaning(settings):
        to_stderr(line)
    if check:
        if settings.teams:
            Keyring(settings.teams, keys)
        click.echo("These settings are good", err=True)
        return

    notify = Notify.from_environment(os.environ)  # before a worker is given a copy
    allow_open_files()
    began = time.monotonic()
    with ExitStack() as opened:
        proxy = proxy_of(settings, variables, keys, opened)
        counters = run_loop(_serve(proxy, settings, notify))
        total = counters.total("requests")
        parts = [f"{total:,.0f} requests in {span(time.monotonic() - began)}"]
        for cache, word in (("hit", "hits"), ("coalesced", "joined"), ("miss", "asked upstream")):
            if count := counters.total("requests", cache=cache):
                parts.append(f"{count:,.0f} {word} ({share(count / total)})")
        if rejected := counters.total("rejections"):
            parts.append(f"{rejected:,.0f} rejected")
        to_stderr(", ".join(parts))


async def _serve(proxy: "Proxy | Workers", settings: "Settings", notify: "Notify") -> "Counters":
    """Serve until Ctrl-C or SIGTERM, and tell the service manager how it is meanwhile; what was counted."""
    import asyncio

    from toolkit.cli.output import to_stderr
    from toolkit.cli.proxy.process import ENDING, REACHED_AT
    from toolkit.cli.signals import end_in_order
    from toolkit.proxy.workers import Workers

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    starting = loop.create_task(proxy.start())
    status, admin = "Looks at its upstreams", 0

    def end() -> None:
        to_stderr(ENDING)
        stop.set()
        starting.cancel()

    async def is_well() -> bool:
        """Whether its admin answers: of several workers the one that all others need."""
        host = REACHED_AT.get(settings.admin_host, settings.admin_host)
        try:
            reader, writer = await asyncio.open_connection(host, admin)
            with closing(writer):
                writer.write(PING)
                return b" 200 " in await reader.readline()
        except OSError:
            return False

    end_in_order(end, at_once=proxy.kill if isinstance(proxy, Workers) else lambda: None)
    if settings.tell.log is not None:
        loop.add_signal_handler(signal.SIGHUP, proxy.reopen_logs)
    async with notify.telling(lambda: status, is_well, stop.wait):
        try:
            await asyncio.wait([starting])
            if not starting.cancelled():
                starting.result()
                port, admin = proxy.ports
                clients = f"http://{settings.host}:{port}"
                status = f"clients on {clients}, admin on http://{settings.admin_host}:{admin}"
                if settings.workers > 1:
                    status += f", {settings.workers} workers"
                to_stderr(f"Ready: {status}")
                notify.ready(status)
                await stop.wait()
        finally:
            await proxy.stop()
    return proxy.counters if isinstance(proxy, Workers) else proxy.telemetry.counters
