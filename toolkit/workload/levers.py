"""Which lever first: what each would save of the GPU's work on this capture, with its number and its caveat.

Levers that answer without computing (a response cache, single-flight, a prefix cache) are measured in saved tokens. The
others save none: they come after, those first that change no answer, and have a number of their own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from toolkit.units import share as percent
from toolkit.workload.arrivals import Concurrency
from toolkit.workload.columns import Mask
from toolkit.workload.lengths import LengthSpread
from toolkit.workload.limits import ModelLength
from toolkit.workload.work import DECODE_WEIGHT, SOON_S, WEIGHTS, Reuse, Tokens, Work

Code = Literal[
    "response_cache",
    "single_flight",
    "prefix_cache",
    "max_model_len",
    "max_tokens",
    "batching",
    "quantization",
]

Order = tuple[Code, ...]

WORTH = 0.01
"""A lever that saves less than one part in a hundred is no reason to build anything."""
FAR_ABOVE = 4.0
"""A `max_tokens` so many times the longest observed answers holds room that nothing uses."""
HEADROOM = 2.5
"""`max_num_seqs` per request under way at the peak: two to three times are what operators keep free."""
WEIGHT_FACTOR = 4.0
"""Bytes of a 16-bit weight / bytes of a 4-bit one."""
WHAT: dict[Code, str] = {
    "response_cache": "share of requests that come after an equal one's answer",
    "single_flight": "share of requests that come while an equal one is under way",
    "prefix_cache": "share of prompt tokens in whole blocks that begin as an earlier prompt did",
}
"""What the number of a measured lever is of."""
WORDS: dict[Code, str] = {
    "response_cache": "response cache",
    "single_flight": "single-flight",
    "prefix_cache": "prefix cache",
    "max_tokens": "lower max_tokens",
    "batching": "higher max_num_seqs",
    "quantization": "quantization",
}
"""What the headline calls them; on `max_model_len` it has a clause of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One thing to turn, in the order in which to turn them."""

    code: Code
    saved_share: float | None
    """Of the capture's GPU work, what it saves once the levers above it are in place. None: it saves no tokens, or nobody
    can say."""
    standalone_share: float | None
    """The same, were it the only one."""
    saved_share_low: float | None = None
    """`saved_share` between a written token as cheap as a read one and ten times as dear."""
    saved_share_high: float | None = None
    recommended: bool
    number: float | None
    """Its own figure, `what` says of what."""
    what: str
    caveat: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverEvidence:
    """What the levers are judged by."""

    work: Work
    reuse: Reuse | None
    """None: the source does not tell which requests are alike."""
    prefix_share: Callable[[Mask], float | None]
    """Share of these requests' prompt tokens that begin as an earlier one of them does; None: not known."""
    declared_share: float | None
    """Share of requests that allow a stored answer by temperature 0 or a seed."""
    policy: str
    length: ModelLength
    concurrency: Concurrency
    output: LengthSpread | None
    max_tokens: LengthSpread | None
    max_num_seqs: int | None = None
    """As the server is set; None: not known."""


def levers(evidence: LeverEvidence) -> tuple[Lever, ...]:
    """All levers in order: measured savings first, then settings, then what changes answers."""
    return (*_measured(evidence), *_settings(evidence), _quantization())


def headline(found: tuple[Lever, ...], length: ModelLength, policy: str = "all") -> str:
    """What to do, in one sentence."""
    measured = [WORDS[lever.code] for lever in found if lever.recommended and saves(lever)]
    settings = [
        WORDS[lever.code]
        for lever in found
        if lever.recommended and not saves(lever) and lever.code in WORDS
    ]
    known = any(lever.saved_share is not None for lever in found if saves(lever))
    allowed = "that the policy allows " if policy == "declared" else ""
    nothing = (
        f"nothing {allowed}repeats enough to save GPU work" if known else "what repeats is unknown"
    )
    first = ", then ".join(measured) or nothing
    return "; ".join(filter(None, (first, _length_words(length), ", ".join(settings))))


