"""How requests spread over prompts, clients and settings: what repeats, who asks, and what is asked for. Counts, no judgement.

Repetition is counted by prompt where nothing else is said: what the model reads, whatever the sampling. It never names a
prompt. A client is whatever the capture called one; requests of nobody known are counted apart.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

import numpy as np

from toolkit.units import share
from toolkit.workload.columns import Codes, Mask, RequestColumns

Shape = Literal["zipf", "even", "few", "other", "unknown"]

TOPS = (1, 2, 10, 100)
"""How many of the most frequent prompts' share is told; fixed by the report's keys."""
CLIENTS_LISTED = 10
VALUES_LISTED = 8
"""Values of one parameter that are named; the others are counted together."""
PARAMETERS = ("model", "stream", "max_tokens", "temperature", "top_p", "n", "seed", "messages")
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
GOLDEN = (math.sqrt(5) - 1) / 2
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
    """Bodies, byte for byte. None, as all that follows: the source does not tell which requests are alike."""
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
    counts = frequencies(columns.prompt)
    found = Distribution(
        requests=len(columns),
        unique_exact=len(frequencies(columns.exact)),
        unique_canonical=len(frequencies(columns.request)),
        unique_prompts=len(counts),
    )
    if not len(counts):
        return found
    total = int(counts.sum())
    shares = counts / total
    plain = abs(float(-(shares * np.log2(shares)).sum()))  # -0.0 of a single key is 0
    corrected = plain + float((len(counts) - 1) / (2 * total * np.log(2)))
    return replace(
        found,
        tops=tuple(
            Top(
                prompts=min(most, len(counts)),
                requests=int(counts[:most].sum()),
                share=int(counts[:most].sum()) / total,
            )
            for most in TOPS
        ),
        entropy_bits=corrected,
        entropy_plain_bits=plain,
        effective_prompts=2.0**corrected,
        unseen_share=int((counts == 1).sum()) / total,
        zipf=zipf(counts),
    )


def frequencies(codes: Codes) -> Codes:
    """How often each key was asked, the most frequent first; requests without a key are left out."""
    counts = np.bincount(codes[codes >= 0]) if len(codes) else np.empty(0, dtype=np.int64)
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
    law = np.arange(1, keys + 1, dtype=float) ** -exponent
    off = float(np.abs(np.cumsum(counts) / total - np.cumsum(law / law.sum())).max())
    shape: Shape
    if is_even(counts):
        shape, why = "even", "all keys are asked equally often, but for chance"
    elif off <= FAR:
        shape, why = "zipf", f"no top-n share is more than {share(off)} off the law"
    else:
        shape, why = "other", f"a top-n share is {share(off)} off the best law"
    return Zipf(shape=shape, why=why, exponent=exponent, distance=off)


def likeliest(log_likelihood: Callable[[float], float], low: float, high: float) -> float:
    """Where a log likelihood with one summit is highest, by golden section: the two places tried stay in the golden ratio to the ends."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = log_likelihood(left), log_likelihood(right)
    while high - low > RESOLVED:
        if at_left < at_right:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = log_likelihood(right)
        else:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = log_likelihood(left)
    return (low + high) / 2


def is_even(counts: Codes) -> bool:
    """Whether chance alone explains that some keys were asked more often (chi-squared, four deviations)."""
    expected = counts.sum() / len(counts)
    misfit = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    return misfit <= freedom + 4 * float(np.sqrt(2 * freedom))


# --- Clients: what a cache shared by all gains over one for each -----------------------------------------


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


