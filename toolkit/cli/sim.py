"""`toolkit sim`: a vLLM that is not one, or a whole fleet of them, for practice without a GPU."""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.help_page import Command, Group, advanced
from toolkit.cli.options import DURATION, PERSONALITY, VARIABLE, json_option
from toolkit.errors import ToolkitError, reason_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from toolkit.sim.app import Fleet, SimServer
    from toolkit.sim.presets import Setup

PORT_HINT = "Choose another with `--port`; 0 takes any free one"
HOST_HINT = "Name an address of this machine with `--host`"
LIST_HINT = "`toolkit sim list` names all of them and what they do"
NAME_HINT = "Give each host a name of its own, e.g., `alice=awq`, without blanks, `#` and `=`"
ADDRESS_HINT = f"{HOST_HINT}, and a `--port` that leaves each server one up to 65535"
SETTING_HINT = "Give that option another value, or leave it out: each has a default"
HINTS = {
    "personality": LIST_HINT,
    "stands twice": NAME_HINT,
    "is no name for a host": NAME_HINT,
    "is no address": ADDRESS_HINT,
}
"""By what the simulator says of a wrong word; of any other it is SETTING_HINT."""

SERVE_HELP = """
Serve one simulated vLLM until Ctrl-C, and print its URL once it listens.

\b
  toolkit sim serve
  toolkit sim serve --personality fp8 --load 64
      one that is busy, as scout sees it
  toolkit sim serve --dialect rust --api-key-env KEY
  toolkit sim serve --set num_gpu_blocks=64 --set prefix_caching=false
"""

FLEET_HELP = """
Serve several simulated vLLMs in one process and print a hosts.txt once all of them listen.

NAMES are personalities, or `alice=cached` for a host `alice` that behaves like `cached`; without any,
the contest's whole cast. With `-- COMMAND`, run that while the fleet serves and exit with its code:
`{hosts}` in it becomes the path of a hosts file, which is in TOOLKIT_HOSTS, too.

\b
  toolkit sim fleet > hosts.txt &
  toolkit sim fleet alice=cached bob=fp8 --load 8 --for 10m
  toolkit sim fleet -- toolkit scout {hosts}
\f
SIGUSR1 lets every `switcher` fall at once, whatever its time.
"""


@click.group(
    "sim", cls=Group, short_help="Simulated vLLM servers, one or a fleet: practice without a GPU."
)
def command() -> None:
    """Simulate vLLM: batching, KV cache, queue, preemption; no GPU, no model.

    \b
      toolkit sim list
      toolkit sim serve
      toolkit sim fleet -- toolkit scout {hosts}
    """


@command.command("list", short_help="Name the personalities.")
@json_option("personality")
def list_(as_json: bool) -> None:
    """Name the personalities and what they do.

    \b
      toolkit sim list
      toolkit sim list --json
    """
    from toolkit.cli.output import print_json
    from toolkit.report.tables import Column, screen
    from toolkit.sim.presets import PRESETS

    if as_json:
        for name, preset in PRESETS.items():
            print_json({"name": name, "summary": preset["summary"], "model": preset["root"]})
        return
    columns = [Column("name"), Column("what it does")]
    screen().table(columns, [[name, preset["summary"]] for name, preset in PRESETS.items()])


SHARED = (
    advanced("--host", metavar="ADDRESS", default="127.0.0.1", help="Address to listen on."),
    advanced("--model", metavar="NAME", help="Served name instead of the personality's own."),
    advanced(
        "--dialect",
        type=click.Choice(("v0", "v1", "rust")),
        default="v1",
        help="Format of /metrics: vLLM 0.7.3, 0.32.0, or 0.33's Rust front end.",
    ),
    advanced("--api-key-env", type=VARIABLE, help="Ask for the API key that this variable holds."),
    advanced(
        "--time-scale",
        type=click.FloatRange(min=0.0001),
        default=1.0,
        help="Factor for all times: 0.1 runs ten times as fast.",
    ),
    advanced("--seed", type=int, default=0, help="Random seed."),
    click.option(
        "--load",
        type=click.IntRange(min=0),
        default=0,
        help="Synthetic clients per server, without HTTP: its counters move by themselves.",
    ),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="Change one setting; may be repeated. A wrong NAME gets the list of them.",
    ),
    click.option("--for", "seconds", type=DURATION, help="Stop after this long, e.g., `30s`."),
)
"""Options that one server and a fleet have in common; `_changes` reads them."""


