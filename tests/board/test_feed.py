"""What the board of a feed says: windows, missing seconds, ties on screen, limited seconds, outages, honesty."""

from dataclasses import replace
from typing import Any

import pytest
from support.board_reader import RUN, START_S, ListReader
from support.shots import failed, shot, twin

from toolkit.board.feed import Feed
from toolkit.board.standings import Board, Standing
from toolkit.errors import ToolkitError
from toolkit.records import ErrorCount, RequestRecord, Sighting, Tally
from toolkit.stats import Sketch


def feed_of(reader: ListReader, **more: Any) -> Feed:
    return Feed(reader, RUN, **more)


def names(board: Board) -> list[str]:
    return [each.name for each in board.standings]


def of(board: Board, name: str) -> Standing:
    return next(each for each in (*board.standings, *board.left_out) if each.name == name)


# windows


def test_a_window_holds_its_seconds_and_no_others() -> None:
    reader = ListReader("a")
    for second in range(100):
        reader.part("a", second, e2e=[10.0 + second], output_tokens=second)
    reader.seconds(0, 100)
    board = feed_of(reader).board(window_s=10, at_s=START_S + 49)
    seen = of(board, "a")
    # seconds 40 to 49: ten answers of 50 to 59 ms, 40 + ... + 49 = 445 tokens
    assert (seen.ok, seen.rps, seen.output_tokens_per_s) == (10, 1.0, 44.5)
    oracle = Sketch()
    for second in range(40, 50):
        oracle.add(10.0 + second)
    assert (seen.p50_ms, seen.p95_ms) == (oracle.quantile(0.5), oracle.quantile(0.95))
    assert (seen.window_s, seen.at, board.elapsed_s) == (10, START_S + 49, 10)


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
    board = feed_of(ListReader("b", "a")).board()
    assert board.at_s is None
    assert [(each.rank, each.name, each.rps, each.p95_ms) for each in board.standings] == [
        (1, "a", 0.0, None),
        (1, "b", 0.0, None),
    ]
    assert feed_of(ListReader("a")).ranks().times == ()


