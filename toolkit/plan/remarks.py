"""What a reader must know beside a plan's figures: what is an estimate, what is a floor, and what does not fit the machine."""

import math
from collections.abc import Iterator

from toolkit.plan.advice import tokens_words
from toolkit.plan.capacity import RequestLengths, held_by_bytes
from toolkit.plan.engine import EngineSettings, Gpu
from toolkit.plan.memory import Room
from toolkit.plan.model_config import KvHeads, Latent, Recurrent, Shape
from toolkit.plan.result import Plan
from toolkit.plan.weights import parameters
from toolkit.units import GIB, digits

ENGINE_V1_FROM = (0, 8)
UNLIKE = 1.5
"""Times the mean from which on the longest request is told apart."""


def remarks(
    found: Plan, shape: Shape, gpu: Gpu, settings: EngineSettings, load: RequestLengths, left: Room
) -> tuple[str, ...]:
    """All of them, what matters most first."""
    return tuple(
        dict.fromkeys(
            (
                *_of_the_start(found, shape, settings, load, left),
                *_of_memory(found, shape, settings, left),
                *_of_the_weights(found, shape, gpu, settings),
                *_of_time(found, shape, gpu, settings, load),
            )
        )
    )


def _of_the_start(
    found: Plan, shape: Shape, settings: EngineSettings, load: RequestLengths, left: Room
) -> Iterator[str]:
    """What does not fit, what was not told, and what vLLM, or the limit, would refuse."""
    spent = left.budget
    if not found.fits and spent.kv <= 0:
        yield (
            f"does not fit: {spent.weights / GIB:.1f} GiB of weights and about"
            f" {(spent.requested - spent.weights - spent.kv) / GIB:.1f} GiB beside them are more than the"
            f" {spent.requested / GIB:.1f} GiB that vLLM may use of one GPU"
        )
    elif not found.fits:
        yield (
            f"does not start: one request of max-model-len, {found.max_model_len:,} tokens, does not fit into"
            f" {spent.kv / GIB:.1f} GiB of KV cache"
        )
    if load.request_tokens is None:
        yield (
            "how long requests are was not told, so all are counted as long as max-model-len: real ones are shorter, and more of them"
            " fit"
        )
    yield from (*load.notes, *shape.notes, *spent.notes)
    limit, most = found.max_model_len or 0, shape.max_positions
    if most is not None and limit > most:
        yield f"max-model-len {limit:,} is more than the {most:,} that the model was made for: vLLM refuses to start"
    if load.request_tokens is not None and load.request_tokens > limit:
        yield f"requests of {tokens_words(load.request_tokens)} are longer than max-model-len {limit:,}: they are refused"
    elif load.longest is not None and load.longest > limit:
        yield f"the longest requests, {load.longest:,} tokens, are longer than max-model-len {limit:,}: they are refused"
    if (found.max_num_batched_tokens or 0) < (found.max_num_seqs or 0):
        yield "max-num-batched-tokens is less than max-num-seqs: vLLM refuses to start"
    # what vLLM checks before it captures graphs: each sequence that decodes needs a block for its state
    if (
        (found.fits and not settings.eager and left.cache.state_mode is not None)
        and found.max_num_seqs is not None
        and found.max_num_seqs > left.blocks
    ):
        yield (
            f"max-num-seqs {found.max_num_seqs:,} is more than the {left.blocks:,} blocks that hold the requests' states: vLLM refuses to"
            " start"
        )


def _of_memory(found: Plan, shape: Shape, settings: EngineSettings, left: Room) -> Iterator[str]:
    """What takes memory, and how it is counted."""
    kinds = [layer.attention for layer in shape.layers]
    states = sum(isinstance(one, Recurrent) for one in kinds)
    windows = {one.window for one in kinds if isinstance(one, KvHeads) and one.window is not None}
    if shape.other:
        size = shape.other * shape.element_bytes / GIB
        yield (
            f"{size:.1f} GiB of the weights are its image encoder, as its config tells of it; what an image takes while it is read is not"
            " counted, nor is a cache of images"
        )
    if states:
        is_cached = settings.prefix_caching
        each = "two states, one of them for the prefix cache," if is_cached else "one state"
        yield (
            f"{states} of {len(kinds)} layers keep a state instead of tokens: a request takes {each} in each of them, however"
            " short it is, and a block is as large as a state"
        )
    if len(left.cache.groups) > 1:
        yield (
            "KV tokens are as vLLM reports them: what requests of max-model-len would add up to, not places for tokens; short requests"
            " hold fewer"
        )
    if windows:
        words = " and ".join(f"{one:,}" for one in sorted(windows))
        yield (
            f"some layers look back {words} tokens only; vLLM holds more than that for them while prompts are read, as much as"
            " max-num-batched-tokens allows"
        )
    # what blocks cost, where all layers keep every token: else bytes alone say nothing
    if not (states or windows) and found.fits and found.block_size and found.blocks_per_request:
        by_bytes = held_by_bytes(
            found.kv_budget_gib * GIB, found.kv_bytes_per_token * found.request_tokens
        )
        rate = ""
        if found.seconds_per_request is not None:
            rate = f" ({digits(by_bytes / found.seconds_per_request)} a second)"
        if by_bytes != found.max_concurrency:
            yield (
                f"bytes alone would hold {by_bytes:,} requests{rate}: blocks of {found.block_size} tokens, {found.blocks_per_request:,} for each"
                f" request and one reserved, hold {found.max_concurrency:,}"
            )
    few = [one.kv_heads for one in kinds if isinstance(one, KvHeads) and one.kv_heads < settings.tp]
    if settings.tp > 1 and any(isinstance(one, Latent) for one in kinds):
        yield "each GPU holds the whole KV cache of every token (MLA): more GPUs leave more room, but do not shrink a token"
    elif few:
        yield f"{min(few)} KV heads on {settings.tp} GPUs: some hold copies, so a token takes more bytes over all"


