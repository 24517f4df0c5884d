"""`toolkit serve`: a stack from nothing to warm engines behind the proxy; and the orders to one that runs."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli.help_page import Group, advanced
from toolkit.cli.options import FILE, PERSONALITY, PRESET, Known, Word
from toolkit.cli.places import DATABASE, SERVE_FOLDER
from toolkit.cli.serve import orders
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from toolkit.serving.stack import Stack

HELP = """
Serve a stack: check the machine, start vLLM, warm it up, and only then send it what clients ask the
proxy; restart an engine that dies or stands still. TARGET: a file `NAME.toml`, or a model
at Hugging Face, or in a folder.

\b
  toolkit serve Qwen/Qwen2.5-7B-Instruct --preset throughput
  toolkit serve stack.toml   several engines, teams, limits: see the manual
\f
\b
  toolkit serve MODEL -- --max-model-len 4096 --enforce-eager
      flags as `vllm serve` has them, as with --set
  toolkit serve --preset multi-team --check
      a preset that is several engines
  toolkit serve --tiny       a tiny random model on the CPU, by a real vLLM
  toolkit serve --sim gptq-int4
      the simulator: the whole stack on any laptop
  toolkit serve status
  toolkit serve restart
  toolkit serve swap --model Qwen/Qwen2.5-7B-Instruct-AWQ --preset latency
  toolkit serve reload       changed limits, teams, upstreams and the like
  toolkit serve stop

