"""How long prompts and answers are, in tokens: known where somebody counted, estimated and marked so where not.

An answer that its token limit ended would have been longer: it counts as censored, by Kaplan and Meier's estimate.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.stats import rank
from toolkit.workload.columns import Codes, Mask, Numbers, RequestColumns

CHARS_PER_TOKEN = 4.0
"""The rule of thumb for English prose; code has about 3, Chinese and Japanese 1 to 2."""
ENOUGH_TO_CALIBRATE = 20
"""From this many requests with both counts on, their own ratio goes before the rule of thumb."""
MOST_ASKED = 2**24
"""Tokens. A `max_tokens` beyond, or below 0, is a mistake that no model answers: one of them must not outweigh all others."""
SLACK = 1e-9
"""Products of shares miss a quantile by rounding; a share of one request in 10 million is 1e-7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """One bar of a histogram: how many lie in [low, high)."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSpread:
    """How values spread: nearest-rank quantiles, and a histogram over powers of two."""

    count: int
    mean: float
    p50: float | None
    """None, as of those that follow: it lies beyond the longest value that was not cut off by a limit."""
    p90: float | None
    p99: float | None
    p99_9: float | None
    max: float
    censored: int = 0
    """Values that a limit cut off: the quantiles say how long those would be without it, all else what was seen."""
    histogram: tuple[Bin, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokens:
    """Each request's prompt length in tokens, with how it is known."""

    tokens: Numbers
    """NaN where not even the characters are known."""
    estimated: Mask
    chars_per_token: float
    calibrated: bool
    """The ratio was found in this capture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Prompts and answers. None: nobody told."""

    prompt_chars: LengthSpread | None
    prompt_tokens: LengthSpread | None
    prompt_tokens_estimated_share: float | None
    """Share of the requests whose prompt tokens are an estimate from characters."""
    chars_per_token: float
    chars_per_token_calibrated: bool
    output_tokens: LengthSpread | None
    output_known_share: float | None
    """Share of the requests whose answer's length is known."""
    max_tokens: LengthSpread | None
    """Of the requests that set it."""


def lengths(columns: RequestColumns, prompts: PromptTokens) -> Lengths:
    """Describe all lengths."""
    known = ~np.isnan(columns.output_tokens)
    told = ~np.isnan(prompts.tokens)
    some = len(columns) > 0
    return Lengths(
        prompt_chars=spread(columns.per_request("prompt_chars")),
        prompt_tokens=spread(prompts.tokens),
        prompt_tokens_estimated_share=float(prompts.estimated.sum() / told.sum())
        if told.any()
        else None,
        chars_per_token=prompts.chars_per_token,
        chars_per_token_calibrated=prompts.calibrated,
        output_tokens=spread(columns.output_tokens, columns.finish_length == 1),
        output_known_share=float(known.mean()) if some else None,
        max_tokens=spread(columns.per_request("max_tokens")),
    )


def prompt_tokens(columns: RequestColumns) -> PromptTokens:
    """Prompt lengths: told, else another request's with the same prompt, else from characters."""
    chars = columns.per_request("prompt_chars")
    told = columns.prompt_tokens
    ratio, calibrated = _chars_per_token(chars, told)
    shared = np.where(np.isnan(told), _told_of_the_same(columns.prompt, told), told)
    guess = np.isnan(shared) & ~np.isnan(chars)
    tokens = np.where(guess, np.ceil(chars / ratio), shared)
    return PromptTokens(
        tokens=tokens, estimated=guess, chars_per_token=ratio, calibrated=calibrated
    )


def asked_tokens(columns: RequestColumns) -> Numbers:
    """Each request's `max_tokens`; NaN where it is not set, or impossible."""
    asked = columns.per_request("max_tokens")
    return np.where((asked >= 0) & (asked <= MOST_ASKED), asked, np.nan)


def _chars_per_token(chars: Numbers, told: Numbers) -> tuple[float, bool]:
    both = ~np.isnan(chars) & ~np.isnan(told) & (told > 0) & (chars > 0)
    if both.sum() < ENOUGH_TO_CALIBRATE:
        return CHARS_PER_TOKEN, False
    # of sums, not the mean of ratios: a short prompt's tokens are the template's
    return float(chars[both].sum() / told[both].sum()), True


def _told_of_the_same(prompt: Codes, told: Numbers) -> Numbers:
    """For each request the largest number told with its prompt; NaN where none was."""
    if not len(prompt):
        return told
    best = np.full(int(prompt.max()) + 1, -np.inf)
    known = ~np.isnan(told)
    np.maximum.at(best, prompt[known], told[known])
    return np.where(np.isneginf(best), np.nan, best)[prompt]


def spread(values: Numbers, cut: Mask | None = None) -> LengthSpread | None:
    """Describe the known values; `cut` marks those that a limit ended. None for none."""
    known = ~np.isnan(values)
    if not known.any():
        return None
    kept = values[known]
    ended = np.zeros(len(kept), dtype=bool) if cut is None else cut[known]
    p50, p90, p99, p99_9 = quantiles(kept, ended, (0.5, 0.9, 0.99, 0.999))
    return LengthSpread(
        count=len(kept),
        mean=float(kept.mean()),
        p50=p50,
        p90=p90,
        p99=p99,
        p99_9=p99_9,
        max=float(kept.max()),
        censored=int(ended.sum()),
        histogram=histogram(kept),
    )


def quantiles(values: Numbers, cut: Mask, shares: tuple[float, ...]) -> tuple[float | None, ...]:
    """Quantiles of what the values would be had nothing been cut off; the nearest rank where nothing was.

    Kaplan and Meier: at each length, of the answers that came as far, the share that ended there by themselves.
    """
    lengths_seen, where = np.unique(values, return_inverse=True)
    at_each = np.bincount(where, minlength=len(lengths_seen))
    ended = np.bincount(where[~cut], minlength=len(lengths_seen))
    came_as_far = len(values) - np.cumsum(at_each) + at_each
    longer = np.cumprod(1 - ended / came_as_far)
    found: list[float | None] = []
    for share in shares:
        reached = np.flatnonzero(longer <= 1 - share + SLACK)
        found.append(float(lengths_seen[reached[0]]) if len(reached) else None)
    return tuple(found)


def at_rank(ordered: NDArray[np.int64] | Numbers, share: float) -> float:
    """The nearest-rank quantile of sorted values."""
    return float(ordered[rank(len(ordered), share) - 1])


def histogram(values: Numbers) -> tuple[Bin, ...]:
    """Counts in [0, 1), [1, 2), [2, 4), [4, 8) ... as far as there are values, empty ones between included."""
    # frexp gives 1 -> 1, 2 and 3 -> 2, 4 to 7 -> 3, exactly; a logarithm would put 2 ** 29 below itself
    _, exponents = np.frexp(np.maximum(values, 0.0))
    bars = np.bincount(np.where(values < 1, 0, exponents))
    first = int(np.flatnonzero(bars)[0])
    return tuple(
        Bin(low=0.0 if bar == 0 else 2.0 ** (bar - 1), high=2.0**bar, count=int(bars[bar]))
        for bar in range(first, len(bars))
    )
