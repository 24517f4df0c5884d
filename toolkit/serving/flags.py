"""Which flags the installed vLLM has, read from its own help, and what to write for those that it no longer has.

No process is run: the help's text, the catalog's table and the user's flags come in, the command line goes out.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
class KnownFlags:
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


def known(help_text: str) -> KnownFlags:
    """The flags that a help text names."""
    heads = [match[1] for line in help_text.splitlines() if (match := _HEAD.match(line))]
    spelled = [_SPELLING.findall(head.split("  ")[0]) for head in heads]
    # the last spelling carries the value's name: `--port PORT`; `[HF_TOKEN]` may be left out, `['auto', 'hf']` may not
    kinds = [(names, names[-1][1].strip()) for names in spelled if names]

    def those(wanted: Callable[[str], bool]) -> frozenset[str]:
        return frozenset(name for names, value in kinds if wanted(value) for name, _ in names)

    return KnownFlags(
        names=those(lambda _: True),
        valued=those(lambda value: bool(re.match(r"[^\s\[]|\['", value))),
        bare=those(lambda value: not value),
        many=those(lambda value: "..." in value),
    )


def arguments(
    flags: Iterable[tuple[str, Value]], known: KnownFlags, version: str, table: Table
) -> Flags:
    """Write flags as this version reads them. Raises ToolkitError for one that it can't be given."""
    line = _CommandLine(known, version, table)
    for name, value in flags:
        line.write(name.lstrip("-").replace("_", "-"), value)
    for name, document in line.documents.items():
        line.words += [f"--{name}", json.dumps(document)]
    return Flags(argv=tuple(line.words), notes=tuple(line.notes))


def media_words(argv: Sequence[str], hosts: Sequence[str]) -> tuple[str, ...]:
    """From where an engine may fetch what a request names: from `hosts` of the proxy's settings alone, `*` from anywhere.

    Nothing where the user's own flag stands in `argv`.
    """
    told = {word.partition("=")[0].replace("_", "-") for word in argv if word.startswith("--")}
    return () if MEDIA in told or "*" in hosts else (MEDIA, *(hosts or (NOWHERE,)))


