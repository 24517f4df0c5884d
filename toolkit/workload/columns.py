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
    """By the answer's usage, else by the request itself."""
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
    """False: the source has no times, a request's is its place."""
    beginnings: bool = True
    """False: the source does not say how prompts begin."""

    def __len__(self) -> int:
        return len(self.ts)

    def per_request(self, field: str) -> Numbers:
        """A number of Asked, for each request; NaN where it is None."""
        values = np.array([getattr(one, field) for one in self.asked], dtype=float)
        return values[self.exact] if len(self.asked) else np.empty(0)

    def mean_by_prompt(self, values: Numbers) -> Numbers:
        """By number of the prompt: the mean of what is known of its requests; NaN where nothing is."""
        known, count = ~np.isnan(values), int(self.prompt.max(initial=-1)) + 1
        times = np.bincount(self.prompt[known], minlength=count)
        sums = np.bincount(self.prompt[known], weights=values[known], minlength=count)
        means: Numbers = np.divide(sums, times, out=np.full(count, np.nan), where=times > 0)
        return means

    def part(self, which: Mask) -> "RequestColumns":
        """Some of the requests; numbers of bodies and clients stay what they were."""
        rows = {
            name: getattr(self, name)[which]
            for name in RequestColumns.__dataclass_fields__
            if isinstance(getattr(self, name), np.ndarray)
        }
        return replace(self, **rows)


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
    kept: list[tuple[Seen, Asked]] = []
    for one in seen:
        if one.damaged:
            damaged += 1
        elif one.asked is None or one.asked.prompt_key is None:
            other += 1
        elif one.status is not None and one.status in REFUSED and one.status != CLIENT_LEFT:
            refused[one.status] += 1
        else:
            kept.append((one, one.asked))
    kept.sort(key=lambda pair: pair[0].ts)

    def numbers(values: Iterable[float | None]) -> Numbers:
        return np.array(list(values), dtype=float)  # numpy makes NaN of None

    asked: dict[str, Asked] = {}
    for _, body in kept:
        asked.setdefault(body.exact_key, body)
    client, clients = _codes([one.client for one, _ in kept])
    ends = [-1 if one.finish_reason is None else one.finish_reason == "length" for one, _ in kept]
    caches = {None: -1, "miss": 0, "hit": 1, "coalesced": 2}
    return RequestColumns(
        ts=numbers(one.ts for one, _ in kept),
        exact=_codes([body.exact_key for _, body in kept])[0],
        # a body without a canonical form is like no other but its own copies
        request=_codes([body.request_key or body.exact_key for _, body in kept])[0],
        prompt=_codes([body.prompt_key for _, body in kept])[0],
        client=client,
        asked=tuple(asked.values()),
        clients=tuple(clients),
        prompt_tokens=numbers(
            body.prompt_tokens if one.prompt_tokens is None else one.prompt_tokens
            for one, body in kept
        ),
        output_tokens=numbers(one.output_tokens for one, _ in kept),
        ttft_s=numbers(one.ttft_ms for one, _ in kept) / 1e3,
        latency_s=numbers(one.latency_ms for one, _ in kept) / 1e3,
        status=numbers(one.status for one, _ in kept),
        in_flight=numbers(one.in_flight for one, _ in kept),
        finish_length=np.array(ends, dtype=np.int8),
        cache=np.array([caches[one.cache] for one, _ in kept], dtype=np.int8),
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