def clients(columns: RequestColumns) -> Clients:
    """Count requests and prompts by client."""
    alike = columns.identities is not None
    known = columns.client >= 0
    who, what = columns.client[known], columns.prompt[known]
    unknown = len(columns) - len(who)
    if not len(who):
        return Clients(clients=0, unknown=unknown)
    most, prompts = len(columns.clients), int(what.max()) + 1
    requests = np.bincount(who, minlength=most)
    pairs = np.unique(who * prompts + what)
    pair_who, pair_what = pairs // prompts, pairs % prompts
    askers = np.bincount(pair_what, minlength=prompts)
    unique = np.bincount(pair_who, minlength=most)
    own = np.bincount(pair_who[askers[pair_what] == 1], minlength=most)
    # a stable sort: of equals, the one that came first
    busiest = np.argsort(-requests, kind="stable")[:CLIENTS_LISTED].tolist()
    top = tuple(
        Client(
            client=columns.clients[code],
            requests=int(requests[code]),
            share=int(requests[code]) / len(who),
            unique_prompts=int(unique[code]) if alike else None,
            own_prompts=int(own[code]) if alike else None,
        )
        for code in busiest
        if requests[code]
    )
    found = Clients(
        clients=int((requests > 0).sum()), unknown=unknown, top=top, top_share=top[0].share
    )
    if not alike:
        return found
    return replace(
        found,
        shared_prompts=int((askers > 1).sum()),
        shared_share=float((askers[what] > 1).mean()),
        repeats_within_share=1 - len(pairs) / len(who),
        repeats_across_share=1 - int((askers > 0).sum()) / len(who),
    )


# --- Settings ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterValue:
    """One value of a parameter."""

    value: str | float | bool | None
    """None: not set, or not told."""
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
class Option:
    """A field of the body beside the well-known ones, e.g., `tools`."""

    name: str
    requests: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What is asked for, in shares of requests."""

    stream_share: float | None
    """Share that asked for a stream; None where no request tells, as in a trace without bodies."""
    declared_share: float | None
    """Share that is declared repeatable: temperature 0, or a seed. None: bodies are not known."""
    images_share: float | None
    """Share with parts that are not text."""
    parameters: tuple[Parameter, ...] = ()
    """`model` `stream` `max_tokens` `temperature` `top_p` `n` `seed` `messages`, those that anybody set."""
    options: tuple[Option, ...] = ()


def mix(columns: RequestColumns) -> Mix:
    """Count what is asked for; where bodies are not known a field that nobody told may have been set."""
    total, bodies = len(columns), columns.identities == "bodies"
    if not total:
        return Mix(stream_share=None, declared_share=None, images_share=None)
    sent = np.bincount(columns.exact, minlength=len(columns.asked)).tolist()
    # many bodies, few combinations of settings
    kinds: Counter[tuple[object, ...]] = Counter()
    for kind, times in zip(map(attrgetter(*PARAMETERS), columns.asked), sent, strict=True):
        kinds[kind] += times
    options: Counter[str] = Counter()
    for one, times in zip(columns.asked, sent, strict=True):
        for name in one.options:
            options[name] += times
    parameters = []
    for place, name in enumerate(PARAMETERS):
        tally: Counter[str | float | bool | None] = Counter()
        for kind, times in kinds.items():
            tally[kind[place]] += times  # type: ignore[index]
        if set(tally) <= {None}:
            continue
        top = tally.most_common(VALUES_LISTED)
        values = tuple(
            ParameterValue(value=value, requests=times, share=times / total) for value, times in top
        )
        rest = total - sum(times for _, times in top)
        parameters.append(Parameter(name=name, values=values, different=len(tally), rest=rest))
    streams = columns.per_request("stream")
    # a body that leaves `stream` out asks for none
    told = bodies or not np.isnan(streams).all()
    return Mix(
        stream_share=float((streams == 1).mean()) if told else None,
        declared_share=float(declared(columns).mean()) if bodies else None,
        images_share=float((columns.per_request("images") > 0).mean()) if bodies else None,
        parameters=tuple(parameters),
        options=tuple(
            Option(name=name, requests=times, share=times / total)
            for name, times in options.most_common(VALUES_LISTED)
        ),
    )


def declared(columns: RequestColumns) -> Mask:
    """For each request: whether it says that its answer may be given again, by temperature 0 or a seed."""
    said = [one.temperature == 0 or one.seed is not None for one in columns.asked]
    return np.array(said, dtype=bool)[columns.exact]
