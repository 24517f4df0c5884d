"""What requests cost a GPU in tokens, and which of them a response cache and single-flight would keep from it.

A cache without end and without time to live, so a ceiling: what size and time to live take away, the forecast's replay tells.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from toolkit.workload.columns import Codes, Mask, Numbers, RequestColumns
from toolkit.workload.lengths import PromptTokens, asked_tokens

Basis = Literal["usage", "max_tokens", "mixed", "unknown", "requests"]

DECODE_WEIGHT = 4.0
"""GPU time of a token written, in tokens read. Read tokens are computed side by side, written ones one after the other, each
reading all weights anew. A batch-size sweep of Llama-3.1-8B on A100s came to prices of 1.2144 and 0.2890 a million tokens, 4.2
to 1 (rushilbhat/inference-pricing); the fair scheduler VTC counts 2 to 1 (Sheng et al., OSDI 2024). So shares are also
told for the range below."""
MOST_SAMPLES = 128.0
"""Answers to one request, `n`: as many as OpenAI's API gives. One absurd number must not outweigh all other requests."""
SOON_S = 10.0
"""Most answers take less: a twin that comes so soon after the first may find it unanswered."""
WEIGHTS = (1.0, 10.0)
"""Weights between which a share's range is told; it rises or falls with the weight throughout, so its ends are enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """An amount of work, read and written tokens apart."""

    prompt: float = 0.0
    output: float = 0.0

    def weighed(self, decode_weight: float) -> float:
        """The work in tokens read."""
        return self.prompt + decode_weight * self.output

    def without(self, other: "Tokens") -> "Tokens":
        """What is left of it."""
        return Tokens(prompt=self.prompt - other.prompt, output=self.output - other.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What each request costs."""

    prompt: Numbers
    output: Numbers
    basis: Basis
    """How the outputs are known: told by answers, taken from `max_tokens` (an upper bound), some of each, or not at all;
    `requests`: not even prompts' lengths are known, and each request counts as one token."""

    def of(self, which: Mask) -> Tokens:
        """What these requests cost together."""
        return Tokens(
            prompt=float(self.prompt[which].sum()), output=float(self.output[which].sum())
        )

    @property
    def total(self) -> Tokens:
        """What all cost together."""
        return Tokens(prompt=float(self.prompt.sum()), output=float(self.output.sum()))


def work(columns: RequestColumns, prompts: PromptTokens, failed: Mask | None = None) -> Work:
    """Tokens of each request: an unknown answer is as long as the mean of its prompt's, then as its limit allows.

    What failed cost nothing: most of it was refused, and how far the rest came nobody knows.
    """
    told = columns.output_tokens
    samples = np.clip(np.nan_to_num(columns.per_request("n"), nan=1.0), 1.0, MOST_SAMPLES)
    asked = asked_tokens(columns) * samples
    alike = _mean_of_the_same(columns.prompt, told)
    output = np.where(np.isnan(told), np.where(np.isnan(alike), asked, alike), told)
    basis = _basis(told, alike, asked)
    done = np.ones(len(told)) if failed is None else (~failed).astype(float)
    if basis == "unknown" and np.isnan(prompts.tokens).all():
        return Work(prompt=done, output=np.zeros(len(told)), basis="requests")
    return Work(prompt=_filled(prompts.tokens) * done, output=_filled(output) * done, basis=basis)


def _basis(told: Numbers, alike: Numbers, asked: Numbers) -> Basis:
    known = ~np.isnan(told) | ~np.isnan(alike)
    if known.all() and len(known):
        return "usage"
    if known.any():
        return "mixed"
    return "unknown" if np.isnan(asked).all() else "max_tokens"


def _mean_of_the_same(prompt: Codes, told: Numbers) -> Numbers:
    known = ~np.isnan(told)
    if not known.any():
        return np.full(len(told), np.nan)
    most = int(prompt.max()) + 1
    count = np.bincount(prompt[known], minlength=most)
    total = np.bincount(prompt[known], weights=told[known], minlength=most)
    mean = np.full(most, np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return mean[prompt]


def _filled(values: Numbers) -> Numbers:
    """With the mean of the known ones where nothing is known; 0 where nothing is known at all."""
    known = ~np.isnan(values)
    return np.where(known, values, values[known].mean() if known.any() else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Which requests would be answered without the GPU."""

    repeats: Mask
    """All but the first of each key: what a cache and single-flight answer together."""
    cached: Mask | None
    """By a cache alone: an equal request was answered before this one came. None: latency is not known."""
    soon: Mask | None
    """Repeats that come within ten seconds of the first of their key. None: the source tells no times."""
    joined: Mask | None
    """By single-flight alone: an equal request, itself not joined, is under way. None: latency is not known."""


def reuse(keys: Codes, ts: Numbers | None, latency_s: Numbers | None, eligible: Mask) -> Reuse:
    """Replay arrivals against a cache that forgets nothing, against single-flight, and against both.

    Without times, `ts` None, only the order of the requests counts.
    """
    repeats = np.zeros(len(keys), dtype=bool)
    which = np.flatnonzero(eligible)
    _, first, kind = np.unique(keys[which], return_index=True, return_inverse=True)
    repeats[which] = True
    repeats[which[first]] = False
    if ts is None:
        return Reuse(repeats=repeats, soon=None, cached=None, joined=None)
    soon = np.zeros(len(keys), dtype=bool)
    soon[which] = ts[which] - ts[which[first[kind]]] < SOON_S
    soon &= repeats
    if latency_s is None:
        return Reuse(repeats=repeats, soon=soon, cached=None, joined=None)
    cached = np.zeros(len(keys), dtype=bool)
    cached[which] = _ready(keys[which], ts[which], latency_s[which])
    joined = np.zeros(len(keys), dtype=bool)
    joined[which] = _under_way(keys[which], ts[which], latency_s[which])
    return Reuse(repeats=repeats, soon=soon, cached=cached, joined=joined)


def _ready(keys: Codes, ts: Numbers, latency_s: Numbers) -> Mask:
    """Whether some equal request's answer was there already.

    The first answer of a key is the earliest end among all its requests: one that comes after it is no miss.
    """
    if not len(keys):
        return np.zeros(0, dtype=bool)
    ends = ts + latency_s
    order = np.lexsort((np.arange(len(keys)), ends, keys))
    _, first = np.unique(keys[order], return_index=True)
    earliest = np.zeros(int(keys.max()) + 1, dtype=np.int64)
    earliest[keys[order[first]]] = order[first]
    ahead = earliest[keys]
    ready: Mask = (ts >= ends[ahead]) & (np.arange(len(keys)) > ahead)
    return ready


def _under_way(keys: Codes, ts: Numbers, latency_s: Numbers) -> Mask:
    until: dict[int, float] = {}
    joined = np.zeros(len(keys), dtype=bool)
    ends = (ts + latency_s).tolist()
    for index, (key, at) in enumerate(zip(keys.tolist(), ts.tolist(), strict=True)):
        if at < until.get(key, at):
            joined[index] = True
        else:
            until[key] = ends[index]
    return joined
