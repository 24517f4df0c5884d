"""Which headers tell of an answer from memory."""

import pytest

from toolkit.cache_headers import says_bypass, says_hit


@pytest.mark.parametrize(
    ("header", "hit"),
    [
        ("HIT", True),
        ("hit", True),
        ("TCP_HIT", True),
        ("MISS, HIT", True),
        ("Hit from cloudfront", True),
        ("RefreshHit from cloudfront", True),
        ("ExampleCache; hit; ttl=376", True),
        ("ExampleCache;hit", True),
        ("cache-hit", True),
        ("MISS", False),
        ("TCP_MISS", False),
        ("Miss from cloudfront", False),
        ("ExampleCache; fwd=uri-miss; stored", False),
        ("ExampleCache; hit=?0", False),
        ("hit-for-pass", False),
        ("no-hit", False),
        ("hits=0", False),
        ("architecture", False),
        ("white", False),
        ("", False),
    ],
)
def test_cache_headers_are_read_as_they_are_meant(header: str, hit: bool) -> None:
    assert says_hit(header) is hit


@pytest.mark.parametrize(
    ("header", "bypass"),
    [
        ("BYPASS", True),
        ("toolkit; fwd=bypass; detail=no-store", True),
        ("toolkit; fwd=uri-miss; stored", False),
        ("toolkit; hit; ttl=60", False),
        ("bypassed", False),
        ("", False),
    ],
)
def test_a_cache_that_was_not_asked_is_no_miss(header: str, bypass: bool) -> None:
    assert says_bypass(header) is bypass
