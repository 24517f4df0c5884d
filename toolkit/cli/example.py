"""`toolkit example`: a file to begin with, written where nothing is yet."""

import shlex
from pathlib import Path

import click

from toolkit.cli.help_page import Command
from toolkit.cli.output import writing
from toolkit.cli.places import front_end
from toolkit.errors import ToolkitError

CHECKED_BY = {
    "hosts.txt": "toolkit scout {}",
    "profile.toml": "toolkit blast hosts.txt --profile {} --dry-run",
    "prompts.toml": "toolkit bench hosts.txt --profile {}",
    "prompts.jsonl": "toolkit bench hosts.txt --profile {}",
    "stack.toml": "toolkit serve {} --check",
    "proxy.toml": "toolkit proxy --config {} --check",
    "sweep.toml": "toolkit sweep {} --dry-run",
}
"""The command that takes each, once it holds what is yours; a file's name goes into the braces."""


@click.command(
    "example", cls=Command, short_help="Write a file to begin with: hosts, profile, stack, proxy."
)
@click.argument("name", metavar="NAME", type=click.Choice(list(CHECKED_BY)))
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="File to write; `-` prints it.  [default: its name, in this folder]",
)
def command(name: str, output: str | None) -> None:
    """Write an example file, with comments that explain its lines, into this folder: NAME is hosts.txt,
    profile.toml (a load), prompts.toml or prompts.jsonl, stack.toml, proxy.toml or sweep.toml. A file that is
    there already is never written over.

    \b
      toolkit example hosts.txt
      toolkit example stack.toml -o contest.toml
      toolkit example proxy.toml -o -
    """
    text = front_end("docs/examples", name, "is the example").read_text("utf-8")
    if output == "-":
        click.echo(text, nl=False)
        return
    path = Path(output or name)
    with writing("Example", path, "--output"):
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError as error:
            other = shlex.quote(f"other{path.suffix}")
            raise ToolkitError(
                f"`{path}` is there already, and stays as it is",
                f"Write it elsewhere: `toolkit example {name} -o {other}`; `-o -` prints it",
            ) from error
    check = CHECKED_BY[name].format(shlex.quote(str(path)))
    click.echo(f"Put in what is yours, then: {check}", err=True)
