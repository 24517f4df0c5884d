"""A run of the database, by the id that a command line names."""

from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from toolkit.records import Run
    from toolkit.store import Store


def run_of(store: "Store", run_id: str, database: Path) -> "Run":
    """Look up a run by its id. Raises ToolkitError when there is none."""
    run = store.run(run_id)
    if run is None:
        newest = ", ".join(each.id for each in store.runs(limit=5)) or "none yet"
        raise ToolkitError(
            f"`{database}` has no run `{run_id}`",
            f"Newest runs: {newest}. `toolkit runs` lists all",
        )
    return run
