"""JSON lines, the data of every verb that has `--json`, sentences as the screen takes them, and files that a verb writes."""

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import click

from toolkit.errors import ToolkitError, reason_of
from toolkit.safe_text import ACTS_ON_A_SCREEN

_ACTS_IN_UTF8 = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
)
"""What ACTS_ON_A_SCREEN has, but for what JSON itself escapes."""


def print_json(record: Mapping[str, Any]) -> None:
    """Print one object on one line at once (echo flushes), so that a reader is never behind."""
    plain = {key: _plain(value) for key, value in record.items()}
    # None: closed, as by `>&-`; a screen that is not Unicode's gets JSON's own escapes
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(json_line(plain, only_ascii=not encoding.lower().startswith("utf")))


def json_line(record: Mapping[str, Any], *, only_ascii: bool = False) -> str:
    """One object: every value as it is. What a screen would act upon stands in JSON's own escapes, not only below U+0020."""
    line = json.dumps(record, ensure_ascii=only_ascii, allow_nan=False)
    return ACTS_ON_A_SCREEN.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def json_for_a_screen(lines: bytes) -> bytes:
    """JSON that a library made in bytes, with the same escapes as `json_line` has."""
    return _ACTS_IN_UTF8.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), lines)


def give_up_output() -> None:
    """Let what is still buffered go nowhere, or the interpreter's end would try it again and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(line: str, *, err: bool = False) -> None:
    """Print a sentence: on a terminal folded between words and commands, in a pipe whole, as other programs read lines."""
    stream = sys.stderr if err else sys.stdout
    is_seen = stream is not None and stream.isatty()
    click.echo(folded(line, shutil.get_terminal_size().columns) if is_seen else line, err=err)


def to_stderr(sentence: str) -> None:
    """Print it on standard error; where nobody reads that any more, what was to be done besides is done all the same."""
    try:
        say(sentence, err=True)
    except (OSError, ValueError):
        # what is buffered would fail once more when the process ends, and make its exit code 120
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def folded(line: str, width: int) -> str:
    """No wider than that where its words allow it; what follows stands below the text behind a title or an arrow.

    What stands in backticks is one word, as a command that is broken cannot be pasted.
    """
    import textwrap

    if len(line) <= width:
        return line
    title = re.match(r"\s*(?:\S(?:.{0,26}?\S)?\s{2,})?(?:-> |- )?", line)
    indent = len(title[0]) if title else 0
    whole = re.sub(r"`[^`]*`", lambda found: found[0].replace(" ", "\0"), line)
    lines = textwrap.wrap(
        whole, width, subsequent_indent=" " * (indent if indent < width // 2 else 2),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(lines).replace("\0", " ")


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity; whole counts read better without `.0`."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value


@contextmanager
def writing(what: str, path: Path, option: str) -> Iterator[None]:
    """Make the file's folder and, when the block has written it, say where it is; `option` names another file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ToolkitError(
            f"the {what.lower()} `{path}` cannot be written: {reason_of(error)}",
            f"Give another file: `{option}`",
        ) from error
    click.echo(f"{what}: {path}", err=True)
