"""Named ways to start an engine, from the catalog, and the user's own flags over them. It reads no file."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.errors import ToolkitError

Table = Mapping[str, Any]
"""The catalog's `presets`."""
Value = str | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One of them."""

    flags: Mapping[str, Value]
    engines: tuple[Mapping[str, Any], ...] = ()
    """Where it is several: each as a `[[engine]]` of a stack file, its flags whole. None: it is one, the user's own."""


def preset(name: str, table: Table) -> Preset:
    """The preset of this name. Raises ToolkitError for one that nobody knows."""
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        known = f"Known presets: {', '.join(table)}"
        raise ToolkitError(
            f"no preset is called `{name}`", f"Did you mean `{near[0]}`? {known}" if near else known
        )
    entry = table[name]
    flags: Mapping[str, Value] = entry["flags"]
    engines = tuple(
        {**engine, "flags": over(flags, engine.get("flags", {}).items())}
        for engine in entry.get("engines", ())
    )
    return Preset(flags=flags, engines=engines)


def over(flags: Mapping[str, Value], own: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    """A preset's flags with the user's own over them, however these are spelled."""
    merged = dict(flags)
    for name, value in own:
        plain = name.lstrip("-").replace("_", "-")
        merged.pop(plain, None)
        merged.pop(plain.removeprefix("no-"), None)
        merged.pop(f"no-{plain}", None)
        merged[plain] = value
    return merged
