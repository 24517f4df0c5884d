"""`streamlit run dashboards/leaderboard.py` puts that folder on the import path; so do these tests. And a blast to look at."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import streamlit as st
from support import feeder

sys.path.insert(0, str(Path(__file__).parents[2] / "dashboards"))


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the page looks for its database; there is none yet."""
    path = tmp_path / "toolkit.db"
    monkeypatch.setenv("TOOLKIT_DB", str(path))
    # this process's garbage is the test runner's business, and every look is a new one
    monkeypatch.setattr("leaderboard_page.page.keep_quiet", lambda: None)
    monkeypatch.setattr("leaderboard_page.source.EVERY_S", 0.0)
    yield path
    st.cache_resource.clear()


@pytest.fixture
def blast(database: Path) -> Path:
    """A database with support/feeder.py's blast of two minutes."""
    feeder.begin(database, feeder.RUN, started_s=feeder.BEGAN, seconds=feeder.SECONDS)
    return database
