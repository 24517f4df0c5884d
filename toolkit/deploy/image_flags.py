"""How flags are written for the vLLM in a container image, which nobody can ask here. It runs nothing and reads no file.

One version's flags were recorded from its own help. For another one the catalog's table says what was gone and what had not come yet;
what neither knows is passed on as it was given, and said so.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from toolkit.serving.flags import Flags, Known, Table, Value, arguments

_VERSION = re.compile(r"v?(\d+(?:\.\d+)+)")


def version_of(image: str) -> str | None:
    """`vllm/vllm-openai:v0.32.0-cu130` -> `0.32.0`; None: its tag names no version."""
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    match = _VERSION.match(tag)
    return match[1] if match else None


def image_arguments(
    flags: Iterable[tuple[str, Value]], image: str, recorded: Known, version: str, table: Table
) -> Flags:
    """Flags as the image's vLLM reads them, as far as that is known; `recorded` are those of `version`.

    Raises ToolkitError for a flag that it can't be given.
    """
    flags = tuple(flags)
    its_own = version_of(image)
    if its_own == version:
        return arguments(flags, recorded, version, table)
    names = recorded.names if its_own is None else _names_at(its_own, recorded.names, table)
    unknown = [f"--{base}" for base in map(_base, dict(flags)) if _is_unknown(base, names, table)]
    guessed = replace(recorded, names=names | frozenset(unknown))
    found = arguments(flags, guessed, its_own or version, table)
    return replace(found, notes=(*found.notes, _note(image, version, unknown)))


def precedes(one: str, other: str) -> bool:
    """Whether a version is older than another: 0.9.2 precedes 0.10."""
    return _numbers(one) < _numbers(other)


def _names_at(version: str, names: frozenset[str], table: Table) -> frozenset[str]:
    """The recorded names without those that came later, and with those that were still there."""
    later = {name for name, since in table["since"].items() if precedes(version, since)}
    there = {
        f"--{name}" for name, gone in table["gone"].items() if not precedes(gone["last"], version)
    }
    return names - {f"--{dash}{name}" for name in later for dash in ("", "no-")} | there


def _is_unknown(base: str, names: frozenset[str], table: Table) -> bool:
    bare = base.removeprefix("no-")
    told: tuple[Mapping[str, object], ...] = (table["gone"], table["since"])
    spellings = {f"--{base}", f"-{base}", f"--{bare}"}
    if spellings & names or any(bare in one or base in one for one in told):
        return False
    if f"--{table['opposites'].get(bare)}" in names:
        return False
    return not any(name.startswith(f"--{base}") for name in names)


def _base(name: str) -> str:
    return name.lstrip("-").replace("_", "-").partition(".")[0]


def _note(image: str, version: str, unknown: list[str]) -> str:
    passed = f"; passed on as given: {', '.join(f'`{one}`' for one in unknown)}" if unknown else ""
    return (
        f"`{image}` was not asked for its flags: they were checked against those of vLLM {version}"
        f" and what is known of other versions{passed}"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
