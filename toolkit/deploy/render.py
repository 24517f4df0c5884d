"""A template and values -> a file's text, every value quoted for the language that is written; and the files, written below a folder.

A name that a template is not given is an error, never an empty word, and no value can end its line, its quotes or its scalar.
"""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from toolkit.errors import ToolkitError, reason_of

TEMPLATES = Path(__file__).parent / "templates"
SUMS = ".toolkit-deploy.sha256"
"""Of each file that was written, as `sha256sum` prints them and checks them."""
LONGEST = 63
"""Of a DNS label, RFC 1035."""

Language = Literal["yaml", "compose", "promql", "nginx", "systemd", "shell"]
"""`compose` is YAML in which Docker puts variables: its `$` is doubled. `promql` stands in rule files, whose `{{ }}` are Prometheus' own:
a mark is `[[ ]]` there, or a comment that begins with `#:`, so that the file is YAML as it lies there."""


class Plain(str):
    """Text that is of the language already: it is written as it is."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One file to be written."""

    path: str
    """Below `--out`, with `/`."""
    text: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """What one kind of deployment comes to."""

    files: tuple[Rendered, ...]
    next_steps: tuple[str, ...]
    """Commands and sentences for who holds the files now, in order."""


def render(template: str, language: Language, **values: Any) -> str:
    """The text of one file. Raises ToolkitError for a value that the language can't carry."""
    return _environment(language).get_template(template).render(values)


@cache
def _environment(language: Language) -> Environment:
    def quoted(value: Any) -> Any:
        if isinstance(value, StrictUndefined):
            raise TemplateError("a value of a template is not given")
        return value if isinstance(value, Plain) else QUOTES[language](value)

    marks = {
        "variable_start_string": "[[",
        "variable_end_string": "]]",
        "line_statement_prefix": "#:",
    }
    # autoescape is HTML's; `quoted` does the same for each language here
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        finalize=quoted,
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **(marks if language == "promql" else {}),  # type: ignore[arg-type]
    )
    found.globals["plain"] = Plain
    found.filters |= {"comment": comment, "text": systemd_text, "variable": systemd_variable}
    return found


# --- Quotes -------------------------------------------------------------------------------------------


def comment(value: object) -> Plain:
    """Words inside a comment: one line, as they are."""
    return Plain(_one_line(str(value)))


def yaml(value: object) -> str:
    """A scalar, or a list of them in one line: JSON, which is YAML, too."""
    for each in value if isinstance(value, Sequence) and not isinstance(value, str) else (value,):
        if isinstance(each, str):
            _one_line(each)
    # not in ASCII: a character above U+FFFF would become two escapes, which YAML reads as two broken ones
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def compose(value: object) -> str:
    """YAML for Docker Compose, which would put a variable where `$` stands."""
    return yaml(value).replace("$", "$$")


def nginx(value: object) -> str:
    """A word of nginx.conf: numbers bare, all else in quotes. `$` begins a variable there and can't be escaped."""
    if isinstance(value, int | float):
        return json.dumps(value, allow_nan=False)
    text = _one_line(_text(value))
    if "$" in text:
        raise ToolkitError(
            f"`{text}` holds a `$`, which nginx reads as a variable", "Leave the `$` out"
        )
    return _in_quotes(text)


def systemd(value: object) -> str:
    """A word of a command line in a unit: `%` and `$` doubled, in quotes where it is more than letters."""
    text = _one_line(_text(value)).replace("%", "%%").replace("$", "$$")
    return text if _SAFE.fullmatch(text) else _in_quotes(text)


def systemd_variable(value: object) -> Plain:
    """A word of a list, e.g., of `Environment=` or of paths, where `$` stands for itself."""
    return Plain(systemd(value).replace("$$", "$"))


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
    # PromQL's strings are Go's, which know every escape that JSON writes
    "promql": yaml,
    "nginx": nginx,
    "systemd": systemd,
    "shell": shell,
}
_SAFE = re.compile(r"[A-Za-z0-9_./:=@,+%$-]+")


