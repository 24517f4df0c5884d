"""What the tests of the commands share."""

import math

import pytest

from toolkit.cli import waiting


@pytest.fixture(autouse=True)
def no_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command inside the test's own process says nothing of its waiting, however slow a busy machine makes it."""
    monkeypatch.setattr(waiting, "LONG_S", math.inf)
    monkeypatch.setattr(waiting, "PIPE_EVERY_S", 600.0)
