"""A feed that follows against a full recount: whatever is appended, late, missing, refused or frozen, not one bit may differ."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.blasted import blasted, feed
from support.board_reader import RUN, START_S, ListReader

from toolkit.board.feed import Feed
from toolkit.board.standings import Board
from toolkit.errors import ToolkitError
from toolkit.store import Store

WINDOW_S = 20


def boards(feed: Feed, at_s: int | None) -> list[Board]:
    return [
        feed.board(window_s=window_s, at_s=at_s, rank_by=rank_by, skip_limited=skip)
        for window_s, rank_by, skip in (
            (WINDOW_S, "rps", False),
            (WINDOW_S, "score", True),
            (WINDOW_S, "ttft_p50", False),
            (7, "p95", True),
        )
    ]


def everything(feed: Feed, at_s: int | None) -> list[object]:
    drawn: list[object] = [*boards(feed, at_s), feed.ranks(window_s=WINDOW_S, step_s=10)]
    drawn.append(feed.ranks(window_s=6, rank_by="p95", step_s=2))
    for name in "ab":
        drawn += [feed.series(name), feed.heat(name, step_s=2), feed.sparkline(name)]
        drawn.append(feed.density(name, at_s=at_s))
    return drawn


Step = Callable[[ListReader, list[int]], int | None]
"""Changes the database, and says which second to look at; the list holds the last second written."""


def grown(host: str, seconds: int, values: list[float], errors: int) -> Step:
    def step(reader: ListReader, now: list[int]) -> int | None:
        for _ in range(seconds):
            now[0] += 1
            reader.part(host, now[0], e2e=values, ttft=values[:1], errors=errors)
            reader.second(now[0], limited=errors == 3)
        return None

    return step


def gap(seconds: int) -> Step:
    """Nothing ends, or nobody is there to report."""

    def step(_: ListReader, now: list[int]) -> int | None:
        now[0] += seconds
        return None

    return step


def late(host: str, ago_s: int, value: float) -> Step:
    def step(reader: ListReader, now: list[int]) -> int | None:
        at_s = max(0, now[0] - ago_s)
        reader.part(host, at_s, e2e=[value], errors=1)
        reader.second(at_s, worker="w2", limited=ago_s % 2 == 0)
        return None

    return step


def shown(ago_s: int) -> Step:
    return lambda _, now: START_S + max(0, now[0] - ago_s)


latencies = st.lists(st.floats(0.1, 1e5), max_size=3)
steps = st.lists(
    st.one_of(
        st.builds(grown, st.sampled_from("ab"), st.integers(1, 30), latencies, st.integers(0, 3)),
        st.builds(gap, st.integers(1, 90)),
        st.builds(late, st.sampled_from("ab"), st.integers(0, 60), st.floats(0.1, 1e5)),
        st.builds(shown, st.integers(0, 80)),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(steps)
def test_a_feed_that_follows_says_what_a_fresh_one_counts(taken: list[Step]) -> None:
    reader, now = ListReader("a", "b"), [0]
    feed = Feed(reader, RUN)
    for step in taken:
        at_s = step(reader, now)
        feed.refresh()
        assert everything(feed, at_s) == everything(Feed(reader, RUN), at_s)


def test_a_fresh_board_of_earlier_knows_a_limited_second_that_was_written_last() -> None:
    reader = ListReader("a")
    reader.seconds(1, 60)
    reader.second(0, worker="w2", limited=True)
    reader.part("a", 2, e2e=[5.0])
    assert Feed(reader, RUN).board(window_s=WINDOW_S, at_s=START_S + 10).limited_s == 1


def test_a_late_part_belongs_to_the_windows_that_hold_its_second() -> None:
    reader = ListReader("a")
    reader.seconds(0, 10)
    followed = Feed(reader, RUN)
    followed.board(window_s=5)
    # the window is of seconds 5 to 9
    for second, ok in ((4, 0), (5, 1), (9, 2)):
        reader.part("a", second, e2e=[5.0])
        assert followed.refresh()
        assert followed.board(window_s=5).standings[0].ok == ok


def test_a_refresh_says_whether_there_is_anything_new() -> None:
    reader = ListReader("a")
    reader.seconds(0, 3)
    feed = Feed(reader, RUN)
    assert feed.refresh()
    assert not feed.refresh()
    reader.second(3)
    assert feed.refresh()
    reader.event("mark", 1.5, "a")
    assert feed.refresh()
    reader.end(4)
    assert feed.refresh()
    assert not feed.refresh()


def test_a_window_that_moves_reads_only_what_enters_and_leaves() -> None:
    reader = ListReader("a", "b")
    for second in range(400):
        reader.part("a", second, e2e=[5.0])
    reader.seconds(0, 400)
    feed = Feed(reader, RUN)
    feed.board(window_s=100)
    spans: list[int] = []
    parts = reader.parts

    def noted(run: str, *, from_s: int | None = None, to_s: int | None = None, **more: Any) -> Any:
        if from_s is not None and to_s is not None:
            spans.append(to_s - from_s + 1)
        return parts(run, from_s=from_s, to_s=to_s, **more)

    reader.parts = noted  # type: ignore[method-assign]
    reader.second(400)
    reader.second(401)
    feed.refresh()
    feed.board(window_s=100)
    # two seconds in and two out, for the window now, a minute ago and five minutes ago
    assert sorted(spans) == [2] * 6


def test_a_read_that_fails_loses_and_doubles_nothing() -> None:
    reader = ListReader("a")
    reader.seconds(0, 10)
    reader.part("a", 2, e2e=[5.0])
    feed = Feed(reader, RUN)
    feed.board(window_s=5)
    reader.part("a", 8, e2e=[7.0])
    reader.seconds(10, 12)
    reader.refuse = ToolkitError("locked")
    with pytest.raises(ToolkitError, match="locked"):
        feed.refresh()
    # what it knew is still there to be shown
    reader.refuse = None
    feed.refresh()
    assert feed.board(window_s=5).standings[0].ok == 1
    parts = reader.parts

    def refused(*run: str, from_s: int | None = None, **more: int | None) -> list[object]:
        if from_s == START_S + 7:
            raise ToolkitError("locked")
        return parts(*run, from_s=from_s, **more)  # type: ignore[arg-type, return-value]

    # between reading what enters and what leaves
    reader.parts = refused  # type: ignore[method-assign, assignment]
    reader.second(12)
    feed.refresh()
    with pytest.raises(ToolkitError, match="locked"):
        feed.board(window_s=5)
    reader.parts = parts  # type: ignore[method-assign]
    assert feed.board(window_s=5) == Feed(reader, RUN).board(window_s=5)


def test_a_host_that_joins_is_on_the_board() -> None:
    reader = ListReader("a")
    reader.seconds(0, 10)
    reader.part("a", 2, e2e=[5.0])
    feed = Feed(reader, RUN)
    feed.board()
    feed.ranks()
    reader.hosts |= ListReader("a", "b").hosts
    reader.part("b", 3, e2e=[5.0, 6.0] * 8)
    feed.refresh()
    assert [(each.name, each.ok) for each in feed.board().standings] == [("b", 16), ("a", 1)]
    assert feed.ranks().ranks == {"a": (2,), "b": (1,)}


def test_a_run_that_vanished_is_named() -> None:
    reader = ListReader("a")
    feed = Feed(reader, RUN)
    feed.refresh()
    reader.the_run = None
    with pytest.raises(ToolkitError, match=f"`{RUN.id}` is no longer in the database"):
        feed.refresh()


def test_a_damaged_part_that_enters_a_window_takes_nothing_out_of_it() -> None:
    reader = ListReader("a")
    for second in range(60):
        reader.part("a", second, e2e=[5.0])
    reader.kept[55] = reader.kept[55]._replace(e2e=b"\x01")
    reader.seconds(0, 60)
    feed = Feed(reader, RUN)
    feed.board(window_s=20, at_s=START_S + 50)
    with pytest.raises(ToolkitError, match="damaged"):
        feed.board(window_s=20, at_s=START_S + 55)
    assert feed.board(window_s=20, at_s=START_S + 48).standings[0].ok == 20


class Busy:
    """A reader whose database has one more second after each reading: parts and the loader's, at once."""

    def __init__(self, reader: ListReader) -> None:
        self._reader = reader
        self._left = iter(range(400))

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


@pytest.mark.slow
def test_a_feed_that_follows_a_growing_file_says_what_a_fresh_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "toolkit.db"
    run = blasted(path, hosts=7, seconds=90, ended=False)
    with Store.open(path) as writer, Store.open_readonly(path) as reader:
        followed = Feed(reader, run)
        followed.board(window_s=40)
        followed.ranks(window_s=40)
        for second in range(90, 110):
            feed(writer, run, second)
            assert followed.refresh()
            fresh = Feed(reader, run)
            for rank_by in ("rps", "score"):
                found = followed.board(window_s=40, rank_by=rank_by)
                assert found.at_s == followed.start_s + second
                assert found == fresh.board(window_s=40, rank_by=rank_by)
            assert followed.ranks(window_s=40) == fresh.ranks(window_s=40)
            assert followed.events() == fresh.events()