Ctrl-C ends it: what is under way is finished first. What was answered before is answered from the cache
meanwhile, and from the first moment. Orders go to the serve that runs in --folder.
"""
TINY_NAME = "tiny"


def known_orders(context: click.Context, _begun: str) -> Known:
    """What `toolkit serve` takes beside a stack file."""
    group = context.parent.command if context.parent else None
    commands = group.commands if isinstance(group, click.Group) else {}
    return {name: one.get_short_help_str() for name, one in commands.items() if not one.hidden}


def as_set(words: list[str]) -> list[str]:
    """`--max-model-len 4096 --enforce-eager` as `--set=max-model-len=4096 --set=enforce-eager`. Raises click.UsageError."""
    found: list[str] = []
    for word in words:
        if word.startswith("--"):
            found.append(f"--set={word.removeprefix('--')}")
        elif found and found[-1].count("=") == 1 and not re.match("-[A-Za-z]", word):
            found[-1] += f"={word}"  # a value; one may be negative
        else:
            raise click.UsageError(
                f"after `--` stand long flags of `vllm serve`, each with one value or none; `{word}` is neither"
            )
    return found


class ServeGroup(Group):
    """What is no order is a target: `toolkit serve stack.toml` is `toolkit serve run stack.toml`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` before it, and have vLLM's own flags after `--` as `--set` has them."""
        if "--" in args and not ctx.resilient_parsing:  # not while a shell completes
            at = args.index("--")
            args = [*args[:at], *as_set(args[at + 1 :])]
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def shown(self, ctx: click.Context) -> list[click.Parameter]:
        """What `run` takes, as nobody types that word."""
        return run.get_params(ctx)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Both ways to call it."""
        return ["[OPTIONS] [TARGET] [-- FLAGS]  |  COMMAND [ARGS]..."]


@click.group(
    "serve",
    cls=ServeGroup,
    help=HELP,
    short_help="Serve a stack that starts warm and restarts itself.",
)
def command() -> None:
    """Serve (the help text is HELP)."""


for order in (orders.status, orders.restart, orders.swap, orders.reload, orders.stop):
    command.add_command(order)


@command.command("run", hidden=True, help=HELP)
@click.argument(
    "target",
    required=False,
    metavar="[STACK.toml|MODEL]",
    type=Word("TARGET", known_orders, is_file=True),
)
@click.option("--preset", type=PRESET, help="Preset of the catalog; --set overrides its flags.")
@orders.flags_option
@advanced(
    "--served-model-name",
    "served_name",
    aliases=["--served-name"],
    metavar="NAME",
    help="What clients call the model.",
)
@advanced("--gpus", metavar="0,1", help="GPUs to use, or a MIG slice's UUID.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port for clients.  [default: 8000]")
@advanced("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
@advanced("--tiny", is_flag=True, help="A tiny random model on the CPU, by a real vLLM.")
@click.option("--sim", type=PERSONALITY, help="A simulated engine; `toolkit sim list` names them.")
@advanced(
    "--vllm", metavar="COMMAND", help="Command that starts vLLM.  [default: that on the PATH]"
)
@orders.folder_option
@advanced(
    "--db",
    "database",
    type=FILE,
    envvar="TOOLKIT_DB",
    show_envvar=True,
    help=f"Database for events.  [default: {DATABASE}]",
)
@advanced("--no-preflight", is_flag=True, help="Start even where preflight fails.")
@click.option("--check", is_flag=True, help="Check and explain the stack, then exit.")
def run(
    *,
    target: str | None,
    preset: str | None,
    flags: tuple[str, ...],
    served_name: str | None,
    gpus: str | None,
    port: int | None,
    host: str | None,
    tiny: bool,
    sim: str | None,
    vllm: str | None,
    folder: Path | None,
    database: str | None,
    no_preflight: bool,
    check: bool,
) -> None:
    """Serve until Ctrl-C, SIGTERM or `toolkit serve stop` (the help text is HELP)."""
    named = (target is not None) + tiny + (sim is not None)
    if named > 1 or (named == 0 and preset is None):
        raise click.UsageError("name a stack file or a model, or say --tiny or --sim PERSONALITY")
    stack_file = target if target is not None and target.endswith(".toml") else None
    of_engine: dict[str, object] = {"set": flags, "served-model-name": served_name, "gpus": gpus}

    def refuse_for_one_engine(options: "Mapping[str, object]", why: str) -> None:
        """Nothing that is said of one engine is dropped silently where there may be several."""
        for option, value in options.items():
            if value:
                raise click.UsageError(f"--{option} belongs to one engine{why}")

    if stack_file:
        refuse_for_one_engine({"preset": preset} | of_engine, ": write it into the stack file")

    from toolkit.cli.catalog import profile_from
    from toolkit.cli.inputs import allow_open_files, occupy_standard_files
    from toolkit.cli.output import to_stderr
    from toolkit.cli.proxy.process import meaning, run_loop, secrets_of
    from toolkit.cli.serve.machine import check_keys, is_free, refuse_taken, with_vllm
    from toolkit.cli.serve.run import engine_lines, serve_stack
    from toolkit.cli.stack_read import flags_of, preset_flags, stack_text
    from toolkit.plan.catalog import table
    from toolkit.serving import presets
    from toolkit.serving.notify import Notify
    from toolkit.serving.stack import drafted, placed, read
    from toolkit.sim.presets import PRESETS

    # what the command line says of the whole stack
    proxy = {"port": port, "host": host}
    said = {
        "folder": None if folder is None else str(folder),
        "database": database,
        "preflight": False if no_preflight else None,
        "proxy": {key: value for key, value in proxy.items() if value is not None} or None,
    }
    over: dict[str, Any] = {key: value for key, value in said.items() if value is not None}
    where = f"`{stack_file}`" if stack_file else "the command line"

    def draft() -> "Stack":
        """The stack that the file or the command line describes, its free ports not chosen yet."""
        if stack_file:
            text = stack_text(Path(stack_file))
            return read(text, stack_file, preset_flags, over, {"database": DATABASE})
        words = {"preset": preset, "served_name": served_name, "gpus": gpus}
        engine: dict[str, Any] = {key: word for key, word in words.items() if word is not None}
        engine["flags"] = flags_of(flags)
        engines: list[Mapping[str, Any]] = [engine]
        if tiny:
            engine |= {"kind": "tiny", "name": TINY_NAME, "served_name": served_name or TINY_NAME}
        elif sim is not None:
            # the only engine: nothing would ever serve without it
            if sim not in PRESETS:
                raise ToolkitError(
                    f"the simulator has no personality `{sim}`",
                    "`toolkit sim list` names all of them and what they do",
                )
            engine |= {"kind": "sim", "model": sim}
        elif target is not None:
            engine["model"] = target
        else:
            assert preset is not None
            engines = list(presets.preset(preset, table("presets")).engines)
            if not engines:
                raise ToolkitError(
                    f"the preset `{preset}` is for a model of yours",
                    f"`toolkit serve MODEL --preset {preset}`",
                )
            refuse_for_one_engine(
                of_engine, f", and the preset `{preset}` is several: write a stack file"
            )
        tables = {"folder": SERVE_FOLDER, "database": DATABASE, "engine": engines, **over}
        return drafted(tables, where, preset_flags)

    stack, missing = with_vllm(placed(draft(), where, is_free), vllm)
    if missing and not check:
        raise missing[0]
    check_keys(stack)
    if stack.proxy is not None:
        # a missing key is told at once, and not when the proxy opens
        secrets_of(stack.proxy)
        refuse_taken(stack.proxy)
    if stack.warm.profile is not None:
        profile_from(stack.warm.profile)
    if check:
        for line in (*engine_lines(stack), *(meaning(stack.proxy) if stack.proxy else ())):
            to_stderr(line)
        findings = dict.fromkeys(f"{each.message}. {each.hint}" for each in missing)
        for finding in findings:
            to_stderr(f"Finding: {finding}")
        unfit = ", but not on this machine as it is" if findings else ""
        to_stderr(f"This stack is good{unfit}")
        return

    # before anybody copies the environment for an engine
    notify = Notify.from_environment(os.environ)
    allow_open_files()
    occupy_standard_files()

    def read_again() -> "Stack":
        """The stack for a reload: on the ports that it was given where none is named."""
        again = draft()
        now = {each.name: each for each in stack.engines}
        engines = [
            replace(
                each,
                port=each.port or now[each.name].port,
                spare_port=now[each.name].spare_port if each.spare_port == 0 else each.spare_port,
            )
            if each.name in now
            else each
            for each in again.engines
        ]
        proxy = again.proxy
        if proxy is not None and proxy.admin_port is None and stack.proxy is not None:
            proxy = replace(proxy, admin_port=stack.proxy.admin_port)
        again = replace(again, engines=tuple(engines), proxy=proxy)
        return with_vllm(placed(again, where, is_free), vllm)[0]

    run_loop(serve_stack(stack, notify, read_again))
