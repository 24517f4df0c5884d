"""Is one value of a stack file what its key takes? Each check returns the value or raises a ToolkitError that names the key."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

from toolkit import profile_checks as checks
from toolkit.errors import ToolkitError
from toolkit.file_values import choice, duration, one_line, switch, variable, whole
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
SHORTEST_S, LONGEST_S = 0.01, 7 * 86400.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_FLAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def reader(field: str) -> Reader:
    """What reads a field of stack.py's: by its name, where that says more than its unit."""
    return READERS.get(field, _duration if field.endswith("_s") else one_line)


def table(told: Any, where: str) -> Mapping[str, Any]:
    """A table of the file's."""
    if not isinstance(told, Mapping):
        raise ToolkitError(f"{where} is no table", "Write its name in brackets, and its keys below")
    return told


def _duration(told: Any, where: str) -> float:
    return duration(told, where, SHORTEST_S, LONGEST_S)


def _within(low: int, high: int) -> Reader:
    """What reads a whole number within bounds."""
    return lambda told, where: whole(told, where, low, high)


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
    return choice(told, where, get_args(Kind))


def _share(told: Any, where: str) -> float:
    found = checks.share(told, where)
    if not found:
        raise ToolkitError(f"{where} is not a number above 0, up to 1", "A fifth is 0.2")
    return found


def _counts(told: Any, where: str) -> tuple[int, ...]:
    if not isinstance(told, list) or not told:
        raise ToolkitError(f"{where} is no list of whole numbers", "Write, e.g., `[1, 2, 4, 8]`")
    found = tuple(whole(each, where, 1, 4096) for each in told)
    if list(found) != sorted(set(found)):
        raise ToolkitError(f"{where} does not rise from each to the next", "E.g., `[1, 2, 4, 8]`")
    return found


def _gpus(told: Any, where: str) -> str:
    if isinstance(told, int) and not isinstance(told, bool) and told >= 0:
        return str(told)
    return one_line(told, where).replace(" ", "")


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
        # the system ends a variable at a zero byte, and takes none with one
        is_text = isinstance(value, str | int | float) and "\0" not in str(value)
        if isinstance(value, bool) or not is_text:
            raise ToolkitError(f"{where}: `{key}` is not a text", 'Write, e.g., `"1"`')
        found.append((key, str(value)))
    return tuple(found)


READERS: dict[str, Reader] = {
    "name": _label,
    "kind": _kind,
    "model": _model,
    "port": _within(0, 65535),
    "spare_port": _within(0, 65535),
    "flags": _flags,
    "env": _env,
    "gpus": _gpus,
    "key_env": variable,
    "concurrency": _counts,
    "max_tokens": _within(1, 100_000),
    "rounds": _within(1, 100),
    "restarts": _within(0, 1000),
    "tolerance": _share,
    "structured": switch,
    "long_prompts": switch,
}
"""By a field's name, where that says more than its unit."""
