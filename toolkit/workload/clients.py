"""Who asks, and how much of it others ask too: what a cache shared by all clients gains over one for each.

A client is whatever the capture called one; requests of nobody known are counted apart.
"""

from dataclasses import dataclass, replace

import numpy as np

from toolkit.workload.columns import Codes, RequestColumns

LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client's part."""

    client: str
    requests: int
    share: float
    """Of the requests whose client is known."""
    unique_prompts: int | None
    """None, as what follows: the source does not tell which requests are alike."""
    own_prompts: int | None
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
    shared_prompts: int | None = None
    """Unique prompts that more than one client asked."""
    shared_share: float | None = None
    """Share of requests that ask one of those."""
    repeats_within_share: float | None = None
    """Requests that repeat their own client's prompt: what caches of one client each could answer at most."""
    repeats_across_share: float | None = None
    """Requests that repeat any client's prompt: what one cache for all could."""


def clients(columns: RequestColumns, *, alike: bool = True) -> Clients:
    """Count requests and prompts by client; `alike` False: nobody can tell which prompts are the same."""
    known = columns.client >= 0
    who, what = columns.client[known], columns.prompt[known]
    requests = np.bincount(who, minlength=len(columns.clients))
    # a stable sort: of equals, the one that came first
    order = np.argsort(-requests, kind="stable")[:LISTED].tolist()
    top = tuple(
        Client(
            client=columns.clients[code],
            requests=int(requests[code]),
            share=int(requests[code]) / len(who),
            unique_prompts=None,
            own_prompts=None,
        )
        for code in order
        if requests[code]
    )
    found = Clients(
        clients=int((requests > 0).sum()),
        unknown=len(columns) - len(who),
        top=top,
        top_share=top[0].share if top else None,
    )
    return _shared(found, order, who, what) if alike and len(who) else found


def _shared(found: Clients, order: list[int], who: Codes, what: Codes) -> Clients:
    """The same, with what clients ask alone and what they ask like others."""
    prompts = int(what.max()) + 1
    pairs = np.unique(who * prompts + what)
    pair_who, pair_what = pairs // prompts, pairs % prompts
    askers = np.bincount(pair_what, minlength=prompts)
    most = int(who.max()) + 1
    unique = np.bincount(pair_who, minlength=most)
    own = np.bincount(pair_who[askers[pair_what] == 1], minlength=most)
    top = tuple(
        replace(one, unique_prompts=int(unique[code]), own_prompts=int(own[code]))
        for one, code in zip(found.top, order, strict=False)
    )
    return replace(
        found,
        top=top,
        shared_prompts=int((askers > 1).sum()),
        shared_share=float((askers[what] > 1).mean()),
        repeats_within_share=1 - len(pairs) / len(who),
        repeats_across_share=1 - int((askers > 0).sum()) / len(who),
    )
