"""Which `max_model_len` this workload needs, and what smaller and larger ones would refuse.

A shorter limit lets the same KV cache promise room to more full-length requests. It judges only what was captured: the
largest of a sample is smaller than the largest of all, so there is a margin, and a warning where the sample is small.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from toolkit.units import counted
from toolkit.workload.columns import Numbers, RequestColumns
from toolkit.workload.lengths import MOST_ASKED, PromptTokens, asked_tokens, quantiles

Basis = Literal["max_tokens", "observed", "mixed"]

MARGIN = 0.15
"""Room above the longest captured request: the middle of the 10 to 20 % that are usual."""
STEP = 256
"""Limits are multiples of this: blocks of 16 tokens, and the larger ones of hybrid models, waste little of it."""
TRIED = (512, 1024, 2048, 4096, 8192, 16384, 32768)
FEW = 1_000
"""Under so many requests, one in a thousand that is longer is as likely missed as seen."""


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
    """None: nothing tells how long answers may get."""
    why: str
    basis: Basis | None = None
    """Answers' part of the need: as asked for, as observed (99.9 % of them), or some of each."""
    longest: int | None = None
    """Tokens that the longest captured request may need, prompt and answer, without the margin."""
    wanted: int | None = None
    """The same with it, rounded up; more than `recommended` where the model cannot take as many."""
    margin: float = MARGIN
    current: int | None = None
    """As the user or scout told it."""
    room_factor: float | None = None
    """Current / recommended: so many times as many full-length requests fit the same KV cache."""
    capped: bool = False
    """The model cannot take what the workload needs."""
    refusals: tuple[LimitEffect, ...] = ()
    warnings: tuple[str, ...] = ()


def model_length(
    columns: RequestColumns,
    prompts: PromptTokens,
    *,
    current: int | None = None,
    model_max: int | None = None,
) -> ModelLength:
    """Recommend a limit and count what others would refuse."""
    asked = columns.per_request("max_tokens")
    needs, basis, why = _needs(columns, prompts.tokens, asked_tokens(columns))
    refusals = _refusals(columns, prompts.tokens, asked, current)
    if needs is None:
        return ModelLength(recommended=None, why=why, current=current, refusals=refusals)
    longest = math.ceil(np.nanmax(needs))
    wanted = rounded_up(longest)
    recommended = wanted if model_max is None else min(wanted, model_max)
    return ModelLength(
        recommended=recommended,
        why=why,
        basis=basis,
        longest=longest,
        wanted=wanted,
        current=current,
        room_factor=None if current is None else current / recommended,
        capped=model_max is not None and longest > model_max,
        refusals=refusals,
        warnings=_warnings(columns, prompts, longest, model_max),
    )


def rounded_up(longest: int) -> int:
    """The longest need with the margin, as a multiple of the step."""
    # in whole numbers: 1.15 as a float puts 1280 / 1.15 and the like on the wrong side of a step
    with_margin = longest * (100 + round(MARGIN * 100))
    return max(1, -(-with_margin // (100 * STEP))) * STEP


def _needs(
    columns: RequestColumns, prompt: Numbers, asked: Numbers
) -> tuple[Numbers | None, Basis | None, str]:
    """Prompt and answer of each request, as long as it may get; how the answer's part is known."""
    if not len(columns):
        return None, None, "no requests"
    if np.isnan(prompt).all():
        return None, None, "no prompt's length is known"
    unset = np.isnan(asked)
    if not unset.any():
        return prompt + asked, "max_tokens", "longest prompt + max_tokens"
    output, how = observed_output(columns)
    if output is None and unset.all():
        return None, None, "requests set no max_tokens, and no answer's length is known"
    basis: Basis = "observed" if unset.all() else "mixed"
    if output is None:
        output, how = float(np.nanmax(asked)), "the largest max_tokens of those that set it"
    return prompt + np.where(unset, output, asked), basis, f"longest prompt + {how}"


def observed_output(columns: RequestColumns) -> tuple[float | None, str]:
    """The 99.9 % quantile of the answers' lengths; those that a limit ended count as longer than seen."""
    known = ~np.isnan(columns.output_tokens)
    if not known.any():
        return None, "unknown"
    values, cut = columns.output_tokens[known], columns.finish_length[known] == 1
    (far,) = quantiles(values, cut, (0.999,))
    if far is None:
        return float(values.max()), "the longest answer (its limit ended it: it may need more)"
    return far, "the answers' 99.9 % quantile"


def _refusals(
    columns: RequestColumns, prompt: Numbers, asked: Numbers, current: int | None
) -> tuple[LimitEffect, ...]:
    if not len(columns) or np.isnan(prompt).all():
        return ()
    least = prompt + np.where(np.isnan(asked), 1, asked)
    seen = prompt + np.where(np.isnan(asked), columns.output_tokens, np.nan)
    limits = sorted({*TRIED, *([] if current is None else [current])})
    found = []
    for limit in limits:
        refused = least > limit  # NaN, a prompt of unknown length, is not
        found.append(
            LimitEffect(
                max_model_len=limit,
                refused=int(refused.sum()),
                refused_share=float(refused.mean()),
                cut=int((~refused & (seen > limit)).sum()),
            )
        )
    return tuple(found)


def _warnings(
    columns: RequestColumns, prompts: PromptTokens, longest: int, model_max: int | None
) -> tuple[str, ...]:
    found = []
    if len(columns) < FEW:
        found.append(
            f"max_model_len rests on {counted(len(columns), 'request')}: a longer one may be yet to"
            " come"
        )
    if prompts.estimated.any():
        found.append(
            "max_model_len rests on estimated prompts: Chinese or Japanese text needs more tokens, and a chat template's own"
            " are not in it"
        )
    is_set = ~np.isnan(columns.per_request("max_tokens"))
    impossible = int((is_set & np.isnan(asked_tokens(columns))).sum())
    if impossible:
        ask = "request asks" if impossible == 1 else "requests ask"
        found.append(
            f"{impossible:,} {ask} for a max_tokens that no model gives (below 0, or over {MOST_ASKED:,}): it is taken for not set"
        )
    unknown = int(np.isnan(prompts.tokens).sum())
    if unknown:
        found.append(f"{unknown:,} prompts of unknown length are not counted in max_model_len")
    if model_max is not None and longest > model_max:
        found.append(
            f"the longest request needs {longest:,} tokens, the model takes {model_max:,}: such are refused"
        )
    return tuple(found)
