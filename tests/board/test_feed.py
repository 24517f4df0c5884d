"""What the board of a feed says: windows, missing seconds, ranks, limited seconds, outages, and the other views."""

import pytest
from support.board_reader import RUN, START_S, ListReader

from toolkit.board.feed import Feed
from toolkit.board.standings import Board, Standing
from toolkit.errors import ToolkitError
from toolkit.records import ErrorCount, Tally
from toolkit.stats import Sketch


def feed_of(reader: ListReader) -> Feed:
    return Feed(reader, RUN)


def of(board: Board, name: str) -> Standing:
    return next(each for each in (*board.standings, *board.left_out) if each.name == name)


# windows


def test_a_window_holds_its_seconds_and_no_others() -> None:
    reader = ListReader("a")
    for second in range(100):
        reader.part("a", second, e2e=[10.0 + second], output_tokens=second)
    reader.seconds(0, 100)
    feed = feed_of(reader)
    board = feed.board(window_s=10, at_s=START_S + 49)
    seen = of(board, "a")
    # seconds 40 to 49: ten answers of 50 to 59 ms, 40 + ... + 49 = 445 tokens
    assert (seen.ok, seen.rps, seen.output_tokens_per_s) == (10, 1.0, 44.5)
    oracle = Sketch()
    for second in range(40, 50):
        oracle.add(10.0 + second)
    assert (seen.p50_ms, seen.p95_ms) == (oracle.quantile(0.5), oracle.quantile(0.95))
    assert (seen.window_s, seen.at, board.elapsed_s) == (10, START_S + 49, 10)
    # a moment outside the run is its nearest
    assert feed.board(at_s=START_S + 999).at_s == START_S + 99
    assert feed.board(at_s=START_S - 999).at_s == START_S


def test_a_young_run_is_divided_by_what_it_has_lived_and_a_gap_counts_as_zeros() -> None:
    reader = ListReader("a")
    reader.part("a", 0, e2e=[5.0] * 30)
    reader.seconds(0, 4)
    board = feed_of(reader).board()
    # second 0 to second 3
    assert (board.elapsed_s, of(board, "a").rps) == (4, 7.5)
    reader.part("a", 59, e2e=[5.0] * 30)
    reader.seconds(59, 60)
    assert of(feed_of(reader).board(window_s=60), "a").rps == 1.0


def test_the_window_ends_with_what_all_live_workers_have_reported_and_a_run_with_its_last_second() -> (
    None
):
    reader = ListReader("a")
    reader.seconds(0, 50, worker="w1")
    reader.seconds(0, 48, worker="w2")
    assert feed_of(reader).end_s == START_S + 47
    # one that fell silent more than 5 s ago is not waited for
    reader.seconds(50, 60, worker="w1")
    assert feed_of(reader).end_s == START_S + 59
    reader.seconds(48, 58, worker="w2")
    assert feed_of(reader).end_s == START_S + 57
    reader.end(60)
    assert (feed_of(reader).end_s, feed_of(reader).board().ended) == (START_S + 59, True)


def test_a_run_without_a_second_has_everybody_at_zero() -> None:
    feed = feed_of(ListReader("b", "a"))
    board = feed.board()
    assert board.at_s is None
    assert [(each.rank, each.name, each.rps, each.p95_ms) for each in board.standings] == [
        (1, "a", 0.0, None),
        (1, "b", 0.0, None),
    ]
    assert feed.ranks().times == ()
    assert feed.outages("a")[1] == []


# ranks


def test_rank_changes_are_against_one_and_five_minutes_ago() -> None:
    reader = ListReader("a", "b")
    reader.seconds(0, 400)
    reader.part("a", 10, e2e=[5.0])
    reader.part("b", 390, e2e=[5.0] * 20)
    feed = feed_of(reader)
    # 300 s ago and 60 s ago only a had answered
    assert [(s.name, s.rank, s.rank_change, s.rank_change_5m) for s in feed.board().standings] == [
        ("b", 1, 1, 1),
        ("a", 2, -1, -1),
    ]
    # a minute before second 60 is second 0, the run's first
    for second, change in ((59, None), (60, 0)):
        assert of(feed.board(at_s=START_S + second), "a").rank_change == change


