"""How long prompts and answers are, in tokens, and which `max_model_len` they need: what smaller and larger ones would refuse.

Lengths are known where somebody counted, estimated and marked so where not. An answer that its token limit ended would
have been longer: it counts as censored, by Kaplan and Meier's estimate.

A shorter limit lets the same KV cache promise room to more full-length requests. It is judged only by what was captured:
the largest of a sample is smaller than the largest of all, so there is a margin, and a warning where the sample is small.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from toolkit.units import counted
from toolkit.workload.columns import Mask, Numbers, RequestColumns

AnswersBasis = Literal["max_tokens", "observed", "mixed"]

CHARS_PER_TOKEN = 4.0
"""The rule of thumb for English prose; code has about 3, Chinese and Japanese 1 to 2."""
ENOUGH_TO_CALIBRATE = 20
"""From this many requests with both counts on, their own ratio goes before the rule of thumb."""
MOST_ASKED = 2**24
"""Tokens. A `max_tokens` beyond, or below 0, is a mistake that no model answers: one of them must not outweigh all others."""
SLACK = 1e-9
"""Products of shares miss a quantile by rounding; a share of one request in 10 million is 1e-7."""
MARGIN = 0.15
"""Room above the longest captured request: the middle of the 10 to 20 % that are usual."""
STEP = 256
"""Limits are multiples of this: blocks of 16 tokens, and the larger ones of hybrid models, waste little of it."""
TRIED = (512, 1024, 2048, 4096, 8192, 16384, 32768)
FEW = 1_000
"""Under so many requests, one in a thousand that is longer is as likely missed as seen."""


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
    """Prompts and answers. None: not known."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitEffect:
    """What a limit would have done to the captured requests."""

    max_model_len: int
    refused: int
    """Their prompt and `max_tokens` (at least one token where it is not set) do not fit: HTTP 400."""
    refused_share: float
    cut: int
    """Of those that set no `max_tokens`: answered, but shorter than they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLength:
    """The recommended `max_model_len` and where it comes from."""

    recommended: int | None
    """None: nobody knows how long answers may get."""
    why: str
    basis: AnswersBasis | None = None
    """Answers' part of the need: as asked for, as observed (99.9 % of them), or some of each."""
    longest: int | None = None
    """Tokens that the longest captured request may need, prompt and answer, without the margin."""
    wanted: int | None = None
    """The same with it, rounded up; more than `recommended` where the model cannot take as many."""
    margin: float = MARGIN
    current: int | None = None
    """As the user says or scout saw it."""
    room_factor: float | None = None
    """Current / recommended: so many times as many full-length requests fit the same KV cache."""
    capped: bool = False
    """The model cannot take what the workload needs."""
    refusals: tuple[LimitEffect, ...] = ()
    warnings: tuple[str, ...] = ()


def lengths(columns: RequestColumns, prompts: PromptTokens) -> Lengths:
    """Describe all lengths."""
    known, answered = ~np.isnan(prompts.tokens), ~np.isnan(columns.output_tokens)
    return Lengths(
        prompt_chars=spread(columns.per_request("prompt_chars")),
        prompt_tokens=spread(prompts.tokens),
        prompt_tokens_estimated_share=(
            float(prompts.estimated[known].mean()) if known.any() else None
        ),
        chars_per_token=prompts.chars_per_token,
        chars_per_token_calibrated=prompts.calibrated,
        output_tokens=spread(columns.output_tokens, columns.finish_length == 1),
        output_known_share=float(answered.mean()) if len(columns) else None,
        max_tokens=spread(columns.per_request("max_tokens")),
    )


def prompt_tokens(columns: RequestColumns) -> PromptTokens:
    """Prompt lengths: counted by a server, else as another request's with the same prompt, else from characters."""
    chars, usage = columns.per_request("prompt_chars"), columns.prompt_tokens
    both = (usage > 0) & (chars > 0)
    calibrated = bool(both.sum() >= ENOUGH_TO_CALIBRATE)
    # of sums, not the mean of ratios: a short prompt's tokens are the template's
    ratio = float(chars[both].sum() / usage[both].sum()) if calibrated else CHARS_PER_TOKEN
    same_prompts = columns.mean_by_prompt(usage)[columns.prompt]
    tokens = np.where(np.isnan(usage), np.ceil(same_prompts), usage)
    guess = np.isnan(tokens) & ~np.isnan(chars)
    return PromptTokens(
        tokens=np.where(guess, np.ceil(chars / ratio), tokens),
        estimated=guess,
        chars_per_token=ratio,
        calibrated=calibrated,
    )


def asked_tokens(columns: RequestColumns) -> Numbers:
    """Each request's `max_tokens`; NaN where it is not set, or impossible."""
    asked = columns.per_request("max_tokens")
    return np.where((asked >= 0) & (asked <= MOST_ASKED), asked, np.nan)


