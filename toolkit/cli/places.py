"""Where the toolkit keeps its own files, unless the command line names another place, and where its other front ends are."""

import os
import shlex
from pathlib import Path

from toolkit.errors import ToolkitError

PACKAGE = Path(__file__).parents[1]
DATABASE = "data/toolkit.db"
SERVE_FOLDER = "data/serve"
"""Logs, orders, and what is to be known after a crash."""


def words_for(database: Path) -> list[str]:
    """What a command line must say to mean this database: nothing where it is the one meant without a word."""
    usual = os.environ.get("TOOLKIT_DB") or DATABASE
    return [] if database == Path(usual) else ["--db", str(database)]


def command_on(database: Path, *words: str) -> str:
    """`toolkit WORDS` on this database, to be pasted."""
    return shlex.join(["toolkit", *words, *words_for(database)])


def front_end(folder: str, file: str, does: str, package: Path = PACKAGE) -> Path:
    """The file of another front end, e.g., `locustfiles`, `blast.py`, or an example. Raises ToolkitError where it is nowhere; `does`: what it is for.

    A wheel holds those folders as `toolkit/locustfiles`, `toolkit/dashboards` and `toolkit/docs/examples`
    (pyproject.toml); a checkout has them at its top. The package is asked first: beside an installed one lie other people's folders.
    """
    inside = package / folder / file
    beside = package.parent / folder / file
    for path in (inside, beside):
        if path.is_file():
            return path
    raise ToolkitError(
        f"`{inside}` is not there, which {does}",
        "Install the toolkit again: `pip install --force-reinstall --no-deps .` in its checkout",
    )
