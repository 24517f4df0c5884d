"""The command line: a file for each verb, loaded when it is called, so that `--help` answers at once.

Nothing imports this package. It prints errors; every other part raises them.
"""

import atexit
import errno
import gc
import importlib
import sys
from typing import Any, NoReturn

import click

from toolkit.cli.exit_codes import INTERRUPTED
from toolkit.errors import ToolkitError

# Before it ends, the interpreter looks for garbage among all objects, which the end of the process
# frees anyway: 0.13 s after a scout of 100 hosts.
atexit.register(gc.freeze)

GROUPS = {
    "Measure": (
        "scout",
        "bench",
        "capture",
        "workload",
        "blast",
        "board",
        "mark",
        "impact",
        "runs",
    ),
    "Serve": ("preflight", "plan", "serve", "proxy", "warmup", "watchdog", "deploy"),
    "Tune": ("sweep", "compare", "diagnose", "report"),
    "Practise": ("demo", "example", "sim", "selftest", "completion"),
}
"""In the order in which a user meets them; `<verb>.py` holds `command`, of a verb of several files `<verb>/verb.py`."""
VERBS = tuple(verb for verbs in GROUPS.values() for verb in verbs)


class Verbs(click.Group):
    """Loads a verb's file on first use and prints a ToolkitError with its hint."""

    def main(self, *words: Any, **options: Any) -> Any:
        """Run; what others wrote does nothing to the screen."""
        from toolkit.safe_text import cleaned_streams

        with cleaned_streams():
            return super().main(*words, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Name the verbs in the order of VERBS."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        """Load one verb; None for an unknown one, which click reports."""
        if name not in VERBS:
            return None
        module = importlib.import_module(f"toolkit.cli.{name}")
        if hasattr(module, "__path__"):  # a verb of several files
            module = importlib.import_module(f"toolkit.cli.{name}.verb")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; of a slip name the nearest, as click does for options."""
        if args[0] not in VERBS and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = " or ".join(f"`{verb}`" for verb in get_close_matches(args[0], VERBS, n=2))
            if near:
                raise click.UsageError(f"no verb is called `{args[0]}`; did you mean {near}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs group by group, their summaries all in one column."""
        widest = max(len(verb) for verb in VERBS)
        for title, verbs in GROUPS.items():
            rows = []
            for verb in verbs:
                command = self.get_command(ctx, verb)
                assert command is not None, "each verb of VERBS has a file"
                rows.append((f"{verb:<{widest}}", command.get_short_help_str(limit=80)))
            with formatter.section(title):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        """Run a verb; exit 1 when the input or the world is at fault."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()  # while an error can still be printed
        except ToolkitError as error:
            _end_with(error)
        except KeyboardInterrupt:
            click.echo(err=True)  # below the terminal's own `^C`
            sys.exit(INTERRUPTED)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            from toolkit.cli.output import give_up_output

            give_up_output()
            _end_with(ToolkitError("standard output cannot be written: the disk is full"))


def _end_with(error: ToolkitError) -> NoReturn:
    click.echo(f"Error: {error.message}", err=True)
    if error.hint:
        click.echo(f"\nHint: {error.hint}", err=True)
    sys.exit(1)


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="llm-serving-toolkit", prog_name="toolkit")
def main() -> None:
    """Scout, bench, capture, blast and rank LLM servers, then serve the stack that wins.

    Talk only to servers that you own or may test.

    \b
      toolkit demo                  a small example contest on this machine
      toolkit example hosts.txt     a file to put your own servers in
      toolkit scout hosts.txt       what is behind each address
      toolkit VERB --help           what a verb does, with examples

    Exit codes: 0 success, 1 a problem with the input, a host or the system, 2 a wrong command line, 130
    interrupted. Data goes to standard output, everything else to standard error.
    """
