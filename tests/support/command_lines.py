"""Whether click would take a command line, without running it: names, arity and values of options; files need not exist."""

from collections.abc import Iterator, Sequence

import click

from toolkit.cli import main

PLACEHOLDER = "..."
"""Stands for what a text leaves out."""


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Each command and subcommand with its name as it is typed, in the order of `--help`."""
    yield from _below("toolkit", main, click.Context(main, info_name="toolkit"))


def _below(
    name: str, command: click.Command, ctx: click.Context
) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for word in command.list_commands(ctx):
            below = command.get_command(ctx, word)
            assert below is not None, f"{name} lists `{word}` and has it not"
            yield from _below(f"{name} {word}", below, click.Context(below, ctx, info_name=word))


def complaint(arguments: Sequence[str], *, whole: bool = True) -> str | None:
    """What click has against these arguments of `toolkit`; None: nothing. `whole`: nothing that is required may be missing."""
    words = [word for word in arguments if word != PLACEHOLDER]
    if "-h" in words or "--help" in words:
        return None
    try:
        _take(main, words, None, "toolkit", whole=whole)
    except click.BadOptionUsage as error:
        # prose may name an option without what goes with it
        return error.format_message() if whole else None
    except click.UsageError as error:
        return error.format_message()
    return None


def _take(
    command: click.Command, words: list[str], above: click.Context | None, name: str, *, whole: bool
) -> None:
    ctx = click.Context(command, above, info_name=name)
    if isinstance(command, click.Group):
        words = _words_of_default(command, ctx, words)
    values, left, order = command.make_parser(ctx).parse_args(args=list(words))
    for param in order:
        _take_value(param, values.get(param.name or ""), ctx)
    if whole:
        for param in command.params:
            if param.required and param.value_is_missing(values.get(param.name or "")):
                raise click.MissingParameter(param=param, ctx=ctx)
    if isinstance(command, click.Group) and left:
        word, below, rest = command.resolve_command(ctx, list(left))
        assert below is not None
        _take(below, rest, ctx, word or "", whole=whole)


def _words_of_default(command: click.Group, ctx: click.Context, words: list[str]) -> list[str]:
    """A group that runs something by default puts that word before what is no word of its own."""
    if "run" in command.commands and (not words or words[0] not in command.list_commands(ctx)):
        return ["run", *words]
    return words


def _take_value(param: click.Parameter, value: object, ctx: click.Context) -> None:
    """Convert it as click would, but for files, which are there only when a reader made them."""
    if isinstance(param, click.Option) and (param.is_flag or param.count):
        return
    if isinstance(param.type, click.Path | click.File) or value is None:
        return
    given = value if isinstance(value, list | tuple) else [value]
    for one in given:
        if isinstance(one, str) and PLACEHOLDER not in one and not one.isupper():
            param.type.convert(one, param, ctx)
