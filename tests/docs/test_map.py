"""CONTRIBUTING's map names every file of the ground floor and of each room; `tests/test_layers.py` holds which side it stands on."""

import re

import pytest
from support.readme import ROOT

TOOLKIT = ROOT / "toolkit"
NOT_ON_IT = {"cli", "catalog"}
"""A verb's folder is as all others; the catalog holds no code."""
MAP = (
    (ROOT / "CONTRIBUTING.md")
    .read_text()
    .partition("\n    toolkit/\n")[2]
    .partition("\nLeft of the bar")[0]
)
ROOMS = sorted(
    folder.name
    for folder in TOOLKIT.iterdir()
    if folder.name not in NOT_ON_IT and any(folder.rglob("*.py"))
)


def room_on_the_map(name: str) -> str:
    """From its name to the next room's: rooms stand six blanks in, what is in them further."""
    _, found, rest = f"\n{MAP}".partition(f"\n      {name}/ ")
    assert found, f"{name} is not on the map"
    return re.split(r"\n {4,6}[a-z]", rest)[0]


def is_named(file: str, words: set[str]) -> bool:
    """Whether it is there, or a word stands for it and its kind: `*_parts`."""
    kinds = [word.replace("*", ".*") for word in words if "*" in word and word.strip("*_")]
    return file in words or any(re.fullmatch(kind, file) for kind in kinds)


@pytest.mark.parametrize("room", ROOMS)
def test_every_file_of_a_room_is_named_there(room: str) -> None:
    words = set(re.findall(r"[a-z_*]+", room_on_the_map(room)))
    files = {file.stem for file in (TOOLKIT / room).rglob("*.py")} - {"__init__"}
    assert {file for file in files if not is_named(file, words)} == set()


def test_every_file_of_the_ground_floor_is_named() -> None:
    floor = set(re.findall(r"[a-z_]+", re.split(r"\n {6}[a-z]+/ ", MAP)[0]))
    files = {file.stem for file in TOOLKIT.glob("*.py")} - {"__init__"}
    assert files - floor == set()
