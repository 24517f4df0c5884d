"""Which answers were good enough: limits such as `ttft:500ms,tpot:50ms`, and one record against them.

It counts nothing (`summary` does) and never judges a host.
"""

import math
import re
from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.records import RequestRecord

MILLISECONDS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}
NAMES = ("ttft", "tpot", "e2e")

EXAMPLE = "Write limits like `ttft:500ms,tpot:50ms,e2e:10s`"
_LIMIT = re.compile(r"([^:]*):\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputLimits:
    """What a good request may take at most; None: as long as it likes."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None


def read_limits(text: str) -> GoodputLimits:
    """Read `ttft:500ms,tpot:50ms,e2e:10s`; each name at most once, units us, ms, s and m.

    Raises ToolkitError on the first part that is no limit.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        match = _LIMIT.fullmatch(part)
        if match is None:
            raise ToolkitError(f"`{part.strip()}` is no limit", EXAMPLE)
        name, unit = match[1].strip(), match[3]
        if name not in NAMES:
            raise ToolkitError(f"unknown limit `{name}`", f"Known limits: {', '.join(NAMES)}")
        if unit not in MILLISECONDS:
            known = f"Known units: {', '.join(MILLISECONDS)}"
            raise ToolkitError(f"unknown unit `{unit}` in `{part.strip()}`", known)
        limit_ms = float(match[2]) * MILLISECONDS[unit]
        if not 0 < limit_ms < math.inf:
            raise ToolkitError(f"limit `{part.strip()}` lets nothing or everything pass", EXAMPLE)
        if name in limits:
            raise ToolkitError(f"limit `{name}` stands twice in `{text}`", "Keep one of them")
        limits[name] = limit_ms
    return GoodputLimits(**{f"{name}_ms": limit_ms for name, limit_ms in limits.items()})


def is_good(record: RequestRecord, limits: GoodputLimits) -> bool:
    """Whether a request was answered, and within every limit; a limit itself is still good.

    A limit on a number that the record has no way to have does not apply: TTFT and TPOT of an answer that
    was not asked to stream, TPOT of a stream whose tokens all came in its first chunk.
    """
    # when a stream was asked for and a whole body came, the first token came with the last
    first_token_ms = record.e2e_ms if record.ttft_ms is None else record.ttft_ms
    return (
        record.ok
        and _within(record.e2e_ms, limits.e2e_ms)
        and (not record.stream or _within(first_token_ms, limits.ttft_ms))
        and (record.tpot_ms is None or _within(record.tpot_ms, limits.tpot_ms))
    )


def _within(took_ms: float | None, limit_ms: float | None) -> bool:
    """Under a limit, what was never seen is late: e.g., a stream that ended without a token."""
    return limit_ms is None or (took_ms is not None and took_ms <= limit_ms)
