"""Which headers tell of an answer from memory."""

import pytest

from toolkit.protocol.cache_status import says_bypass, says_hit

HITS = [
    *("HIT", "hit", "TCP_HIT", "MISS, HIT", "Hit from cloudfront", "RefreshHit from cloudfront"),
    *("ExampleCache; hit; ttl=376", "ExampleCache;hit", "cache-hit", "toolkit; hit; ttl=60"),
]
BYPASSES = ["BYPASS", "toolkit; fwd=bypass; detail=no-store"]
NEITHER = [
    *("MISS", "TCP_MISS", "Miss from cloudfront", "ExampleCache; fwd=uri-miss; stored", "bypassed"),
    *("ExampleCache; hit=?0", "hit-for-pass", "no-hit", "hits=0", "architecture", "white", ""),
]


@pytest.mark.parametrize("header", [*HITS, *BYPASSES, *NEITHER])
def test_cache_headers_are_read_as_they_are_meant(header: str) -> None:
    assert says_hit(header) is (header in HITS)
    assert says_bypass(header) is (header in BYPASSES)
