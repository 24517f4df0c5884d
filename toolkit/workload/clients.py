"""Who asks, and how much of it others ask too: what a cache shared by all clients gains over one for each.

A client is whatever the capture called one; requests of nobody known are counted apart.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.workload.columns import Columns

LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client's part."""

    client: str
    requests: int
    share: float
    """Of the requests whose client is known."""
    unique_prompts: int
    own_prompts: int
    """Of these, asked by no other client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """All clients together."""

    clients: int
    unknown: int
    """Requests of which nobody knows who sent them."""
    top: tuple[Client, ...] = ()
    """The ten who sent most."""
    top_share: float | None = None
    """Share of requests that the first of them sent."""
    shared_prompts: int = 0
    """Unique prompts that more than one client asked."""
    shared_share: float | None = None
    """Share of requests that ask one of those."""
    repeats_within_share: float | None = None
    """Requests that repeat their own client's prompt: what caches of one client each could answer at most."""
    repeats_across_share: float | None = None
    """Requests that repeat any client's prompt: what one cache for all could."""


def clients(columns: Columns) -> Clients:
    """Count requests and prompts by client."""
    known = columns.client >= 0
    total = int(known.sum())
    if not total:
        return Clients(clients=0, unknown=len(columns))
    who, what = columns.client[known], columns.prompt[known]
    prompts = int(what.max()) + 1
    pairs = np.unique(who * prompts + what)
    pair_who, pair_what = pairs // prompts, pairs % prompts
    askers = np.bincount(pair_what, minlength=prompts)
    top = _top(columns.clients, who, pair_who, pair_what, askers)
    return Clients(
        clients=len(np.unique(who)),
        unknown=len(columns) - total,
        top=top,
        top_share=top[0].share,
        shared_prompts=int((askers > 1).sum()),
        shared_share=float((askers[what] > 1).mean()),
        repeats_within_share=1 - len(pairs) / total,
        repeats_across_share=1 - int((askers > 0).sum()) / total,
    )


def _top(
    names: tuple[str, ...],
    who: NDArray[np.int64],
    pair_who: NDArray[np.int64],
    pair_what: NDArray[np.int64],
    askers: NDArray[np.int64],
) -> tuple[Client, ...]:
    requests = np.bincount(who, minlength=len(names))
    unique = np.bincount(pair_who, minlength=len(names))
    own = np.bincount(pair_who[askers[pair_what] == 1], minlength=len(names))
    # a stable sort: of equals, the one that came first
    order = np.argsort(-requests, kind="stable")[:LISTED]
    return tuple(
        Client(
            client=names[code],
            requests=int(requests[code]),
            share=int(requests[code]) / len(who),
            unique_prompts=int(unique[code]),
            own_prompts=int(own[code]),
        )
        for code in order.tolist()
        if requests[code]
    )
