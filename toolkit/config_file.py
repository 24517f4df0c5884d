"""A file of settings in TOML, checked against one declaration -> its record, or one ToolkitError: file, line, key, what is allowed.

A declaration is a frozen dataclass with `__pydantic_config__ = DECLARED`: its annotations are types and limits, its docstrings what the
reference page says (docs/settings.md; `schema` makes it and the JSON schema for editors). Records that code makes itself are not
checked. In a file a field has no unit, for the value bears it: `ttl = "1h"` is `ttl_s`, `memory = "8GiB"` is `memory_bytes`.
"""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import (
    AliasGenerator,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
)

from toolkit.errors import ToolkitError
from toolkit.safe_text import printable
from toolkit.units import bytes_of, seconds_of

T = TypeVar("T")
Loc = tuple[str | int, ...]
"""Keys and, in lists, numbers that lead to a value."""

MOST_TEXT, MOST_LINES = 2**20, 200
"""No line is told in a longer text (characters), nor behind a longer value: each line of one means to parse all of it again."""
TOP = "the top of the file, before the first table"


def name_in_file(field: str) -> str:
    """`ttl_s` and `memory_bytes` are `ttl` and `memory` in a file."""
    return field.removesuffix("_s").removesuffix("_bytes")


DECLARED = ConfigDict(
    extra="forbid",
    use_attribute_docstrings=True,
    alias_generator=AliasGenerator(validation_alias=name_in_file),
)


class FieldError(ValueError):
    """Why a value will not do, as what follows the key's name in a message, and the way out."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.problem, self.hint = problem, hint


# --- kinds of values -------------------------------------------------------------------------------


def _seconds(value: object) -> object:
    return seconds_of(value) or value if isinstance(value, str) else value


def _bytes(value: object) -> object:
    try:
        return bytes_of(value) or value if isinstance(value, str) else value
    except OverflowError:  # hundreds of digits
        return value


def one_line(value: object) -> object:
    """The value, if it is no text or moves no cursor and is not blank. Raises FieldError."""
    if isinstance(value, str) and (not value.strip() or not value.isprintable()):
        raise FieldError("is not one line of text", 'Texts stand in quotes: `"..."`')
    return value


def _none(value: object) -> object:
    return None if isinstance(value, str) and value == "none" else value


Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Switch = Annotated[bool, Strict()]
Count = Annotated[Whole, Field(ge=1, le=1_000_000_000)]
Port = Annotated[Whole, Field(ge=0, le=65535)]
"""0: any free one."""
Duration = Annotated[
    Number,
    BeforeValidator(_seconds),
    Field(json_schema_extra={"type": ["string", "number"], "x-unit": "s"}),
]
"""`90s`, `15m`, or a number of seconds."""
Seconds = Annotated[Duration, Field(ge=0.001, le=3650 * 86400)]
Size = Annotated[
    Whole,
    BeforeValidator(_bytes),
    Field(json_schema_extra={"type": ["string", "integer"], "x-unit": "B"}),
]
"""`8GiB`, or a number of bytes."""
Bytes = Annotated[Size, Field(ge=1, le=2**50)]
Text = Annotated[
    str,
    Strict(),
    BeforeValidator(one_line),
    Field(json_schema_extra={"x-allowed": "one line of text"}),
]
Line = Annotated[
    str,
    Strict(),
    BeforeValidator(lambda value: value and one_line(value)),
    Field(json_schema_extra={"x-allowed": "one line of text"}),
]
"""It may be empty."""
Variable = Annotated[
    # upper case, as all know them: most keys that are put here by mistake are not; and never shown: the value may be the key itself
    str,
    Strict(),
    Field(
        pattern="^[A-Z_][A-Z0-9_]*$",
        json_schema_extra={
            "x-allowed": "the name of an environment variable",
            "x-hint": "Put the secret into a variable and its name here, in upper case",
        },
    ),
]
OrNone = Annotated[T | None, BeforeValidator(_none)]
"""`none` in a file: no limit, no end, no file."""


def described(allowed: str, hint: str, **more: Any) -> Any:
    """For an annotation: what a value of one's own kind may be, in messages and on the reference page, and the way out."""
    return Field(json_schema_extra={"x-allowed": allowed, "x-hint": hint, **more})


# --- reading ---------------------------------------------------------------------------------------


