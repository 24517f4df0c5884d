"""What a reader must know beside a plan's figures: what is an estimate, what is a floor, and what does not fit the machine."""

import math
from collections.abc import Iterator

from toolkit.plan.advice import tokens_words
from toolkit.plan.asked import EngineSettings, Gpu
from toolkit.plan.capacity import held_by_bytes
from toolkit.plan.load import RequestLengths
from toolkit.plan.parameters import Parameters, parameters
from toolkit.plan.result import Plan
from toolkit.plan.room import Room
from toolkit.plan.shape import KvHeads, Latent, Recurrent, Shape
from toolkit.units import GIB, digits

ENGINE_V1_FROM = (0, 8)
UNLIKE = 1.5
"""Times the mean from which on the longest request is told apart."""


def remarks(
    found: Plan, shape: Shape, gpu: Gpu, settings: EngineSettings, load: RequestLengths, left: Room
) -> tuple[str, ...]:
    """All of them, what matters most first."""
    told = (
        _does_not_fit(found, left),
        _no_length(load),
        *load.notes,
        *shape.notes,
        *left.budget.notes,
        *_over_the_limit(found, shape, load),
        _more_than_states(found, settings, left),
        _tower(shape),
        _states(shape, settings),
        _reckoned_tokens(left),
        _windows(shape),
        _rounding(found, shape),
        _copies(shape, settings),
        _speculation(shape, settings),
        _of_another_engine(settings),
        _no_fp8(found, gpu),
        _other_checkpoint(found, shape),
        _floor(found, shape, gpu, settings, load),
        _measured(found),
        _unlike(found, load),
        _short_of_sequences(found),
    )
    return tuple(dict.fromkeys(one for one in told if one))


def _does_not_fit(found: Plan, left: Room) -> str | None:
    if found.fits:
        return None
    spent = left.budget
    if spent.kv <= 0:
        return (
            f"does not fit: {spent.weights / GIB:.1f} GiB of weights and about"
            f" {(spent.requested - spent.weights - spent.kv) / GIB:.1f} GiB beside them are more than the"
            f" {spent.requested / GIB:.1f} GiB that vLLM may use of one GPU"
        )
    return (
        f"does not start: one request of max-model-len, {found.max_model_len:,} tokens, does not fit into"
        f" {spent.kv / GIB:.1f} GiB of KV cache"
    )


def _no_length(load: RequestLengths) -> str | None:
    if load.request_tokens is not None:
        return None
    return (
        "how long requests are was not told, so all are counted as long as max-model-len: real ones are shorter, and more of them"
        " fit"
    )


def _over_the_limit(found: Plan, shape: Shape, load: RequestLengths) -> Iterator[str]:
    """What vLLM, or the limit, would refuse."""
    limit, most = found.max_model_len or 0, shape.max_positions
    if most is not None and limit > most:
        yield f"max-model-len {limit:,} is more than the {most:,} that the model was made for: vLLM refuses to start"
    if load.request_tokens is not None and load.request_tokens > limit:
        yield f"requests of {tokens_words(load.request_tokens)} are longer than max-model-len {limit:,}: they are refused"
    elif load.longest is not None and load.longest > limit:
        yield f"the longest requests, {load.longest:,} tokens, are longer than max-model-len {limit:,}: they are refused"
    if (found.max_num_batched_tokens or 0) < (found.max_num_seqs or 0):
        yield "max-num-batched-tokens is less than max-num-seqs: vLLM refuses to start"


def _more_than_states(found: Plan, settings: EngineSettings, left: Room) -> str | None:
    """What vLLM checks before it captures graphs: each sequence that decodes needs a block for its state."""
    if not found.fits or settings.eager or left.cache.state_mode is None:
        return None
    if (found.max_num_seqs or 0) <= left.blocks:
        return None
    return (
        f"max-num-seqs {found.max_num_seqs:,} is more than the {left.blocks:,} blocks that hold the requests' states: vLLM refuses to"
        " start"
    )


