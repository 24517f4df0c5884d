"""What a running server says of its own memory, against the plan: how many requests fit, and how far the estimate was.

It looks at no server: it is given a sighting. What the server did not say stays unknown.
"""

import math
from dataclasses import dataclass, replace

from toolkit.errors import ToolkitError
from toolkit.plan.advice import defaults
from toolkit.plan.capacity import blocks, held
from toolkit.plan.engine import EngineSettings, Gpu, PlanQuestion, version_of
from toolkit.plan.kv_cache import Layout, layout
from toolkit.plan.model_config import Shape
from toolkit.plan.planner import Plan, plan
from toolkit.records import Sighting
from toolkit.units import GIB, counted

MOST = 2**40
"""Tokens or blocks; more is a mistake, or a trap."""


def as_served(settings: EngineSettings, seen: Sighting, gpu: Gpu | None = None) -> EngineSettings:
    """The settings as the server reports them, and vLLM's own where it does not: the estimate is of what runs there."""
    version = version_of(seen.version) or settings.version
    seqs, batched = (None, None) if gpu is None else defaults(gpu, version)
    share, caching = seen.gpu_memory_utilization, seen.prefix_caching
    if share is None or not 0 < share <= 1:
        share = settings.gpu_memory_utilization
    return replace(
        settings,
        gpu_memory_utilization=share,
        kv_cache_dtype=seen.cache_dtype or settings.kv_cache_dtype,
        max_model_len=sane(seen.max_model_len) or settings.max_model_len,
        max_num_seqs=settings.max_num_seqs or seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens or batched,
        # of a hybrid it is enlarged again, to the same
        block_size=sane(seen.block_size) or settings.block_size,
        version=version,
        prefix_caching=settings.prefix_caching if caching is None else caching,
    )


def sane(number: int | None) -> int | None:
    """A server may report anything: what cannot be an amount of tokens or blocks counts as not reported."""
    return number if number is not None and 0 < number <= MOST else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What a host's own figures mean for requests of one length."""

    num_gpu_blocks: int | None = None
    block_size: int | None = None
    blocks_per_request: int | None = None
    at_once: int | None = None
    """Requests in memory at the same time."""
    text: str
    """The same in a sentence."""
    notes: tuple[str, ...] = ()


def checkup(seen: Sighting, request_tokens: float, laid: Layout | None = None) -> Checkup:
    """Count requests in a server's blocks.

    `laid`: how its model's cache is laid out; None: the model is not known, and all layers are taken to keep every token. A server that
    reports smaller blocks than a state fills is counted as it reports, and the other reading is noted.
    """
    if laid is not None and all(group.max_blocks is None for group in laid.groups):
        laid = None
    count, engines = sane(seen.num_gpu_blocks), sane(seen.engines) or 1
    size = sane(seen.block_size) or (laid.block_size if laid else None)
    if count is None or count // engines < 2:
        tokens = sane(seen.kv_cache_tokens)
        if tokens is None:
            text = "the host reports neither its blocks nor how many tokens it can keep"
            return Checkup(block_size=seen.block_size, text=text)
        at_once = int(tokens // request_tokens)
        text = (
            f"room for {tokens:,} tokens; at {request_tokens:,.0f} tokens that is {at_once:,} sequences, less what blocks"
            " round away"
        )
        return Checkup(block_size=seen.block_size, at_once=at_once, text=text)
    if size is None:
        text = f"{count:,} blocks, but the host does not report how many tokens a block holds"
        return Checkup(num_gpu_blocks=count, text=text)

    # a sighting adds up the blocks of all engines behind one address, and each engine reserves one of its own
    each_has, whole = count // engines, math.ceil(request_tokens)
    each, begin, state, notes = blocks(request_tokens, size), 0, "", []
    if laid is not None:
        needed, first = laid.blocks_for(whole), laid.blocks_to_begin(whole)
        if size >= laid.block_size:
            each, begin, state = needed, first, " over all groups of layers"
        else:
            # blocks smaller than a state cannot be what a hybrid's pool is made of
            pool_gib = each_has * laid.bytes_per_block / GIB
            notes.append(
                f"this model keeps states, for which vLLM makes blocks of {laid.block_size:,} tokens: if those are what it counts, a request"
                f" takes {needed:,} of them, its states included, and {held(each_has, needed, first):,} are in memory at once. They would"
                f" take {pool_gib:.1f} GiB; blocks of {size} tokens {pool_gib * size / laid.block_size:.1f} GiB"
            )
    if begin > each:
        state += f" ({begin:,} to begin)"
    of_one = held(each_has, each, begin)
    number = engines * of_one
    text = (
        f"{each_has:,} blocks of {size:,}, one of them reserved; at {request_tokens:,.0f} tokens, "
        f"{counted(each, 'block')} each{state}, that is {counted(of_one, 'sequence')}"
    )
    if engines > 1:
        text += f"; {engines} engines: {number:,}"
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
        text=text,
        notes=tuple(notes),
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
    """How far the plan was from what the server has; None where it does not report that."""
    reported = sane(reported)
    if reported is None:
        return None
    share = (planned - reported) / reported
    off = (planned - reported) * (block_bytes or 0) / GIB
    size = f", {abs(off):.1f} GiB" if block_bytes else ""
    side = "more" if share > 0 else "less"
    words = f"the plan has {planned:,} blocks, the server reports {reported:,}"
    if not planned:
        words = "would not even start with what the server reports of itself"
    elif planned == reported:
        words += ": exact"
    elif planned > 2 * reported:
        words += f": {planned / reported:,.0f} times as many{size}"
    else:
        words += f": {abs(share):.1%} {side}{size}"
    return Deviation(planned=planned, reported=reported, share=share, text=words)


def compared(one: Plan, asked: PlanQuestion, seen: Sighting) -> tuple[Checkup, Deviation | None]:
    """What a server's own figures mean, and how far the plan of what runs there, not of what should, was from them."""
    served = as_served(asked.settings, seen, asked.gpu)
    try:
        there = plan(replace(asked, settings=served), one.quantization)
    except ToolkitError:  # e.g., a cache dtype that nobody can price
        return checkup(seen, one.request_tokens), None
    chosen = replace(
        served,
        max_model_len=there.max_model_len,
        max_num_batched_tokens=there.max_num_batched_tokens,
    )
    laid = layout(asked.shape, chosen)
    count = (sane(seen.num_gpu_blocks) or 0) // (sane(seen.engines) or 1) or None
    off = deviation(there.num_gpu_blocks, count, block_bytes=laid.bytes_per_block)
    return checkup(seen, asked.load.request_tokens or there.request_tokens, laid), off


def checkup_of_model(
    seen: Sighting, shape: Shape, settings: EngineSettings, tokens: float
) -> Checkup:
    """Count requests of a known model in the blocks of a server whose GPU is not known."""
    served = as_served(settings, seen)
    longest = served.max_model_len or shape.max_positions or int(tokens)
    try:
        laid = layout(shape, replace(served, max_model_len=longest))
    except ToolkitError:  # e.g., a cache dtype that nobody can price
        return checkup(seen, tokens)
    return checkup(seen, tokens, laid)
