"""Where the toolkit keeps its own files, unless the command line names another place."""

import os
import shlex
from pathlib import Path

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
