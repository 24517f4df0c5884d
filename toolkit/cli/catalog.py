"""Where profiles are read from: the catalog inside the package, or a file of the user's."""

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from importlib.abc import Traversable

    from toolkit.profiles import Kind, Profile

KINDS: "dict[str, Kind]" = {
    ".toml": "toml",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
"""By the end of a file's name; everything else is one prompt a line. A `.json` is read as JSONL, which refuses one of
many lines: as prompts they would be nonsense."""


def profile_from(word: str) -> "Profile":
    """Read the catalog's profile of this name, else the file."""
    from toolkit.profiles import read_profile

    return read_profile(*profile_source(word))


def profile_source(word: str) -> "tuple[str, str, Kind]":
    """Text, name and kind of the catalog's profile of this name, else of the file."""
    from toolkit.cli.inputs import text_of

    own = shelf("profiles")
    if word in own:
        return own[word].read_text("utf-8"), word, "toml"
    path = Path(word)
    known = f"Known profiles: {', '.join(own)}; or name a file of prompts, e.g., `prompts.txt`"
    if not path.suffix and "/" not in word and not path.exists():
        raise ToolkitError(f"no profile is called `{word}`", known)
    return text_of(word, known), word, KINDS.get(path.suffix.lower(), "text")


def shelf(name: str) -> "dict[str, Traversable]":
    """The catalog's own files of one kind by their names, e.g., `profiles` or `sweeps`."""
    folder = files("toolkit") / "catalog" / name
    return {
        entry.name.removesuffix(".toml"): entry
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".toml")
    }
