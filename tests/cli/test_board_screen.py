"""How the board looks: on a narrow screen, with odd names, before the first second, while it is late."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from support.blasted import blasted
from support.board_reader import RUN, START_S, ListReader
from support.screens import on_a_terminal

from toolkit.board.feed import Feed
from toolkit.board.standings import Board
from toolkit.cli.board.table import heading, picture
from toolkit.records import Event, Verdict

PROGRAM = [sys.executable, "-c", "from toolkit.cli import main; main()", "board"]


def board_of(*names: str, seconds: int = 200) -> Board:
    reader = ListReader(*names)
    reader.seconds(0, seconds)
    for place, name in enumerate(names):
        for second in range(seconds):
            reader.part(name, second, e2e=[100.0 * (place + 1)], ttft=[10.0])
    return Feed(reader, RUN).board()


def shown(board: Board, width: int = 200, **more: object) -> str:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(picture(board, console, **more))  # type: ignore[arg-type]
    return captured.get()


def test_a_narrow_screen_keeps_rank_host_rate_and_tail() -> None:
    told = shown(board_of("alice", "bob"), 50)
    assert max(map(len, told.splitlines())) <= 50
    titles = next(line for line in told.splitlines() if "host" in line).split()
    assert {"#", "host", "req/s", "p95", "errors"} <= set(titles)
    assert "score" not in titles


def test_tied_hosts_bear_a_mark_and_share_their_rank() -> None:
    rows = [line.split()[:2] for line in shown(board_of("alice", "bob")).splitlines()]
    assert ["=1", "alice"] in rows
    assert ["=1", "bob"] in rows


def test_a_name_is_no_markup() -> None:
    assert "[red]evil" in shown(board_of("[red]evil"))


def test_quantiles_of_few_answers_are_marked_as_unsure() -> None:
    few, many = shown(board_of("alice", seconds=129)), shown(board_of("alice", seconds=130))
    assert "ms?" in few
    assert "?: not enough answers to judge the percentile" in few
    assert "ms?" not in many


def test_a_run_without_a_second_says_so() -> None:
    assert heading(Feed(ListReader("a"), RUN).board()).plain == f"run {RUN.id}: no data yet"


@pytest.mark.parametrize(("late_s", "style"), [(2, "green"), (9, "yellow"), (40, "red")])
def test_old_data_is_coloured(late_s: int, style: str) -> None:
    told = heading(board_of("a"), now=START_S + 200.0 + late_s)
    assert f", {late_s} s ago" in told.plain
    assert style in [str(span.style) for span in told.spans]


def test_an_ended_run_has_no_age_and_a_frozen_one_does_not_tell_that_it_ended() -> None:
    ended = replace(board_of("a"), ended=True)
    assert ", ended" in heading(ended, now=START_S + 900.0).plain
    assert "ago" not in heading(ended, now=START_S + 900.0).plain
    assert ", ended" not in heading(replace(ended, frozen_at_s=START_S + 199)).plain


def test_only_events_of_the_window_are_told() -> None:
    events = [
        Event(name="a", url="u", at=START_S + at, kind="mark", text=f"at {at}")
        for at in (50.0, 150.0, 250.0)
    ]
    told = shown(replace(board_of("a"), window_s=100), events=events)
    assert "a: mark at 150.0" in told
    assert "at 50.0" not in told
    assert "at 250.0" not in told


def test_why_a_host_was_not_judged_is_told_and_who_was_is_clean() -> None:
    why = "foreign_traffic and hidden_backend: nobody has looked at its counters"
    unread = Verdict(code="not_judged", confidence="high", evidence=why)
    board = board_of("alice", "bob")
    told = shown(
        replace(board, standings=tuple(replace(e, verdicts=(unread,)) for e in board.standings))
    )
    words = "foreign traffic and hidden backend: nobody has looked at its counters"
    assert f"not judged  alice, bob: {words}" in told
    clean = Verdict(code="clean", confidence="medium", evidence="nothing speaks against it")
    judged = tuple(replace(each, verdicts=(clean,)) for each in board.standings)
    assert "not judged" not in shown(replace(board, standings=judged))


def test_a_terminal_is_drawn_anew(tmp_path: Path) -> None:
    path = tmp_path / "toolkit.db"
    blasted(path, hosts=6, seconds=60)
    told = on_a_terminal([*PROGRAM, "--watch", "--count", "1", "--db", str(path)], columns=140)
    assert "memory" in told
    assert "plain-05" in told
