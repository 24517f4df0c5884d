"""Which lever first: what each would save of the GPU's work on this capture, with its number and its caveat.

Levers that answer without computing (a response cache, single-flight, a prefix cache) are measured in saved tokens. The
others save none: they come after, those first that change no answer, and have a number of their own. Caches are without
end and without time to live, so a ceiling: what size and time to live take away, the forecast's replay tells.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from toolkit.units import share as percent
from toolkit.workload.arrivals import Concurrency
from toolkit.workload.columns import Mask, Numbers, RequestColumns
from toolkit.workload.forecast import SOON_S, Reuse
from toolkit.workload.lengths import LengthSpread, ModelLength, PromptTokens, asked_tokens

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
Basis = Literal["usage", "max_tokens", "mixed", "unknown", "requests"]

DECODE_WEIGHT = 4.0
"""GPU time of a token written, in tokens read. Read tokens are computed side by side, written ones one after the other, each
reading all weights anew. A batch-size sweep of Llama-3.1-8B on A100s came to prices of 1.2144 and 0.2890 a million tokens, 4.2
to 1 (rushilbhat/inference-pricing); the fair scheduler VTC counts 2 to 1 (Sheng et al., OSDI 2024). So shares are also
told for the range below."""
MOST_SAMPLES = 128.0
"""Answers to one request, `n`: as many as OpenAI's API gives. One absurd number must not outweigh all other requests."""
WEIGHTS = (1.0, 10.0)
"""Weights between which a share's range is told; it rises or falls with the weight throughout, so its ends are enough."""
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
ANSWERS_ARE: dict[Basis, str] = {
    "usage": "as long as told",
    "mixed": "as long as told, unknown ones as their prompt's others or max_tokens",
    "max_tokens": "as long as max_tokens allows, an upper bound",
    "unknown": "of unknown length and left out",
    "requests": "of unknown length, as are prompts: each request counts the same",
}


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
class Work:
    """What each request costs."""

    tokens: Numbers
    """A row for each request: tokens read, tokens written."""
    basis: Basis
    """How the outputs are known: told by answers, taken from `max_tokens` (an upper bound), some of each, or not at all;
    `requests`: not even prompts' lengths are known, and each request counts as one token."""


def work(columns: RequestColumns, prompts: PromptTokens, failed: Mask | None = None) -> Work:
    """Tokens of each request: an unknown answer is as long as the mean of its prompt's, then as its limit allows.

    What failed cost nothing: most of it was refused, and how far the rest came nobody knows.
    """
    told = columns.output_tokens
    samples = np.clip(np.nan_to_num(columns.per_request("n"), nan=1.0), 1.0, MOST_SAMPLES)
    asked = asked_tokens(columns) * samples
    output = told
    if len(told):
        known = ~np.isnan(told)
        prompt, most = columns.prompt, int(columns.prompt.max()) + 1
        times = np.bincount(prompt[known], minlength=most)
        sums = np.bincount(prompt[known], weights=told[known], minlength=most)
        mean = np.divide(sums, times, out=np.full(most, np.nan), where=times > 0)
        output = np.where(known, told, mean[prompt])
    found = ~np.isnan(output)
    basis: Basis = "unknown" if np.isnan(asked).all() else "max_tokens"
    if found.any():
        basis = "usage" if found.all() else "mixed"
    lengths_read, lengths_written = prompts.tokens, np.where(found, output, asked)
    if basis == "unknown" and np.isnan(lengths_read).all():
        basis, lengths_read = "requests", np.ones(len(told))
    tokens = np.column_stack((lengths_read, lengths_written))
    for values in tokens.T:
        unknown = np.isnan(values)
        # as long as the mean of the known ones; 0 where nothing is known at all
        values[unknown] = 0.0 if unknown.all() else values[~unknown].mean()
    if failed is not None:
        tokens[failed] = 0.0
    return Work(tokens=tokens, basis=basis)


