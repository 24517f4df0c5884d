"""`toolkit serve`: a stack from nothing to warm engines behind the proxy; and the orders to one that runs."""

from pathlib import Path
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.options import DURATION
from toolkit.cli.places import SERVE_FOLDER

EXAMPLES = """
Serve a stack: check the machine, start vLLM with flags that the installed version has, warm it up,
and only then send it what clients ask the proxy. A watchdog restarts an engine that dies or stands
still. What was answered before is answered from the cache meanwhile, and from the first moment.

TARGET is a stack file (it ends in `.toml`), or a model: a name at Hugging Face, or a directory.

\b
  toolkit serve Qwen/Qwen2.5-7B-Instruct --preset throughput
  toolkit serve --preset multi-team --check
      a preset that is several engines
  toolkit serve stack.toml   several engines, teams, limits: see the README
  toolkit serve --tiny       a tiny random model on the CPU, by a real vLLM
  toolkit serve --sim gptq-int4
      the simulator: the whole stack on any laptop
  toolkit serve status
  toolkit serve restart
  toolkit serve swap --model Qwen/Qwen2.5-7B-Instruct-AWQ --preset latency
  toolkit serve reload       changed limits, teams, upstreams and the like
  toolkit serve stop

Orders go to the serve that runs in --folder. Ctrl-C ends it: what is under way is finished first.
"""
SWAP_HELP = """
Put another model, preset or flag into a running stack. Where there is room the new engine starts
beside the old one, is warmed, and takes over without a gap; else it says what the downtime costs and
asks. What is not named stays as it is; the name that clients ask for stays, too.

\b
  toolkit serve swap --model Qwen/Qwen2.5-7B-Instruct-AWQ --preset latency
  toolkit serve swap red --set max-num-seqs=128
  toolkit serve swap --model ./finetuned --in-place --yes
"""