def _tower(shape: Shape) -> str | None:
    if not shape.other:
        return None
    size = shape.other * shape.element_bytes / GIB
    return (
        f"{size:.1f} GiB of the weights are its image encoder, as its config tells of it; what an image takes while it is read is not"
        " counted, nor is a cache of images"
    )


def _reckoned_tokens(left: Room) -> str | None:
    if len(left.cache.groups) == 1:
        return None
    return (
        "KV tokens are as vLLM reports them: what requests of max-model-len would add up to, not places for tokens; short requests"
        " hold fewer"
    )


def _states(shape: Shape, settings: EngineSettings) -> str | None:
    layers = sum(isinstance(layer.attention, Recurrent) for layer in shape.layers)
    if not layers:
        return None
    each = (
        "two states, one of them for the prefix cache," if settings.prefix_caching else "one state"
    )
    return (
        f"{layers} of {len(shape.layers)} layers keep a state instead of tokens: a request takes {each} in each of them, however"
        " short it is, and a block is as large as a state"
    )


def _windows(shape: Shape) -> str | None:
    windows = {
        layer.attention.window
        for layer in shape.layers
        if isinstance(layer.attention, KvHeads) and layer.attention.window is not None
    }
    if not windows:
        return None
    words = " and ".join(f"{one:,}" for one in sorted(windows))
    return (
        f"some layers look back {words} tokens only; vLLM holds more than that for them while prompts are read, as much as"
        " max-num-batched-tokens allows"
    )


def _rounding(found: Plan, shape: Shape) -> str | None:
    """What blocks cost, where all layers keep every token: else bytes alone say nothing."""
    plain = all(
        isinstance(layer.attention, Latent)
        or (isinstance(layer.attention, KvHeads) and layer.attention.window is None)
        for layer in shape.layers
    )
    if not (plain and found.fits and found.block_size and found.blocks_per_request):
        return None
    by_bytes = held_by_bytes(
        found.kv_budget_gib * GIB, found.kv_bytes_per_token * found.request_tokens
    )
    if by_bytes == found.max_concurrency:
        return None
    rate = ""
    if found.seconds_per_request is not None:
        rate = f" ({digits(by_bytes / found.seconds_per_request)} a second)"
    return (
        f"bytes alone would hold {by_bytes:,} requests{rate}: blocks of {found.block_size} tokens, {found.blocks_per_request:,} for each"
        f" request and one reserved, hold {found.max_concurrency:,}"
    )


def _copies(shape: Shape, settings: EngineSettings) -> str | None:
    if settings.tp == 1:
        return None
    kinds = [layer.attention for layer in shape.layers]
    if any(isinstance(one, Latent) for one in kinds):
        return "each GPU holds the whole KV cache of every token (MLA): more GPUs leave more room, but do not shrink a token"
    few = [one.kv_heads for one in kinds if isinstance(one, KvHeads) and one.kv_heads < settings.tp]
    if few:
        return f"{min(few)} KV heads on {settings.tp} GPUs: some hold copies, so a token takes more bytes over all"
    return None


def _speculation(shape: Shape, settings: EngineSettings) -> str | None:
    """How it speculates is not asked: n-grams need no layers, others bring their own."""
    if not settings.spec_tokens:
        return None
    words = "layers that speculate (EAGLE, MTP, a draft model) and their KV cache are not counted; n-grams need none"
    if shape.drafts:
        size = parameters(shape).drafts * shape.element_bytes / GIB
        words += f". This model's own for multi-token prediction have {size:.1f} GiB in 16 bit"
    return words


def _of_another_engine(settings: EngineSettings) -> str | None:
    if settings.version >= ENGINE_V1_FROM:
        return None
    return "vLLM before 0.8 has another engine (V0), which deals memory out otherwise: reckoned as its first successor does"


