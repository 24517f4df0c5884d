"""The sign of life while something is awaited: on a terminal alone, and gone when it is over."""

import io
import sys
import threading

import pytest

from toolkit.cli import waiting
from toolkit.cli.waiting import waiting_for


class Screen(io.StringIO):
    """Standard error as a terminal, or not; it tells when something was written."""

    def __init__(self, *, seen: bool) -> None:
        super().__init__()
        self._seen, self.written = seen, threading.Event()

    def isatty(self) -> bool:
        return self._seen

    def write(self, text: str) -> int:
        count = super().write(text)
        self.written.set()
        return count


def test_a_terminal_is_told_what_is_awaited_and_the_line_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen(seen=True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(waiting, "EVERY_S", 0.001)
    with waiting_for("Looking"):
        assert screen.written.wait(60)
    assert screen.getvalue().startswith("\x1b[2KLooking ... 0 s\r")
    assert screen.getvalue().endswith("\x1b[2K\r")


def test_what_is_over_within_a_second_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(seen=True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(waiting, "EVERY_S", 600.0)
    with waiting_for("Looking"):
        pass
    assert screen.getvalue() == ""


@pytest.mark.parametrize(("seen", "shown"), [(False, True), (True, False)])
def test_a_pipe_and_a_screen_with_a_line_of_its_own_get_nothing(
    seen: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen(seen=seen)
    monkeypatch.setattr(sys, "stderr", screen)
    before = threading.active_count()
    with waiting_for("Looking", shown=shown):
        assert threading.active_count() == before
    assert screen.getvalue() == ""


def test_an_error_in_it_goes_on_and_the_line_goes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(seen=True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(waiting, "EVERY_S", 0.001)

    def interrupted() -> None:
        with waiting_for("Looking"):
            assert screen.written.wait(60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert screen.getvalue().endswith("\x1b[2K\r")
