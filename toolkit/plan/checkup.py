"""What a running server says of its own memory, against the plan: how many requests fit, and how far the estimate was.

It looks at no server: a sighting is told. What the server did not say stays unknown.
"""

from dataclasses import dataclass, replace

from toolkit.errors import ToolkitError
from toolkit.plan.advice import defaults
from toolkit.plan.capacity import blocks, held
from toolkit.plan.engine import EngineSettings, Gpu, version_of
from toolkit.plan.memory import blocks_of_request
from toolkit.plan.model_config import Shape
from toolkit.plan.planner import PlanQuestion, per_request
from toolkit.plan.result import Plan
from toolkit.records import Sighting
from toolkit.units import GIB, counted

MOST = 2**40
"""Tokens or blocks; more is a mistake, or a trap."""


def as_served(settings: EngineSettings, seen: Sighting, gpu: Gpu | None = None) -> EngineSettings:
    """The settings as the server tells them, and vLLM's own where it does not: the estimate is of what runs there."""
    version = version_of(seen.version) or settings.version
    seqs, batched = (None, None)
    if gpu is not None:
        seqs, batched = defaults(gpu.memory_bytes, is_a100=gpu.is_a100, version=version)
    share = seen.gpu_memory_utilization
    return replace(
        settings,
        gpu_memory_utilization=share
        if share is not None and 0 < share <= 1
        else settings.gpu_memory_utilization,
        kv_cache_dtype=seen.cache_dtype or settings.kv_cache_dtype,
        max_model_len=sane(seen.max_model_len) or settings.max_model_len,
        max_num_seqs=settings.max_num_seqs or seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens or batched,
        # of a hybrid it is enlarged again, to the same
        block_size=sane(seen.block_size) or settings.block_size,
        version=version,
        prefix_caching=settings.prefix_caching
        if seen.prefix_caching is None
        else seen.prefix_caching,
    )


def sane(told: int | None) -> int | None:
    """A server may tell anything: what cannot be an amount of tokens or blocks counts as not told."""
    return told if told is not None and 0 < told <= MOST else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What a host's own figures mean for requests of one length."""

    num_gpu_blocks: int | None
    block_size: int | None
    blocks_per_request: int | None
    at_once: int | None
    """Requests in memory at the same time."""
    text: str
    """The same in a sentence."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """How a model whose layers are unlike (states, windows) is laid out: its blocks' tokens, and blocks of one request."""

    block_size: int
    blocks_per_request: int
    blocks_to_begin: int | None = None
    """So many must be free for it, where windows hold more while a prompt is read; None: no more than it holds at its end."""
    block_bytes: int | None = None
    """On one GPU; None: not known."""


def checkup(seen: Sighting, request_tokens: float, states: States | None = None) -> Checkup:
    """Count requests in a server's blocks.

    `states`: of a model whose layers are unlike; None: all layers keep every token, or the model is not known. A server that tells smaller
    blocks than a state fills is counted as it tells, and the other reading is noted.
    """
    count, engines = sane(seen.num_gpu_blocks), sane(seen.engines) or 1
    size = sane(seen.block_size) or (states.block_size if states else None)
    if count is None or count // engines < 2:
        tokens, at_once = sane(seen.kv_cache_tokens), None
        words = "the host tells neither its blocks nor how many tokens it can keep"
        if tokens is not None:
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
            text=words,
        )
    if size is None:
        words = f"{count:,} blocks, but the host does not tell how many tokens a block holds"
        return Checkup(
            num_gpu_blocks=count,
            block_size=None,
            blocks_per_request=None,
            at_once=None,
            text=words,
        )

    # a sighting adds up the blocks of all engines behind one address, and each engine reserves one of its own
    each_has = count // engines
    hybrid = states is not None and size >= states.block_size
    each = states.blocks_per_request if states and hybrid else blocks(request_tokens, size)
    begin = states.blocks_to_begin if states and hybrid else None
    number = engines * held(each_has, each, begin)
    words = block_words(each_has, size, request_tokens, each, begin=begin, hybrid=hybrid)
    notes = []
    if states is not None and not hybrid:
        # blocks smaller than a state cannot be what a hybrid's pool is made of
        needed = states.blocks_per_request
        other = held(each_has, needed, states.blocks_to_begin)
        note = (
            f"this model keeps states, for which vLLM makes blocks of {states.block_size:,} tokens: if those are what it counts, a request"
            f" takes {needed:,} of them, its states included, and {other:,} are in memory at once"
        )
        if states.block_bytes is not None:
            whole = each_has * states.block_bytes / GIB
            part = whole * size / states.block_size
            note += f". They would take {whole:.1f} GiB; blocks of {size} tokens {part:.1f} GiB"
        notes.append(note)
    if seen.running is not None and seen.running > number:
        notes.append(
            f"{seen.running:,.0f} requests were running when it was seen, more than {number:,}: they were shorter, or shared"
            " a prefix"
        )
    return Checkup(
        num_gpu_blocks=count,
        block_size=size,
        blocks_per_request=each,
        at_once=number,
        text=words if engines == 1 else f"{words}; {engines} engines: {number:,}",
        notes=tuple(notes),
    )


