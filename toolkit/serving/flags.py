"""Which flags the installed vLLM has, read from its own help, and what to write for those that it no longer has.

No process is run: the help's text, the catalog's table and the user's flags come in, the command line goes out.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolkit.errors import ToolkitError

Value = str | bool
"""Of a flag: True stands without a value, False is left out, or written `--no-...` where the flag has that."""
Table = Mapping[str, Any]
"""The catalog's `flags`."""

MEDIA = "--allowed-media-domains"
NOWHERE = "nowhere.invalid"
"""A name that no resolver has (RFC 2606): to vLLM 0.32 an empty list of domains means every one."""

_HEAD = re.compile(r"^  (-{1,2}[A-Za-z].*)$")
_SPELLING = re.compile(r"(?:^|, )(--?[A-Za-z][\w.-]*)([^,]*)")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The flags of one version, dashes included: `--max-model-len`, `--no-enforce-eager`, `-tp`."""

    names: frozenset[str]
    valued: frozenset[str] = frozenset()
    """Those that want a value."""
    bare: frozenset[str] = frozenset()
    """Those that take none."""
    many: frozenset[str] = frozenset()
    """Those that take several words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """A command line's flags, and what was changed on the way, in sentences."""

    argv: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Line:
    """A command line in the making."""

    known: Known
    version: str
    table: Table
    words: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    """JSON that several old flags fill together, by the flag that takes it."""


def known(help_text: str) -> Known:
    """The flags that a help text names."""
    heads = [match[1] for line in help_text.splitlines() if (match := _HEAD.match(line))]
    spelled = [_SPELLING.findall(head.split("  ")[0]) for head in heads]
    # the last spelling carries the value's name: `--port PORT`; `[HF_TOKEN]` may be left out, `['auto', 'hf']` may not
    kinds = [(names, names[-1][1].strip()) for names in spelled if names]

    def those(wanted: Callable[[str], bool]) -> frozenset[str]:
        return frozenset(name for names, value in kinds if wanted(value) for name, _ in names)

    return Known(
        names=those(lambda _: True),
        valued=those(lambda value: bool(re.match(r"[^\s\[]|\['", value))),
        bare=those(lambda value: not value),
        many=those(lambda value: "..." in value),
    )


def arguments(
    flags: Iterable[tuple[str, Value]], known: Known, version: str, table: Table
) -> Flags:
    """Write flags as this version reads them. Raises ToolkitError for one that it can't be given."""
    line = _Line(known, version, table)
    for name, value in flags:
        _write(line, name.lstrip("-").replace("_", "-"), value)
    for name, document in line.documents.items():
        line.words += [f"--{name}", json.dumps(document)]
    return Flags(argv=tuple(line.words), notes=tuple(line.notes))


