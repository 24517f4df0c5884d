"""On which ports HTTP requests stand that nobody watches: what to name where a capture seems empty.

It searches bytes for request lines with a TCP and an IP header before them, whatever the file and link around; it is
a hint to a person, and nothing is counted by it.
"""

from collections.abc import Iterator
from itertools import islice

_METHODS = (b"POST /", b"GET /")


def http_ports(block: bytes, most: int) -> Iterator[int]:
    """Destination port of each request line, at most so many of each method."""
    for method in _METHODS:
        yield from islice(_ports_of(block, method), most)


def _ports_of(block: bytes, method: bytes) -> Iterator[int]:
    at = block.find(method)
    while at >= 0:
        port = _port_before(block, at)
        if port is not None:
            yield port
        at = block.find(method, at + 1)


def _port_before(block: bytes, payload: int) -> int | None:
    """The port that a TCP header right before the payload names; None: there is none."""
    for length in range(20, 64, 4):
        tcp = payload - length
        if tcp < 20:
            return None
        if block[tcp + 12] >> 4 == length // 4 and _is_ip(block, tcp):
            return int.from_bytes(block[tcp + 2 : tcp + 4], "big")
    return None


def _is_ip(block: bytes, end: int) -> bool:
    """Whether an IPv4 or IPv6 header without options ends here and announces TCP."""
    if block[end - 20] == 0x45 and block[end - 11] == 6:
        return True
    return end >= 40 and block[end - 40] >> 4 == 6 and block[end - 34] == 6
