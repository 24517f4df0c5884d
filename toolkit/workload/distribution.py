"""How requests spread over prompts, clients and settings: what repeats, who asks, and what is asked for. Counts, no judgement.

Repetition is counted by prompt where nothing else is said: what the model reads, whatever the sampling. It never names a
prompt. A client is whatever the capture called one; requests of nobody known are counted apart.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from toolkit.units import share
from toolkit.workload.columns import Codes, Mask, RequestColumns

Shape = Literal["zipf", "even", "few", "other", "unknown"]

TOPS = (1, 2, 10, 100)
"""How many of the most frequent prompts' share is given; fixed by the report's keys."""
CLIENTS_LISTED = 10
VALUES_LISTED = 8
"""Values of one parameter that are named; the others are counted together."""
PARAMETERS = ("model", "stream", "max_tokens", "temperature", "top_p", "n", "seed", "messages")
_settings = attrgetter(*PARAMETERS)
FEW_KEYS = 10
"""Under ten ranks, any falling curve looks like Zipf's."""
HELD_BY_TWO = 0.9
"""Two keys with this share are the whole story, whatever the tail does."""
FAR = 0.05
"""The distance is the largest error of any top-n share, so it is what a forecast by the fit would be off by. Samples
of true Zipf laws (exponents 0.8 to 2) stayed under 0.04 where `UNSEEN` held, a log-normal of sigma 1 came to 0.07."""
UNSEEN = 0.2
"""With a larger share of keys asked once, too much of the tail is missing for its ranks to be known: samples of a true
Zipf law came to a distance of 0.08."""
STEEPEST = 20.0
RESOLVED = 1e-8
"""Around its summit a likelihood is flat within a float's precision, whose root this is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zipf:
    """What a fit of Zipf's law came to."""

    shape: Shape
    """`zipf`; `even`: all keys equally often; `few`: a handful of keys; `other`; `unknown`: too little repeats."""
    why: str
    exponent: float | None = None
    """By maximum likelihood over the observed ranks. None, as what follows: no fit would mean anything."""
    distance: float | None = None
    """Kolmogorov and Smirnov's: the largest gap between the shares of the top n, counted and fitted, over all n."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Top:
    """The most frequent prompts together."""

    prompts: int
    """As many as asked for, or all there are."""
    requests: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How requests spread over what they ask."""

    requests: int
    unique_exact: int | None = None
    """Bodies, byte for byte. None, as all that follows: the source does not say which requests are alike."""
    unique_canonical: int | None = None
    """Requests as a response cache tells them apart."""
    unique_prompts: int | None = None
    tops: tuple[Top, ...] = ()
    entropy_bits: float | None = None
    """Of the prompts, with Miller and Madow's correction: (unique - 1) / (2 requests ln 2) is added."""
    entropy_plain_bits: float | None = None
    """As counted; too low while prompts are unseen."""
    effective_prompts: float | None = None
    """2 ^ entropy: equally frequent prompts that would be as hard to guess."""
    unseen_share: float | None = None
    """Good-Turing's N1 / N: the chance that the next prompt is one that nobody asked so far."""
    zipf: Zipf | None = None


def distribution(columns: RequestColumns) -> Distribution:
    """Count what repeats."""
    exact, canonical, prompts = map(frequencies, (columns.exact, columns.request, columns.prompt))
    found = Distribution(
        requests=len(columns),
        unique_exact=len(exact),
        unique_canonical=len(canonical),
        unique_prompts=len(prompts),
    )
    if not len(prompts):
        return found
    total = int(prompts.sum())
    shares = prompts / total
    plain = abs(float(-(shares * np.log2(shares)).sum()))  # -0.0 of a single key is 0
    corrected = plain + (len(prompts) - 1) / (2 * total * math.log(2))
    first = {most: int(prompts[:most].sum()) for most in TOPS}
    return replace(
        found,
        tops=tuple(
            Top(prompts=min(most, len(prompts)), requests=requests, share=requests / total)
            for most, requests in first.items()
        ),
        entropy_bits=corrected,
        entropy_plain_bits=plain,
        effective_prompts=2.0**corrected,
        unseen_share=int((prompts == 1).sum()) / total,
        zipf=zipf(prompts),
    )


def frequencies(codes: Codes) -> Codes:
    """How often each key was asked, the most frequent first; requests without a key are left out."""
    counts = np.bincount(codes[codes >= 0])
    return np.sort(counts[counts > 0])[::-1]


# --- Zipf's law: the n-th most frequent key is asked n ^ -exponent as often as the first ----------------


def zipf(counts: Codes) -> Zipf:
    """Judge frequencies, the most frequent first."""
    keys, total = len(counts), int(counts.sum())
    if keys < FEW_KEYS:
        return Zipf(shape="few", why=f"{keys} key{'s' if keys > 1 else ''}: too few for a law")
    held = int(counts[:2].sum()) / total
    if held >= HELD_BY_TWO:
        return Zipf(shape="few", why=f"two keys hold {share(held)} of requests")
    once = int((counts == 1).sum()) / total
    if once > UNSEEN:
        why = f"{share(once)} of requests ask what no other asked: the tail is unknown"
        return Zipf(shape="unknown", why=why)

    logs = np.log(np.arange(1, keys + 1))
    mean_log = float(counts @ logs) / total
    exponent = likeliest(
        lambda power: -power * mean_log - math.log(float(np.exp(-power * logs).sum())),
        0.0,
        STEEPEST,
    )
    law = np.exp(-exponent * logs)
    off = float(np.abs(np.cumsum(counts) / total - np.cumsum(law / law.sum())).max())
    shape: Shape = "other"
    why = f"a top-n share is {share(off)} off the best law"
    expected = total / keys
    misfit = float(((counts - expected) ** 2 / expected).sum())
    # chi-squared, four deviations
    if misfit <= keys - 1 + 4 * math.sqrt(2 * (keys - 1)):
        shape, why = "even", "all keys are asked equally often, but for chance"
    elif off <= FAR:
        shape, why = "zipf", f"no top-n share is more than {share(off)} off the law"
    return Zipf(shape=shape, why=why, exponent=exponent, distance=off)


