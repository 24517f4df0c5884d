"""The reference page of all files of settings and their JSON schemas, made from the declarations, so that no key is missing."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit.config_file import TOP, allowed, resolved, schema
from toolkit.profiles import ProfileFile
from toolkit.proxy.config import Settings
from toolkit.serving.stack import Stack
from toolkit.tuning.sweep_file import SweepFile

DOCS = Path(__file__).parents[2] / "docs"
FILES: dict[str, tuple[str, type]] = {
    "proxy": ("The proxy's settings", Settings),
    "stack": ("A stack", Stack),
    "sweep": ("A sweep", SweepFile),
    "profile": ("A load profile", ProfileFile),
}
"""A file's kind: its heading and its declaration."""
HEAD = """# Settings

Every key of every file that the toolkit reads, what it may be, and its default. A duration is `90s`, `15m`,
`1h30m` or a number of seconds; a size is `512MiB`, `8GiB` or a number of bytes; `"none"` is no limit, no end, no file. Keys of
servers and teams stand in variables of the environment, never in a file. An unknown key or a bad value is refused with its
line and with what is allowed. [Example files](examples.md) has one of each kind.

An editor that knows JSON Schema completes and checks such a file: name the schema in its first line, e.g.,
`#:schema ./docs/schemas/proxy.json` for Taplo and Even Better TOML.

<!-- written by `python tests/docs/write_settings.py`, held by tests/docs/test_settings.py -->
"""


def written() -> dict[Path, str]:
    """Every file below docs/ that is made of the declarations, and its text."""
    parts = [HEAD]
    found = {}
    for kind, (title, declared) in FILES.items():
        whole = schema(declared)
        parts.append(f"## {title}\n\n{whole['description']} JSON schema: [{kind}.json](schemas/{kind}.json).\n")  # fmt: skip
        parts += _tables(whole, whole, "")
        titled = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
        text = json.dumps(titled | whole, indent=1, ensure_ascii=False)
        found[DOCS / "schemas" / f"{kind}.json"] = f"{text}\n"
    return {DOCS / "settings.md": "\n".join(parts), **found}


def _tables(part: Mapping[str, Any], whole: Mapping[str, Any], path: str) -> Iterator[str]:
    """Its keys as a table, then each table below it."""
    rows, below = [], []
    for key, value in part["properties"].items():
        found = resolved(value, whole)
        items = resolved(found.get("items", {}), whole)
        name = f"{path}.{key}" if path else key
        if "properties" in items:
            below.append((f"[[{name}]]", items, name))
        elif "properties" in found:
            below.append((f"[{name}]", found, name))
        elif "description" in value:  # else it is another table's, which stands above
            is_needed = key in part.get("required", ())
            cells = (f"`{key}`", _default(value, needed=is_needed), allowed(value), value["description"])  # fmt: skip
            rows.append(f"| {' | '.join(_cell(each) for each in cells)} |")
    if not path:
        yield f"{TOP[0].upper()}{TOP[1:]}:\n"
    yield "\n".join(["| key | default | may be | |", "|---|---|---|---|", *rows, ""])
    for heading, found, name in below:
        yield f"### `{heading}`\n\n{found['description']}\n"
        # a stack's proxy has the keys of the proxy's own file, which stand above
        if found["properties"].keys() != schema(Settings)["properties"].keys():
            yield from _tables(found, whole, name)


def _default(part: Mapping[str, Any], *, needed: bool) -> str:
    """As people write it."""
    if needed:
        return "must be given"
    value = part.get("default")
    kinds = [part, *part.get("anyOf", ())]
    unit = next((each["x-unit"] for each in kinds if "x-unit" in each), None)
    if value is None:
        return '`"none"`' if {"const": "none"} in kinds else ""
    if value in ("", []) or (unit and value < part.get("minimum", value)):
        return ""
    for name, size in {
        "s": (("d", 86400), ("h", 3600), ("m", 60), ("s", 1), ("ms", 0.001)),
        "B": (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)),
        None: (),
    }[unit]:
        # what is said with less than two units: 90s, not 1.5m
        if value >= size and value % size == 0:
            return f'`"{value / size:g}{name}"`'
    return f'`"{value * 1000:g}ms"`' if unit == "s" and value else f"`{json.dumps(value)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
