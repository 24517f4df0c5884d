"""What setup.py and pyproject.toml pack: every package, and the load's own file and the page, which are mapped into the wheel.

tests/long/test_plain_install.py builds and installs it.
"""

import re
import runpy
import tomllib
from pathlib import Path

import pytest
import setuptools

from toolkit.cli.places import front_end

ROOT = Path(__file__).parents[2]
TOPS = ("toolkit", "locustfiles", "dashboards", "docs/examples")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKED = PROJECT["tool"]["setuptools"]


def test_the_version_is_the_changelogs_newest_and_the_images() -> None:
    version = PROJECT["project"]["version"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest[1] in {version, "Unreleased"}
    template = ROOT / "toolkit" / "deploy" / "templates" / "compose" / "Dockerfile.j2"
    assert f"}}}}=={version}\n" in template.read_text()


def test_every_python_that_is_named_is_one_that_is_let_in() -> None:
    named = [
        line.rpartition(" ")[2]
        for line in PROJECT["project"]["classifiers"]
        if line.startswith("Programming Language :: Python :: 3.")
    ]
    assert named == ["3.11", "3.12", "3.13"]
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.14"


def folders_with_code() -> set[str]:
    """As packages of the wheel: a folder of toolkit/ by its own name, the other front ends below `toolkit`."""
    found = set()
    for top in TOPS:
        for file in (ROOT / top).rglob("*.py"):
            parts = file.parent.relative_to(ROOT).parts
            found.add(".".join(parts if top == "toolkit" else ("toolkit", *parts)))
    return found


def test_every_folder_with_code_is_packed_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, list[str]] = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    assert sorted(given["packages"]) == sorted(folders_with_code())


def test_every_file_that_is_no_code_is_packed_but_pictures() -> None:
    packed = set()
    for package, patterns in PACKED["package-data"].items():
        parts = package.split(".")
        # the other front ends' folders lie at the top of the checkout
        folder = ROOT.joinpath(*(parts if parts == ["toolkit"] else parts[1:]))
        for pattern in patterns:
            packed |= {file for file in folder.glob(pattern) if file.is_file()}
    present = {
        file
        for top in TOPS
        for file in (ROOT / top).rglob("*")
        if file.is_file() and file.suffix not in {".py", ".pyc", ".png"}
    }
    assert present == packed


@pytest.mark.parametrize("place", ["inside", "beside"])
def test_a_front_end_is_found_inside_an_installed_package_and_beside_a_checkouts(
    place: str, tmp_path: Path
) -> None:
    package = tmp_path / "toolkit"
    file = (package if place == "inside" else tmp_path) / "locustfiles" / "blast.py"
    file.parent.mkdir(parents=True)
    file.touch()
    assert front_end("locustfiles", "blast.py", "makes the load", package) == file


def test_an_installed_package_takes_its_own_file_and_not_a_strangers_beside_it(
    tmp_path: Path,
) -> None:
    for folder in (tmp_path, tmp_path / "toolkit"):
        (folder / "dashboards").mkdir(parents=True)
        (folder / "dashboards" / "leaderboard.py").touch()
    found = front_end("dashboards", "leaderboard.py", "is the leaderboard", tmp_path / "toolkit")
    assert found == tmp_path / "toolkit" / "dashboards" / "leaderboard.py"