def likeliest(log_likelihood: Callable[[float], float], low: float, high: float) -> float:
    """Where a log likelihood with one summit is highest: a third at a time is left out, the one beyond the lower of two places."""
    while high - low > RESOLVED:
        third = (high - low) / 3
        if log_likelihood(low + third) < log_likelihood(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2


# --- Clients: what a cache shared by all gains over one for each -----------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client's part."""

    client: str
    requests: int
    share: float
    """Of the requests whose client is known."""
    unique_prompts: int | None
    """None, as what follows: the source does not say which requests are alike."""
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


def clients(columns: RequestColumns) -> Clients:
    """Count requests and prompts by client."""
    known = columns.client >= 0
    who, what = columns.client[known], columns.prompt[known]
    if not len(who):
        return Clients(clients=0, unknown=len(columns))
    alike = columns.identities is not None
    requests = np.bincount(who, minlength=len(columns.clients))
    # each pair of a client and a prompt once
    prompts = int(what.max()) + 1
    pair_who, pair_what = np.divmod(np.unique(who * prompts + what), prompts)
    senders = np.bincount(pair_what)
    unique = np.bincount(pair_who, minlength=len(requests))
    own = np.bincount(pair_who[senders[pair_what] == 1], minlength=len(requests))
    # a stable sort: of equals, the one that came first
    top = tuple(
        Client(
            client=columns.clients[code],
            requests=int(requests[code]),
            share=int(requests[code]) / len(who),
            unique_prompts=int(unique[code]) if alike else None,
            own_prompts=int(own[code]) if alike else None,
        )
        for code in np.argsort(-requests, kind="stable")[:CLIENTS_LISTED].tolist()
        if requests[code]
    )
    return Clients(
        clients=int((requests > 0).sum()),
        unknown=len(columns) - len(who),
        top=top,
        top_share=top[0].share,
        shared_prompts=int((senders > 1).sum()) if alike else None,
        shared_share=float((senders[what] > 1).mean()) if alike else None,
        repeats_within_share=1 - len(pair_who) / len(who) if alike else None,
        repeats_across_share=1 - int((senders > 0).sum()) / len(who) if alike else None,
    )


# --- Settings ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterValue:
    """One value of a parameter."""

    value: str | float | bool | None
    """None: not set, or not known."""
    requests: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter's values, the most frequent first."""

    name: str
    values: tuple[ParameterValue, ...]
    different: int
    """Values there are, not set included."""
    rest: int
    """Requests with a value that is not among those named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherField:
    """A field of the body beside the well-known ones, e.g., `tools`."""

    name: str
    requests: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What is asked for, in shares of requests."""

    stream_share: float | None
    """Share that asked for a stream; None where no request says, as in a trace without bodies."""
    declared_share: float | None
    """Share that is declared repeatable: temperature 0, or a seed. None: bodies are not known."""
    images_share: float | None
    """Share with parts that are not text."""
    parameters: tuple[Parameter, ...] = ()
    """`model` `stream` `max_tokens` `temperature` `top_p` `n` `seed` `messages`, those that anybody set."""
    options: tuple[OtherField, ...] = ()


def mix(columns: RequestColumns) -> Mix:
    """Count what is asked for; where bodies are not known a field that nobody named may have been set."""
    total, bodies = len(columns), columns.identities == "bodies"
    if not total:
        return Mix(stream_share=None, declared_share=None, images_share=None)
    times = np.bincount(columns.exact, minlength=len(columns.asked)).tolist()
    # many bodies, few combinations of settings
    kinds: Counter[tuple[Any, ...]] = Counter()
    options: Counter[str] = Counter()
    for kind, one, sent in zip(map(_settings, columns.asked), columns.asked, times, strict=True):
        kinds[kind] += sent
        for name in one.options:
            options[name] += sent
    parameters = []
    for place, name in enumerate(PARAMETERS):
        tally: Counter[Any] = Counter()
        for kind, sent in kinds.items():
            tally[kind[place]] += sent
        if set(tally) != {None}:
            values = tuple(
                ParameterValue(value=value, requests=sent, share=sent / total)
                for value, sent in tally.most_common(VALUES_LISTED)
            )
            rest = total - sum(one.requests for one in values)
            parameters.append(Parameter(name=name, values=values, different=len(tally), rest=rest))
    streams = columns.per_request("stream")
    # a body that leaves `stream` out asks for none
    is_known = bodies or not np.isnan(streams).all()
    return Mix(
        stream_share=float((streams == 1).mean()) if is_known else None,
        declared_share=float(declared(columns).mean()) if bodies else None,
        images_share=float((columns.per_request("images") > 0).mean()) if bodies else None,
        parameters=tuple(parameters),
        options=tuple(
            OtherField(name=name, requests=sent, share=sent / total)
            for name, sent in options.most_common(VALUES_LISTED)
        ),
    )


def declared(columns: RequestColumns) -> Mask:
    """For each request: whether it says that its answer may be given again, by temperature 0 or a seed."""
    repeatable = [one.temperature == 0 or one.seed is not None for one in columns.asked]
    return np.array(repeatable, dtype=bool)[columns.exact]
