"""`toolkit scout` run as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

KEY_VARIABLE = "TOOLKIT_TEST_REAL_KEY"


def scout(hosts_line: str, folder: Path, *, key: str | None = None) -> dict[str, Any]:
    """Run the command as a user does, with a hosts file, and read its one JSON line."""
    hosts = folder / "hosts.txt"
    hosts.write_text(hosts_line + "\n")
    environment = (
        os.environ
        | {"TOOLKIT_DB": str(folder / "toolkit.db")}
        | ({KEY_VARIABLE: key} if key else {})
    )
    done = subprocess.run(
        [Path(sys.executable).with_name("toolkit"), "scout", hosts, "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1, done.stdout
    return json.loads(done.stdout)


def codes(sighting: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in sighting["findings"]}
