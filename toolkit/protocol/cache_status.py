"""What a `Cache-Status` or `X-Cache` header tells of an answer. Pure."""

import re


def says_hit(header: str) -> bool:
    """Whether a `Cache-Status` or `X-Cache` header tells of an answer from memory.

    `HIT`, `TCP_HIT`, `proxy; hit; ttl=60`, `RefreshHit from cloudfront`; not `hit=?0`, nor Varnish's `hit-for-pass`.
    """
    hit = r"(?<![a-z])(?<!no-)(?:refresh)?hit(?![a-z-]|\s*=\s*\?0)"
    return re.search(hit, header.lower()) is not None


def says_bypass(header: str) -> bool:
    """Whether such a header tells that the cache was not asked, e.g., `proxy; fwd=bypass`: it is no miss."""
    return re.search(r"\bbypass\b", header.lower()) is not None
