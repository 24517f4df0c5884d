"""toolkit/board/follow.py over a database that somebody writes to between any two of its readings."""

from collections.abc import Callable
from itertools import islice
from typing import Any

from support.board_reader import RUN, ListReader

from toolkit.board.feed import Feed

LENGTH_S = 400


class Busy:
    """A reader whose database has one more second after each reading: parts and the loader's, at once."""

    def __init__(self, reader: ListReader) -> None:
        self._reader = reader
        self._left = iter(range(LENGTH_S))

    def write(self) -> None:
        for at_s in islice(self._left, 1):
            self._reader.part("alice", at_s, e2e=[100.0])
            self._reader.second(at_s)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        read = getattr(self._reader, name)

        def read_and_write(*words: Any, **more: Any) -> Any:
            found = read(*words, **more)
            self.write()
            return found

        return read_and_write


def test_a_second_is_on_the_board_whole_or_not_at_all() -> None:
    reader = Busy(ListReader("alice"))
    for _ in range(60):
        reader.write()
    feed = Feed(reader, RUN)  # type: ignore[arg-type]
    for _ in range(20):
        feed.refresh()
        # one answer in each second, in every window and from the first look on
        assert [feed.board(window_s=window_s).standings[0].rps for window_s in (1, 10, 50)] == [
            1.0
        ] * 3
        assert {step.rps for step in feed.series("alice", step_s=1).figures} == {1.0}