def shared_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command all of them."""
    for option in reversed(SHARED):
        function = option(function)
    return function


@command.command("serve", help=SERVE_HELP, short_help="Serve one simulated vLLM.")
@click.option(
    "--personality",
    metavar="NAME",
    type=PERSONALITY,
    default="gptq-int4",
    help="What it plays; `toolkit sim list` names them.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    help="Port to listen on; 0 takes any free one.",
)
@shared_options
@advanced("--engines", type=click.IntRange(min=1), default=1, help="Data-parallel engines.")
@advanced(
    "--startup",
    type=DURATION,
    help="Refuse connections for this long first, as while a model loads.",
)
@advanced("--no-stats", is_flag=True, help="As `--disable-log-stats`: no vllm: metrics.")
@advanced("--cache-header", is_flag=True, help="Let `cached` tell its hits in `x-cache`.")
def serve(
    personality: str,
    startup: float | None,
    no_stats: bool,
    seconds: float | None,
    **settings: Any,
) -> None:
    """Serve one until a signal or for some seconds; print its URL once it listens (the help text is SERVE_HELP)."""
    import asyncio

    from toolkit.sim.app import SimServer
    from toolkit.sim.presets import setup_for

    async def run(setup: "Setup") -> None:
        server = SimServer(setup)
        await _serve(server, server.listening.wait, lambda: click.echo(server.url), seconds)

    with errors_for_users():
        changes = {"startup_s": startup or 0.0, "stats": not no_stats, **_changes(**settings)}
        asyncio.run(run(setup_for(personality, **changes)))


class FleetCommand(Command):
    """Keeps what follows `--` apart: click would take it for more names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at the first `--`."""
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["command"] = args[:at], args[at + 1 :]
            if not ctx.meta["command"]:
                raise click.UsageError("a command must follow `--`", ctx)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the command in the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


@command.command(
    "fleet",
    cls=FleetCommand,
    help=FLEET_HELP,
    short_help="Serve several simulated ones, and name them.",
)
@click.argument("names", nargs=-1, metavar="[NAMES]...", type=PERSONALITY)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="First port of a row; 0 takes any free ones.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the hosts.txt there instead.",
)
@shared_options
@click.pass_context
def fleet(
    ctx: click.Context,
    /,
    names: tuple[str, ...],
    out: Path | None,
    seconds: float | None,
    **settings: Any,
) -> None:
    """Serve a fleet, alone or beside a command (the help text is FLEET_HELP)."""
    import asyncio

    from toolkit.sim.app import Fleet
    from toolkit.sim.presets import setups_for

    words: list[str] = ctx.meta.get("command", [])
    variable = settings["api_key_env"]
    key = f"api_key_env={variable}" if variable else ""
    if words and seconds:
        raise click.UsageError("`--for` does not go with a command: the fleet ends when that does")

    async def run(setups: "dict[str, Setup]") -> int:
        running = Fleet(setups)
        if words:
            return await _run_beside(running, words, out, key)
        listening = asyncio.Event()
        listening.set()  # a fleet listens once it is entered
        await _serve(running, listening.wait, lambda: _publish(running.hosts(key), out), seconds)
        return 0

    with errors_for_users():
        sys.exit(asyncio.run(run(setups_for(names, **_changes(**settings)))))


async def _serve(
    server: "SimServer | Fleet",
    listens: "Callable[[], Awaitable[object]]",
    publish: Callable[[], None],
    seconds: float | None,
) -> None:
    """Serve until Ctrl-C, SIGTERM or for some seconds, and publish it once it listens; a signal ends one that still starts, too."""
    import asyncio

    from toolkit.cli.signals import END_SIGNALS

    loop = asyncio.get_running_loop()

    async def serve() -> None:
        async with server:
            # switchers fall: practice for the moment at which somebody else's server goes down
            loop.add_signal_handler(signal.SIGUSR1, server.change_now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await listens()
                    publish()
                    await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    for number in END_SIGNALS:
        loop.add_signal_handler(number, lambda: serving.cancelling() or serving.cancel())
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def _run_beside(fleet: "Fleet", words: "Sequence[str]", out: Path | None, key: str) -> int:
    """Run a command while the fleet serves; its exit code as a shell would tell it."""
    import asyncio
    import tempfile

    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="toolkit-") as folder:
        hosts = Path(folder) / "hosts.txt"
        async with fleet:
            loop.add_signal_handler(signal.SIGUSR1, fleet.change_now)
            for file in (hosts, out):
                if file:
                    _publish(fleet.hosts(key), file)
            beside = str(Path(sys.executable).parent)  # where this environment keeps `toolkit`
            path = os.pathsep.join((beside, os.environ.get("PATH", os.defpath)))
            try:
                child = await asyncio.create_subprocess_exec(
                    *(word.replace("{hosts}", str(hosts)) for word in words),
                    env=os.environ | {"PATH": path, "TOOLKIT_HOSTS": str(hosts)},
                )
            except OSError as error:
                raise ToolkitError(
                    f"`{words[0]}` cannot be started: {reason_of(error)}",
                    "Write the command after `--` as you would in a shell",
                ) from error

            def pass_on() -> None:
                if child.returncode is None:
                    child.terminate()

            # the command decides when to end: a terminal's Ctrl-C reaches it anyway
            loop.add_signal_handler(signal.SIGINT, lambda: None)
            loop.add_signal_handler(signal.SIGTERM, pass_on)
            code = await child.wait()
            loop.remove_signal_handler(signal.SIGINT)
            loop.remove_signal_handler(signal.SIGTERM)
    return 128 - code if code < 0 else code


def _publish(hosts: str, out: Path | None) -> None:
    """Print the hosts.txt, or write a file whole or not at all."""
    if out is None:
        click.echo(hosts, nl=False)
        return
    try:
        if out.is_symlink() or (out.exists() and not out.is_file()):
            # `/dev/stdout`, a pipe: what stands for something else must stay that
            out.write_text(hosts, encoding="utf-8")
            return
        draft = out.with_name(f".{out.name}.{os.getpid()}")
        try:
            draft.write_text(hosts, encoding="utf-8")
            draft.replace(out)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise ToolkitError(
            f"`{out}` cannot be written: {reason_of(error)}", "Name another file with `--out`"
        ) from error


def _changes(
    *, settings: tuple[str, ...], api_key_env: str | None, model: str | None, **shared: Any
) -> dict[str, Any]:
    """Turn options into the changes that a Setup takes; --set has the last word."""
    from toolkit.sim.presets import SETTINGS

    changes = shared | ({"model": model} if model else {})
    if api_key_env:
        changes["api_key"] = os.environ.get(api_key_env, "").strip()
        if not changes["api_key"]:
            raise ToolkitError(
                f"`{api_key_env}` is not set, which should hold the API key to ask for",
                f"Set it, e.g., `export {api_key_env}=secret`",
            )
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise ToolkitError(f"`--set {text}` has no value", "Write `--set num_gpu_blocks=64`")
        if name not in SETTINGS:
            raise ToolkitError(
                f"`--set {text}` names no setting", f"Settings are {', '.join(sorted(SETTINGS))}"
            )
        changes[name] = value
    return changes


@contextlib.contextmanager
def errors_for_users() -> Iterator[None]:
    """Say what a user can mend in the toolkit's own voice."""
    from socket import gaierror

    try:
        yield
    except ValueError as error:
        wrong = str(error)
        hint = next((hint for words, hint in HINTS.items() if words in wrong), SETTING_HINT)
        raise ToolkitError(wrong, hint) from error
    except OSError as error:
        # EINVAL: `fe80::1`, which is no address without its link
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            hint = PORT_HINT
        elif error.errno in (errno.EADDRNOTAVAIL, errno.EINVAL) or isinstance(error, gaierror):
            hint = HOST_HINT
        else:
            raise
        raise ToolkitError(str(error.strerror), hint) from error
