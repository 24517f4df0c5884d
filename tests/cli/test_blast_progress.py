"""The line that tells how far a blast is, and who leads."""

import asyncio
from collections.abc import Sequence

import pytest
from support.standings import standing as standing_of

from toolkit.board.standings import Board, Standing
from toolkit.cli.blast import progress as blast_progress
from toolkit.cli.blast.progress import STARTING, BlastProgress
from toolkit.errors import ToolkitError


def standing(name: str, rank: int, *, rps: float = 1.0, ok: int = 10, errors: int = 0) -> Standing:
    return standing_of(name, rank, rps=rps, ok=ok, errors=errors)


def board(standings: Sequence[Standing], *, limited_s: int = 0) -> Board:
    return Board(
        run="r",
        at_s=10,
        window_s=900,
        elapsed_s=10,
        counted_s=10,
        rank_by="rps",
        honest=False,
        skip_limited=False,
        standings=tuple(standings),
        left_out=(),
        limited_s=limited_s,
        frozen_at_s=None,
        ended=False,
        data_end_s=10,
    )


def line_of(*standings: Standing) -> str:
    """Without how far it is."""
    return (
        BlastProgress(60.0, 4).line(board(standings), 1.0).removeprefix("0:01 of 1:00; 4 users; ")
    )


DEAD = [standing(name, 1, ok=0, errors=5) for name in "abcde"]
FIRST = standing("a", 1, rps=1234.56)


@pytest.mark.parametrize(
    ("standings", "line"),
    [
        ([FIRST, standing("c", 3)], "a leads with 1,234.6 requests/s; 0.0% errors"),
        (
            [FIRST, standing("b", 1), standing("c", 3)],
            "a and 1 more lead with 1,234.6 requests/s; 0.0% errors",
        ),
        # nobody leads before the first answer
        ([standing("a", 1, rps=0.0, ok=0)], "no answer yet; nothing ended yet"),
        ([], "no answer yet; nothing ended yet"),
        # who fails all along is named, up to three
        (DEAD[:2], "no answer yet; no answer from a and b; 100.0% errors"),
        (DEAD, "no answer yet; no answer from a, b, c and 2 more; 100.0% errors"),
        # one that was asked nothing yet, and one that answers now and then
        (
            [standing("f", 1, ok=0), standing("g", 1, ok=1, errors=9)],
            "g leads with 1.0 requests/s; 90.0% errors",
        ),
        # errors are a share of all that ended
        (
            [standing("a", 1, ok=997), standing("b", 2, ok=0, errors=3)],
            "a leads with 1.0 requests/s; no answer from b; 0.3% errors",
        ),
    ],
)
def test_the_line_names_who_leads_and_who_fails(standings: list[Standing], line: str) -> None:
    assert line_of(*standings) == line


def test_the_line_has_it_all() -> None:
    seen = board([standing("a", 1, rps=2.0), standing("b", 2, ok=0, errors=10)], limited_s=3)
    assert BlastProgress(7200.0, 4).line(seen, 61.0) == (
        "1:01 of 2:00:00; 4 users; a leads with 2.0 requests/s; no answer from b; 50.0% errors; "
        "the load generator was the limit in 3 s"
    )


def test_after_its_time_the_line_says_what_it_waits_for() -> None:
    seen = board([standing("a", 1, rps=2.0)])
    assert BlastProgress(90.0, 4).line(seen, 115.0) == (
        "1:30 is over, waiting for the last answers; 4 users; a leads with 2.0 requests/s; 0.0% errors"
    )


def test_without_a_terminal_there_is_a_line_now_and_then_and_a_busy_database_costs_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(blast_progress, "LINE_EVERY_S", 0.0)
    seen = (board([standing("a", 1)]), 10.0)
    looks = iter([None, ToolkitError("locked"), seen, KeyError("over")])

    def look() -> tuple[Board, float] | None:
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    with BlastProgress(60.0, 1) as progress, pytest.raises(KeyError, match="over"):
        asyncio.run(progress.watch(look))
    assert capsys.readouterr().err.splitlines() == [
        STARTING,
        "0:10 of 1:00; 1 user; a leads with 1.0 requests/s; 0.0% errors",
    ]