def test_tied_hosts_stand_by_name_whoever_stood_there_before() -> None:
    reader = ListReader("z", "a")
    reader.seconds(0, 200)
    reader.part("z", 10, e2e=[5.0] * 3)
    reader.part("a", 190, e2e=[5.0])
    assert [(each.name, each.rank, each.tied) for each in feed_of(reader).board().standings] == [
        ("a", 1, True),
        ("z", 1, True),
    ]


def test_the_ranks_over_time_are_those_of_the_boards() -> None:
    reader = ListReader("a", "b", "c")
    reader.seconds(0, 137)
    for second in range(0, 137, 3):
        reader.part("abc"[second % 7 % 3], second, e2e=[float(second % 11 + 1)])
    feed = feed_of(reader)
    for rank_by in ("rps", "p95"):
        found = feed.ranks(window_s=40, rank_by=rank_by, step_s=10)
        assert found.times == tuple(range(START_S + 9, START_S + 130, 10))
        for place, at_s in enumerate(found.times):
            board = feed.board(window_s=40, rank_by=rank_by, at_s=at_s)
            expected = {each.name: each.rank for each in board.standings}
            assert {name: line[place] for name, line in found.ranks.items()} == expected


def test_seconds_in_which_the_loader_was_the_limit_are_counted_and_may_be_left_out() -> None:
    reader = ListReader("a", "b")
    for second in range(10):
        reader.part("a", second, e2e=[5.0] * 8)
        reader.part("b", second, e2e=[5.0] * 4)
        reader.second(second, limited=second in (3, 4))
        reader.second(second, worker="w2", limited=second == 4)
    feed = feed_of(reader)
    assert (feed.board().limited_s, feed.board().counted_s) == (2, 10)
    board = feed.board(skip_limited=True)
    assert (board.limited_s, board.counted_s, board.elapsed_s) == (2, 8, 10)
    # 8 s x 8 answers over 8 s, for all hosts alike
    assert [(each.ok, each.rps) for each in board.standings] == [(64, 8.0), (32, 4.0)]
    # the figures of one host alone agree with its row
    assert sum(feed.density("a").counts) == 80
    assert sum(feed.density("a", skip_limited=True).counts) == 64
    # the window itself is as it was, and seconds before the first reading are known, too
    assert of(feed.board(rank_by="p95"), "a").ok == 80
    reader.seconds(10, 200)
    assert feed_of(reader).board().limited_s == 2


# outages


def test_an_outage_that_began_before_the_window_is_known_and_a_restart_that_scout_saw_names_it() -> (
    None
):
    reader = ListReader("a")
    reader.seconds(0, 200)
    for second in range(200):
        down = 100 <= second < 150
        reader.part("a", second, e2e=[] if down else [5.0] * 10, errors=5 if down else 0)
    feed = feed_of(reader)
    (outage,) = of(feed.board(window_s=80), "a").taints
    # the window begins with second 120: 30 s of it are left, 5 errors each
    assert (outage.from_s, outage.in_window_s, outage.errors) == (START_S + 100, 30, 150)
    assert [of(feed.board(window_s=each), "a").tainted_s for each in (80, 40)] == [30, None]

    reader.look("a", 90)
    reader.look("a", 160, started_at=START_S + 149.0)
    feed = feed_of(reader)
    seen = of(feed.board(), "a")
    assert [each.restarted for each in seen.taints] == [True]
    assert [(each.kind, each.at - START_S, each.name) for each in feed.events()] == [
        ("restart", 149, "a")
    ]
    assert [v.code for v in seen.verdicts] == ["not_judged", "restarted"]
    # a board of a moment before the second scrape says what was known then
    before = of(feed.board(at_s=START_S + 158), "a")
    assert [v.evidence for v in before.verdicts] == ["most codes: no canary was sent"]
    assert [each.restarted for each in before.taints] == [False]


def test_a_change_needs_a_scrape_before_it_which_may_be_before_the_run() -> None:
    reader = ListReader("a")
    reader.seconds(0, 30)
    reader.look("a", -60, config_hash="c1")
    reader.look("a", 10, config_hash="c2")
    feed = feed_of(reader)
    assert [each.kind for each in feed.events()] == ["config"]
    assert [v.code for v in of(feed.board(), "a").verdicts] == ["not_judged", "config_drift"]


# other views