def _no_fp8(found: Plan, gpu: Gpu) -> str | None:
    if gpu.fp8 is not False or "fp8" not in found.quantization:
        return None
    return f"{gpu.name} does not compute in fp8: the weights take half the memory, and are widened in each step"


def _other_checkpoint(found: Plan, shape: Shape) -> str | None:
    own = shape.quantization.name if shape.quantization else None
    if own == found.quantization or found.quantization in ("bf16", "fp16", "fp32"):
        return None
    if found.quantization == "fp8" and own is None:
        return None
    return f"{found.quantization} is another checkpoint of this model: its files decide what stays in 16 bit, and so its size"


def _floor(
    found: Plan, shape: Shape, gpu: Gpu, settings: EngineSettings, load: RequestLengths
) -> str | None:
    """What memory's speed alone allows: each step reads the weights, whoever waits for it."""
    if gpu.bandwidth_bytes_s is None or not found.fits:
        return None
    counted = parameters(shape)
    read = found.weights_gib * GIB - _unread(shape, counted)
    read_s = read / settings.tp / gpu.bandwidth_bytes_s
    if found.seconds_per_request is not None:
        least = None if counted.idle or settings.spec_tokens else load.output_tokens
        return _too_fast(found.seconds_per_request, least, read_s)
    all_experts = (
        "" if counted.idle == 0 else " once enough requests run to touch nearly all experts"
    )
    words = (
        f"a token takes {digits(read_s * 1000)} ms or more{all_experts}: each step reads {digits(read / 1e9)} GB of weights at"
        f" {digits(gpu.bandwidth_bytes_s * settings.tp / 1e9)} GB/s"
    )
    if load.output_tokens is not None and not counted.idle:
        words += f", so an answer of {tokens_words(load.output_tokens)} {digits(load.output_tokens * read_s)} s or more"
    return words + "; measured seconds (--seconds-per-request or --run) tell the rest"


def _too_fast(seconds: float, output_tokens: float | None, read_s: float) -> str | None:
    """A time that reading the weights alone does not leave: `output_tokens` one after the other."""
    if output_tokens is None or seconds >= output_tokens * read_s:
        return None
    return (
        f"{digits(seconds)} s for {tokens_words(output_tokens)} of answer is less than it takes to read the weights as often,"
        f" {digits(output_tokens * read_s)} s: was it measured on another GPU, or did a cache answer?"
    )


def _unread(shape: Shape, counted: Parameters) -> int:
    """Bytes that no step of text reads: the embedding is looked up, but for where it is the output's matrix, too."""
    looked_up = 0 if shape.tied else counted.embedding
    return (looked_up + counted.other) * shape.element_bytes


def _measured(found: Plan) -> str | None:
    if found.seconds_per_request is None or not found.fits:
        return None
    running = min(found.max_concurrency, found.max_num_seqs or found.max_concurrency)
    return (
        f"requests a second hold if a request still takes {digits(found.seconds_per_request)} s with {running:,} at once: measure it"
        " with that many"
    )


def _unlike(found: Plan, load: RequestLengths) -> str | None:
    """A mean says how many fit on average; long ones come together now and then."""
    if not found.fits or load.longest is None or load.longest < UNLIKE * found.request_tokens:
        return None
    fewest = found.max_concurrency * found.request_tokens / load.longest
    return (
        f"requests are counted at their mean length; if all were as long as the longest, {load.longest:,} tokens, about"
        f" {fewest:,.0f} would fit: when many long ones meet, some are put off and computed twice (preemption)"
    )


def _short_of_sequences(found: Plan) -> str | None:
    if found.max_num_seqs is None or not found.fits or found.max_num_seqs >= found.max_concurrency:
        return None
    idle = 1 - found.max_num_seqs / found.max_concurrency
    if idle < 0.1:
        return None
    return f"max-num-seqs {found.max_num_seqs:,} leaves {math.floor(idle * 100)} % of the KV cache to the prefix cache"