class ServeGroup(click.Group):
    """What is no order is a target: `toolkit serve stack.toml` is `toolkit serve run stack.toml`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` before it."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show what `run` takes, as nobody types that word."""
        run.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Both ways to call it."""
        return ["[OPTIONS] [TARGET]  |  status|restart|swap|reload|stop ..."]


@click.group(
    "serve",
    cls=ServeGroup,
    help=EXAMPLES,
    short_help="Serve a stack that starts warm and restarts itself.",
)
def command() -> None:
    """Serve (the help text is EXAMPLES)."""


folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Logs, orders, and what is to be known after a crash.  [default: {SERVE_FOLDER}]",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object an engine."
)
yes_option = click.option(
    "--yes", is_flag=True, help="Do not ask, whatever it costs, and during a blast, too."
)
flags_option = click.option(
    "--set",
    "flags",
    multiple=True,
    metavar="FLAG=VALUE",
    help="A flag of `vllm serve`, e.g., `max-model-len=4096`; may be repeated.",
)


@command.command("run", hidden=True, help=EXAMPLES)
@click.argument(
    "target", required=False, metavar="[STACK.toml|MODEL]", shell_complete=suggestions.target
)
@click.option(
    "--preset",
    metavar="NAME",
    shell_complete=suggestions.preset,
    help="Flags of the catalog, e.g., `throughput`; --set goes over them.",
)
@flags_option
@click.option("--served-name", metavar="NAME", help="What clients call the model.")
@click.option("--gpus", metavar="0,1", help="Which GPUs, or a MIG slice's UUID.")
@click.option("--port", type=click.IntRange(0, 65535), help="For clients.  [default: 8000]")
@click.option("--host", metavar="ADDRESS", help="Where clients are taken.  [default: 127.0.0.1]")
@click.option("--tiny", is_flag=True, help="A tiny random model on the CPU, by a real vLLM.")
@click.option(
    "--sim",
    metavar="PERSONALITY",
    shell_complete=suggestions.personality,
    help="The simulator; `toolkit sim list` names them.",
)
@click.option("--vllm", metavar="COMMAND", help="Which vLLM.  [default: the one on the PATH]")
@folder_option
@click.option(
    "--db", "database", metavar="FILE", shell_complete=suggestions.file, envvar="TOOLKIT_DB", show_envvar=True,
    help="Where events go.  [default: data/toolkit.db]",
)  # fmt: skip
@click.option("--no-preflight", is_flag=True, help="Start on a machine that seems unfit, too.")
@click.option("--check", is_flag=True, help="Read the stack, say what it means, and end.")
def run(**options: Any) -> None:
    """Serve until Ctrl-C (the help text is EXAMPLES)."""
    chosen = [options["target"], options["tiny"] or None, options["sim"]]
    several = options["preset"] is not None and all(each is None for each in chosen)
    if not several and sum(each is not None for each in chosen) != 1:
        raise click.UsageError("name a stack file or a model, or say --tiny or --sim PERSONALITY")
    from toolkit.cli.serve.run import run_serve

    run_serve(options)


@command.command("status", short_help="Each engine's state, port, restarts, TTFT cold and warm.")
@folder_option
@json_option
def status(folder: Path | None, as_json: bool) -> None:
    """Tell how each engine of a running stack is, and how often the proxy's cache hits.

    \b
      toolkit serve status
      toolkit serve status --json
    """
    from toolkit.cli.serve.control import show_status

    show_status(folder or Path(SERVE_FOLDER), as_json=as_json)


@command.command("restart", short_help="Restart one engine; the cache goes on answering.")
@click.argument("engine", required=False)
@folder_option
@yes_option
def restart(engine: str | None, folder: Path | None, yes: bool) -> None:
    """Restart ENGINE, or the only one: what is under way is finished first, and it is warm before it is asked again.

    \b
      toolkit serve restart
      toolkit serve restart red --yes
    """
    from toolkit.cli.serve.control import order_restart

    order_restart(folder or Path(SERVE_FOLDER), engine, yes=yes)


@command.command(
    "swap",
    help=SWAP_HELP,
    short_help="Put another model, preset or flag in, without a gap where it can.",
)
@click.argument("engine", required=False)
@click.option(
    "--model", metavar="NAME", help="Another model: a name at Hugging Face, or a directory."
)
@click.option(
    "--preset",
    metavar="NAME",
    shell_complete=suggestions.preset,
    help="Another preset; its flags take the place of all others.",
)
@flags_option
@click.option("--served-name", metavar="NAME", help="What clients call it from then on.")
@click.option(
    "--in-place", is_flag=True, help="End the old engine first, though there may be room."
)
@click.option(
    "--window",
    type=DURATION,
    default="15m",
    show_default=True,
    help="That the board looks back, for the costs.",
)
@click.option("--gain", type=float, help="Answered a second after it / before it, for the costs.")
@folder_option
@yes_option
def swap(folder: Path | None, **options: Any) -> None:
    """Swap an engine (the help text is SWAP_HELP)."""
    from toolkit.cli.serve.control import order_swap

    order_swap(folder or Path(SERVE_FOLDER), options)


@command.command(
    "reload", short_help="Take over changed settings of the proxy; no request is lost."
)
@click.argument("file", required=False, metavar="[STACK.toml]", shell_complete=suggestions.file)
@folder_option
def reload(file: str | None, folder: Path | None) -> None:
    """Read the stack's file again, and go on with its [proxy]: times to live, limits, teams and their keys, upstreams.

    No request under way ends for that, and no connection is closed. What only a restart can change is refused, and
    then nothing has changed. STACK.toml only says which serve is meant, by its `folder`.

    \b
      toolkit serve reload
      toolkit serve reload --folder data/serve
      toolkit serve reload /etc/toolkit/prod.toml
    """
    from toolkit.cli.serve.control import order_reload

    order_reload(file, folder)


@command.command("stop", short_help="End a stack in order.")
@folder_option
def stop(folder: Path | None) -> None:
    """Finish what is under way, and end the proxy and every engine; back when all are gone.

    \b
      toolkit serve stop
      toolkit serve stop --folder data/serve
    """
    from toolkit.cli.serve.control import order_stop

    order_stop(folder or Path(SERVE_FOLDER))
