"""The whole report on a workload as one record: what is sent, how often, when, how long, and what follows from it.

Field names are the keys of `toolkit workload --json`. It puts the package's answers together and says what is unknown and why.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from toolkit.units import share as percent
from toolkit.workload.arrivals import Arrivals, Concurrency, arrivals, concurrency
from toolkit.workload.columns import Mask, Numbers, RequestColumns
from toolkit.workload.distribution import (
    TOPS,
    Clients,
    Distribution,
    Mix,
    clients,
    declared,
    distribution,
    mix,
)
from toolkit.workload.forecast import Forecast, HitCell, forecast, reuse
from toolkit.workload.lengths import (
    Lengths,
    LengthSpread,
    ModelLength,
    PromptTokens,
    lengths,
    model_length,
    prompt_tokens,
    spread,
)
from toolkit.workload.levers import Basis, Lever, adjustments, headline, savings, work
from toolkit.workload.prefixes import Prefixes, shared_prefix

Policy = Literal["all", "declared"]

SIZES = (10, 100, 1_000, 10_000, None)
TTLS_S = (60.0, 600.0, None)
LEADERS = 5
"""Shared beginnings that are listed, by volume and by count."""
FEW = 1_000
"""Under so many requests a forecast of repeats is a guess."""
LIFETIMES = 10
"""A capture shorter than so many times to live has seen few of them end."""
DAMAGED = 0.01
"""With a larger share of damaged requests every count here is too low by more than it is worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFigures:
    """How answers came, of the requests where that is known."""

    statuses: dict[str, int]
    """Requests by HTTP status."""
    error_share: float | None
    ttft_ms: LengthSpread | None
    latency_ms: LengthSpread | None
    cache_told: int
    """Requests of which it is known how a cache in front served them."""
    cache_hit_ratio: float | None
    cache_coalesced_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """All that is known of the captured requests. None is unknown; `unknown` says why."""

    headline: str
    requests: int
    """Those that ask a model for something and were not refused; the others, those and the damaged ones stand beside them."""
    damaged: int
    other: int
    refused: int
    """Answered with 4xx or 5xx: nothing but `answers` counts them."""
    unique_exact: int | None
    unique_canonical: int | None
    unique_prompts: int | None
    top_share: dict[str, float | None]
    """Share of the most frequent 1, 2, 10, 100 prompts."""
    entropy_bits: float | None
    stream_share: float | None
    hit_curve: tuple[HitCell, ...]
    """By request as the proxy's cache tells them apart; `forecast` has the curves by other keys, too."""
    prefix_share: float | None
    recommended_max_model_len: int | None
    levers: tuple[Lever, ...]
    policy: Policy
    eligible_share: float | None
    """Share of requests that a cache may answer under the policy."""
    output_basis: Basis
    distribution: Distribution
    clients: Clients
    arrivals: Arrivals
    concurrency: Concurrency
    lengths: Lengths
    mix: Mix
    answers: AnswerFigures
    forecast: Forecast | None
    """None: the source does not say which requests are alike."""
    prefixes: Prefixes
    model_length: ModelLength
    warnings: tuple[str, ...]
    unknown: tuple[str, ...]


