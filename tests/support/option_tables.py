"""README's tables of all options, made from click's own objects, so that none is missing and none is told wrong."""

import re

import click
from support.command_lines import every_command

BEGIN = "<!-- options: written by `python tests/docs/write_options.py`, held by tests/docs/test_options.py -->"
END = "<!-- end of options -->"


def tables() -> str:
    """One folded table a command, in the order of `toolkit --help`."""
    parts = [_table(name, command) for name, command in every_command()]
    return "\n".join(part for part in parts if part)


def with_tables(page: str) -> str:
    """The page with the tables between its marks renewed."""
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def _table(name: str, command: click.Command) -> str:
    ctx = click.Context(command, info_name=name, **command.context_settings)
    rows = [_row(param, ctx) for param in command.params if isinstance(param, click.Option)]
    shown = [row for row in rows if row]
    if not shown:
        return ""
    head = f"<details><summary><code>{name}</code></summary>\n\n| option | does |\n|---|---|\n"
    return head + "\n".join(shown) + "\n\n</details>\n"


def _row(option: click.Option, ctx: click.Context) -> str | None:
    record = option.get_help_record(ctx)
    if record is None:
        return None
    names, text = record
    return f"| `{_cell(names)}` | {_cell(text)} |"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")