def saves(lever: Lever) -> bool:
    """Whether it is one of those that answer without computing."""
    return lever.code in {"response_cache", "single_flight", "prefix_cache"}


def _length_words(length: ModelLength) -> str:
    if length.recommended is None:
        return ""
    told = f"max_model_len {length.recommended}"
    if length.current is None:
        return told
    if not changes_length(length):
        return f"max_model_len {length.current} as it is"
    return f"{told} instead of {length.current}"


def changes_length(length: ModelLength) -> bool:
    """Whether another `max_model_len` is advised: a shorter one, or a longer one because requests do not fit now."""
    if length.recommended is None or length.longest is None:
        return False
    if length.current is None or length.recommended < length.current:
        return True
    # with less than the whole margin to spare, what is set serves all that came
    return length.current < min(length.longest, length.recommended)


class _Savings:
    """What sets of levers save together, so that each one's own part is a difference."""

    def __init__(self, evidence: LeverEvidence) -> None:
        self._evidence = evidence
        self._shares: dict[bytes, float | None] = {}

    def together(self, codes: Order) -> Tokens | None:
        """Tokens that these save; None where it is not known."""
        work, reuse = self._evidence.work, self._evidence.reuse
        reused = None if reuse is None else _reused(codes, reuse)
        if reused is None:
            return None
        saved = work.of(reused)
        if "prefix_cache" not in codes:
            return saved
        shared = self._prefix_share(~reused)
        if shared is None:
            return None
        return Tokens(prompt=saved.prompt + shared * work.of(~reused).prompt, output=saved.output)

    def _prefix_share(self, which: Mask) -> float | None:
        key = np.packbits(which).tobytes()
        if key not in self._shares:
            self._shares[key] = self._evidence.prefix_share(which) if which.any() else 0.0
        return self._shares[key]


def _reused(codes: Order, reuse: Reuse) -> Mask | None:
    if "response_cache" in codes:
        # of unknown latency, the two together: which of them answers depends on it
        both = "single_flight" in codes or reuse.cached is None
        return reuse.repeats if both else reuse.cached
    if "single_flight" in codes:
        return reuse.joined
    return np.zeros(len(reuse.repeats), dtype=bool)


def _measured(evidence: LeverEvidence) -> Iterator[Lever]:
    savings = _Savings(evidence)
    order = _order(savings, evidence.work)
    for place, code in enumerate(order):
        before = savings.together(order[:place])
        after = savings.together(order[: place + 1])
        alone = savings.together((code,))
        own = None if before is None or after is None else after.without(before)
        if code == "single_flight" and alone is None:
            own = None
        yield _measured_lever(code, own, alone, evidence)


def _order(savings: _Savings, work: Work) -> Order:
    """Answers before prefixes, unless prefixes save more; single-flight always after the cache whose keys it shares.

    A cache's share grows with the length of a capture, single-flight's does not: it saves the same few twins at each cold start,
    so in a short capture alone it may look like the larger one.
    """
    answers = savings.together(("response_cache", "single_flight"))
    prefixes = savings.together(("prefix_cache",))
    if answers is None or prefixes is None:
        return ("response_cache", "single_flight", "prefix_cache")
    if prefixes.weighed(DECODE_WEIGHT) > answers.weighed(DECODE_WEIGHT) and work.total.prompt:
        return ("prefix_cache", "response_cache", "single_flight")
    return ("response_cache", "single_flight", "prefix_cache")


def _measured_lever(
    code: Code, own: Tokens | None, alone: Tokens | None, evidence: LeverEvidence
) -> Lever:
    total = evidence.work.total
    shares = [share_of(own, total, weight) for weight in (DECODE_WEIGHT, *WEIGHTS)]
    saved = shares[0]
    ends = [share for share in shares[1:] if share is not None]
    recommended, number, what, caveat = _described(code, saved, evidence)
    return Lever(
        code=code,
        saved_share=saved,
        standalone_share=share_of(alone, total, DECODE_WEIGHT),
        saved_share_low=min(ends, default=None),
        saved_share_high=max(ends, default=None),
        recommended=recommended,
        number=number,
        what=what,
        caveat=f"{caveat}; {_output_caveat(evidence.work)}" if saved else caveat,
    )


