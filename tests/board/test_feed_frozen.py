"""A frozen board leaks nothing: every view is the one of a run that had stopped there."""

import threading
from typing import Any

from support.board_reader import RUN, START_S, ListReader
from support.shots import shot

from toolkit.board.feed import Feed
from toolkit.records import ErrorCount, Sighting, Tally

FREEZE_S = 73


def reader_of(seconds: int, *, frozen: bool = False) -> ListReader:
    """A run of two hosts; b overtakes a, fails and restarts after second FREEZE_S."""
    reader = ListReader("a", "b")
    reader.event("start", 0.0)
    if frozen:
        reader.event("freeze", FREEZE_S + 0.5)
    for second in range(seconds):
        late = second > FREEZE_S
        reader.part("a", second, e2e=[5.0 + second % 3], ttft=[1.0])
        reader.part("b", second, e2e=[9.0] * (7 if late else 0) + [8.0], errors=9 * late)
        reader.second(second, limited=late)
        reader.counted.append(tally(second, late=late))
        if second % 5 == 0:
            reader.sightings.append(look(second, late=late))
            reader.shots += [canary(name, second, late=late) for name in "ab"]
    if seconds > FREEZE_S + 10:
        reader.event("mark", FREEZE_S + 5.0, "b", "bigger batch")
    return reader


def tally(second: int, *, late: bool) -> Tally:
    kinds = (ErrorCount(kind="timeout", count=1 + late),)
    least = {"run": RUN.id, "name": "b", "url": "http://b:8000", "worker": "w1", "kind": "ranked"}
    return Tally(**least, at_s=START_S + second, errors=1 + late, error_kinds=kinds)  # type: ignore[arg-type]


def look(second: int, *, late: bool) -> Sighting:
    started = float(START_S + (FREEZE_S + 1 if late else -100))
    url, at = "http://b:8000", float(START_S + second)
    return Sighting(
        name="b", url=url, at=at, status="ok", started_at=started, config_hash=f"c{late}"
    )


def canary(name: str, second: int, *, late: bool) -> Any:
    return shot(
        second,
        name=name,
        url=f"http://{name}:8000",
        tokens=1 if late and name == "b" else 100,
        planned_at=float(START_S + second),
    )


def views(feed: Feed) -> dict[str, object]:
    """All that anybody can ask for."""
    board = feed.board(window_s=50)
    found: dict[str, object] = {"standings": board.standings, "end": feed.end_s}
    found |= {"limited": board.limited_s, "at": board.at_s, "data": board.data_end_s}
    beyond = START_S + 500
    found["late"] = feed.board(window_s=50, at_s=beyond).standings
    found["honest"] = feed.board(window_s=50, honest=True).standings
    found["ranks"] = feed.ranks(window_s=50, rank_by="p95")
    for name in "ab":
        found[f"series {name}"] = feed.series(name, step_s=2, to_s=beyond)
        found[f"sparkline {name}"] = feed.sparkline(name, at_s=beyond)
        found[f"heat {name}"] = feed.heat(name, to_s=beyond)
        found[f"density {name}"] = feed.density(name, at_s=beyond)
        found[f"errors {name}"] = feed.error_kinds(name, at_s=beyond)
    found["events"] = [each for each in feed.events() if each.kind != "freeze"]
    return found


def test_every_view_of_a_frozen_run_is_that_of_one_that_stopped_there() -> None:
    stopped = views(Feed(reader_of(FREEZE_S + 1), RUN))
    frozen = views(Feed(reader_of(150, frozen=True), RUN))
    open_ = views(Feed(reader_of(150), RUN))
    for what, expected in stopped.items():
        assert frozen[what] == expected, what
        # a view that does not move could not leak
        # (nobody is on the honest board: there are no twins, and no counters)
        if what not in ("density a", "errors a", "sparkline a", "heat a", "honest"):
            assert open_[what] != expected, what


def test_a_board_that_is_frozen_while_it_is_followed_goes_back_to_that_second() -> None:
    reader = reader_of(150)
    feed = Feed(reader, RUN)
    views(feed)
    reader.event("freeze", FREEZE_S + 0.5)
    feed.refresh()
    assert views(feed) == views(Feed(reader_of(150, frozen=True), RUN))
    assert feed.frozen_at_s == feed.board().frozen_at_s == START_S + FREEZE_S
    reader.event("reveal", 149.0)
    feed.refresh()
    assert feed.end_s == START_S + 149
    assert feed.board().frozen_at_s is None


def test_who_holds_the_database_sees_everything_and_that_it_is_frozen() -> None:
    feed = Feed(reader_of(150, frozen=True), RUN, everything=True)
    assert views(feed) == views(Feed(reader_of(150), RUN))
    assert feed.board().frozen_at_s == START_S + FREEZE_S


def test_a_freeze_before_the_first_second_shows_nobody_anything() -> None:
    reader = reader_of(50)
    reader.event("freeze", -1.0)
    board = Feed(reader, RUN).board()
    assert (board.at_s, board.data_end_s) == (None, None)
    assert {each.ok for each in board.standings} == {0}


def test_threads_that_share_a_feed_see_whole_boards() -> None:
    reader = ListReader("a", "b")
    reader.seconds(0, 50)
    feed = Feed(reader, RUN)
    torn: list[object] = []
    stop = threading.Event()

    def look_on() -> None:
        while not stop.is_set():
            board = feed.board(window_s=20)
            # a and b answer the same in every second, so they are level at any moment
            if len({each.ok for each in board.standings}) > 1:
                torn.append(board)

    viewers = [threading.Thread(target=look_on) for _ in range(4)]
    for viewer in viewers:
        viewer.start()
    for second in range(50, 90):
        for name in "ab":
            reader.part(name, second, e2e=[5.0] * (second % 4))
        reader.second(second)
        feed.refresh()
    stop.set()
    for viewer in viewers:
        viewer.join()
    assert torn == []
    assert feed.board(window_s=20) == Feed(reader, RUN).board(window_s=20)
