"""What our headers say of an answer (RFC 9111, RFC 9211)."""

from hypothesis import given, settings
from hypothesis import strategies as some

from toolkit.proxy.headers import age, cache_status


def test_a_hit_says_how_long_it_stays_fresh() -> None:
    assert cache_status(ttl_s=59.9) == b"toolkit; hit; ttl=59"
    assert cache_status() == b"toolkit; hit"
    # without end: what RFC 9111 takes for that
    assert cache_status(ttl_s=float("inf")) == b"toolkit; hit; ttl=2147483648"
    # gone stale a moment ago
    assert cache_status(fwd="stale", ttl_s=-0.2) == b"toolkit; fwd=stale; ttl=-1"


def test_a_miss_says_what_upstream_answered_and_what_became_of_it() -> None:
    stored = cache_status(fwd="miss", fwd_status=200, stored=True, collapsed=True)
    assert stored == b"toolkit; fwd=miss; fwd-status=200; stored; collapsed"
    assert cache_status(fwd="bypass", detail="sampled") == b"toolkit; fwd=bypass; detail=sampled"


@settings(deadline=None)
@given(some.floats(allow_nan=False))
def test_its_numbers_are_integers_that_a_structured_field_can_hold(ttl_s: float) -> None:
    number = cache_status(ttl_s=ttl_s).rpartition(b"=")[2]
    assert abs(int(number)) <= 2**31


def test_age_is_whole_seconds_and_never_below_zero() -> None:
    assert age(1000.0, 1061.9) == b"61"
    assert age(1000.0, 1000.0) == b"0"
    assert age(1000.0, 900.0) == b"0"
    assert age(float("-inf"), 0.0) == b"2147483648"