def _of_the_weights(found: Plan, shape: Shape, gpu: Gpu, settings: EngineSettings) -> Iterator[str]:
    """What they leave out, and which engine and checkpoint are meant."""
    if settings.spec_tokens:
        # how it speculates is not asked: n-grams need no layers, others bring their own
        words = "layers that speculate (EAGLE, MTP, a draft model) and their KV cache are not counted; n-grams need none"
        if shape.drafts:
            size = parameters(shape).drafts * shape.element_bytes / GIB
            words += f". This model's own for multi-token prediction have {size:.1f} GiB in 16 bit"
        yield words
    if settings.version < ENGINE_V1_FROM:
        yield "vLLM before 0.8 has another engine (V0), which deals memory out otherwise: reckoned as its first successor does"
    if gpu.fp8 is False and "fp8" in found.quantization:
        yield f"{gpu.name} does not compute in fp8: the weights take half the memory, and are widened in each step"
    own = shape.quantization.name if shape.quantization else None
    is_own = own == found.quantization or found.quantization in ("bf16", "fp16", "fp32")
    if not is_own and not (found.quantization == "fp8" and own is None):
        yield f"{found.quantization} is another checkpoint of this model: its files decide what stays in 16 bit, and so its size"


def _of_time(
    found: Plan, shape: Shape, gpu: Gpu, settings: EngineSettings, load: RequestLengths
) -> Iterator[str]:
    """What memory's speed alone allows, as each step reads the weights, whoever waits for it; and how far figures hold."""
    if not found.fits:
        return
    seconds, answer = found.seconds_per_request, load.output_tokens
    if gpu.bandwidth_bytes_s is not None:
        counted = parameters(shape)
        # no step of text reads the embedding: it is looked up, but for where it is the output's matrix, too
        looked_up = 0 if shape.tied else counted.embedding
        read = found.weights_gib * GIB - (looked_up + counted.other) * shape.element_bytes
        read_s = read / settings.tp / gpu.bandwidth_bytes_s
        if seconds is None:
            all_experts = (
                " once enough requests run to touch nearly all experts" if counted.idle else ""
            )
            words = (
                f"a token takes {digits(read_s * 1000)} ms or more{all_experts}: each step reads {digits(read / 1e9)} GB of weights at"
                f" {digits(gpu.bandwidth_bytes_s * settings.tp / 1e9)} GB/s"
            )
            if answer is not None and not counted.idle:
                words += (
                    f", so an answer of {tokens_words(answer)} {digits(answer * read_s)} s or more"
                )
            yield words + "; measured seconds (--seconds-per-request or --run) tell the rest"
        elif (
            answer is not None and not counted.idle and not settings.spec_tokens
        ) and seconds < answer * read_s:
            yield (
                f"{digits(seconds)} s for {tokens_words(answer)} of answer is less than it takes to read the weights as often,"
                f" {digits(answer * read_s)} s: was it measured on another GPU, or did a cache answer?"
            )
    if seconds is not None:
        running = min(found.max_concurrency, found.max_num_seqs or found.max_concurrency)
        yield (
            f"requests a second hold if a request still takes {digits(seconds)} s with {running:,} at once: measure it"
            " with that many"
        )
    if load.longest is not None and load.longest >= UNLIKE * found.request_tokens:
        # a mean says how many fit on average; long ones come together now and then
        fewest = found.max_concurrency * found.request_tokens / load.longest
        yield (
            f"requests are counted at their mean length; if all were as long as the longest, {load.longest:,} tokens, about"
            f" {fewest:,.0f} would fit: when many long ones meet, some are put off and computed twice (preemption)"
        )
    if found.max_num_seqs is not None and found.max_num_seqs < found.max_concurrency:
        idle = 1 - found.max_num_seqs / found.max_concurrency
        if idle >= 0.1:
            yield f"max-num-seqs {found.max_num_seqs:,} leaves {math.floor(idle * 100)} % of the KV cache to the prefix cache"
