"""The command line of a blast, for tests of what is made of it."""

from pathlib import Path
from typing import Any

from toolkit.cli.blast.options import BlastOptions


def wanted(**changes: Any) -> BlastOptions:
    """One that says nothing but these words."""
    silent: dict[str, Any] = dict.fromkeys(
        "duration users spawn_rate rate profile mix max_tokens model canaries timeout processes resume ca".split()
    )
    usual = {
        "hosts": (),
        "window": 900.0,
        "dry_run": False,
        "no_scout": False,
        "scout_every": 5.0,
        "non_neutral": False,
        "as_json": False,
        "database": Path("data/toolkit.db"),
        "insecure": False,
    }
    return BlastOptions(**(silent | usual | changes))
