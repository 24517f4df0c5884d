"""JSON lines, the data of every verb that has `--json`; sentences as the screen takes them; and what no screen ever gets."""

import json
import math
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import Any, TextIO

import click

from toolkit.wording import ACTS_ON_A_SCREEN, cleaned

_ACTS_IN_UTF8 = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
)
"""What ACTS_ON_A_SCREEN has, but for what JSON itself escapes."""


class CleanedStream:
    """Standard output or error for whatever writes text there: what would act on a terminal is `?`.

    A host, a client and a database choose much of what is shown, and it is shown in hundreds of places; hence it is cleaned
    where all of it passes. Whoever draws with escape sequences of its own asks for `drawing_on`, and cleans what it draws.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write all of it."""
        self.stream.write(cleaned(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write them one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """All else is the stream's own."""
        return getattr(self.stream, name)


@contextmanager
def cleaned_streams() -> Iterator[None]:
    """Whatever is printed in the block is cleaned."""
    before = sys.stdout, sys.stderr
    # None: closed, as by `>&-`
    sys.stdout, sys.stderr = (each and CleanedStream(each) for each in before)
    try:
        yield
    finally:
        # where a reader has gone away, click has put one in their place that fails at no flush: it stays
        if isinstance(sys.stdout, CleanedStream):
            sys.stdout = before[0]
        if isinstance(sys.stderr, CleanedStream):
            sys.stderr = before[1]


def drawing_on(stream: TextIO) -> TextIO:
    """The stream itself, for escape sequences of our own."""
    return stream.stream if isinstance(stream, CleanedStream) else stream


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


def say(line: str, *, err: bool = False) -> None:
    """Print a sentence: on a terminal folded between words, in a pipe whole, as other programs read lines."""
    stream = sys.stderr if err else sys.stdout
    is_seen = stream is not None and stream.isatty()
    click.echo(folded(line, shutil.get_terminal_size().columns) if is_seen else line, err=err)


def folded(line: str, width: int) -> str:
    """No wider than that where its words allow it; what follows stands below the text behind a title or an arrow."""
    import textwrap

    if len(line) <= width:
        return line
    title = re.match(r"\s*(?:\S(?:.{0,26}?\S)?\s{2,})?(?:-> |- )?", line)
    indent = len(title[0]) if title else 0
    lines = textwrap.wrap(
        line, width, subsequent_indent=" " * (indent if indent < width // 2 else 2),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(lines)


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
