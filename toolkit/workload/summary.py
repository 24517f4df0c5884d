"""The whole report on a workload as one record: what is asked, how often, when, how long, and what follows from it.

Field names are the keys of `toolkit workload --json`. It puts the room's answers together and says what is unknown and why.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from toolkit.units import share as percent
from toolkit.workload.arrivals import Arrivals, Concurrency, arrivals, concurrency
from toolkit.workload.clients import Clients, clients
from toolkit.workload.columns import Mask, Numbers, RequestColumns
from toolkit.workload.distribution import TOPS, Distribution, distribution
from toolkit.workload.forecast import Forecast, HitCell, forecast
from toolkit.workload.lengths import (
    Lengths,
    LengthSpread,
    PromptTokens,
    lengths,
    prompt_tokens,
    spread,
)
from toolkit.workload.levers import Lever, LeverEvidence, headline, levers
from toolkit.workload.limits import ModelLength, model_length
from toolkit.workload.mixes import Mix, declared, mix
from toolkit.workload.prefixes import Prefixes, shared_prefix
from toolkit.workload.work import Basis, Reuse, Work, reuse, work

Policy = Literal["all", "declared"]
Identities = Literal["bodies", "prompts"] | None

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
class ReportSettings:
    """What the user tells beside the requests."""

    latency_s: float | None = None
    """Of every answer, where answers were not followed."""
    current_max_model_len: int | None = None
    model_max_len: int | None = None
    """The longest the model can take."""
    max_num_seqs: int | None = None
    policy: Policy = "all"
    """Which answers a cache may give again: all, as in a contest, or those that temperature 0 or a seed declares."""
    identities: Identities = "bodies"
    """What tells the source's requests apart: bodies; prompts, the settings not; None: nothing does."""
    arrivals: bool = True
    """False: the source tells no times, a request's is its place."""
    beginnings: bool = True
    """False: the source does not tell how prompts begin."""
    kv_blocks: tuple[int, ...] = ()
    """Capacities of a prefix cache to try, in blocks, e.g., a host's `num_gpu_blocks`."""
    sizes: tuple[int | None, ...] = SIZES
    """Entries; None: without end."""
    ttls_s: tuple[float | None, ...] = TTLS_S


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
    """All that can be said of the captured requests. None is unknown; `unknown` says why."""

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
    """None: the source does not tell which requests are alike."""
    prefixes: Prefixes
    model_length: ModelLength
    warnings: tuple[str, ...]
    unknown: tuple[str, ...]


PLAIN = ReportSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReportCase:
    """The requests, and what several parts of the report need of them."""

    columns: RequestColumns
    options: ReportSettings
    prompts: PromptTokens
    lengths: Lengths
    mix: Mix
    arrivals: Arrivals
    prefixes: Prefixes
    latency: Numbers | None
    policy: Policy
    eligible: Mask


def summarise(columns: RequestColumns, *, options: ReportSettings = PLAIN) -> Workload:
    """Put the whole report together."""
    case = _case(columns, options)
    evidence = _evidence(case)
    found, ahead = levers(evidence), _forecast(columns, case.latency, case.eligible, options)
    counted = distribution(columns) if options.identities else Distribution(requests=len(columns))
    return Workload(
        headline=_headline(found, case, evidence.length),
        requests=len(columns),
        damaged=columns.damaged,
        other=columns.other,
        refused=sum(columns.refused.values()),
        # what stands for a body where there is none has no bytes to compare
        unique_exact=counted.unique_exact if options.identities == "bodies" else None,
        unique_canonical=counted.unique_canonical,
        unique_prompts=counted.unique_prompts,
        top_share=_top_share(counted),
        entropy_bits=counted.entropy_bits,
        stream_share=case.mix.stream_share,
        hit_curve=ahead.canonical if ahead else (),
        prefix_share=case.prefixes.share if options.identities else None,
        recommended_max_model_len=evidence.length.recommended,
        levers=found,
        policy=case.policy,
        eligible_share=float(case.eligible.mean()) if len(columns) else None,
        output_basis=evidence.work.basis,
        distribution=counted,
        clients=clients(columns, alike=options.identities is not None),
        arrivals=case.arrivals,
        concurrency=evidence.concurrency,
        lengths=case.lengths,
        mix=case.mix,
        answers=answers(columns),
        forecast=ahead,
        prefixes=case.prefixes,
        model_length=evidence.length,
        warnings=tuple(warnings(columns, case.arrivals, evidence.length, options)),
        unknown=tuple(unknown(columns, case.prompts, evidence.work, options)),
    )


def _case(columns: RequestColumns, options: ReportSettings) -> _ReportCase:
    prompts = prompt_tokens(columns)
    # without settings nobody knows which requests declare themselves repeatable
    policy: Policy = options.policy if options.identities == "bodies" else "all"
    return _ReportCase(
        columns=columns,
        options=options,
        prompts=prompts,
        lengths=lengths(columns, prompts),
        mix=mix(columns, bodies=options.identities == "bodies"),
        arrivals=arrivals(columns.ts)
        if options.arrivals
        else Arrivals(why="the source tells no times"),
        prefixes=_prefixes(columns, options),
        latency=latencies(columns, options),
        policy=policy,
        eligible=eligible_mask(columns, policy),
    )