def block_words(
    count: int,
    size: int,
    request_tokens: float,
    each: int,
    *,
    begin: int | None = None,
    hybrid: bool = False,
) -> str:
    """`661 blocks of 16, one of them reserved; at 271 tokens, 17 blocks each, that is 38 sequences`."""
    state = " over all groups of layers" if hybrid else ""
    if begin is not None and begin > each:
        state += f" ({begin:,} to begin)"
    number = held(count, each, begin)
    return (
        f"{count:,} blocks of {size:,}, one of them reserved; at {request_tokens:,.0f} tokens, "
        f"{counted(each, 'block')} each{state}, that is {counted(number, 'sequence')}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """The plan's estimate of blocks against what the server reported."""

    planned: int
    reported: int
    share: float
    """(planned - reported) / reported; above 0: the plan hoped for more."""
    text: str


def deviation(planned: int, reported: int | None, *, block_bytes: int | None) -> Deviation | None:
    """How far the plan was from what the server has; None where it does not tell."""
    if sane(reported) is None or reported is None:
        return None
    share = (planned - reported) / reported
    off = (planned - reported) * (block_bytes or 0) / GIB
    size = f", {abs(off):.1f} GiB" if block_bytes else ""
    side = "more" if share > 0 else "less"
    words = f"the plan has {planned:,} blocks, the server reports {reported:,}"
    if not planned:
        words = "would not even start with what the server tells of itself"
    elif planned == reported:
        words += ": exact"
    elif planned > 2 * reported:
        words += f": {planned / reported:,.0f} times as many{size}"
    else:
        words += f": {abs(share):.1%} {side}{size}"
    return Deviation(planned=planned, reported=reported, share=share, text=words)


def compared(one: Plan, asked: PlanQuestion, seen: Sighting) -> tuple[Checkup, Deviation | None]:
    """What a server's own figures mean, and how far the plan of what runs there, not of what should, was from them."""
    served = replace(asked, settings=as_served(asked.settings, seen, asked.gpu))
    try:
        there = served.answer(one.quantization)
    except ToolkitError:  # e.g., a cache dtype that nobody can price
        return checkup(seen, one.request_tokens), None
    block_bytes = there.bytes_per_block // there.gpus if there.bytes_per_block else None
    states = None
    if per_request(asked.shape, asked.settings):  # else all its layers keep every token
        states = States(
            block_size=there.block_size or 0,
            blocks_per_request=there.blocks_per_request or 0,
            blocks_to_begin=there.blocks_to_begin,
            block_bytes=block_bytes,
        )
    tokens = asked.load.request_tokens or there.request_tokens
    count = (sane(seen.num_gpu_blocks) or 0) // (sane(seen.engines) or 1) or None
    off = deviation(there.num_gpu_blocks or 0, count, block_bytes=block_bytes)
    return checkup(seen, tokens, states), off


def checkup_of_model(
    seen: Sighting, shape: Shape, settings: EngineSettings, tokens: float
) -> Checkup:
    """Count requests of a known model in the blocks of a server whose GPU is not known."""
    settings = as_served(settings, seen)
    length = settings.max_model_len or shape.max_positions or int(tokens)
    try:
        size, each, begin = blocks_of_request(shape, settings, length, tokens)
    except ToolkitError:  # e.g., a cache dtype that nobody can price
        return checkup(seen, tokens)
    if not per_request(shape, settings):
        return checkup(seen, tokens)
    states = States(block_size=size, blocks_per_request=each, blocks_to_begin=begin)
    return checkup(seen, tokens, states)