def _in_quotes(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return json.dumps(value, allow_nan=False)
    raise TypeError(f"{value!r} is no word")


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    raise ToolkitError(
        f"{text[:80]!r} is not one line of plain text, and can't stand in a configuration",
        "Take line ends, tabs and invisible characters out of it",
    )


# --- Names that other programs take -------------------------------------------------------------------


def dns_label(word: str, longest: int = LONGEST) -> str:
    """A word as lower case letters, digits and `-`, begun by a letter and ended by none of `-`; a long one is cut, with a mark."""
    plain = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") or "stack"
    if not plain[0].isalpha():
        plain = f"n{plain}"
    if len(plain) <= longest:
        return plain
    # hexadecimal digits that tell apart two long words with the same beginning
    mark = hashlib.sha256(word.encode()).hexdigest()[:6]
    return f"{plain[: longest - 7].rstrip('-')}-{mark}"


def unlike(words: Iterable[str], longest: int = LONGEST) -> tuple[str, ...]:
    """The label of each word, in their order; what two words would share gets a number: `a`, `a-2`."""
    labels = [dns_label(word, longest) for word in words]
    found: list[str] = []
    for label in labels:
        name, number = label, 1
        while name in found or (number > 1 and name in labels):
            number += 1
            ending = f"-{number}"
            name = f"{label[: longest - len(ending)].rstrip('-')}{ending}"
        found.append(name)
    return tuple(found)


def address(host: str, port: int) -> str:
    """Where something listens or is asked: an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- Files --------------------------------------------------------------------------------------------


def write(rendered: Sequence[Rendered], out: Path, *, force: bool = False) -> list[Path]:
    """Write those that were not there or have changed, once none of them would replace what is not ours. Raises ToolkitError.

    Not ours is a file that was not written here, or was changed since: sums stand beside the files.
    """
    try:
        # a line that is no sum is passed over
        lines = (_bytes(out / SUMS) or b"").decode(errors="replace").splitlines()
        sums = {
            path: known for known, mark, path in (each.partition("  ") for each in lines) if mark
        }
        changed: dict[Path, Rendered] = {}
        for each in rendered:
            place = _place(out, each.path)
            there = _bytes(place)
            if there == each.text.encode():
                continue
            known = sums.get(each.path)
            if not (force or there is None or _sum(there) == known):
                what = (
                    "was changed since it was written"
                    if known
                    else "is there, and not from `deploy`"
                )
                raise ToolkitError(
                    f"`{place}` {what}",
                    "Move it away, name another --out, or replace it with --force",
                )
            changed[place] = each
        for place, each in changed.items():
            _put(place, each.text.encode(), each.mode)
        sums |= {each.path: _sum(each.text.encode()) for each in rendered}
        listed = "".join(f"{sums[path]}  {path}\n" for path in sorted(sums))
        _put(out / SUMS, listed.encode(), 0o644)
    except OSError as error:
        raise ToolkitError(
            f"`{error.filename or out}` can't be written: {reason_of(error)}",
            "Name another folder with --out",
        ) from error
    return list(changed)


def _place(out: Path, path: str) -> Path:
    """A file's place below `out`. Raises ToolkitError for one that would leave it, by its name or through a link."""
    pure = PurePosixPath(path)
    place = out.joinpath(*pure.parts)
    is_inside = not pure.is_absolute() and ".." not in pure.parts and pure.parts
    if not is_inside or not place.resolve().is_relative_to(out.resolve()):
        raise ToolkitError(
            f"`{path}` does not lie below `{out}`", "Is a link in the way? Name another --out"
        )
    return place


def _put(place: Path, content: bytes, mode: int) -> None:
    """Whole or not at all: who reads it meanwhile sees the old one or the new one."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        # with its mode from the beginning: what only its owner may read was never open to others
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:  # noqa: PTH123
            os.fchmod(file.fileno(), mode)
            file.write(content)
        part.replace(place)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _bytes(place: Path) -> bytes | None:
    try:
        return place.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