def toml_tables(
    text: str, name: str, hint: str = 'Texts stand in quotes: `ttl = "1h"`'
) -> dict[str, Any]:
    """The tables of a TOML text; `name` is the file's in the ToolkitError, `hint` shows how such a file looks."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        problem = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ToolkitError(f"`{name}` is no TOML: {printable(problem)}", hint) from error


def record(
    declared: type[T],
    tables: Mapping[str, Any],
    where: str,
    *,
    text: str = "",
    over: Mapping[str, Any] | None = None,
) -> T:
    """The record that a file's tables mean, with the command line's `over` them.

    `where` names the file in messages, and `text` is its text, for their lines. Raises ToolkitError for the first mistake.
    """
    over = over or {}
    try:
        found: T = _adapter(declared).validate_python(merged(tables, over))  # type: ignore[arg-type]
    except ValidationError as error:
        # not chained: its inputs may be keys
        raise _first_error(error, declared, where, text, over) from None
    return found


def merged(tables: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with others over them: the tables of both key by key, all else as a whole."""
    both = dict(tables)
    for key, value in over.items():
        there = both.get(key)
        is_table = isinstance(value, Mapping) and isinstance(there, Mapping)
        both[key] = merged(there, value) if is_table else value  # type: ignore[arg-type]
    return both


@cache
def _adapter(declared: Any) -> TypeAdapter[Any]:
    return TypeAdapter(declared)


@cache
def schema(declared: type) -> dict[str, Any]:
    """The JSON schema of a file, with what is our own in keys that begin with `x-`."""
    written: dict[str, Any] = _as_written(_adapter(declared).json_schema())
    return written


LIMITS = {"ge": "minimum", "le": "maximum"}
"""pydantic's names of limits behind a validator of ours, and those of JSON Schema."""


def _as_written(part: Any) -> Any:
    """A part of pydantic's JSON schema, as a TOML file has it: without null, and without titles, which are the keys again."""
    if isinstance(part, list):
        return [_as_written(each) for each in part]
    if not isinstance(part, dict):
        return part
    if part == {"type": "null"}:
        return {"const": "none"}
    return {
        LIMITS.get(key, key): _as_written(value)
        for key, value in part.items()
        if (key, value) != ("default", None) and not (key == "title" and isinstance(value, str))
    }


# --- messages --------------------------------------------------------------------------------------


def _first_error(
    error: ValidationError, declared: type, where: str, text: str, over: Mapping[str, Any]
) -> ToolkitError:
    """The first mistake of a file, a key that nobody knows before all others: it may be why another one is missing."""
    whole, lines = schema(declared), _lines(text)

    def order(found: Any) -> tuple[bool, int]:
        return found["type"] != "unexpected_keyword_argument", _line(found["loc"], lines) or 0

    found: Any = min(error.errors(include_url=False), key=order)
    if _is_in(found["loc"], over):
        where = "the command line"
    elif line := _line(found["loc"], lines):
        where = f"{where} line {line}"
    if found["type"] == "unexpected_keyword_argument":
        return _unknown_key(found["loc"], whole, where)
    here, loc = _at(found["loc"], whole)
    if isinstance(loc[-1], int):  # an entry that is no table
        here, loc = _at(loc[:-1], whole)
    place, key = _place(loc)
    if found["type"] == "missing":
        table = f": {place.removesuffix(': ')}" if place else ""
        return ToolkitError(f"{where}{table} has no `{key}`", _hint(here, key))
    unfit = found.get("ctx", {}).get("error")
    if isinstance(unfit, FieldError):
        joint = ":" if unfit.problem.startswith(("`", "the ")) else ""
        return ToolkitError(f"{where}: {place}`{key}`{joint} {unfit.problem}", unfit.hint)
    if "properties" in resolved(here.get("items", {}), whole):
        return ToolkitError(
            f"{where}: {place}`{key}` is no list of tables", f"Write `[[{key}]]` for each"
        )
    if "properties" in here:
        return ToolkitError(
            f"{where}: {place}`{key}` is no table", f"Write `[{key}]` and its keys below it"
        )
    meant = _nearest(found["input"], here.get("enum", ()))
    hint = f"Did you mean `{meant}`?" if meant else _hint(here, key)
    return ToolkitError(f"{where}: {place}`{key}` is not {allowed(here)}", hint)


