"""Requests that arrived, as columns: one array for each thing that statistics ask about, in the order of arrival.

Keys become small numbers in the order of their first arrival, so that counting is array work. It never judges.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.records import Asked, Seen

Codes = NDArray[np.int64]
Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]
"""Which of the requests."""
REFUSED = range(400, 600)
"""HTTP statuses of requests that were refused, or failed."""
CLIENT_LEFT = 499
"""What nginx logs where the client did not wait for the answer: no server's word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestColumns:
    """The requests that asked a model for something; arrays are of equal length. NaN or -1 is unknown."""

    ts: Numbers
    """Seconds since 1970, rising."""
    exact: Codes
    """Number of the exact body, 0 for the first that arrived; so with the three that follow."""
    request: Codes
    prompt: Codes
    client: Codes
    asked: tuple[Asked, ...]
    """By number of the exact body: what it asks for."""
    clients: tuple[str, ...]
    """By number: who."""
    prompt_tokens: Numbers
    """By the answer's usage, else as told with the request."""
    output_tokens: Numbers
    ttft_s: Numbers
    latency_s: Numbers
    status: Numbers
    in_flight: Numbers
    finish_length: NDArray[np.int8]
    """1: ended by its token limit; 0: otherwise; -1: unknown."""
    cache: NDArray[np.int8]
    """0 miss, 1 hit, 2 coalesced, -1 unknown."""
    damaged: int
    """Requests beside these of which part was lost."""
    other: int
    """Requests beside these that ask no model for anything, e.g., GET /metrics, or whose body is not readable."""
    refused: Mapping[int, int] = field(default_factory=dict)
    """Requests beside these that were answered with 4xx or 5xx, by status: they say nothing of what is to be served."""

    def __len__(self) -> int:
        return len(self.ts)

    def per_request(self, field: str) -> Numbers:
        """A number of Asked, for each request; NaN where it is None."""
        told = np.array([_number(getattr(one, field)) for one in self.asked], dtype=float)
        return told[self.exact] if len(self.asked) else np.empty(0)


_CACHE = {None: -1, "miss": 0, "hit": 1, "coalesced": 2}


def columns(seen: Iterable[Seen]) -> RequestColumns:
    """Sort requests by arrival and lay them out as columns; what was refused is only counted.

    One request for 99,999 tokens that the server answered with 400 must not shape a limit, nor its copies a cache.
    """
    damaged = other = 0
    refused: Counter[int] = Counter()
    kept: list[Seen] = []
    for one in seen:
        if one.damaged:
            damaged += 1
        elif one.asked is None or one.asked.prompt_key is None:
            other += 1
        elif one.status is not None and one.status in REFUSED and one.status != CLIENT_LEFT:
            refused[one.status] += 1
        else:
            kept.append(one)
    kept.sort(key=lambda one: one.ts)
    bodies = [one.asked for one in kept if one.asked is not None]
    exact, _ = _codes([body.exact_key for body in bodies])
    client, clients = _codes([one.client for one in kept])
    return RequestColumns(
        ts=_numbers([one.ts for one in kept]),
        exact=exact,
        # a body without a canonical form is like no other but its own copies
        request=_codes([body.request_key or body.exact_key for body in bodies])[0],
        prompt=_codes([body.prompt_key for body in bodies])[0],
        client=client,
        asked=_firsts(bodies, exact),
        clients=tuple(str(name) for name in clients),
        prompt_tokens=_numbers([_first(one.prompt_tokens, one.asked) for one in kept]),
        output_tokens=_numbers([one.output_tokens for one in kept]),
        ttft_s=_numbers([one.ttft_ms for one in kept]) / 1e3,
        latency_s=_numbers([one.latency_ms for one in kept]) / 1e3,
        status=_numbers([one.status for one in kept]),
        in_flight=_numbers([one.in_flight for one in kept]),
        finish_length=np.array([_at_limit(one.finish_reason) for one in kept], dtype=np.int8),
        cache=np.array([_CACHE[one.cache] for one in kept], dtype=np.int8),
        damaged=damaged,
        other=other,
        refused=dict(sorted(refused.items())),
    )


def _codes(keys: Sequence[str | None]) -> tuple[Codes, list[str]]:
    """Number keys by first arrival; None is -1."""
    known: dict[str, int] = {}
    codes = [-1 if key is None else known.setdefault(key, len(known)) for key in keys]
    return np.array(codes, dtype=np.int64), list(known)


def _firsts(bodies: Sequence[Asked], exact: Codes) -> tuple[Asked, ...]:
    found: dict[int, Asked] = {}
    for body, code in zip(bodies, exact.tolist(), strict=True):
        found.setdefault(code, body)
    return tuple(found.values())


def _first(usage: int | None, asked: Asked | None) -> int | None:
    return usage if usage is not None or asked is None else asked.prompt_tokens


def _at_limit(reason: str | None) -> int:
    return -1 if reason is None else int(reason == "length")


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _numbers(values: Sequence[float | None]) -> Numbers:
    return np.array([_number(value) for value in values], dtype=float)
