"""Where the load's own file and the leaderboard page are: inside the package where it was installed, beside it in a checkout."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
REINSTALL = "Install the toolkit again: `pip install --force-reinstall --no-deps .` in its checkout"


def front_door(folder: str, file: str, package: Path = PACKAGE) -> Path:
    """The file of a front door, e.g., `locustfiles`, `blast.py`; where it should be if it is nowhere.

    A wheel holds those folders as `toolkit/locustfiles` and `toolkit/dashboards` (pyproject.toml); a checkout has
    them at its top. The package is asked first: beside an installed one lie other people's folders.
    """
    inside = package / folder / file
    beside = package.parent / folder / file
    return beside if beside.is_file() and not inside.is_file() else inside
