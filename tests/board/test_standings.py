"""What a freeze hides, by the order in which freezes and reveals were written; and a board as a spreadsheet."""

import csv
import io

import pytest
from support.standings import board, standing, verdict

from toolkit.board.standings import csv_of, frozen_at_s
from toolkit.records import Event, EventKind


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ([], None),
        ([("mark", 5.0)], None),
        ([("freeze", 100.9)], 100),
        # the second one would show more than the first one hid
        ([("freeze", 100.0), ("freeze", 200.0)], 100),
        ([("freeze", 200.0), ("freeze", 100.0)], 100),
        ([("freeze", 100.0), ("reveal", 150.0)], None),
        # written after the reveal, whatever moment it names
        ([("freeze", 100.0), ("reveal", 150.0), ("freeze", 120.0)], 120),
    ],
)
def test_only_a_reveal_lifts_a_freeze(
    written: list[tuple[EventKind, float]], seen: int | None
) -> None:
    assert frozen_at_s(Event(at=at, kind=kind) for kind, at in written) == seen


def test_a_spreadsheet_has_a_line_a_host_whole_numbers_codes_and_empty_unknowns() -> None:
    odd = 'a,"b"\nc'
    found = (verdict("restarted"), verdict("config_drift"))
    shown = board(
        standing("b", 1, rps=12.345678, score=None, p95_ms=1234.5, verdicts=found),
        standing(odd, 2),
        left_out=(standing("trick", None, left_out=True),),
        honest=True,
    )
    keys = ("rank", "name", "rps", "score", "p95_ms", "verdicts")
    first, second, last = csv.DictReader(io.StringIO(csv_of(shown, keys)))
    assert first == {
        "rank": "1",
        "name": "b",
        "rps": "12.345678",
        "score": "",
        "p95_ms": "1234.5",
        "verdicts": "restarted config_drift",
    }
    assert tuple(first) == keys
    assert second["name"] == odd
    assert (last["rank"], last["name"]) == ("", "trick")