def _evidence(case: _ReportCase) -> LeverEvidence:
    """What the levers are judged by."""
    columns, options = case.columns, case.options
    return LeverEvidence(
        work=work(columns, case.prompts, failed_mask(columns)),
        reuse=_reuse(columns, case.latency, case.eligible, options),
        prefix_share=partial(_prefix_share, columns, case.prefixes),
        declared_share=case.mix.declared_share,
        policy=case.policy,
        length=model_length(
            columns,
            case.prompts,
            current=options.current_max_model_len,
            model_max=options.model_max_len,
        ),
        concurrency=_concurrency(columns, case.arrivals, options),
        output=case.lengths.output_tokens,
        max_tokens=case.lengths.max_tokens,
        max_num_seqs=options.max_num_seqs,
    )


def _headline(found: tuple[Lever, ...], case: _ReportCase, length: ModelLength) -> str:
    if not len(case.columns):
        return "no request to judge by"
    return headline(found, length, case.policy)


def latencies(columns: RequestColumns, options: ReportSettings) -> Numbers | None:
    """Each answer's latency: measured, else the mean of the measured ones, else the user's; None: of no use or unknown."""
    if not options.arrivals:
        return None
    measured = columns.latency_s
    known = ~np.isnan(measured)
    if known.any():
        return np.where(known, measured, measured[known].mean())
    return None if options.latency_s is None else np.full(len(columns), options.latency_s)


def _reuse(
    columns: RequestColumns, latency: Numbers | None, eligible: Mask, options: ReportSettings
) -> Reuse | None:
    if options.identities is None:
        return None
    times = columns.ts if options.arrivals else None
    return reuse(columns.request, times, latency, eligible & ~failed_mask(columns))


def _concurrency(columns: RequestColumns, when: Arrivals, options: ReportSettings) -> Concurrency:
    if not options.arrivals:
        return Concurrency(basis=None, why=when.why)
    return concurrency(columns, when.requests_per_s, options.latency_s)


def eligible_mask(columns: RequestColumns, policy: Policy) -> Mask:
    """Which requests the policy lets a cache answer."""
    return declared(columns) if policy == "declared" else np.ones(len(columns), dtype=bool)


def failed_mask(columns: RequestColumns) -> Mask:
    """Which requests are known to have failed: their answers are worth nothing to others, and cost next to nothing."""
    # an answer nobody saw, NaN, did not
    found: Mask = (columns.status < 200) | (columns.status >= 300)
    return found


def _prefixes(columns: RequestColumns, options: ReportSettings) -> Prefixes:
    found = shared_prefix(columns, capacities=options.kv_blocks, top=LEADERS)
    if options.beginnings:
        return found
    return replace(found, share=None, last_half_share=None, by_capacity=())


def _prefix_share(columns: RequestColumns, of_all: Prefixes, which: Mask) -> float | None:
    if of_all.share is None or which.all():
        return of_all.share
    return shared_prefix(part(columns, which)).share


def part(columns: RequestColumns, which: Mask) -> RequestColumns:
    """Some of the requests; numbers of bodies and clients stay what they were."""
    rows = {
        name: getattr(columns, name)[which]
        for name in RequestColumns.__dataclass_fields__
        if isinstance(getattr(columns, name), np.ndarray)
    }
    return replace(columns, **rows)


def _top_share(counted: Distribution) -> dict[str, float | None]:
    found = dict(zip(TOPS, counted.tops, strict=False))
    return {str(most): found[most].share if most in found else None for most in TOPS}


def _forecast(
    columns: RequestColumns, latency: Numbers | None, eligible: Mask, options: ReportSettings
) -> Forecast | None:
    if options.identities is None or not len(columns):
        return None
    found = forecast(
        columns,
        np.zeros(len(columns)) if latency is None else latency,
        sizes=_telling(options.sizes, int(columns.request.max()) + 1),
        # without times nothing grows old
        ttls=options.ttls_s if options.arrivals else (None,),
        eligible=eligible,
        failed=failed_mask(columns),
    )
    if options.identities != "bodies":
        found = replace(found, exact=())
    if latency is not None:
        return found
    return replace(
        found,
        exact=_of_unknown_latency(found.exact),
        canonical=_of_unknown_latency(found.canonical),
        prompt=_of_unknown_latency(found.prompt),
    )


def _of_unknown_latency(cells: tuple[HitCell, ...]) -> tuple[HitCell, ...]:
    """At no latency nobody joins: how many would is unknown, not 0."""
    return tuple(replace(cell, coalesced_ratio=None, steady_coalesced_ratio=None) for cell in cells)


def _telling(sizes: tuple[int | None, ...], keys: int) -> tuple[int | None, ...]:
    """Of our own sizes those up to the first that holds every key, as larger ones say the same again; the user's own all."""
    if sizes != SIZES:
        return sizes
    enough = min((size for size in sizes if size is not None and size >= keys), default=None)
    return tuple(size for size in sizes if size is None or enough is None or size <= enough)