def summarise(
    columns: RequestColumns,
    *,
    latency_s: float | None = None,
    current_max_model_len: int | None = None,
    model_max_len: int | None = None,
    max_num_seqs: int | None = None,
    policy: Policy = "all",
    kv_blocks: tuple[int, ...] = (),
    sizes: tuple[int | None, ...] | None = None,
    ttls_s: tuple[float | None, ...] = TTLS_S,
) -> Workload:
    """Put the whole report together.

    `latency_s` is of every answer, where answers were not followed. `policy`: which answers a cache may give again: all, as in
    a contest, or those that temperature 0 or a seed declares. `kv_blocks`: capacities of a prefix cache to try, in blocks,
    e.g., a host's `num_gpu_blocks`. `sizes` (answers) and `ttls_s` are of the response caches to try; None: without end.
    """
    identities, total = columns.identities, len(columns)
    prompts = prompt_tokens(columns)
    all_lengths, settings = lengths(columns, prompts), mix(columns)
    when = Arrivals(why="the source has no times")
    under_way = Concurrency(basis=None, why=when.why)
    latency: Numbers | None = None
    if columns.arrivals:
        when = arrivals(columns.ts)
        under_way = concurrency(columns, when.requests_per_s, latency_s)
        # measured, else the mean of the measured ones, else the user's
        known = columns.latency_s[~np.isnan(columns.latency_s)]
        if len(known):
            latency = np.nan_to_num(columns.latency_s, nan=float(known.mean()))
        elif latency_s is not None:
            latency = np.full(total, latency_s)
    length = model_length(columns, prompts, current=current_max_model_len, model_max=model_max_len)
    prefixes = shared_prefix(columns, capacities=kv_blocks, top=LEADERS)
    if not columns.beginnings:
        prefixes = replace(prefixes, share=None, last_half_share=None, by_capacity=())

    unknown = list(_unknown(columns, prompts, latency, policy))
    # without settings nobody knows which requests declare themselves repeatable
    policy = policy if identities == "bodies" else "all"
    eligible = declared(columns) if policy == "declared" else np.ones(total, dtype=bool)
    # what failed is worth nothing to others and costs next to nothing; an answer nobody saw, NaN, did not
    failed: Mask = (columns.status < 200) | (columns.status >= 300)
    reused = ahead = None
    if identities is not None:
        times = columns.ts if columns.arrivals else None
        reused = reuse(columns.request, times, latency, eligible & ~failed)
    if identities and total:
        if sizes is None:
            # up to the first that holds every key, as larger ones say the same again
            keys = int(columns.request.max()) + 1
            least = min((size for size in SIZES if size is not None and size >= keys), default=keys)
            sizes = tuple(size for size in SIZES if size is None or size <= least)
        # without times nothing grows old
        ttls = ttls_s if columns.arrivals else (None,)
        ahead = forecast(columns, latency, sizes=sizes, ttls=ttls, eligible=eligible, failed=failed)

    def prefix_share(which: Mask) -> float | None:
        if prefixes.share is None or which.all():
            return prefixes.share
        return shared_prefix(columns.part(which)).share

    tokens, basis = work(columns, prompts, failed)
    if basis == "mixed":
        unknown.append(
            "some answers' lengths are unknown: their prompt's others, or max_tokens, stand for them"
        )
    levers = (
        *savings(tokens, basis, reused, prefix_share, settings.declared_share, policy),
        *adjustments(length, under_way, all_lengths, max_num_seqs),
    )
    counts = distribution(columns) if identities else Distribution(requests=total)
    tops = dict(zip(TOPS, counts.tops, strict=False))
    return Workload(
        headline=headline(levers, length, policy) if total else "no request to judge by",
        requests=total,
        damaged=columns.damaged,
        other=columns.other,
        refused=sum(columns.refused.values()),
        # what stands for a body where there is none has no bytes to compare
        unique_exact=counts.unique_exact if identities == "bodies" else None,
        unique_canonical=counts.unique_canonical,
        unique_prompts=counts.unique_prompts,
        top_share={str(most): tops[most].share if most in tops else None for most in TOPS},
        entropy_bits=counts.entropy_bits,
        stream_share=settings.stream_share,
        hit_curve=ahead.canonical if ahead else (),
        prefix_share=prefixes.share if identities else None,
        recommended_max_model_len=length.recommended,
        levers=levers,
        policy=policy,
        eligible_share=float(eligible.mean()) if total else None,
        output_basis=basis,
        distribution=counts,
        clients=clients(columns),
        arrivals=when,
        concurrency=under_way,
        lengths=all_lengths,
        mix=settings,
        answers=answers(columns),
        forecast=ahead,
        prefixes=prefixes,
        model_length=length,
        warnings=(*length.warnings, *_warnings(columns, when.duration_s, ttls_s)),
        unknown=tuple(unknown),
    )


