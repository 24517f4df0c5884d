"""Faults are planted, preflight finds them, and the very commands that it prints are pasted into the same shell.

A shell runs all of it, in a mount or network namespace of its own where the fault wants one: the machine stays as it was.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TOOLKIT = str(Path(sys.executable).parent / "toolkit")
# `eval` is what a shell does with a line that is pasted
SCRIPT = """
set -euo pipefail
preflight() { "$TOOLKIT" preflight --json "$@" 2>/dev/null || [ $? -eq 1 ]; }
PLANT
preflight "$@" >"$OUT/before"
"$PYTHON" -c "$PICK" "$OUT/before" "$CHECKS" >"$OUT/fixes"
while IFS= read -r line; do eval "$line" >&2 </dev/null; done <"$OUT/fixes"
SETTLE
preflight "$@" >"$OUT/after"
"""
PICK = """
import json, sys
rows = {row["check"]: row for row in map(json.loads, open(sys.argv[1]))}
for name in sys.argv[2].split():
    print(rows[name]["fix"] or "false")
"""


def _may_unshare() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    done = subprocess.run(["unshare", "--mount", "--net", "true"], check=False, capture_output=True)
    return done.returncode == 0


needs_unshare = pytest.mark.skipif(
    not _may_unshare(),
    reason="makes mount and network namespaces: run it as root with CAP_SYS_ADMIN",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pasted:
    """What preflight said before and after its fixes were pasted, by the check's code."""

    before: Mapping[str, dict[str, Any]]
    after: Mapping[str, dict[str, Any]]
    fixes: tuple[str, ...]


def pasted(
    folder: Path,
    checks: str,
    *options: str,
    plant: str = "",
    settle: str = "",
    inside: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Pasted:
    """Plant faults, look, paste the checks' fixes into the same shell, let them settle, look again."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {
        "OUT": folder,
        "TOOLKIT": TOOLKIT,
        "PYTHON": sys.executable,
        "CHECKS": checks,
        "PICK": PICK,
    }
    script = SCRIPT.replace("PLANT", plant).replace("SETTLE", settle)
    done = subprocess.run(
        [*inside, "bash", "-c", script, "bash", *options],
        cwd=folder,
        env=dict(os.environ if env is None else env)
        | {name: str(each) for name, each in told.items()},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    fixes = tuple((folder / "fixes").read_text().splitlines())
    return Pasted(before=rows(folder / "before"), after=rows(folder / "after"), fixes=fixes)


def rows(path: Path) -> dict[str, dict[str, Any]]:
    return {row["check"]: row for row in map(json.loads, path.read_text().splitlines())}


def until_gone(pid: int) -> str:
    """Shell that waits for a process to end; one whose parent has not yet asked for its code is a zombie."""
    return f"while grep -qs '^State:.[^Z]' /proc/{pid}/status; do :; done"
