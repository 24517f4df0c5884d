"""Is one value of a stack file what its key takes? Each check returns the value or raises a ToolkitError that names the key."""

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from toolkit import profile_checks as checks
from toolkit.errors import ToolkitError
from toolkit.quantities import seconds_of
from toolkit.serving.stack import Kind

Reader = Callable[[Any, str], Any]
"""A value and the words that name its key -> the value as the field has it."""

OWN_FLAGS = {
    "host": "host",
    "port": "port",
    "served-model-name": "served_name",
    "model": "model",
    "api-key": "key_env",
}
"""Flags that a stack says with keys of its own, and those keys."""
KEY_VARIABLE = "VLLM_API_KEY"
"""In which vLLM looks for its key; the stack fills it from the engine's `key_env`."""
LONGEST_S = 7 * 86400.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_FLAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


def reader(field: str) -> Reader:
    """What reads a field of stack.py's: by its name, where that says more than its unit."""
    return READERS.get(field, _duration if field.endswith("_s") else one_line)


def table(told: Any, where: str) -> Mapping[str, Any]:
    """A table of the file's."""
    if not isinstance(told, Mapping):
        raise ToolkitError(f"{where} is no table", "Write its name in brackets, and its keys below")
    return told


def _duration(told: Any, where: str) -> float:
    seconds = seconds_of(told) if isinstance(told, str) else checks.number(told)
    if seconds is None:
        raise ToolkitError(
            f"{where} is no duration", "Write, e.g., `90s`, `15m` or `2h`, or a number of seconds"
        )
    if not 0.01 <= seconds <= LONGEST_S:
        raise ToolkitError(f"{where} is not from 0.01 s to 7 days", "Write, e.g., `30s`")
    return seconds


def one_line(told: Any, where: str) -> str:
    """A text that is not blank and moves no cursor."""
    if not isinstance(told, str) or not told.strip() or not told.isprintable():
        raise ToolkitError(f"{where} is not one line of text", 'Texts stand in quotes: `"..."`')
    return told


def _label(told: Any, where: str) -> str:
    if not isinstance(told, str) or not _NAME.fullmatch(told):
        raise ToolkitError(
            f"{where} is no good name: it stands in file names, metrics and logs",
            "Up to 63 of A-Z, a-z, 0-9, `_`, `.` and `-`, e.g., `qwen`",
        )
    return told


def _model(told: Any, where: str) -> str:
    word = one_line(told, where)
    if word.startswith("-"):
        raise ToolkitError(
            f"{where}: `{word}` is no model", "Name one of Hugging Face's, or a directory"
        )
    return word


def _kind(told: Any, where: str) -> str:
    return _choice(told, where, get_args(Kind))


def _choice(told: Any, where: str, choices: Sequence[str]) -> str:
    if isinstance(told, str) and told in choices:
        return told
    near = difflib.get_close_matches(told, choices, n=1) if isinstance(told, str) else []
    raise ToolkitError(
        f"{where} is none of {', '.join(f'`{one}`' for one in choices)}",
        f"Did you mean `{near[0]}`?" if near else f'Write, e.g., `"{choices[0]}"`',
    )


def _whole(least: int, most: int) -> Reader:
    def read_whole(told: Any, where: str) -> int:
        if isinstance(told, bool) or not isinstance(told, int) or not least <= told <= most:
            raise ToolkitError(
                f"{where} is not a whole number from {least:,} to {most:,}", f"Write, e.g., {least}"
            )
        return told

    return read_whole


def _port(told: Any, where: str) -> int:
    return int(_whole(0, 65535)(told, where))


def switch(told: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(told, bool):
        raise ToolkitError(f"{where} is neither true nor false", "Write `true`, without quotes")
    return told


def _share(told: Any, where: str) -> float:
    found = checks.share(told, where)
    if not found:
        raise ToolkitError(f"{where} is not a number above 0, up to 1", "A fifth is 0.2")
    return found


def _counts(told: Any, where: str) -> tuple[int, ...]:
    one = _whole(1, 4096)
    if not isinstance(told, list) or not told:
        raise ToolkitError(f"{where} is no list of whole numbers", "Write, e.g., `[1, 2, 4, 8]`")
    found = tuple(one(each, where) for each in told)
    if list(found) != sorted(set(found)):
        raise ToolkitError(f"{where} does not rise from each to the next", "E.g., `[1, 2, 4, 8]`")
    return found


def _gpus(told: Any, where: str) -> str:
    if isinstance(told, int) and not isinstance(told, bool) and told >= 0:
        return str(told)
    return one_line(told, where).replace(" ", "")


def _key_variable(told: Any, where: str) -> str:
    if not isinstance(told, str) or not _KEY_VARIABLE.fullmatch(told):
        # never print the word: whoever mistakes this key writes the secret itself there
        raise ToolkitError(
            f"{where} is not the name of an environment variable",
            "Put the secret into a variable and its name here, in upper case",
        )
    return told


def _flags(told: Any, where: str) -> tuple[tuple[str, str | bool], ...]:
    return tuple(
        (flag_name(key, where), _flag(value, f"{where}: `{key}`"))
        for key, value in table(told, where).items()
    )


def flag_name(word: str, where: str) -> str:
    """A flag as `vllm serve` has it, without dashes before it."""
    name = word.lstrip("-").replace("_", "-")
    if not _FLAG.fullmatch(name):
        raise ToolkitError(f"{where}: `{checks.shown(word)}` is no flag", "E.g., `max-model-len`")
    if name in OWN_FLAGS:
        raise ToolkitError(
            f"{where}: `{name}` is said by another key here",
            f"Set the engine's `{OWN_FLAGS[name]}`",
        )
    return name


def _flag(told: Any, where: str) -> str | bool:
    if isinstance(told, bool):
        return told
    if isinstance(told, dict):
        return json.dumps(told)
    if isinstance(told, list) and told and all(isinstance(one, str | int | float) for one in told):
        return " ".join(map(str, told))
    number = checks.number(told)
    if number is not None:
        return str(told)
    return one_line(told, where)


def _env(told: Any, where: str) -> tuple[tuple[str, str], ...]:
    found = []
    for key, value in table(told, where).items():
        if not _VARIABLE.fullmatch(key):
            raise ToolkitError(
                f"{where}: `{checks.shown(key)}` is no variable's name", "E.g., `HF_HOME`"
            )
        if key == KEY_VARIABLE:
            raise ToolkitError(
                f"{where}: a key does not stand in a file",
                f'`export {KEY_VARIABLE}=...`, and `key_env = "{KEY_VARIABLE}"` here',
            )
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ToolkitError(f"{where}: `{key}` is not a text", 'Write, e.g., `"1"`')
        found.append((key, str(value)))
    return tuple(found)


READERS: dict[str, Reader] = {
    "name": _label,
    "kind": _kind,
    "model": _model,
    "port": _port,
    "spare_port": _port,
    "flags": _flags,
    "env": _env,
    "gpus": _gpus,
    "key_env": _key_variable,
    "concurrency": _counts,
    "max_tokens": _whole(1, 100_000),
    "rounds": _whole(1, 100),
    "restarts": _whole(0, 1000),
    "tolerance": _share,
    "structured": switch,
    "long_prompts": switch,
}
"""By a field's name, where that says more than its unit."""