def _unknown_key(loc: Loc, whole: Mapping[str, Any], where: str) -> ToolkitError:
    """With where else it would be known, or which one may be meant."""
    key = str(loc[-1])
    place, path = _place(loc)
    table = path.rpartition(".")[0]
    here, _ = _at(loc[:-1], whole)
    if key in (gone := here.get("x-gone", {})):
        return ToolkitError(f"{where}: {place}there is no `{path}` any more", gone[key])
    problem = f"{where}: {place}{f'[{table}]: ' if table else ''}unknown key `{printable(key)}`"
    elsewhere = [name for name, keys in _tables(whole, whole, "") if key in keys]
    if elsewhere:
        return ToolkitError(problem, f"It belongs into {' or '.join(elsewhere)}")
    known = list(here["properties"])
    meant = _nearest(key, known)
    return ToolkitError(
        problem, f"Did you mean `{meant}`?" if meant else f"Known keys: {', '.join(known)}"
    )


def _nearest(word: object, known: Sequence[str]) -> str | None:
    near = difflib.get_close_matches(word, known, n=1) if isinstance(word, str) else []
    return near[0] if near else None


def _place(loc: Loc) -> tuple[str, str]:
    """`upstream 2: ` for an entry of a list of tables, and the path of the key in it."""
    place, names = "", list[str]()
    for step, following in zip(loc, (*loc[1:], None), strict=True):
        if isinstance(step, str):
            names.append(printable(step))
        elif isinstance(following, str):
            place, names = f"{place}{'.'.join(names)} {step + 1}: ", []
    return place, ".".join(names)


def _is_in(loc: Loc, tables: Any) -> bool:
    for step in loc:
        if not isinstance(tables, Mapping):
            return True
        if step not in tables:
            return False
        tables = tables[step]
    return True


def _tables(
    part: Mapping[str, Any], whole: Mapping[str, Any], name: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every table of a file, as a message calls it, and its keys."""
    properties = part.get("properties", {})
    yield f"[{name}]" if name else TOP, properties
    for key, value in properties.items():
        below = resolved(value, whole)
        items = resolved(below.get("items", {}), whole)
        path = f"{name}.{key}" if name else key
        if "properties" in items:
            yield f"[[{path}]]", items["properties"]
        elif "properties" in below:
            yield from _tables(below, whole, path)


def _at(loc: Loc, whole: Mapping[str, Any]) -> tuple[Mapping[str, Any], Loc]:
    """The schema of a value, and the way to it: of a list of plain values the list, of a choice of kinds the choice."""
    here, steps = whole, 0
    for step in loc:
        if isinstance(step, int):
            below = resolved(here.get("items", {}), whole)
            if "properties" not in below:
                break
        elif step in here.get("properties", {}):
            below = resolved(here["properties"][step], whole)
        else:
            break
        here, steps = below, steps + 1
    return here, loc[:steps]


def resolved(part: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a schema with its own definition, and of a table or nothing the table's."""
    for each in (part, *part.get("anyOf", ())):
        if "$ref" in each:
            return {**whole["$defs"][each["$ref"].rpartition("/")[2]], **part}
    return part


def allowed(part: Mapping[str, Any]) -> str:
    """What a value may be, from its schema, e.g., `a whole number from 0 to 65,535`."""
    if "x-allowed" in part:
        return str(part["x-allowed"])
    if "anyOf" in part:
        return " or ".join(allowed(each) for each in part["anyOf"])
    if "const" in part:
        return f"`{part['const']}`"
    if "enum" in part:
        *others, last = (f"`{each}`" for each in part["enum"])
        return f"{', '.join(others)} or {last}"
    kind, unit = part.get("type"), part.get("x-unit", "")
    if kind == "boolean":
        return "`true` or `false`"
    if kind == "string":
        return "a text"
    if kind == "array":
        return f"a list, each entry {allowed(part['items'])}"
    noun = {"s": "a duration", "B": "a size"}.get(unit)
    noun = noun or ("a whole number" if kind == "integer" else "a number")
    high = f" to {_amount(part['maximum'], unit)}" if "maximum" in part else ""
    if "exclusiveMinimum" in part:
        return f"{noun} above {_amount(part['exclusiveMinimum'], unit)}{high and f' and up{high}'}"
    return f"{noun} from {_amount(part['minimum'], unit)}{high or ' on'}"


def _amount(value: float, unit: str) -> str:
    """A limit as people write it."""
    if unit == "s" and 0 < value < 1:
        return f"{value * 1000:g} ms"
    larger = {
        "s": (("d", 86400), ("h", 3600)),
        "B": (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)),
    }
    for name, size in larger.get(unit, ()):
        if value >= size and value % size == 0:
            return f"{value // size:,g} {name}"
    return f"{value:,.12g}{' ' if unit else ''}{unit}"