def answers(columns: RequestColumns) -> AnswerFigures:
    """How answers came, those to refused requests included."""
    known = columns.status[~np.isnan(columns.status)]
    codes, counts = np.unique(known.astype(np.int64), return_counts=True)
    statuses = Counter({int(code): int(count) for code, count in zip(codes, counts, strict=True)})
    statuses.update(columns.refused)
    total = statuses.total()
    good = sum(count for code, count in statuses.items() if 200 <= code < 300)
    told = columns.cache[columns.cache >= 0]
    return AnswerFigures(
        statuses={str(code): count for code, count in sorted(statuses.items())},
        error_share=1 - good / total if total else None,
        ttft_ms=spread(columns.ttft_s * 1e3),
        latency_ms=spread(columns.latency_s * 1e3),
        cache_told=len(told),
        cache_hit_ratio=float((told == 1).mean()) if len(told) else None,
        cache_coalesced_ratio=float((told == 2).mean()) if len(told) else None,
    )


def warnings(
    columns: RequestColumns, when: Arrivals, length: ModelLength, options: ReportSettings
) -> list[str]:
    """What makes the figures less worth than they look."""
    found = list(length.warnings)
    seen, total = len(columns), len(columns) + columns.damaged
    if columns.damaged > DAMAGED * total:
        found.append(
            f"{columns.damaged:,} of {total:,} requests were damaged and are left out: counts and rates are too low"
        )
    refused = sum(columns.refused.values())
    if refused:
        found.append(
            f"{refused:,} {'request was' if refused == 1 else 'requests were'} refused ({refusals_told(columns.refused)}) and"
            " shape no limit, lever, forecast or rate here"
        )
    if 0 < seen < FEW:
        found.append(
            f"{seen:,} {'request is' if seen == 1 else 'requests are'} few: how often they will repeat is a guess under {FEW:,}"
        )
    before = float((columns.cache > 0).mean()) if seen else 0.0
    if before:
        found.append(
            f"a cache in front answered {percent(before)} of requests already: latencies are with it, levers are told as if it"
            " were not there"
        )
    if options.arrivals and seen > 1:
        found.extend(_short_of_time(when.duration_s or 0.0, options.ttls_s))
    return found


def refusals_told(refused: Mapping[int, int]) -> str:
    """`HTTP 400: 3, HTTP 503: 1`."""
    return ", ".join(f"HTTP {status}: {count:,}" for status, count in refused.items())


def _short_of_time(duration_s: float, ttls_s: tuple[float | None, ...]) -> Iterator[str]:
    longest = max((ttl for ttl in ttls_s if ttl is not None), default=0.0)
    if not duration_s:
        yield "all requests bear the same time: nothing that depends on time can be told"
    elif duration_s < LIFETIMES * longest:
        yield (
            f"the capture spans {_few_digits(duration_s)} s: of times to live over {_few_digits(duration_s / LIFETIMES)} s it"
            " has seen few ends, so their hit ratios are a first glance"
        )


def _few_digits(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.2g}"


def unknown(
    columns: RequestColumns, prompts: PromptTokens, cost: Work, options: ReportSettings
) -> list[str]:
    """What cannot be told, why, and what would tell it."""
    if not len(columns):
        return ["no request asked a model for anything: everything"]
    return [
        *_unknown_of_the_source(options),
        *_unknown_of_answers(columns, cost, options),
        *_unknown_of_requests(columns, prompts),
    ]


def _unknown_of_the_source(options: ReportSettings) -> Iterator[str]:
    if options.identities is None:
        yield "the source does not tell which requests are alike: what repeats, and what a cache would answer, is unknown"
    if options.identities != "bodies" and options.policy == "declared":
        yield "the source tells no settings, so which requests declare themselves repeatable is unknown: all count"
    if options.identities == "prompts":
        yield "the source tells prompts and not all settings: requests that look equal count as equal, so hit ratios are upper bounds"
    if not options.beginnings:
        yield "the source does not tell how prompts begin: what a prefix cache would save is unknown"
    if not options.arrivals:
        yield "the source tells no times: rates, concurrency and times to live are unknown"


def _unknown_of_answers(
    columns: RequestColumns, cost: Work, options: ReportSettings
) -> Iterator[str]:
    if np.isnan(columns.status).all() and np.isnan(columns.output_tokens).all():
        yield "answers were not followed, so their lengths, latencies and errors are unknown: capture with --full"
    if options.identities and options.arrivals and latencies(columns, options) is None:
        yield "latency is unknown, so every repeat counts as a hit at once and none as coalesced: give --latency"
    if cost.basis == "mixed":
        yield "some answers' lengths are unknown: their prompt's others, or max_tokens, stand for them"


def _unknown_of_requests(columns: RequestColumns, prompts: PromptTokens) -> Iterator[str]:
    if prompts.estimated.any():
        how = "found in this capture" if prompts.calibrated else "a rule of thumb for English"
        yield (
            f"{percent(float(prompts.estimated.mean()))} of prompts' tokens are an estimate from characters,"
            f" {prompts.chars_per_token:.3g} a token, {how}"
        )
    if (columns.client < 0).all():
        yield "clients are unknown"