def answers(columns: RequestColumns) -> AnswerFigures:
    """How answers came, those to refused requests included."""
    known = columns.status[~np.isnan(columns.status)].astype(int).tolist()
    statuses = Counter(known) + Counter(columns.refused)
    total = statuses.total()
    good = sum(count for code, count in statuses.items() if 200 <= code < 300)
    cached = columns.cache[columns.cache >= 0]
    return AnswerFigures(
        statuses={str(code): count for code, count in sorted(statuses.items())},
        error_share=1 - good / total if total else None,
        ttft_ms=spread(columns.ttft_s * 1e3),
        latency_ms=spread(columns.latency_s * 1e3),
        cache_told=len(cached),
        cache_hit_ratio=float((cached == 1).mean()) if len(cached) else None,
        cache_coalesced_ratio=float((cached == 2).mean()) if len(cached) else None,
    )


def refusals(refused: Mapping[int, int]) -> str:
    """`HTTP 400: 3, HTTP 503: 1`."""
    return ", ".join(f"HTTP {status}: {count:,}" for status, count in refused.items())


def _warnings(
    columns: RequestColumns, duration_s: float | None, ttls_s: tuple[float | None, ...]
) -> Iterator[str]:
    """What makes the figures less worth than they look."""
    seen, total = len(columns), len(columns) + columns.damaged
    if columns.damaged > DAMAGED * total:
        yield f"{columns.damaged:,} of {total:,} requests were damaged and are left out: counts and rates are too low"
    if refused := sum(columns.refused.values()):
        yield (
            f"{refused:,} {'request was' if refused == 1 else 'requests were'} refused ({refusals(columns.refused)}) and"
            " shape no limit, lever, forecast or rate here"
        )
    if 0 < seen < FEW:
        yield f"{seen:,} {'request is' if seen == 1 else 'requests are'} few: how often they will repeat is a guess under {FEW:,}"
    if (columns.cache > 0).any():
        before = percent(float((columns.cache > 0).mean()))
        yield (
            f"a cache in front answered {before} of requests already: latencies are with it, levers are reckoned as if it"
            " were not there"
        )
    longest = max((ttl for ttl in ttls_s if ttl is not None), default=0.0)
    if not columns.arrivals or seen < 2 or duration_s is None:
        return
    if not duration_s:
        yield "all requests bear the same time: nothing that depends on time can be known"
    elif duration_s < LIFETIMES * longest:
        spans, few = (
            f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"
            for seconds in (duration_s, duration_s / LIFETIMES)
        )
        yield (
            f"the capture spans {spans} s: of times to live over {few} s it"
            " has seen few ends, so their hit ratios are a first estimate"
        )


def _unknown(
    columns: RequestColumns, prompts: PromptTokens, latency: Numbers | None, policy: Policy
) -> Iterator[str]:
    """What cannot be known, why, and what would help."""
    identities = columns.identities
    if not len(columns):
        yield "no request asked a model for anything: everything"
        return
    if identities is None:
        yield "the source does not say which requests are alike: what repeats, and what a cache would answer, is unknown"
    if identities != "bodies" and policy == "declared":
        yield "the source has no settings, so which requests declare themselves repeatable is unknown: all count"
    if identities == "prompts":
        yield "the source has prompts and not all settings: requests that look equal count as equal, so hit ratios are upper bounds"
    if not columns.beginnings:
        yield "the source does not say how prompts begin: what a prefix cache would save is unknown"
    if not columns.arrivals:
        yield "the source has no times: rates, concurrency and times to live are unknown"
    if np.isnan(columns.status).all() and np.isnan(columns.output_tokens).all():
        yield "answers were not followed, so their lengths, latencies and errors are unknown: capture with --full"
    if identities and columns.arrivals and latency is None:
        yield "latency is unknown, so every repeat counts as a hit at once and none as coalesced: give --latency"
    if prompts.estimated.any():
        how = "found in this capture" if prompts.calibrated else "a rule of thumb for English"
        yield (
            f"{percent(float(prompts.estimated.mean()))} of prompts' tokens are an estimate from characters,"
            f" {prompts.chars_per_token:.3g} a token, {how}"
        )
    if (columns.client < 0).all():
        yield "clients are unknown"