def test_outages_count_what_a_worker_tells_late_and_read_settled_seconds_once() -> None:
    reader = ListReader("a")
    usual = {"run": RUN.id, "name": "a", "url": "http://a:8000", "worker": "w1", "kind": "ranked"}

    def count(*seconds: int, **counts: int) -> None:
        reader.counted.extend(
            Tally(**usual, at_s=START_S + each, **counts)  # type: ignore[arg-type]
            for each in seconds
        )

    reader.seconds(0, 1000)
    count(*range(100), *range(120, 1000), ok=5)
    count(*range(100, 120), errors=1)
    feed = feed_of(reader)
    for _ in range(2):
        seconds, found = feed.outages("a")
        assert [(each.from_s - START_S, each.to_s - START_S) for each in found] == [(100, 120)]
        assert (sum(seconds.ok), sum(seconds.errors)) == (980 * 5, 20)
    # 999 s - 300 s is settled: what came later counts, however long nobody asks
    count(750, ok=7)
    reader.seconds(1000, 2000)
    feed.refresh()
    reader.asked_from.clear()
    assert sum(feed.outages("a")[0].ok) == 980 * 5 + 7
    assert reader.asked_from == [START_S + 700]
    # an earlier moment forgets nothing
    assert sum(feed.outages("a", to_s=START_S + 109)[0].ok) == 100 * 5
    assert feed.outages("a", to_s=START_S + 109)[0].end_s == START_S + 110
    assert feed.outages("a", to_s=START_S - 9)[0].ok == ()
    assert sum(feed.outages("a")[0].ok) == 980 * 5 + 7
    assert reader.asked_from[-1] == START_S + 1700


def test_error_kinds_are_those_of_the_window_the_most_frequent_first() -> None:
    reader = ListReader("a")
    reader.seconds(0, 100)
    usual = {"run": RUN.id, "name": "a", "url": "http://a:8000", "worker": "w1", "kind": "ranked"}
    for at_s, kind, count in ((10, "old", 9), (60, "timeout", 2), (70, "http_500", 3)):
        kinds = (ErrorCount(kind=kind, count=count), ErrorCount(kind="timeout", count=1))
        reader.counted.append(
            Tally(**usual, at_s=START_S + at_s, errors=count + 1, error_kinds=kinds)  # type: ignore[arg-type]
        )
    kinds_of_window = feed_of(reader).error_kinds("a", window_s=50)
    assert list(kinds_of_window.items()) == [("timeout", 4), ("http_500", 3)]


def test_a_series_is_of_single_steps_and_heat_and_density_hold_every_answer() -> None:
    reader = ListReader("a")
    reader.seconds(0, 35)
    reader.part("a", 3, e2e=[5.0] * 20, output_tokens=40, errors=1)
    reader.part("a", 25, e2e=[5000.0] * 10, ttft=[9.0])
    feed = feed_of(reader)
    series = feed.series("a")
    # the fourth step has only five seconds
    assert series.times == (START_S, START_S + 10, START_S + 20)
    first, second, third = series.figures
    assert [(step.rps, step.ok, step.errors) for step in series.figures] == [
        (2.0, 20, 1),
        (0.0, 0, 0),
        (1.0, 10, 0),
    ]
    assert (first.output_tokens_per_s, second.output_tokens_per_s) == (4.0, 0.0)
    assert first.p50_ms == pytest.approx(5.0, rel=0.01)
    assert second.p50_ms is None
    assert third.ttft_p95_ms == pytest.approx(9.0, rel=0.01)
    assert feed.sparkline("a", points=2) == [0.0, 1.0]

    heat = feed.heat("a")
    assert [sum(row) for row in heat.counts] == [20, 0, 10]
    assert len(heat.edges_ms) == len(heat.counts[0]) + 1
    assert heat.edges_ms[0] <= 5.0
    assert heat.edges_ms[-1] >= 5000.0
    density = feed.density("a")
    assert (density.counts[0], density.counts[-1], sum(density.counts)) == (20, 10, 30)
    assert density.values_ms[0] == pytest.approx(5.0, rel=0.01)


def test_an_unknown_host_is_an_error_that_names_those_that_are() -> None:
    with pytest.raises(ToolkitError) as error:
        feed_of(ListReader("a", "b")).series("c")
    assert (error.value.message, error.value.hint) == (
        f"`c` is no host of run `{RUN.id}`",
        "Its hosts: a, b",
    )