def media_words(argv: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    """From where an engine may fetch what a request names: from `hosts` of the proxy's settings alone, `*` from anywhere.

    Nothing where the user's own flag stands in `argv`.
    """
    told = {word.partition("=")[0].replace("_", "-") for word in argv if word.startswith("--")}
    return () if MEDIA in told or "*" in hosts else (MEDIA, *(hosts or (NOWHERE,)))


def _write(line: _Line, name: str, value: Value) -> None:
    spelled = _spelling(line, name)
    if spelled is not None:
        _write_known(line, spelled, value)
    elif name.startswith("no-") and isinstance(value, bool):
        _write(line, name.removeprefix("no-"), not value)
    elif f"--{line.table['opposites'].get(name)}" in line.known.names:
        _turn_round(line, name, value)
    elif name in line.table["gone"]:
        _replace(line, name, value, line.table["gone"][name])
    else:
        raise _unknown(line, name)


def _spelling(line: _Line, name: str) -> str | None:
    """As the help spells it: long, short, before the dot of `compilation-config.mode`, or its only continuation."""
    names = line.known.names
    base, dot, rest = name.partition(".")
    for spelled in (f"--{base}", f"-{base}"):
        if spelled in names:
            # what stands behind the dot is a key of vLLM's own JSON, with underscores
            return spelled + dot + rest.replace("-", "_")
    if name in line.table["gone"]:
        return None
    longer = [one for one in names if one.startswith(f"--{name}")]
    if len(longer) != 1:
        return None
    line.notes.append(f"`--{name}` is written in full: `{longer[0]}`")
    return longer[0]


def _write_known(line: _Line, spelled: str, value: Value) -> None:
    negation = f"--no-{spelled.removeprefix('--')}"
    if isinstance(value, str) and negation in line.known.names:
        value = _WORDS.get(value.strip().lower(), value)
    if value is False:
        line.words += [negation] if negation in line.known.names else []
    elif value is True:
        if spelled in line.known.valued:
            raise ToolkitError(f"the flag `{spelled}` wants a value", "Give one, e.g., as a string")
        line.words.append(spelled)
    elif spelled in line.known.bare:
        raise ToolkitError(f"the flag `{spelled}` takes no value", "Write true or false")
    else:
        _write_value(line, spelled, value.strip())


def _write_value(line: _Line, spelled: str, value: str) -> None:
    name = spelled.removeprefix("--")
    document = _document(spelled, value)
    if name in _shared(line.table) and isinstance(document, dict):
        line.documents.setdefault(name, {}).update(document)
    elif spelled in line.known.many and document is None:
        line.words += [spelled, *value.split()]
    elif value.startswith("-"):
        line.words.append(f"{spelled}={value}")
    else:
        line.words += [spelled, _written_out(value) if name in line.table["counts"] else value]


def _shared(table: Table) -> set[str]:
    return {entry["use"] for entry in table["gone"].values() if "json" in entry}


def _document(spelled: str, value: str) -> Any:
    """The JSON of a value that looks like it. Raises ToolkitError where it only looks so."""
    if not value.startswith(("{", "[")):
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        where = f" at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
        raise ToolkitError(
            f"the value of the flag `{spelled}` is no JSON{where}",
            'Names and strings stand in double quotes: {"method": "ngram"}',
        ) from error


def _written_out(value: str) -> str:
    """32k as 32000, 32K as 32768; anything else as it is, vLLM has the last word."""
    match = _COUNT.fullmatch(value)
    if match is None:
        return value
    base = 1000 if match[2].islower() else 1024
    return str(round(float(match[1]) * base ** _POWERS[match[2].lower()]))


def _turn_round(line: _Line, name: str, value: Value) -> None:
    other = line.table["opposites"][name]
    given = _WORDS.get(value.strip().lower(), True) if isinstance(value, str) else value
    line.notes.append(f"`--{name}` is `--{other}` the other way round in vLLM {line.version}")
    _write_known(line, f"--{other}", not given)


def _replace(line: _Line, name: str, value: Value, entry: Mapping[str, Any]) -> None:
    """Write what a flag that is gone has become."""
    text = "" if isinstance(value, bool) else value.strip()
    if value is False:
        return
    if "use" in entry:
        _write_successor(line, name, text, entry)
    elif "needless" in entry and text in entry.get("needless_values", (text,)):
        line.notes.append(f"`{_as_given(name, text)}` is left out: {entry['needless']}")
    else:
        raise ToolkitError(
            f"vLLM {line.version} has no flag `--{name}`, which ended with {entry['last']}: {entry['reason']}",
            entry["hint"],
        )


def _write_successor(line: _Line, name: str, text: str, entry: Mapping[str, Any]) -> None:
    use = entry["use"]
    if f"--{use}" not in line.known.names:
        raise _unknown(line, name)
    before = len(line.words)
    if "json" in entry:
        written = _fill(line.documents.setdefault(use, {}), name, entry["json"], text)
        told = f"--{use} {json.dumps(written)}"
    else:
        for flag, worth in _successors(name, text, entry).items():
            _write(line, flag, worth)
        told = " ".join(line.words[before:]) or "nothing"
    line.notes.append(
        f"`{_as_given(name, text)}` ended with vLLM {entry['last']}; it is written `{told}`"
    )


def _successors(name: str, text: str, entry: Mapping[str, Any]) -> dict[str, str]:
    if "values" not in entry:
        return {entry["use"]: entry["value"].replace("{}", text)}
    if text not in entry["values"]:
        raise ToolkitError(
            f"the flag `--{name}` never had the value `{text}`",
            f"It had: {', '.join(entry['values'])}",
        )
    became: dict[str, str] = entry["values"][text]
    return became


def _fill(document: dict[str, Any], name: str, key: str, text: str) -> dict[str, Any]:
    """Put an old flag's value where the JSON has it; what was put there."""
    if name == "speculative-model" and text == "[ngram]":
        put: dict[str, Any] = {"method": "ngram"}  # the old spelling of no model at all
    elif name == "guided-decoding-backend":
        put = {key: text.partition(":")[0]}  # `xgrammar:no-fallback`: options once stood behind
    else:
        found = _document(f"--{name}", text)
        put = {key: int(text) if text.isdecimal() else text if found is None else found}
    document.update(put)
    return put


def _as_given(name: str, text: str) -> str:
    return f"--{name} {text}".strip()


def _unknown(line: _Line, name: str) -> ToolkitError:
    since = line.table["since"].get(name)
    long = sorted(one.removeprefix("--") for one in line.known.names if one.startswith("--"))
    near = difflib.get_close_matches(name, long, n=1)
    hint = "`vllm serve --help=all` lists those that it has"
    if near:
        hint = f"Did you mean `{near[0]}`?"
    if since:
        hint = f"It came with vLLM {since}; leave it out, or install that"
    return ToolkitError(f"vLLM {line.version} has no flag `--{name}`", hint)
