"""One value as a language writes it, so that no name in a stack file can end its line, its quotes or its scalar. Pure text.

Each refuses what its language can't carry: above all line ends and control characters.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from toolkit.errors import ToolkitError

Language = Literal["yaml", "compose", "json", "nginx", "systemd", "shell"]
"""`compose` is YAML in which Docker puts variables: its `$` is doubled."""


class Plain(str):
    """Text that is of the language already: it is written as it is."""

    __slots__ = ()


def comment(value: object) -> Plain:
    """Words inside a comment: one line, as they are."""
    return Plain(_one_line(str(value)))


def yaml(value: object) -> str:
    """A scalar, or a list or mapping of them in one line: JSON, which is YAML, too."""
    _refuse_unprintable(value)
    # not in ASCII: a character above U+FFFF would become two escapes, which YAML reads as two broken ones
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def compose(value: object) -> str:
    """YAML for Docker Compose, which would put a variable where `$` stands."""
    return yaml(value).replace("$", "$$")


def yaml_block(text: str, indent: int) -> Plain:
    """Text of several lines as a literal block, each line `indent` spaces deep; `key: {{ text | block(4) }}`."""
    body = text.removesuffix("\n")
    lines = body.split("\n")
    _refuse_unprintable([line.replace("\t", " ") for line in lines])
    # the indicator tells the depth, or a first line that begins with spaces would set it
    chomp = "" if text.endswith("\n") else "-"
    step = _STEP
    head = f"|{step}{chomp}"
    if indent < step or not body.strip() or body.endswith("\n"):
        return Plain(json.dumps(text, ensure_ascii=False))
    return Plain("\n".join([head, *(f"{' ' * indent}{line}" if line else "" for line in lines)]))


def nginx(value: object) -> str:
    """A word of nginx.conf: numbers bare, all else in quotes. `$` begins a variable there and can't be escaped."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float):
        return json.dumps(value, allow_nan=False)
    text = _one_line(_text(value))
    if "$" in text:
        raise ToolkitError(
            f"`{text}` holds a `$`, which nginx reads as a variable", "Leave the `$` out"
        )
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def systemd(value: object) -> str:
    """A word of a command line in a unit: `%` and `$` doubled, in quotes where it is more than letters."""
    text = _one_line(_text(value)).replace("%", "%%").replace("$", "$$")
    return _in_systemd_quotes(text)


def systemd_variable(value: object) -> Plain:
    """A word of a list, e.g., of `Environment=` or of paths, where `$` stands for itself."""
    return Plain(_in_systemd_quotes(_one_line(_text(value)).replace("%", "%%")))


def systemd_text(value: object) -> Plain:
    """A value that is read to its line's end and knows no quotes: Description=, a path."""
    text = _one_line(_text(value)).replace("%", "%%")
    if text.endswith("\\"):
        raise ToolkitError(
            f"`{text}` ends in a backslash, which joins lines in a unit", "Rename it"
        )
    return Plain(text)


def shell(value: object) -> str:
    """A word of a shell's command line."""
    return shlex.quote(_one_line(_text(value)))


QUOTES: dict[Language, Callable[[object], str]] = {
    "yaml": yaml,
    "compose": compose,
    "json": yaml,
    "nginx": nginx,
    "systemd": systemd,
    "shell": shell,
}

_STEP = 2
_SAFE = re.compile(r"[A-Za-z0-9_./:=@,+%$-]+")


def _in_systemd_quotes(text: str) -> str:
    if _SAFE.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return json.dumps(value, allow_nan=False)
    raise TypeError(f"{value!r} is no word")


def _refuse_unprintable(value: object) -> None:
    if isinstance(value, str):
        _one_line(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _refuse_unprintable(key)
            _refuse_unprintable(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            _refuse_unprintable(inner)


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    raise ToolkitError(
        f"{text[:80]!r} is not one line of plain text, and can't stand in a configuration",
        "Take line ends, tabs and invisible characters out of it",
    )
