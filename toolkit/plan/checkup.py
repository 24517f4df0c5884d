"""What a running server says of its own memory, against the plan: how many requests fit, and how far the estimate was.

It asks no server: it is given what one scrape saw of it (`Sighting`). What the server did not report stays unknown.
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

MOST_REPORTED = 2**40
"""Tokens or blocks; a larger number is a mistake, or meant to do harm."""


def as_served(settings: EngineSettings, seen: Sighting, gpu: Gpu | None = None) -> EngineSettings:
    """The settings as the server reports them, else as given, else vLLM's defaults: so the estimate is of what runs there."""
    version = version_of(seen.version) or settings.version
    max_num_seqs, max_num_batched_tokens = (None, None) if gpu is None else defaults(gpu, version)
    share, caching = seen.gpu_memory_utilization, seen.prefix_caching
    if share is None or not 0 < share <= 1:
        share = settings.gpu_memory_utilization
    return replace(
        settings,
        gpu_memory_utilization=share,
        kv_cache_dtype=seen.cache_dtype or settings.kv_cache_dtype,
        max_model_len=sane(seen.max_model_len) or settings.max_model_len,
        max_num_seqs=settings.max_num_seqs or max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens or max_num_batched_tokens,
        # a hybrid reports its enlarged block size; enlarging that once more leaves it as it is
        block_size=sane(seen.block_size) or settings.block_size,
        version=version,
        prefix_caching=settings.prefix_caching if caching is None else caching,
    )


def sane(number: int | None) -> int | None:
    """A server may report anything: what cannot be an amount of tokens or blocks counts as not reported."""
    return number if number is not None and 0 < number <= MOST_REPORTED else None


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


def checkup(seen: Sighting, request_tokens: float, cache: Layout | None = None) -> Checkup:
    """Count how many requests of one length fit into a server's blocks at the same time.

    `cache`: how its model's KV cache is laid out; None: the model is not known, and every layer is taken to keep every token. A server
    that reports smaller blocks than a state fills is counted as it reports, and a note says what the other reading would give.
    """
    if cache is not None and all(group.max_blocks is None for group in cache.groups):
        cache = None  # no windows, no states: every layer keeps every token
    num_blocks, engines = sane(seen.num_gpu_blocks), sane(seen.engines) or 1
    block_size = sane(seen.block_size) or (cache.block_size if cache else None)
    if num_blocks is None or num_blocks // engines < 2:
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
    if block_size is None:
        text = f"{num_blocks:,} blocks, but the host does not report how many tokens a block holds"
        return Checkup(num_gpu_blocks=num_blocks, text=text)

    # a sighting adds up the blocks of all engines behind one address, and each engine reserves one of its own
    engine_blocks = num_blocks // engines
    per_request, to_begin, where = blocks(request_tokens, block_size), 0, ""
    notes = []
    if cache is not None:
        whole_tokens = math.ceil(request_tokens)
        needed, first = cache.blocks_for(whole_tokens), cache.blocks_to_begin(whole_tokens)
        if block_size >= cache.block_size:
            per_request, to_begin, where = needed, first, " over all groups of layers"
        else:
            # blocks smaller than a state cannot be what a hybrid's pool is made of
            pool_gib = engine_blocks * cache.bytes_per_block / GIB
            notes.append(
                f"this model keeps states, for which vLLM makes blocks of {cache.block_size:,} tokens: if those are what it counts, a request"
                f" takes {needed:,} of them, its states included, and {held(engine_blocks, needed, first):,} are in memory at once. They would"
                f" take {pool_gib:.1f} GiB; blocks of {block_size} tokens {pool_gib * block_size / cache.block_size:.1f} GiB"
            )
    if to_begin > per_request:
        where += f" ({to_begin:,} to begin)"
    at_once_each = held(engine_blocks, per_request, to_begin)
    at_once = engines * at_once_each
    text = (
        f"{engine_blocks:,} blocks of {block_size:,}, one of them reserved; at {request_tokens:,.0f} tokens, "
        f"{counted(per_request, 'block')} each{where}, that is {counted(at_once_each, 'sequence')}"
    )
    if engines > 1:
        text += f"; {engines} engines: {at_once:,}"
    if seen.running is not None and seen.running > at_once:
        notes.append(
            f"{seen.running:,.0f} requests were running when it was seen, more than {at_once:,}: they were shorter, or shared"
            " a prefix"
        )
    return Checkup(
        num_gpu_blocks=num_blocks,
        block_size=block_size,
        blocks_per_request=per_request,
        at_once=at_once,
        text=text,
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """The plan's estimate of blocks against what the server reported."""

    planned: int
    reported: int
    share: float
    """(planned - reported) / reported; above 0: the plan has more blocks than the server."""
    text: str


def deviation(planned: int, reported: int | None, *, block_bytes: int | None) -> Deviation | None:
    """How far the plan was from what the server has; None where it does not report that."""
    reported = sane(reported)
    if reported is None:
        return None
    share = (planned - reported) / reported
    off_gib = abs(planned - reported) * (block_bytes or 0) / GIB
    size = f", {off_gib:.1f} GiB" if block_bytes else ""
    text = f"the plan has {planned:,} blocks, the server reports {reported:,}"
    if not planned:
        text = "would not even start with what the server reports of itself"
    elif planned == reported:
        text += ": exact"
    elif planned > 2 * reported:
        text += f": {planned / reported:,.0f} times as many{size}"
    else:
        text += f": {abs(share):.1%} {'more' if share > 0 else 'less'}{size}"
    return Deviation(planned=planned, reported=reported, share=share, text=text)


def compared(chosen: Plan, asked: PlanQuestion, seen: Sighting) -> tuple[Checkup, Deviation | None]:
    """What a server's own figures mean, and how far from them a plan is that is made with the server's own settings."""
    served = as_served(asked.settings, seen, asked.gpu)
    try:
        of_served = plan(replace(asked, settings=served), chosen.quantization)
    except ToolkitError:  # e.g., a cache dtype that nobody can price
        return checkup(seen, chosen.request_tokens), None
    settings = replace(
        served,
        max_model_len=of_served.max_model_len,
        max_num_batched_tokens=of_served.max_num_batched_tokens,
    )
    cache = layout(asked.shape, settings)
    # the plan is of one engine, the sighting of all behind the address
    reported = (sane(seen.num_gpu_blocks) or 0) // (sane(seen.engines) or 1) or None
    found = deviation(of_served.num_gpu_blocks, reported, block_bytes=cache.bytes_per_block)
    return checkup(seen, asked.load.request_tokens or of_served.request_tokens, cache), found


def checkup_of_model(
    seen: Sighting, shape: Shape, settings: EngineSettings, tokens: float
) -> Checkup:
    """Count requests of a known model in the blocks of a server whose GPU is not known."""
    served = as_served(settings, seen)
    longest = served.max_model_len or shape.max_positions or int(tokens)
    try:
        cache = layout(shape, replace(served, max_model_len=longest))
    except ToolkitError:  # e.g., a cache dtype that nobody can price
        return checkup(seen, tokens)
    return checkup(seen, tokens, cache)