class _CommandLine:
    """A command line in the making."""

    def __init__(self, known: KnownFlags, version: str, table: Table) -> None:
        self._known, self._version, self._table = known, version, table
        self.words: list[str] = []
        self.notes: list[str] = []
        self.documents: dict[str, dict[str, Any]] = {}
        """JSON that several old flags fill together, by the flag that takes it."""
        self._shared = {entry["use"] for entry in table["gone"].values() if "json" in entry}

    def write(self, name: str, value: Value) -> None:
        """Add a flag as the help spells it, its opposite, or what it has become."""
        spelled, other = self._spelling(name), self._table["opposites"].get(name)
        if spelled is not None:
            self._write_known(spelled, value)
        elif name.startswith("no-") and isinstance(value, bool):
            self.write(name.removeprefix("no-"), not value)
        elif f"--{other}" in self._known.names:
            given = _WORDS.get(value.strip().lower(), True) if isinstance(value, str) else value
            why = f"is `--{other}` the other way round in vLLM {self._version}"
            self.notes.append(f"`--{name}` {why}")
            self._write_known(f"--{other}", not given)
        elif name in self._table["gone"]:
            self._write_successor(name, value, self._table["gone"][name])
        else:
            raise self._unknown(name)

    def _spelling(self, name: str) -> str | None:
        """As the help spells it: long, short, before the dot of `compilation-config.mode`, or its only continuation."""
        names = self._known.names
        base, dot, rest = name.partition(".")
        for spelled in (f"--{base}", f"-{base}"):
            if spelled in names:
                # what stands behind the dot is a key of vLLM's own JSON, with underscores
                return spelled + dot + rest.replace("-", "_")
        if name in self._table["gone"]:
            return None
        longer = [one for one in names if one.startswith(f"--{name}")]
        if len(longer) != 1:
            return None
        self.notes.append(f"`--{name}` is written in full: `{longer[0]}`")
        return longer[0]

    def _write_known(self, spelled: str, value: Value) -> None:
        name, negation = spelled.removeprefix("--"), f"--no-{spelled.removeprefix('--')}"
        if isinstance(value, str) and negation in self._known.names:
            value = _WORDS.get(value.strip().lower(), value)
        if value is False:
            self.words += [negation] if negation in self._known.names else []
            return
        if value is True:
            if spelled in self._known.valued:
                message = f"the flag `{spelled}` wants a value"
                raise ToolkitError(message, "Give one, e.g., as a string")
            self.words.append(spelled)
            return
        if spelled in self._known.bare:
            raise ToolkitError(f"the flag `{spelled}` takes no value", "Write true or false")
        value = value.strip()
        document = _document(spelled, value)
        if name in self._shared and isinstance(document, dict):
            self.documents.setdefault(name, {}).update(document)
        elif spelled in self._known.many and document is None:
            self.words += [spelled, *value.split()]
        elif value.startswith("-"):
            self.words.append(f"{spelled}={value}")
        else:
            number = _COUNT.fullmatch(value) if name in self._table["counts"] else None
            if number is not None:
                # 32k as 32000, 32K as 32768; anything else as it is, vLLM has the last word
                base = 1000 if number[2].islower() else 1024
                value = str(round(float(number[1]) * base ** _POWERS[number[2].lower()]))
            self.words += [spelled, value]

    def _write_successor(self, name: str, value: Value, entry: Mapping[str, Any]) -> None:
        """Write what a flag that is gone has become."""
        if value is False:
            return
        text = "" if value is True else value.strip()
        given, use, before = f"--{name} {text}".strip(), entry.get("use"), len(self.words)
        if use is None:
            if "needless" in entry and text in entry.get("needless_values", (text,)):
                self.notes.append(f"`{given}` is left out: {entry['needless']}")
                return
            gone = f"which ended with {entry['last']}: {entry['reason']}"
            message = f"vLLM {self._version} has no flag `--{name}`, {gone}"
            raise ToolkitError(message, entry["hint"])
        if f"--{use}" not in self._known.names:
            raise self._unknown(name)
        if "json" in entry:
            put = _put(name, entry["json"], text)
            self.documents.setdefault(use, {}).update(put)
            written = f"--{use} {json.dumps(put)}"
        else:
            became = {use: entry["value"].replace("{}", text)} if "value" in entry else None
            became = became or entry["values"].get(text)
            if became is None:
                message = f"the flag `--{name}` never had the value `{text}`"
                raise ToolkitError(message, f"It had: {', '.join(entry['values'])}")
            for flag, worth in became.items():
                self.write(flag, worth)
            written = " ".join(self.words[before:]) or "nothing"
        self.notes.append(f"`{given}` ended with vLLM {entry['last']}; it is written `{written}`")

    def _unknown(self, name: str) -> ToolkitError:
        since = self._table["since"].get(name)
        long = sorted(one.removeprefix("--") for one in self._known.names if one.startswith("--"))
        near = difflib.get_close_matches(name, long, n=1)
        hint = "`vllm serve --help=all` lists those that it has"
        if near:
            hint = f"Did you mean `{near[0]}`?"
        if since:
            hint = f"It came with vLLM {since}; leave it out, or install that"
        return ToolkitError(f"vLLM {self._version} has no flag `--{name}`", hint)


def _put(name: str, key: str, text: str) -> dict[str, Any]:
    """An old flag's value where the JSON has it."""
    if name == "speculative-model" and text == "[ngram]":
        return {"method": "ngram"}  # the old spelling of no model at all
    if name == "guided-decoding-backend":
        return {key: text.partition(":")[0]}  # `xgrammar:no-fallback`: options once stood behind
    found = _document(f"--{name}", text)
    return {key: int(text) if text.isdecimal() else text if found is None else found}


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
