"""What the tests of a machine's fitness have in common."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder on the very file system that shared memory is of."""
    place = Path("/dev/shm") / f"toolkit-test-{os.getpid()}-{tmp_path.name}"
    place.mkdir()
    yield place
    for path in place.iterdir():
        path.unlink()
    place.rmdir()