def spread(values: Numbers, cut: Mask | None = None) -> LengthSpread | None:
    """Describe the known values; `cut` marks those that a limit ended. None for none."""
    known = ~np.isnan(values)
    if not known.any():
        return None
    kept = values[known]
    ended = np.zeros(len(kept), dtype=bool) if cut is None else cut[known]
    p50, p90, p99, p99_9 = quantiles(kept, ended, (0.5, 0.9, 0.99, 0.999))
    # a histogram over [0, 1), [1, 2), [2, 4), [4, 8) ... as far as there are values, empty bars between included. frexp gives
    # 1 -> 1, 2 and 3 -> 2, 4 to 7 -> 3, exactly; a logarithm would put 2 ** 29 below itself
    _, exponents = np.frexp(np.maximum(kept, 0.0))
    bars = np.bincount(np.where(kept < 1, 0, exponents))
    return LengthSpread(
        count=len(kept),
        mean=float(kept.mean()),
        p50=p50,
        p90=p90,
        p99=p99,
        p99_9=p99_9,
        max=float(kept.max()),
        censored=int(ended.sum()),
        histogram=tuple(
            Bin(low=0.0 if bar == 0 else 2.0 ** (bar - 1), high=2.0**bar, count=int(bars[bar]))
            for bar in range(int(np.flatnonzero(bars)[0]), len(bars))
        ),
    )


def quantiles(values: Numbers, cut: Mask, shares: tuple[float, ...]) -> list[float | None]:
    """Quantiles of what the values would be had nothing been cut off; the nearest rank where nothing was.

    Kaplan and Meier: at each length, of the answers that came as far, the share that ended there by themselves.
    """
    lengths_seen, where = np.unique(values, return_inverse=True)
    at_each = np.bincount(where, minlength=len(lengths_seen))
    ended = np.bincount(where[~cut], minlength=len(lengths_seen))
    came_as_far = len(values) - np.cumsum(at_each) + at_each
    longer = np.cumprod(1 - ended / came_as_far)
    reached = [np.flatnonzero(longer <= 1 - share + SLACK) for share in shares]
    return [float(lengths_seen[places[0]]) if len(places) else None for places in reached]


def model_length(
    columns: RequestColumns,
    prompts: PromptTokens,
    *,
    current: int | None = None,
    model_max: int | None = None,
) -> ModelLength:
    """Recommend a limit and count what others would refuse."""
    prompt, limits, output = (
        prompts.tokens,
        columns.per_request("max_tokens"),
        columns.output_tokens,
    )
    if not len(columns) or np.isnan(prompt).all():
        why = "no prompt's length is known" if len(columns) else "no requests"
        return ModelLength(recommended=None, why=why, current=current)

    least = prompt + np.where(np.isnan(limits), 1, limits)
    seen = prompt + np.where(np.isnan(limits), output, np.nan)
    refusals = tuple(
        LimitEffect(
            max_model_len=limit,
            refused=int((least > limit).sum()),  # NaN, a prompt of unknown length, is not
            refused_share=float((least > limit).mean()),
            cut=int((~(least > limit) & (seen > limit)).sum()),
        )
        for limit in sorted({*TRIED, *([] if current is None else [current])})
    )

    # an answer's part of the need: its limit; where none is set, the 99.9 % quantile of answers, or of limits the largest
    possible, answered = asked_tokens(columns), ~np.isnan(output)
    unset, why = np.isnan(possible), "longest prompt + max_tokens"
    basis: AnswersBasis = "max_tokens"
    if unset.any():
        if answered.any():
            [likely] = quantiles(output[answered], columns.finish_length[answered] == 1, (0.999,))
            how = "the answers' 99.9 % quantile"
            if likely is None:
                likely = float(output[answered].max())
                how = "the longest answer (its limit ended it: it may need more)"
        elif unset.all():
            why = "requests set no max_tokens, and no answer's length is known"
            return ModelLength(recommended=None, why=why, current=current, refusals=refusals)
        else:
            likely, how = float(np.nanmax(possible)), "the largest max_tokens of those that set it"
        basis, why = "observed" if unset.all() else "mixed", f"longest prompt + {how}"
        possible = np.where(unset, likely, possible)
    longest = math.ceil(np.nanmax(prompt + possible))
    wanted = rounded_up(longest)
    recommended = wanted if model_max is None else min(wanted, model_max)
    capped = model_max is not None and longest > model_max

    impossible, unknown = int((~np.isnan(limits) & unset).sum()), int(np.isnan(prompt).sum())
    warnings = {
        f"max_model_len rests on {counted(len(columns), 'request')}: a longer one may be yet to come": (
            len(columns) < FEW
        ),
        "max_model_len rests on estimated prompts: Chinese or Japanese text needs more tokens, and a chat template's own are"
        " not in it": prompts.estimated.any(),
        f"{impossible:,} {'request asks' if impossible == 1 else 'requests ask'} for a max_tokens that no model gives (below 0,"
        f" or over {MOST_ASKED:,}): it is taken for not set": impossible,
        f"{unknown:,} prompts of unknown length are not counted in max_model_len": unknown,
        f"the longest request needs {longest:,} tokens, the model takes {model_max or 0:,}: such are refused": capped,
    }
    return ModelLength(
        recommended=recommended,
        why=why,
        basis=basis,
        longest=longest,
        wanted=wanted,
        current=current,
        room_factor=None if current is None else current / recommended,
        capped=capped,
        refusals=refusals,
        warnings=tuple(sentence for sentence, holds in warnings.items() if holds),
    )


def rounded_up(longest: int) -> int:
    """The longest need with the margin, as a multiple of the step."""
    # in whole numbers: 1.15 as a float puts 1280 / 1.15 and the like on the wrong side of a step
    with_margin = longest * (100 + round(MARGIN * 100))
    return max(1, -(-with_margin // (100 * STEP))) * STEP