def test_a_moment_outside_the_run_is_its_nearest() -> None:
    reader = ListReader("a")
    reader.part("a", 0, e2e=[5.0])
    reader.seconds(0, 30)
    feed = feed_of(reader)
    assert feed.board(at_s=START_S + 999).at_s == START_S + 29
    assert feed.board(at_s=START_S - 999).at_s == START_S


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
    board = feed_of(reader).board()
    assert [(each.name, each.rank, each.tied) for each in board.standings] == [
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


# the load generator


def test_seconds_in_which_the_loader_was_the_limit_are_told_and_may_be_left_out() -> None:
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
    # and the window itself is as it was
    assert of(feed.board(rank_by="p95"), "a").ok == 80


def test_limited_seconds_before_the_first_reading_are_known_too() -> None:
    reader = ListReader("a")
    reader.second(0, limited=True)
    reader.seconds(1, 200)
    assert feed_of(reader).board().limited_s == 1


# outages


def test_an_outage_that_began_before_the_window_is_known_by_the_answers_before() -> None:
    reader = ListReader("a")
    reader.seconds(0, 200)
    for second in range(200):
        down = 100 <= second < 150
        reader.part("a", second, e2e=[] if down else [5.0] * 10, errors=5 if down else 0)
    feed = feed_of(reader)
    (taint,) = of(feed.board(window_s=80), "a").taints
    # the window begins with second 120: 30 s of it are left, 5 errors each
    assert (taint.from_s, taint.in_window_s, taint.errors) == (START_S + 100, 30, 150)
    assert of(feed.board(window_s=80), "a").tainted_s == 30
    assert of(feed.board(window_s=40), "a").tainted_s is None


def test_a_restart_that_scout_saw_names_the_outage() -> None:
    reader = ListReader("a")
    reader.seconds(0, 200)
    for second in range(200):
        down = 100 <= second < 120
        reader.part("a", second, e2e=[] if down else [5.0] * 10, errors=5 if down else 0)
    for at, started in ((90, -500), (130, 119)):
        reader.sightings.append(
            Sighting(
                name="a",
                url="http://a:8000",
                at=START_S + at,
                status="ok",
                started_at=float(START_S + started),
            )
        )
    feed = feed_of(reader)
    seen = of(feed.board(), "a")
    assert [each.restarted for each in seen.taints] == [True]
    assert [(each.kind, each.at - START_S, each.name) for each in feed.events()] == [
        ("restart", 119, "a")
    ]
    # the window ends with the end of second 199, and the last verdicts are of that moment
    assert [v.code for v in seen.verdicts] == ["not_judged", "restarted"]
    assert "1 min 21 s before the end of the window" in seen.verdicts[1].evidence
    # a board of a moment before the second look tells what was known then
    before = of(feed.board(at_s=START_S + 128), "a").verdicts
    assert [(v.code, v.evidence) for v in before] == [
        ("not_judged", "most codes: no canary was sent")
    ]
    assert [t.restarted for t in of(feed.board(at_s=START_S + 128), "a").taints] == [False]


def test_a_change_needs_a_look_before_it_which_may_be_before_the_run() -> None:
    reader = ListReader("a")
    reader.seconds(0, 30)
    for at, config in ((-60, "c1"), (10, "c2")):
        reader.sightings.append(
            Sighting(
                name="a", url="http://a:8000", at=START_S + at, status="ok", config_hash=config
            )
        )
    feed = feed_of(reader)
    assert [each.kind for each in feed.events()] == ["config"]
    assert [v.code for v in of(feed.board(), "a").verdicts] == ["not_judged", "config_drift"]


# honesty


def answered(name: str, slot: int, tokens: int) -> RequestRecord:
    at = float(START_S + slot)
    return shot(
        slot,
        tokens=tokens,
        name=name,
        url=f"http://{name}:8000",
        run=RUN.id,
        planned_at=at,
        finish_reason="stop",
        text_hash=f"{name}{slot}",
        answer_id=f"{name}{slot}",
    )


def with_a_trickster() -> ListReader:
    """Of a minute; the two others are asked twice now and then, take as long again, and their counters hold all."""
    reader = ListReader("short", "b", "c")
    reader.seconds(0, 60, users=3)
    reader.shots = [
        answered(name, slot, 1 if name == "short" else 100)
        for name in ("short", "b", "c")
        for slot in range(40)
    ]
    reader.shots += [
        twin(unique, 1000 + unique.slot, planned_at=START_S + 5.0, sent_at=START_S + 5.0)
        for unique in [each for each in reader.shots if each.slot < 2]
    ]
    for second in range(60):
        for name, count in (("short", 9), ("b", 3), ("c", 2)):
            reader.part(name, second, e2e=[5.0] * count)
            if second % 5 == 0:
                counted = float(count * second)
                reader.look(name, second, requests_total=counted, generation_tokens_total=counted)
    return reader


def test_a_first_token_trick_leads_but_not_on_the_honest_board() -> None:
    feed = feed_of(with_a_trickster())
    assert names(feed.board()) == ["short", "b", "c"]
    assert [v.code for v in of(feed.board(), "short").verdicts] == ["truncated_output"]
    board = feed.board(honest=True)
    assert [(each.name, each.rank) for each in board.standings] == [("b", 1), ("c", 2)]
    assert [(s.name, s.rank, s.left_out, s.ok) for s in board.left_out] == [
        ("short", None, True, 540)
    ]
    # the best of those that are ranked, who stand where they stood among themselves
    assert board.standings[0].score == 1.0
    reader = with_a_trickster()
    reader.seconds(60, 130)
    assert [each.rank_change for each in feed_of(reader).board(honest=True).standings] == [0, 0]
    assert feed.ranks(honest=True).ranks.keys() == {"b", "c"}
    assert feed.ranks().ranks.keys() == {"short", "b", "c"}


def test_an_honest_host_is_called_clean_once_all_was_compared() -> None:
    feed = feed_of(with_a_trickster())
    assert [v.code for v in of(feed.board(), "b").verdicts] == ["clean"]
    (early,) = of(feed.board(at_s=START_S + 15), "b").verdicts
    assert (early.code, early.confidence) == ("not_judged", "high")
    assert early.evidence == (
        "foreign_traffic and hidden_backend: too few looks at its counters so far"
    )
    # until then nobody stands on the honest board, and everybody on the other one
    board = feed.board(at_s=START_S + 15, honest=True)
    assert board.standings == ()
    assert names(feed.board(at_s=START_S + 15)) == ["short", "b", "c"]


def test_two_addresses_of_one_engine_are_told_so_and_accuse_nobody() -> None:
    reader = with_a_trickster()
    reader.sightings = [
        replace(
            each,
            config_hash="same",
            # the engine serves b's three and c's two a second
            requests_total=5.0 * (each.at - START_S),
            generation_tokens_total=5.0 * (each.at - START_S),
        )
        for each in reader.sightings
        if each.name != "short"
    ]
    board = feed_of(reader).board()
    for name, other in (("b", "c"), ("c", "b")):
        found = of(board, name).verdicts
        assert [each.code for each in found] == ["clean", "same_engine"]
        assert found[1].evidence.startswith(f"same engine as {other}: ")
    # started at another time it is another engine, and its counters move by somebody else's requests
    apart = [
        replace(each, started_at=START_S - 100.0) if each.name == "c" else each
        for each in reader.sightings
    ]
    reader.sightings = apart
    assert {v.code for v in of(feed_of(reader).board(), "c").verdicts} == {"foreign_traffic"}


def test_a_short_window_is_judged_with_the_answers_of_two_minutes_but_not_with_their_failures() -> (
    None
):
    reader = with_a_trickster()
    reader.seconds(60, 300)
    of_b = {"name": "b", "url": "http://b:8000", "run": RUN.id}
    reader.shots += [
        failed(100 + second, took_ms=0.1, planned_at=START_S + second, **of_b)
        for second in range(20)
    ]
    feed = feed_of(reader)

    def codes(window_s: int, second: int) -> dict[str, list[str]]:
        board = feed.board(window_s=window_s, at_s=START_S + second)
        return {each.name: [v.code for v in each.verdicts] for each in board.standings}

    # all canaries ended in the first 40 s or so
    short = {"short": ["truncated_output"]}
    assert codes(60, 59) == short | {"b": ["fast_failures"], "c": ["clean"]}
    assert codes(15, 59) == short | {"b": ["clean"], "c": ["clean"]}
    assert codes(15, 250) == {name: ["not_judged"] for name in "short b c".split()}


# other views


def test_error_kinds_are_those_of_the_window_the_most_frequent_first() -> None:
    reader = ListReader("a")
    reader.seconds(0, 100)
    for at_s, kind, count in ((10, "old", 9), (60, "timeout", 2), (70, "http_500", 3)):
        reader.counted.append(
            Tally(
                run=RUN.id,
                name="a",
                url="http://a:8000",
                at_s=START_S + at_s,
                worker="w1",
                kind="ranked",
                errors=count + 1,
                error_kinds=(
                    ErrorCount(kind=kind, count=count),
                    ErrorCount(kind="timeout", count=1),
                ),
            )
        )
    kinds = feed_of(reader).error_kinds("a", window_s=50)
    assert list(kinds.items()) == [("timeout", 4), ("http_500", 3)]


def test_a_series_is_of_single_steps() -> None:
    reader = ListReader("a")
    reader.seconds(0, 35)
    reader.part("a", 3, e2e=[5.0] * 20, output_tokens=40, errors=1)
    reader.part("a", 25, e2e=[50.0] * 10, ttft=[9.0])
    series = feed_of(reader).series("a")
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
    assert feed_of(reader).sparkline("a", points=2) == [0.0, 1.0]


def test_a_heat_strip_and_a_density_hold_every_answer() -> None:
    reader = ListReader("a")
    reader.seconds(0, 20)
    reader.part("a", 3, e2e=[5.0] * 20, ttft=[1.0])
    reader.part("a", 13, e2e=[5000.0] * 10)
    feed = feed_of(reader)
    heat = feed.heat("a")
    assert [sum(row) for row in heat.counts] == [20, 10]
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
