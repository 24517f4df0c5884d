"""`--help` in two parts: what most people need, which fits a terminal of 24 lines, and below it what few do."""

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import click
from click.types import FloatParamType, IntParamType


class Option(click.Option):
    """An option; its `aliases`, spellings of an earlier release, still work and stand in no help, message or completion."""

    def __init__(self, *arguments: Any, aliases: Sequence[str] = (), **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.aliases = aliases

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser know the aliases, too."""
        spellings = self.opts
        self.opts = [*spellings, *self.aliases]
        super().add_to_parser(parser, ctx)
        self.opts = spellings


class Advanced(Option):
    """An option that stands under `Advanced:`."""


option = partial(click.option, cls=Option)
"""As `click.option`; `option("--num-prompts", aliases=["--requests"])` takes both and shows the first."""
advanced = partial(click.option, cls=Advanced)
"""The same for what few need."""


class Command(click.Command):
    """Its page ends with the advanced options and with what stands behind `\\f` in its help."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.context_settings.setdefault("show_default", True)
        for param in self.params:
            # click itself writes `INTEGER RANGE`; the limits stand behind the sentence
            if param.metavar is None and isinstance(param.type, IntParamType | FloatParamType):
                param.metavar = "N"

    def shown(self, ctx: click.Context) -> list[click.Parameter]:
        """What the page lists."""
        return self.get_params(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the common options, of a group its commands, then all else."""
        parts: dict[str, list[tuple[str, str]]] = {"Options": [], "Advanced": []}
        for param in self.shown(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                parts["Advanced" if isinstance(param, Advanced) else "Options"].append(record)
        for title, rows in parts.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
            if title == "Options" and isinstance(self, click.Group):
                self.format_commands(ctx, formatter)
        # click itself shows only what stands before the form feed
        more = inspect.cleandoc(inspect.cleandoc(self.help or "").partition("\f")[2])
        if more:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(more)


class Group(Command, click.Group):
    """Its commands have such a page, too."""

    command_class = Command
