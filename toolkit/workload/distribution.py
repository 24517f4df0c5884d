"""How often the same is asked: unique requests, the share of the top ones, entropy, and what is still unseen.

Counted by prompt where nothing else is said: what the model reads, whatever the sampling. It never names a prompt.
"""

from dataclasses import dataclass

import numpy as np

from toolkit.workload.columns import Codes, RequestColumns
from toolkit.workload.zipf import Counts, Zipf, zipf

TOPS = (1, 2, 10, 100)
"""How many of the most frequent prompts' share is told; fixed by the report's keys."""


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
    plain = entropy_bits(counts)
    corrected = None if plain is None else plain + _miller_madow(counts)
    return Distribution(
        requests=len(columns),
        unique_exact=len(frequencies(columns.exact)),
        unique_canonical=len(frequencies(columns.request)),
        unique_prompts=len(counts),
        tops=tuple(_top(counts, most) for most in TOPS) if len(counts) else (),
        entropy_bits=corrected,
        entropy_plain_bits=plain,
        effective_prompts=None if corrected is None else 2.0**corrected,
        unseen_share=int((counts == 1).sum()) / int(counts.sum()) if len(counts) else None,
        zipf=zipf(counts) if len(counts) else None,
    )


def frequencies(codes: Codes) -> Counts:
    """How often each key was asked, the most frequent first; requests without a key are left out."""
    counts = np.bincount(codes[codes >= 0]) if len(codes) else np.empty(0, dtype=np.int64)
    return np.sort(counts[counts > 0])[::-1]


def entropy_bits(counts: Counts) -> float | None:
    """Entropy of what was counted, in bits; None for nothing."""
    if not len(counts):
        return None
    shares = counts / counts.sum()
    return abs(float(-(shares * np.log2(shares)).sum()))  # -0.0 of a single key is 0


def _miller_madow(counts: Counts) -> float:
    return float((len(counts) - 1) / (2 * counts.sum() * np.log(2)))


def _top(counts: Counts, most: int) -> Top:
    requests = int(counts[:most].sum())
    return Top(
        prompts=min(most, len(counts)), requests=requests, share=requests / int(counts.sum())
    )
