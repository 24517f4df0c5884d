"""Requests that arrived, as columns: one array for each thing that statistics ask about, in the order of arrival.

Keys become small numbers in the order of their first arrival, so that counting is array work. It never judges.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toolkit.records import Asked, Seen

Codes = NDArray[np.int64]
Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]
"""Which of the requests."""
Identities = Literal["bodies", "prompts"] | None
"""What tells requests apart: whole bodies; prompts only, the settings not; None: nothing, so that each counts as
unlike all others, and nothing that depends on repetition is known."""
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
    identities: Identities = "bodies"
    arrivals: bool = True
    """False: the source tells no times, a request's is its place."""
    beginnings: bool = True
    """False: the source does not tell how prompts begin."""

    def __len__(self) -> int:
        return len(self.ts)

    def per_request(self, field: str) -> Numbers:
        """A number of Asked, for each request; NaN where it is None."""
        told = np.array([getattr(one, field) for one in self.asked], dtype=float)
        return told[self.exact] if len(self.asked) else np.empty(0)

    def part(self, which: Mask) -> "RequestColumns":
        """Some of the requests; numbers of bodies and clients stay what they were."""
        rows = {
            name: getattr(self, name)[which]
            for name in RequestColumns.__dataclass_fields__
            if isinstance(getattr(self, name), np.ndarray)
        }
        return replace(self, **rows)


_CACHE = {None: -1, "miss": 0, "hit": 1, "coalesced": 2}


def columns(
    seen: Iterable[Seen],
    *,
    identities: Identities = "bodies",
    arrivals: bool = True,
    beginnings: bool = True,
) -> RequestColumns:
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
    asked: dict[str, Asked] = {}
    for body in bodies:
        asked.setdefault(body.exact_key, body)
    client, clients = _codes([one.client for one in kept])
    at_limit = [-1 if one.finish_reason is None else one.finish_reason == "length" for one in kept]
    usage = [
        body.prompt_tokens if one.prompt_tokens is None else one.prompt_tokens
        for one, body in zip(kept, bodies, strict=True)
    ]
    return RequestColumns(
        ts=np.array([one.ts for one in kept], dtype=float),
        exact=_codes([body.exact_key for body in bodies])[0],
        # a body without a canonical form is like no other but its own copies
        request=_codes([body.request_key or body.exact_key for body in bodies])[0],
        prompt=_codes([body.prompt_key for body in bodies])[0],
        client=client,
        asked=tuple(asked.values()),
        clients=tuple(clients),
        # numpy makes NaN of None
        prompt_tokens=np.array(usage, dtype=float),
        output_tokens=np.array([one.output_tokens for one in kept], dtype=float),
        ttft_s=np.array([one.ttft_ms for one in kept], dtype=float) / 1e3,
        latency_s=np.array([one.latency_ms for one in kept], dtype=float) / 1e3,
        status=np.array([one.status for one in kept], dtype=float),
        in_flight=np.array([one.in_flight for one in kept], dtype=float),
        finish_length=np.array(at_limit, dtype=np.int8),
        cache=np.array([_CACHE[one.cache] for one in kept], dtype=np.int8),
        damaged=damaged,
        other=other,
        refused=dict(sorted(refused.items())),
        identities=identities,
        arrivals=arrivals,
        beginnings=beginnings,
    )


def _codes(keys: Sequence[str | None]) -> tuple[Codes, list[str]]:
    """Number keys by first arrival; None is -1."""
    known: dict[str, int] = {}
    codes = [-1 if key is None else known.setdefault(key, len(known)) for key in keys]
    return np.array(codes, dtype=np.int64), list(known)
