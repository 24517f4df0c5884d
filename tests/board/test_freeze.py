"""What may be seen, by the order in which freezes and reveals were written."""

import pytest

from toolkit.board.standings import frozen_at_s
from toolkit.records import Event, EventKind

Written = list[tuple[EventKind, float]]


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
def test_only_a_reveal_lifts_a_freeze(written: Written, seen: int | None) -> None:
    assert frozen_at_s(Event(at=at, kind=kind) for kind, at in written) == seen
