"""Where the unique canaries stand."""

from fractions import Fraction

import pytest

from toolkit.blast.canaries import unique_at


def test_of_one_per_cent_every_two_hundredth_request_is_unique_after_two_early_ones() -> None:
    # half of 1 % is 1 of 200: the third one completes the third stretch of 200, at place 599
    places = [unique_at(number, Fraction(1, 100)) for number in range(5)]
    assert places == [1, 4, 599, 799, 999]


def test_without_a_share_there_is_none() -> None:
    assert unique_at(0, Fraction(0)) is None


@pytest.mark.parametrize(
    "share", [Fraction(1, 1000), Fraction(1, 100), Fraction(3, 100), Fraction(1, 2), Fraction(1)]
)
def test_places_rise_and_never_pass_half_of_the_share_but_for_the_first_two(
    share: Fraction,
) -> None:
    places = [unique_at(number, share) or 0 for number in range(200)]
    assert places == sorted(set(places))
    for number, place in enumerate(places):
        assert number + 1 <= max(2, share / 2 * (place + 1))