def savings(
    work: Work,
    reuse: Reuse | None,
    prefix_share: Callable[[Mask], float | None],
    *,
    declared_share: float | None = None,
    policy: str = "all",
) -> Iterator[Lever]:
    """The levers that answer without computing, by what they save.

    `reuse` is None where the source does not tell which requests are alike. `prefix_share` tells the share of some
    requests' prompt tokens that begin as an earlier one of them does; None: not known. `declared_share` is of requests
    that allow a stored answer by temperature 0 or a seed.
    """
    total = work.tokens.sum(axis=0)
    prefix_shares: dict[bytes, float | None] = {}

    def together(*codes: Code) -> Numbers | None:
        """Tokens read and written that these save together, so that each one's own part is a difference; None: not known."""
        if reuse is None:
            return None
        reused: Mask | None = np.zeros(len(reuse.repeats), dtype=bool)
        if "response_cache" in codes:
            # of unknown latency, the two together: which of them answers depends on it
            is_both = "single_flight" in codes or reuse.cached is None
            reused = reuse.repeats if is_both else reuse.cached
        elif "single_flight" in codes:
            reused = reuse.joined
        if reused is None:
            return None
        saved: Numbers = work.tokens[reused].sum(axis=0)
        if "prefix_cache" in codes:
            key = np.packbits(reused).tobytes()
            if key not in prefix_shares:
                prefix_shares[key] = 0.0 if reused.all() else prefix_share(~reused)
            shared = prefix_shares[key]
            if shared is None:
                return None
            saved += (shared * work.tokens[~reused, 0].sum(), 0.0)
        return saved

    def share_of(saved: Numbers | None, decode_weight: float = DECODE_WEIGHT) -> float | None:
        """Saved work / all work; None where either is not known."""
        weights = (1.0, decode_weight)
        whole = total @ weights
        if saved is None or whole <= 0:
            return None
        # differences of large sums leave crumbs on either side of 0 and 1
        return float(np.clip(saved @ weights / whole, 0.0, 1.0))

    # Answers before prefixes, unless prefixes save more; single-flight always after the cache whose keys it shares. A
    # cache's share grows with the length of a capture, single-flight's does not: it saves the same few twins at each cold
    # start, so in a short capture alone it may look like the larger one.
    order: Order = ("response_cache", "single_flight", "prefix_cache")
    answers, prefixes = share_of(together(*order[:2])), share_of(together("prefix_cache"))
    if answers is not None and prefixes is not None and prefixes > answers:
        order = ("prefix_cache", "response_cache", "single_flight")

    allowed = "that the policy allows " if policy == "declared" else ""
    no_repeat = f"no request {allowed}repeats an earlier one"
    for place, code in enumerate(order):
        before, after = together(*order[:place]), together(*order[: place + 1])
        alone = together(code)
        own = None if before is None or after is None else after - before
        if code == "single_flight" and alone is None:
            own = None
        saved = share_of(own)
        ends = [end for weight in WEIGHTS if (end := share_of(own, weight)) is not None]
        number: float | None = None
        what = WHAT[code]
        recommended = saved is not None and saved >= WORTH

        if reuse is None:
            caveat = "the source does not tell which requests are alike"
        elif code == "response_cache":
            answered = reuse.repeats if reuse.cached is None else reuse.cached
            number = float(answered.mean()) if len(answered) else None
            caveat = "saves nothing here: " + (
                "equal requests were all under way at once" if reuse.repeats.any() else no_repeat
            )
            if saved:
                caveat = "a ceiling: size and time to live take some of it; each hit gives the same sample again, and "
                caveat += (
                    "whether requests allow that is unknown"
                    if declared_share is None
                    else f"{percent(declared_share)} of requests declare that it may, by temperature 0 or a seed"
                )
            if saved and reuse.cached is None:
                what = "share of requests that repeat an earlier one"
                missing = "times are" if reuse.soon is None else "latency is"
                caveat += f"; {missing} unknown, so single-flight's part is in it"
        elif code == "single_flight":
            repeats_share = share_of(work.tokens[reuse.repeats].sum(axis=0)) or 0.0
            if not reuse.repeats.any():
                number = 0.0 if len(reuse.repeats) else None
                caveat = f"saves nothing here: {no_repeat}"
            elif reuse.soon is None:
                caveat = "the source tells no times: whether equal requests meet is unknown"
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
            everything = np.ones(len(reuse.repeats), dtype=bool)
            number = prefix_share(everything) if len(everything) else None
            if number is None:
                caveat = "prompts' beginnings are unknown"
            elif not number:
                caveat = "saves nothing here: no two prompts share a first whole block"
            else:
                caveat = "a ceiling, of a cache without end; it saves reading only, and vLLM (V1) has it on by default"
                if saved is not None and saved < WORTH:
                    caveat += f"; on top of the levers above it is {percent(saved)} of all work"
            recommended = recommended and bool(number)
        if saved:
            caveat += f"; answers count {DECODE_WEIGHT:g} a token and are {ANSWERS_ARE[work.basis]}"
        yield Lever(
            code=code,
            saved_share=saved,
            standalone_share=share_of(alone),
            saved_share_low=min(ends, default=None),
            saved_share_high=max(ends, default=None),
            recommended=recommended,
            number=number,
            what=what,
            caveat=caveat,
        )