def share_of(saved: Tokens | None, total: Tokens, decode_weight: float) -> float | None:
    """Saved work / all work; None where either is not known."""
    whole = total.weighed(decode_weight)
    if saved is None or whole <= 0:
        return None
    # differences of large sums leave crumbs on either side of 0 and 1
    return min(1.0, max(0.0, saved.weighed(decode_weight) / whole))


def _output_caveat(work: Work) -> str:
    known = {
        "usage": "as long as told",
        "mixed": "as long as told, unknown ones as their prompt's others or max_tokens",
        "max_tokens": "as long as max_tokens allows, an upper bound",
        "unknown": "of unknown length and left out",
        "requests": "of unknown length, as are prompts: each request counts the same",
    }
    return f"answers count {DECODE_WEIGHT:g} a token and are {known[work.basis]}"


Description = tuple[bool, float | None, str, str]


def _described(code: Code, saved: float | None, evidence: LeverEvidence) -> Description:
    """Whether a measured lever is recommended, its number, of what, and its caveat."""
    what = WHAT[code]
    if evidence.reuse is None:
        return False, None, what, "the source does not tell which requests are alike"
    if code == "response_cache":
        return _response_cache(saved, what, evidence, evidence.reuse)
    if code == "single_flight":
        return _single_flight(saved, what, evidence, evidence.reuse)
    return _prefix_cache(saved, what, evidence, evidence.reuse)


def _response_cache(
    saved: float | None, what: str, evidence: LeverEvidence, reuse: Reuse
) -> Description:
    repeats = reuse.repeats
    answered = repeats if reuse.cached is None else reuse.cached
    number = float(answered.mean()) if len(answered) else None
    if not saved:
        why = (
            _no_repeat(evidence)
            if not repeats.any()
            else "equal requests were all under way at once"
        )
        return False, number, what, f"saves nothing here: {why}"
    caveat = (
        "a ceiling: size and time to live take some of it; each hit gives the same sample again, and"
        f" {_declared_words(evidence.declared_share)}"
    )
    if reuse.cached is None:
        what = "share of requests that repeat an earlier one"
        missing = "times are" if reuse.soon is None else "latency is"
        caveat += f"; {missing} unknown, so single-flight's part is in it"
    return saved >= WORTH, number, what, caveat


def _declared_words(declared_share: float | None) -> str:
    if declared_share is None:
        return "whether requests allow that is unknown"
    return f"{percent(declared_share)} of requests declare that it may, by temperature 0 or a seed"


def _no_repeat(evidence: LeverEvidence) -> str:
    allowed = "that the policy allows " if evidence.policy == "declared" else ""
    return f"no request {allowed}repeats an earlier one"


def _single_flight(
    saved: float | None, what: str, evidence: LeverEvidence, reuse: Reuse
) -> Description:
    if not reuse.repeats.any():
        number = 0.0 if len(reuse.repeats) else None
        return False, number, what, f"saves nothing here: {_no_repeat(evidence)}"
    if reuse.cached is None:
        return _single_flight_of_unknown_latency(what, evidence, reuse)
    waiting = float((reuse.repeats & ~reuse.cached).mean())
    if not saved:
        return False, waiting, what, "saves nothing here: no equal requests are under way at once"
    caveat = (
        "it comes with a response cache and saves most while that is cold, and again each time an answer's time to live is"
        " over; those who join wait as long as the first"
    )
    return saved >= WORTH or _repeats_are_worth_it(evidence, reuse), waiting, what, caveat


def _single_flight_of_unknown_latency(
    what: str, evidence: LeverEvidence, reuse: Reuse
) -> Description:
    if reuse.soon is None:
        return (
            False,
            None,
            what,
            "the source tells no times: whether equal requests meet is unknown",
        )
    soon = float(reuse.soon.mean())
    caveat = (
        f"{percent(soon)} of requests come within {SOON_S:g} s after the first of their kind; how many meet it unanswered"
        " depends on latency, which is unknown; what it saves stands under the response cache"
    )
    return soon > 0 and _repeats_are_worth_it(evidence, reuse), None, what, caveat


