"""Flags of an engine in a container image: how its vLLM, which nobody can ask here, spells them, and what they say that others go by.

One version's flags were recorded from its own help. For another one the catalog's table says what was gone and what had not come yet;
what neither knows is passed on as it was given, and said so.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from toolkit.serving.flags import Flags, KnownFlags, Table, Value, arguments

USUAL_MAX_NUM_SEQS = 256
"""vLLM's own on most GPUs; 1,024 on those of 70 GiB and more but the A100."""
_VERSION = re.compile(r"v?(\d+(?:\.\d+)+)")


def value(words: Iterable[str], *names: str) -> str | None:
    """What stands last behind one of these flags, as `vllm serve` reads words; None: none of them is there."""
    return next((word for name, word in reversed(pairs(words)) if name in names), None)


def number(words: Iterable[str], *names: str) -> int | None:
    """What stands last behind one of these flags; None: nothing, or no number."""
    told = value(words, *names)
    return int(told) if told is not None and told.isdecimal() else None


def pairs(words: Iterable[str]) -> list[tuple[str, str]]:
    """Each word and the one behind it; `--flag=value` is both."""
    found = []
    for word in words:
        name, equals, told = word.partition("=")
        is_both = equals and word.startswith("--")
        # vLLM takes `_` for `-` in a flag's name
        name = (name if is_both else word).replace("_", "-") if word.startswith("--") else word
        found += [name, told] if is_both else [name]
    return list(pairwise([*found, ""]))


def version_of(image: str) -> str | None:
    """`vllm/vllm-openai:v0.32.0-cu130` -> `0.32.0`; None: its tag names no version."""
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    match = _VERSION.match(tag)
    return match[1] if match else None


def is_older(image: str, version: str) -> bool:
    """Whether the image's tag names a version before this one: 0.9.2 precedes 0.10."""
    its_own = version_of(image)
    return its_own is not None and _numbers(its_own) < _numbers(version)


def image_arguments(
    flags: Iterable[tuple[str, Value]], image: str, recorded: KnownFlags, version: str, table: Table
) -> Flags:
    """Flags as the image's vLLM reads them, as far as that is known; `recorded` are those of `version`.

    Raises ToolkitError for a flag that it can't be given.
    """
    flags = tuple(flags)
    its_own = version_of(image)
    if its_own == version:
        return arguments(flags, recorded, version, table)
    names = recorded.names
    if its_own is not None:
        # without those that came later, and with those that were still there
        later = [name for name, since in table["since"].items() if is_older(image, since)]
        names -= {f"--{dash}{name}" for name in later for dash in ("", "no-")}
        gone = table["gone"].items()
        names |= {f"--{name}" for name, it in gone if _numbers(it["last"]) >= _numbers(its_own)}
    bases = [name.lstrip("-").replace("_", "-").partition(".")[0] for name in dict(flags)]
    unknown = [f"--{base}" for base in bases if _is_unknown(base, names, table)]
    guessed = replace(recorded, names=names | frozenset(unknown))
    found = arguments(flags, guessed, its_own or version, table)
    passed = f"; passed on as given: {', '.join(f'`{one}`' for one in unknown)}" if unknown else ""
    note = (
        f"`{image}` was not asked for its flags: they were checked against those of vLLM {version}"
        f" and what is known of other versions{passed}"
    )
    return replace(found, notes=(*found.notes, note))


def _is_unknown(base: str, names: frozenset[str], table: Table) -> bool:
    bare = base.removeprefix("no-")
    known = {f"--{base}", f"-{base}", f"--{bare}", f"--{table['opposites'].get(bare)}"} & names
    told = {base, bare} & {*table["gone"], *table["since"]}
    return not (known or told or any(name.startswith(f"--{base}") for name in names))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
