"""One host's seconds, written by hand."""

from toolkit.board.outages import RunSeconds


def counted(*spans: tuple[int, int, int], first_s: int = 1000) -> RunSeconds:
    """Seconds from (how many, ok, errors)."""
    rows = [(ok, bad) for seconds, ok, bad in spans for _ in range(seconds)]
    return RunSeconds(
        first_s=first_s, ok=tuple(ok for ok, _ in rows), errors=tuple(bad for _, bad in rows)
    )