def adjustments(
    length: ModelLength,
    concurrency: Concurrency,
    output: LengthSpread | None = None,
    max_tokens: LengthSpread | None = None,
    max_num_seqs: int | None = None,
) -> Iterator[Lever]:
    """The levers that save no tokens, those first that change no answer. `max_num_seqs` is as the server is set."""

    def setting(
        code: Code, recommended: bool, number: float | None, what: str, caveat: str
    ) -> Lever:
        return Lever(
            code=code,
            saved_share=None,
            standalone_share=None,
            recommended=recommended,
            number=number,
            what=what,
            caveat=caveat,
        )

    caveat = f"no recommendation: {length.why}"
    if length.recommended is not None:
        caveat = f"{length.longest:,} tokens ({length.why}) and {100 * length.margin:.0f} % of margin make {length.wanted:,}"
        if length.wanted != length.recommended:
            caveat += f", of which the model takes {length.recommended:,}"
        caveat += (
            "; it saves no work by itself: KV blocks are given out as tokens come, so what grows is the number of"
            " full-length requests that are sure to fit, and longer ones are refused"
        )
    what = "times as many full-length requests fit the KV cache"
    yield setting("max_model_len", changes_length(length), length.room_factor, what, caveat)

    asked = None if max_tokens is None else max_tokens.p50
    longest = None if output is None else output.p99_9
    if asked is not None and longest is not None and asked >= FAR_ABOVE * max(longest, 1.0):
        what = "times the length that 99.9 % of answers keep to is what half of the requests allow"
        caveat = (
            f"answers end by {longest:,.0f} tokens, max_tokens allows {asked:,.0f}: clients that ask for less let"
            f" max_model_len fall by up to {asked - longest:,.0f}; it is theirs to set"
        )
        yield setting("max_tokens", True, asked / max(longest, 1.0), what, caveat)

    found, is_low = concurrency, False
    caveat = f"concurrency is unknown: {found.why}"
    if found.p99 is not None:
        wanted = int(np.ceil(found.p99 * HEADROOM))
        caveat = f"{found.why}; before any cache: what it answers needs no place in a batch; {wanted:,} leaves headroom; max_num_seqs is "
        caveat += "unknown" if max_num_seqs is None else f"{max_num_seqs:,}"
        is_low = max_num_seqs is not None and found.p99 > max_num_seqs
    number = None if found.p99 is None else float(found.p99)
    what = "under way at once, or fewer, at 99 of 100 arrivals"
    yield setting("batching", is_low, number, what, caveat)

    yield setting(
        "quantization",
        False,
        WEIGHT_FACTOR,
        "times less memory and bandwidth for weights, 4 bits instead of 16",
        "8 bits halve them; no capture can tell what it does to answers (1 to 3 % of accuracy is usual): compare both before"
        " you switch, and switch before the load comes",
    )


def headline(found: tuple[Lever, ...], length: ModelLength, policy: str = "all") -> str:
    """What to do, in one sentence."""
    wanted = [lever.code for lever in found if lever.recommended]
    measured = [WORDS[code] for code in wanted if code in WHAT]
    settings = [WORDS[code] for code in wanted if code not in WHAT and code in WORDS]
    known = any(lever.saved_share is not None for lever in found if lever.code in WHAT)
    allowed = "that the policy allows " if policy == "declared" else ""
    nothing = (
        f"nothing {allowed}repeats enough to save GPU work" if known else "what repeats is unknown"
    )
    limit = ""
    if length.recommended is not None:
        limit = f"max_model_len {length.recommended}"
        if length.current is not None and changes_length(length):
            limit += f" instead of {length.current}"
        elif length.current is not None:
            limit = f"max_model_len {length.current} as it is"
    first = ", then ".join(measured) or nothing
    return "; ".join(filter(None, (first, limit, ", ".join(settings))))


def changes_length(length: ModelLength) -> bool:
    """Whether another `max_model_len` is advised: a shorter one, or a longer one because requests do not fit now."""
    if length.recommended is None or length.longest is None:
        return False
    if length.current is None or length.recommended < length.current:
        return True
    # with less than the whole margin to spare, what is set serves all that came
    return length.current < min(length.longest, length.recommended)