def _repeats_are_worth_it(evidence: LeverEvidence, reuse: Reuse) -> bool:
    saved = evidence.work.of(reuse.repeats)
    return (share_of(saved, evidence.work.total, DECODE_WEIGHT) or 0.0) >= WORTH


def _prefix_cache(
    saved: float | None, what: str, evidence: LeverEvidence, reuse: Reuse
) -> Description:
    everything = np.ones(len(reuse.repeats), dtype=bool)
    number = evidence.prefix_share(everything) if len(everything) else None
    if number is None:
        return False, None, what, "prompts' beginnings are unknown"
    if not number:
        return False, number, what, "saves nothing here: no two prompts share a first whole block"
    caveat = "a ceiling, of a cache without end; it saves reading only, and vLLM (V1) has it on by default"
    if saved is not None and saved < WORTH:
        caveat += f"; on top of the levers above it is {percent(saved)} of all work"
    return saved is not None and saved >= WORTH, number, what, caveat


def _settings(evidence: LeverEvidence) -> Iterator[Lever]:
    length = evidence.length
    yield _setting(
        "max_model_len",
        changes_length(length),
        length.room_factor,
        "times as many full-length requests fit the KV cache",
        _length_caveat(length),
    )
    cut = _generous_limit(evidence)
    if cut is not None:
        yield cut
    yield _batching(evidence)


def _setting(code: Code, recommended: bool, number: float | None, what: str, caveat: str) -> Lever:
    return Lever(
        code=code,
        saved_share=None,
        standalone_share=None,
        recommended=recommended,
        number=number,
        what=what,
        caveat=caveat,
    )


def _length_caveat(length: ModelLength) -> str:
    if length.recommended is None:
        return f"no recommendation: {length.why}"
    told = f"{length.longest:,} tokens ({length.why}) and {100 * length.margin:.0f} % of margin make {length.wanted:,}"
    if length.wanted != length.recommended:
        told += f", of which the model takes {length.recommended:,}"
    return (
        f"{told}; it saves no work by itself: KV blocks are given out as tokens come, so what grows is the number of"
        " full-length requests that are sure to fit, and longer ones are refused"
    )


def _generous_limit(evidence: LeverEvidence) -> Lever | None:
    output, asked = evidence.output, evidence.max_tokens
    if output is None or asked is None or asked.p50 is None or output.p99_9 is None:
        return None
    if asked.p50 < FAR_ABOVE * max(output.p99_9, 1.0):
        return None
    return _setting(
        "max_tokens",
        True,
        asked.p50 / max(output.p99_9, 1.0),
        "times the length that 99.9 % of answers keep to is what half of the requests allow",
        f"answers end by {output.p99_9:,.0f} tokens, max_tokens allows {asked.p50:,.0f}: clients that ask for less let"
        f" max_model_len fall by up to {asked.p50 - output.p99_9:,.0f}; it is theirs to set",
    )


def _batching(evidence: LeverEvidence) -> Lever:
    found, limit = evidence.concurrency, evidence.max_num_seqs
    what = "under way at once, or fewer, at 99 of 100 arrivals"
    if found.p99 is None:
        return _setting("batching", False, None, what, f"concurrency is unknown: {found.why}")
    wanted = int(np.ceil(found.p99 * HEADROOM))
    caveat = f"{found.why}; before any cache: what it answers needs no place in a batch; {wanted:,} leaves headroom"
    if limit is None:
        return _setting(
            "batching", False, float(found.p99), what, f"{caveat}; max_num_seqs is unknown"
        )
    told = f"max_num_seqs is {limit:,}"
    return _setting("batching", found.p99 > limit, float(found.p99), what, f"{caveat}; {told}")


def _quantization() -> Lever:
    return _setting(
        "quantization",
        False,
        WEIGHT_FACTOR,
        "times less memory and bandwidth for weights, 4 bits instead of 16",
        "8 bits halve them; no capture can tell what it does to answers (1 to 3 % of accuracy is usual): compare both before"
        " you switch, and switch before the load comes",
    )
