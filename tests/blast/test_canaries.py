"""Where the unique canaries stand, and which of them are stored whole."""

from fractions import Fraction

import pytest

from toolkit.blast.canaries import CanarySampling, unique_at


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


def test_after_the_first_few_one_pair_in_five_seconds_is_stored_whole() -> None:
    keeping = CanarySampling(5.0)
    # the first four however soon, the fourth at 100.3; then one 4.6 s later is too soon, and one 5 s later is not
    moments = (100.0, 100.1, 100.2, 100.3, 100.4, 104.9, 105.3)
    began = [keeping.begins(2 * number, at) for number, at in enumerate(moments)]
    assert began == [True, True, True, True, False, False, True]
    assert [keeping.completes(2 * number) for number in range(len(moments))] == began


def test_a_twin_that_ends_after_later_pairs_began_is_stored_with_its_unique() -> None:
    keeping = CanarySampling(5.0)
    # a host that takes 20 s: the twin of slot 0 is on its way while three more uniques end
    began = [keeping.begins(slot, at) for slot, at in ((0, 20.0), (2, 26.0), (4, 32.0), (6, 38.0))]
    assert began == [True, True, True, True]
    assert keeping.completes(0)
    assert not keeping.completes(0), "a twin is stored once"
