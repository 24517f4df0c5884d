"""The sign of life while something is awaited: a line that moves on a terminal, a line now and then in a pipe, steps as they are done."""

import io
import sys
import threading
from types import SimpleNamespace

import pytest

from toolkit.cli import waiting
from toolkit.cli.waiting import Waiting, fitted, waiting_for
from toolkit.safe_text import cleaned_streams, moving_line


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


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: what is shown ends in `0 s`."""
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: 0.0))


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


def test_a_pipe_gets_whole_lines_and_nothing_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(seen=False)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(waiting, "PIPE_EVERY_S", 0.001)
    with waiting_for("Looking", ["alice", "bob"]) as looking:
        looking.done("alice")
        assert screen.written.wait(60)
    assert "\x1b" not in screen.getvalue()
    first = screen.getvalue().splitlines()[0]
    assert first.startswith("Looking: ")
    assert first.endswith(" ... 0 s")


@pytest.mark.parametrize("seen", [True, False])
def test_what_is_over_soon_says_nothing(seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(seen=seen)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(waiting, "EVERY_S", 600.0)
    monkeypatch.setattr(waiting, "PIPE_EVERY_S", 600.0)
    with waiting_for("Looking"):
        pass
    assert screen.getvalue() == ""


@pytest.mark.parametrize(
    ("seen", "options"), [(True, {"shown": False}), (False, {"shown": False}), (False, {"endless": True})]
)  # fmt: skip
def test_a_screen_with_a_line_of_its_own_and_an_endless_log_get_nothing(
    seen: bool, options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen(seen=seen)
    monkeypatch.setattr(sys, "stderr", screen)
    before = threading.active_count()
    with waiting_for("Looking", **options):
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


def test_the_line_names_who_is_not_done_and_what_else_there_is() -> None:
    looking = Waiting("Looking", ["alice", "bob", "carol", "dave", "erin"])
    assert looking.line() == "Looking: 0 of 5 done, not yet alice, bob, carol and 2 more ... 0 s"
    looking.done("bob")
    looking.figures = lambda: "7 requests/s"
    assert looking.line() == (
        "Looking: 7 requests/s; 1 of 5 done, not yet alice, carol, dave and 1 more ... 0 s"
    )
    # of one there is nothing to count
    assert Waiting("Looking", ["alice"]).line() == "Looking ... 0 s"


def test_who_has_waited_long_hears_of_each_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looking = Waiting("Looking", ["alice", "bob", "carol"])
    looking.done("bob", "ok")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(waiting, "LONG_S", 0.0)
    looking.done("alice", "connection refused")
    looking.done("alice", "connection refused")
    assert capsys.readouterr().err == "alice: connection refused (2 of 3)\n"


def test_what_else_is_printed_takes_the_moving_lines_place(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Screen(seen=True)
    monkeypatch.setattr(sys, "stdout", terminal)
    moving_line.draw(terminal, "Looking ... 7 s")
    with cleaned_streams():
        print("bob: down")
    assert terminal.getvalue() == "\x1b[2KLooking ... 7 s\r\x1b[2K\rbob: down\n"


@pytest.mark.parametrize(
    ("width", "fits"),
    [
        (29, "listen on: 20, 2024, top: 8af"),
        (28, "listen on: 20, 2024, top …"),
        (22, "listen on: 20, 2024 …"),
        (18, "listen on: 20 …"),
        (10, "listen …"),
        (5, "…"),
    ],
)
def test_a_line_too_long_for_the_screen_never_ends_in_half_a_number(width: int, fits: str) -> None:
    shown = fitted("listen on: 20, 2024, top: 8af", width)
    assert shown == fits
    assert len(shown) <= width
