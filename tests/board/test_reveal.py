"""Which places a reveal has come to: by the clock, by the presenter's key, and what its event keeps of both."""

import pytest

from toolkit.board.reveal import (
    EVERY_S,
    Reveal,
    Terms,
    hashed,
    new_secret,
    reveal_of,
    terms_of,
    without_steps,
)
from toolkit.records import Event


def events(*happened: tuple[float, str]) -> list[Event]:
    return [Event(run="r", at=at, kind=kind) for at, kind in happened]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("happened", "expected"),
    [
        ([(1.0, "start"), (2.0, "reveal")], None),
        ([(10.9, "freeze")], None),
        ([(10.9, "freeze"), (99.5, "reveal")], (10, 99.5, 0)),
        # a second freeze hides the reveal before it, with its steps
        ([(10.0, "freeze"), (20.0, "reveal"), (21.0, "uncover"), (30.0, "freeze")], None),
        (
            [
                (10.0, "freeze"),
                (20.0, "reveal"),
                (21.0, "uncover"),
                (30.0, "freeze"),
                (40.0, "reveal"),
            ],
            (30, 40.0, 0),
        ),
        # of two freezes the earlier moment counts, as on the board
        ([(20.0, "freeze"), (10.0, "freeze"), (50.0, "reveal")], (10, 50.0, 0)),
        # written after the reveal, whatever moment it names: the board is frozen
        ([(20.0, "freeze"), (50.0, "reveal"), (30.0, "freeze")], None),
        # a step before a reveal uncovers nothing, and a second reveal does not begin anew
        (
            [
                (1.0, "uncover"),
                (10.0, "freeze"),
                (20.0, "reveal"),
                (21.0, "uncover"),
                (22.0, "reveal"),
                (23.0, "uncover"),
            ],
            (10, 20.0, 2),
        ),
    ],
)
def test_a_reveal_is_known_with_its_freeze_and_its_steps(
    happened: list[tuple[float, str]], expected: tuple[int, float, int] | None
) -> None:
    found = reveal_of(events(*happened))
    assert (found and (found.frozen_s, found.revealed_at, found.uncovered)) == expected


def test_by_the_clock_the_last_place_comes_at_once_and_the_first_at_the_end() -> None:
    reveal = Reveal(frozen_s=10, revealed_at=100.0)
    covered = [list(reveal.covered(100.0 + step * EVERY_S, 4)) for step in range(5)]
    assert covered == [[1, 2, 3], [1, 2], [1], [], []]
    # a clock behind the reveal covers as at its first moment
    assert list(reveal.covered(90.0, 3)) == [1, 2]
    assert list(reveal.covered(100.0, 0)) == []
    slow = Reveal(frozen_s=10, revealed_at=100.0, terms=Terms(every_s=10.0))
    assert [len(slow.covered(at, 4)) for at in (109.9, 110.0, 119.9)] == [3, 2, 2]


def test_by_the_key_nothing_comes_until_it_is_pressed() -> None:
    terms = Terms(every_s=None)
    covered = [
        len(Reveal(frozen_s=10, revealed_at=100.0, terms=terms, uncovered=presses).covered(9e9, 3))
        for presses in range(5)
    ]
    assert covered == [3, 2, 1, 0, 0]
    # of a hundred only the first two, and of one that one
    few = Reveal(frozen_s=10, revealed_at=100.0, terms=Terms(every_s=None, top=2))
    assert [list(few.covered(9e9, places)) for places in (100, 1)] == [[1, 2], [1]]


def test_the_event_keeps_the_terms_and_no_secret_and_readers_see_neither() -> None:
    secret = new_secret()
    terms = Terms(
        every_s=None, rank_by="score", honest=True, window_s=300, presenter=hashed(secret)
    )
    text = terms.written()
    assert terms_of(text) == terms
    assert secret not in text
    # of an earlier release, and of a later one that says more
    assert terms_of("") == Terms()
    assert terms_of('{"every_s": 9, "music": "drums"}') == Terms(every_s=9)

    reveal = Reveal(frozen_s=1, revealed_at=2.0, terms=terms)
    assert reveal.is_presenter(secret)
    assert not any(
        reveal.is_presenter(other) for other in ("", new_secret(), hashed(secret), "\ud800")
    )
    assert not Reveal(frozen_s=1, revealed_at=2.0).is_presenter("")

    noted = [
        Event(run="r", at=1.0, kind="reveal", text=text),
        *events((2.0, "uncover"), (3.0, "stop")),
    ]
    assert [(each.kind, each.text) for each in without_steps(noted)] == [
        ("reveal", ""),
        ("stop", ""),
    ]