def _hint(part: Mapping[str, Any], key: str) -> str:
    """The way out, from a value's schema."""
    part = next((each for each in part.get("anyOf", ()) if each != {"const": "none"}), part)
    part = {**part.get("items", {}), **part}
    if "x-hint" in part:
        return str(part["x-hint"])
    if "x-unit" in part:
        return {
            "s": "Write, e.g., `90s`, `15m` or `2h`, or a number of seconds",
            "B": "Write, e.g., `512MiB` or `8GiB`, or a number of bytes",
        }[part["x-unit"]]
    example = {
        "boolean": "true",
        "integer": str(max(part.get("minimum", 1), 1)),
        "array": '["..."]',
    }.get(part.get("type", ""), f'"{part["enum"][0]}"' if "enum" in part else '"..."')
    return f"Write, e.g., `{key.rpartition('.')[2]} = {example}`"


# --- lines -----------------------------------------------------------------------------------------


def _line(loc: Loc, lines: Mapping[Loc, int]) -> int | None:
    """Where a value stands, or the table in which it is missing."""
    return next((lines[loc[:end]] for end in range(len(loc), 0, -1) if loc[:end] in lines), None)


def _lines(text: str) -> dict[Loc, int]:
    """On which line each table and each key of a sound TOML text begins.

    tomllib does not say. But each statement is a TOML text of its own: it is parsed alone, with as many lines as make it whole.
    """
    rows = text.removeprefix("\ufeff").split("\n")
    found: dict[Loc, int] = {}
    newest: dict[Loc, int] = {}  # of each list of tables its last entry
    table: Loc = ()
    at = 0
    while at < len(rows) and len(text) <= MOST_TEXT:
        for length in range(1, MOST_LINES):
            try:
                statement: Any = tomllib.loads("\n".join(rows[at : at + length]))
                break
            except (ValueError, RecursionError):
                continue
        else:
            return found
        is_header = rows[at].lstrip().startswith("[")
        path = () if is_header else table
        while isinstance(statement, dict) and len(statement) == 1:
            ((key, statement),) = statement.items()
            path = (*path, key)
            if is_header and isinstance(statement, list):  # [[key]]
                newest[path] = newest.get(path, -1) + 1
            if path in newest:
                path = (*path, newest[path])
            found.setdefault(path, at + 1)
        if is_header:
            table = path
        at += length
    return found


# --- writing ---------------------------------------------------------------------------------------


def toml_text(tables: Mapping[str, Any]) -> str:
    """A file's text that reads back equal: bare values first, then tables, then lists of tables. Raises TypeError, e.g., of a date."""
    lines, below = [], []
    for key, value in tables.items():
        is_list = isinstance(value, list) and value and all(isinstance(one, dict) for one in value)
        if not is_list and not isinstance(value, dict):
            lines.append(f"{_toml_key(key)} = {_toml_value(value)}")
        for table in value if is_list else [value] if isinstance(value, dict) else []:
            below += ["", f"[[{_toml_key(key)}]]" if is_list else f"[{_toml_key(key)}]"]
            below += [f"{_toml_key(name)} = {_toml_value(one)}" for name, one in table.items()]
    return "".join(f"{line}\n" for line in (*lines, *below))


def _toml_key(name: str) -> str:
    is_bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if is_bare else _toml_value(name)


def _toml_value(value: object) -> str:
    if isinstance(value, str):
        # a basic string, in ASCII: JSON's escapes, but that a character above U+FFFF is one escape, not two halves, and
        # that DEL is escaped, the one control character that JSON lets stand
        escaped = (
            f"\\U{ord(one):08x}"
            if ord(one) > 0xFFFF
            else "\\u007f"
            if one == "\x7f"
            else json.dumps(one)[1:-1]
            for one in value
        )
        return f'"{"".join(escaped)}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):  # Python's `nan` and `inf` are TOML's, too
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_toml_key(key)} = {_toml_value(one)}' for key, one in value.items())}}}"
    raise TypeError(f"`{value}`")
