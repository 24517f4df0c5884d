"""Which lever first: what each would save of the GPU's work on this capture, with its number and its caveat.

Levers that answer without computing (a response cache, single-flight, a prefix cache) are measured in saved tokens. The
others save none: they come after, those first that change no answer, and have a number of their own. Caches are without
end and without time to live, so a ceiling: what size and time to live take away, the forecast's replay shows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from toolkit.units import share as percent
from toolkit.workload.arrivals import Concurrency
from toolkit.workload.columns import Mask, Numbers, RequestColumns
from toolkit.workload.forecast import SOON_S, Reuse
from toolkit.workload.lengths import Lengths, ModelLength, PromptTokens, asked_tokens

Code = Literal[
    "response_cache",
    "single_flight",
    "prefix_cache",
    "max_model_len",
    "max_tokens",
    "batching",
    "quantization",
]
Basis = Literal["usage", "max_tokens", "mixed", "unknown", "requests"]
"""How the lengths of answers are known: reported with them, taken from `max_tokens` (an upper bound), some of each, or not at
all; `requests`: not even prompts' lengths are known."""

DECODE_WEIGHT = 4.0
"""GPU time of a token written, in tokens read. Read tokens are computed side by side, written ones one after the other, each
reading all weights anew. A batch-size sweep of Llama-3.1-8B on A100s came to prices of 1.2144 and 0.2890 a million tokens, 4.2
to 1 (rushilbhat/inference-pricing); the fair scheduler VTC counts 2 to 1 (Sheng et al., OSDI 2024). So shares are also
given for the range below."""
MOST_SAMPLES = 128.0
"""Answers to one request, `n`: as many as OpenAI's API gives. One absurd number must not outweigh all other requests."""
WEIGHTS = (1.0, 10.0)
"""Weights between which a share's range is given; it rises or falls with the weight throughout, so its ends are enough."""
WORTH = 0.01
"""A lever that saves less than one part in a hundred is no reason to build anything."""
FAR_ABOVE = 4.0
"""A `max_tokens` so many times the longest observed answers holds room that nothing uses."""
HEADROOM = 2.5
"""`max_num_seqs` per request under way at the peak: two to three times are what operators keep free."""
WEIGHT_FACTOR = 4.0
"""Bytes of a 16-bit weight / bytes of a 4-bit one."""
NAMES: dict[Code, str] = {
    "response_cache": "response cache",
    "single_flight": "single-flight",
    "prefix_cache": "prefix cache",
    "max_model_len": "max_model_len",
    "max_tokens": "max_tokens",
    "batching": "batching",
    "quantization": "quantization",
}
MEASURED: dict[Code, str] = {
    "response_cache": "share of requests that come after an equal one's answer",
    "single_flight": "share of requests that come while an equal one is under way",
    "prefix_cache": "share of prompt tokens in whole blocks that begin as an earlier prompt did",
}
"""What the number of a measured lever is of."""
ADVICE: dict[Code, str] = {"max_tokens": "lower max_tokens", "batching": "higher max_num_seqs"}
"""What the headline says of settings; for `max_model_len` it has a clause of its own."""
ANSWERS_ARE: dict[Basis, str] = {
    "usage": "as long as reported",
    "mixed": "as long as reported, unknown ones as their prompt's others or max_tokens",
    "max_tokens": "as long as max_tokens allows, an upper bound",
    "unknown": "of unknown length and left out",
    "requests": "of unknown length, as are prompts: each request counts the same",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One thing to turn, in the order in which to turn them."""

    code: Code
    saved_share: float | None = None
    """Of the capture's GPU work, what it saves once the levers above it are in place. None: it saves no tokens, or nobody
    can say."""
    standalone_share: float | None = None
    """The same, were it the only one."""
    saved_share_low: float | None = None
    """`saved_share` between a written token as cheap as a read one and ten times as dear."""
    saved_share_high: float | None = None
    recommended: bool = False
    number: float | None = None
    """Its own figure, `what` says of what."""
    what: str
    caveat: str


def work(columns: RequestColumns, prompts: PromptTokens, failed: Mask) -> tuple[Numbers, Basis]:
    """Each request's tokens, a row of read and written ones, and how the written ones are known.

    An unknown answer is as long as the mean of its prompt's, then as its limit allows; where not even a prompt's length is
    known, each request counts as one token. What failed cost nothing: most of it was refused, and how far the rest came
    nobody knows.
    """
    samples = np.clip(np.nan_to_num(columns.per_request("n"), nan=1.0), 1.0, MOST_SAMPLES)
    limits = asked_tokens(columns) * samples
    same_prompts = columns.mean_by_prompt(columns.output_tokens)[columns.prompt]
    written = np.where(np.isnan(columns.output_tokens), same_prompts, columns.output_tokens)
    read, found = prompts.tokens, ~np.isnan(written)
    basis: Basis = "unknown" if np.isnan(limits).all() else "max_tokens"
    if found.any():
        basis = "usage" if found.all() else "mixed"
    elif basis == "unknown" and np.isnan(read).all():
        basis, read = "requests", np.ones(len(columns))
    tokens = np.column_stack((read, np.where(found, written, limits)))
    for values in tokens.T:
        unknown = np.isnan(values)
        # as long as the mean of the known ones; 0 where nothing is known at all
        values[unknown] = 0.0 if unknown.all() else values[~unknown].mean()
    tokens[failed] = 0.0
    return tokens, basis


def savings(
    tokens: Numbers,
    basis: Basis,
    reuse: Reuse | None,
    prefix_share: Callable[[Mask], float | None],
    declared_share: float | None,
    policy: str,
) -> Iterator[Lever]:
    """The levers that answer without computing, by what they save of the work (see above).

    `reuse` is None where the source does not say which requests are alike. `prefix_share` gives the share of some
    requests' prompt tokens that begin as an earlier one of them does; None: not known. `declared_share` is of requests
    that allow a stored answer by temperature 0 or a seed.
    """
    order: tuple[Code, ...] = ("response_cache", "single_flight", "prefix_cache")
    if reuse is None:
        for code in order:
            yield Lever(
                code=code,
                what=MEASURED[code],
                caveat="the source does not say which requests are alike",
            )
        return
    none = np.zeros(len(reuse.repeats), dtype=bool)
    # of unknown latency, a cache and single-flight together: which of them answers depends on it
    cached = reuse.repeats if reuse.cached is None else reuse.cached

    def saved_by(*codes: Code) -> Numbers | None:
        """Tokens read and written that these save together, so that each one's own part is a difference; None: not known."""
        answered: Mask | None = none
        if "response_cache" in codes:
            answered = reuse.repeats if "single_flight" in codes else cached
        elif "single_flight" in codes:
            answered = reuse.joined
        if answered is None:
            return None
        saved: Numbers = tokens[answered].sum(axis=0)
        if "prefix_cache" in codes:
            shared = 0.0 if answered.all() else prefix_share(~answered)
            if shared is None:
                return None
            saved += (shared * tokens[~answered, 0].sum(), 0.0)
        return saved

    def share_of(saved: Numbers | None, decode_weight: float = DECODE_WEIGHT) -> float | None:
        """Saved work / all work; None where either is not known."""
        weights = (1.0, decode_weight)
        whole = tokens.sum(axis=0) @ weights
        if saved is None or whole <= 0:
            return None
        # differences of large sums leave crumbs on either side of 0 and 1
        return float(np.clip(saved @ weights / whole, 0.0, 1.0))

    # Answers before prefixes, unless prefixes save more; single-flight always after the cache whose keys it shares. A
    # cache's share grows with the length of a capture, single-flight's does not: it saves the same few twins at each cold
    # start, so in a short capture alone it may look like the larger one.
    alone = {code: saved_by(code) for code in order}
    answers, prefixes = share_of(saved_by(*order[:2])), share_of(alone["prefix_cache"])
    if answers is not None and prefixes is not None and prefixes > answers:
        order = ("prefix_cache", "response_cache", "single_flight")
    together = [np.zeros(2), alone[order[0]], saved_by(*order[:2]), saved_by(*order)]

    no_repeat = f"no request {'that the policy allows ' if policy == 'declared' else ''}repeats"
    no_repeat = f"saves nothing here: {no_repeat} an earlier one"
    for code, before, after in zip(order, together, together[1:], strict=False):
        own = None if before is None or after is None else after - before
        if code == "single_flight" and alone[code] is None:
            own = None
        saved, what = share_of(own), MEASURED[code]
        number: float | None = None
        recommended = saved is not None and saved >= WORTH

        if code == "response_cache":
            number = float(cached.mean()) if len(cached) else None
            caveat = no_repeat
            if reuse.repeats.any():
                caveat = "saves nothing here: equal requests were all under way at once"
            if saved:
                declared = "whether requests allow that is unknown"
                if declared_share is not None:
                    declared = f"{percent(declared_share)} of requests declare that it may, by temperature 0 or a seed"
                caveat = (
                    "a ceiling: size and time to live take some of it; each hit gives the same sample again, and "
                    f"{declared}"
                )
            if saved and reuse.cached is None:
                what = "share of requests that repeat an earlier one"
                missing = "times are" if reuse.soon is None else "latency is"
                caveat += f"; {missing} unknown, so single-flight's part is in it"
        elif code == "single_flight":
            repeats_share = share_of(tokens[reuse.repeats].sum(axis=0)) or 0.0
            if not reuse.repeats.any():
                number = 0.0 if len(reuse.repeats) else None
                caveat = no_repeat
            elif reuse.soon is None:
                caveat = "the source has no times: whether equal requests meet is unknown"
            elif reuse.cached is None:
                soon = float(reuse.soon.mean())
                recommended = soon > 0 and repeats_share >= WORTH
                caveat = (
                    f"{percent(soon)} of requests come within {SOON_S:g} s after the first of their kind; how many meet it unanswered"
                    " depends on latency, which is unknown; what it saves stands under the response cache"
                )
            else:
                number = float((reuse.repeats & ~reuse.cached).mean())
                caveat = "saves nothing here: no equal requests are under way at once"
                if saved:
                    recommended = recommended or repeats_share >= WORTH
                    caveat = (
                        "it comes with a response cache and saves most while that is cold, and again each time an answer's time to live is"
                        " over; those who join wait as long as the first"
                    )
        else:
            number = prefix_share(~none) if len(none) else None
            recommended = recommended and bool(number)
            if number is None:
                caveat = "prompts' beginnings are unknown"
            elif not number:
                caveat = "saves nothing here: no two prompts share a first whole block"
            else:
                caveat = "a ceiling, of a cache without end; it saves reading only, and vLLM (V1) has it on by default"
                if saved is not None and saved < WORTH:
                    caveat += f"; on top of the levers above it is {percent(saved)} of all work"
        if saved:
            caveat += f"; answers count {DECODE_WEIGHT:g} a token and are {ANSWERS_ARE[basis]}"
        ends = [end for weight in WEIGHTS if (end := share_of(own, weight)) is not None]
        yield Lever(
            code=code,
            saved_share=saved,
            standalone_share=share_of(alone[code]),
            saved_share_low=min(ends, default=None),
            saved_share_high=max(ends, default=None),
            recommended=recommended,
            number=number,
            what=what,
            caveat=caveat,
        )


def adjustments(
    length: ModelLength, concurrency: Concurrency, lengths: Lengths, max_num_seqs: int | None
) -> Iterator[Lever]:
    """The levers that save no tokens, those first that change no answer. `max_num_seqs` is as the server is set."""
    caveat = f"no recommendation: {length.why}"
    if length.recommended is not None:
        capped = ""
        if length.wanted != length.recommended:
            capped = f", of which the model takes {length.recommended:,}"
        caveat = (
            f"{length.longest:,} tokens ({length.why}) and {100 * length.margin:.0f} % of margin make {length.wanted:,}{capped};"
            " it saves no work by itself: KV blocks are given out as tokens come, so what grows is the number of"
            " full-length requests that are sure to fit, and longer ones are refused"
        )
    yield Lever(
        code="max_model_len",
        recommended=changes_length(length),
        number=length.room_factor,
        what="times as many full-length requests fit the KV cache",
        caveat=caveat,
    )

    limit = None if lengths.max_tokens is None else lengths.max_tokens.p50
    longest = None if lengths.output_tokens is None else lengths.output_tokens.p99_9
    if limit is not None and longest is not None and limit >= FAR_ABOVE * max(longest, 1.0):
        yield Lever(
            code="max_tokens",
            recommended=True,
            number=limit / max(longest, 1.0),
            what="times the length that 99.9 % of answers keep to is what half of the requests allow",
            caveat=f"answers end by {longest:,.0f} tokens, max_tokens allows {limit:,.0f}: clients that ask for less let"
            f" max_model_len fall by up to {limit - longest:,.0f}; it is theirs to set",
        )

    p99 = concurrency.p99
    caveat = f"concurrency is unknown: {concurrency.why}"
    if p99 is not None:
        set_now = "unknown" if max_num_seqs is None else f"{max_num_seqs:,}"
        caveat = (
            f"{concurrency.why}; before any cache: what it answers needs no place in a batch;"
            f" {int(np.ceil(p99 * HEADROOM)):,} leaves headroom; max_num_seqs is {set_now}"
        )
    yield Lever(
        code="batching",
        recommended=p99 is not None and max_num_seqs is not None and p99 > max_num_seqs,
        number=None if p99 is None else float(p99),
        what="under way at once, or fewer, at 99 of 100 arrivals",
        caveat=caveat,
    )
    yield Lever(
        code="quantization",
        number=WEIGHT_FACTOR,
        what="times less memory and bandwidth for weights, 4 bits instead of 16",
        caveat="8 bits halve them; no capture shows what it does to answers (1 to 3 % of accuracy is usual): compare both before"
        " you switch, and switch before the load comes",
    )


def headline(found: tuple[Lever, ...], length: ModelLength, policy: str) -> str:
    """What to do, in one sentence."""
    wanted = [lever.code for lever in found if lever.recommended]
    first = ", then ".join(NAMES[code] for code in wanted if code in MEASURED)
    if not first:
        allowed = "that the policy allows " if policy == "declared" else ""
        first = f"nothing {allowed}repeats enough to save GPU work"
        if all(lever.saved_share is None for lever in found):
            first = "what repeats is unknown"
    limit = ""
    if length.recommended is not None:
        limit = f"max_model_len {length.recommended}"
        if length.current is not None and changes_length(length):
            limit += f" instead of {length.current}"
        elif length.current is not None:
            limit = f"max_model_len {length.current} as it is"
    settings = ", ".join(ADVICE[code] for code in wanted if code in ADVICE)
    return "; ".join(filter(None, (first, limit, settings)))


def changes_length(length: ModelLength) -> bool:
    """Whether another `max_model_len` is advised: a shorter one, or a longer one because requests do not fit now."""
    if length.recommended is None or length.longest is None:
        return False
    if length.current is None or length.recommended < length.current:
        return True
    # with less than the whole margin to spare, what is set serves all that came
    return length.current < min(length.longest, length.recommended)
