"""An empty file, and a store of it that knows one run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tallies import RUN

from toolkit.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "toolkit.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as store:
        store.add_run(RUN)
        yield store
