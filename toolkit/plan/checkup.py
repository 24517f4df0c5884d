"""What a running server says of its own memory, against the plan: how many requests fit, and how far the estimate was.

It looks at no server: a sighting is told. What the server did not say stays unknown.
"""

from dataclasses import dataclass, replace

from toolkit.plan.asked import Settings, version_of
from toolkit.plan.capacity import blocks, held
from toolkit.records import Sighting

GIB = 2**30
NAMED = (
    ("awq", "awq"),
    ("gptq", "gptq-int4"),
    ("int4", "gptq-int4"),
    ("nvfp4", "nvfp4"),
    ("fp8", "fp8"),
)
"""What a model's name says of its weights."""


def as_served(settings: Settings, seen: Sighting) -> Settings:
    """The settings as the server tells them: the estimate is of what runs, not of what should."""
    return replace(
        settings,
        gpu_memory_utilization=seen.gpu_memory_utilization or settings.gpu_memory_utilization,
        kv_cache_dtype=seen.cache_dtype or settings.kv_cache_dtype,
        max_model_len=seen.max_model_len or settings.max_model_len,
        version=version_of(seen.version) or settings.version,
        prefix_caching=settings.prefix_caching
        if seen.prefix_caching is None
        else seen.prefix_caching,
    )


def named_quantization(model: str | None) -> str | None:
    """Guess from `Qwen3.5-35B-A3B-GPTQ-Int4`; None: the name does not say."""
    name = (model or "").lower()
    return next((found for word, found in NAMED if word in name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What a host's own figures mean for requests of one length."""

    num_gpu_blocks: int | None
    block_size: int | None
    blocks_per_request: int | None
    at_once: int | None
    """Requests in memory at the same time."""
    words: str
    """The same in a sentence."""
    notes: tuple[str, ...] = ()


def checkup(
    seen: Sighting,
    request_tokens: float,
    *,
    blocks_per_request: int | None = None,
    hybrid: bool = False,
    block_size: int | None = None,
) -> Checkup:
    """Count requests in a server's blocks.

    `blocks_per_request`: by the model's own layout, where the model is known; else all layers are taken to keep every
    token, and blocks are counted by tokens. `block_size`: by the model's layout, where the host tells none.
    """
    count = seen.num_gpu_blocks
    size = seen.block_size if seen.block_size is not None else block_size
    if count is None or count < 2:
        return _by_tokens(seen, request_tokens)
    if size is None:
        return Checkup(
            num_gpu_blocks=count,
            block_size=None,
            blocks_per_request=None,
            at_once=None,
            words=f"{count:,} blocks, but the host does not tell how many tokens a block holds",
        )
    each = blocks_per_request if blocks_per_request is not None else blocks(request_tokens, size)
    engines = seen.engines or 1
    number = engines * held(count // engines, each)
    return Checkup(
        num_gpu_blocks=count,
        block_size=size,
        blocks_per_request=each,
        at_once=number,
        words=_of_engines(
            block_words(count // engines, size, request_tokens, each, hybrid=hybrid),
            engines,
            number,
        ),
        notes=_notes(seen, number),
    )


def block_words(
    count: int, size: int, request_tokens: float, each: int, *, hybrid: bool = False
) -> str:
    """`661 blocks of 16, one of them reserved; at 271 tokens, 17 blocks each, that is 38 sequences`."""
    state = ", its states included" if hybrid else ""
    number = held(count, each)
    return (
        f"{count:,} blocks of {size:,}, one of them reserved; at {request_tokens:,.0f} tokens, {each:,}"
        f" block{'' if each == 1 else 's'} each{state}, that is {number:,} sequence{'' if number == 1 else 's'}"
    )


def _of_engines(words: str, engines: int, number: int) -> str:
    """A sighting adds up the blocks of all engines behind one address, and each engine reserves one of its own."""
    return words if engines == 1 else f"{words}; {engines} engines: {number:,}"


def _by_tokens(seen: Sighting, request_tokens: float) -> Checkup:
    tokens = seen.kv_cache_tokens
    if tokens is None:
        words = "the host tells neither its blocks nor how many tokens it can keep"
        at_once = None
    else:
        at_once = int(tokens // request_tokens)
        words = (
            f"room for {tokens:,} tokens; at {request_tokens:,.0f} tokens that is {at_once:,} sequences, less what blocks"
            " round away"
        )
    return Checkup(
        num_gpu_blocks=None,
        block_size=seen.block_size,
        blocks_per_request=None,
        at_once=at_once,
        words=words,
    )


def _notes(seen: Sighting, at_once: int) -> tuple[str, ...]:
    found = []
    if seen.running is not None and seen.running > at_once:
        found.append(
            f"{seen.running:,.0f} requests were running when it was seen, more than {at_once:,}: they were shorter, or shared"
            " a prefix"
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """The plan's estimate of blocks against what the server reported."""

    planned: int
    reported: int
    share: float
    """(planned - reported) / reported; above 0: the plan hoped for more."""
    words: str


def deviation(planned: int, reported: int | None, *, block_bytes: int | None) -> Deviation | None:
    """How far the plan was from what the server has; None where it does not tell."""
    if not reported:
        return None
    share = (planned - reported) / reported
    off = (planned - reported) * (block_bytes or 0) / GIB
    size = f", {abs(off):.1f} GiB" if block_bytes else ""
    side = "more" if share > 0 else "less"
    words = f"the plan has {planned:,} blocks, the server reports {reported:,}" + (
        ": exact" if planned == reported else f": {abs(share):.1%} {side}{size}"
    )
    return Deviation(planned=planned, reported=reported, share=share, words=words)
