"""`toolkit scout` run as a user runs it."""

from pathlib import Path
from typing import Any

from contract.harness.programs import rows, run

KEY_VARIABLE = "TOOLKIT_TEST_REAL_KEY"


def scout(hosts_line: str, folder: Path, *, key: str | None = None) -> dict[str, Any]:
    """Run the command with a hosts file of this line; its one object."""
    (folder / "hosts.txt").write_text(hosts_line + "\n")
    own = {"TOOLKIT_DB": str(folder / "toolkit.db")} | ({KEY_VARIABLE: key} if key else {})
    done = run("scout", "hosts.txt", "--json", cwd=folder, env=own)
    assert done.returncode == 0, done.stderr
    (found,) = rows(done.stdout)
    return dict(found)


def codes(sighting: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in sighting["findings"]}
