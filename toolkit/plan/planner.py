"""One model on one machine: what fits, how many requests that is, and which flags follow. `plan` is the whole answer.

It puts the package's rules together. Weights, blocks and the KV cache's bytes are exact where the config is; what an engine needs
beside them is an estimate (memory.py), and so capacity is one. `side_by_side` compares quantizations, and for what does not fit
says what would make it fit.
"""

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.plan.advice import Advice, choose, tokens_words
from toolkit.plan.capacity import NO_LOAD, held_by_bytes
from toolkit.plan.engine import PlanQuestion
from toolkit.plan.kv_cache import bytes_per_request, bytes_per_token
from toolkit.plan.memory import Memory
from toolkit.plan.model_config import KvHeads, Latent, Recurrent, Shape
from toolkit.plan.model_files import KnownModel
from toolkit.plan.weights import as_stored, parameters, weights_bytes
from toolkit.units import GIB, digits

COMMON = ("bf16", "fp8", "awq", "gptq-int4")
"""What most models are published in, the largest first."""
MORE_GPUS = (2, 4, 8)
FP8 = "fp8"
WORTH = 1.1
"""Times as many requests from which on a hint is worth a line: hybrids' states are not made smaller."""

ENGINE_V1_FROM = (0, 8)
UNLIKE = 1.5
"""Times the mean from which on the longest request is named apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One model, in one quantization, on one machine. Bytes and tokens are of the whole engine, all its GPUs together."""

    model: str
    gpu: str
    gpus: int
    """Tensor parallel x pipeline parallel."""
    quantization: str
    kv_cache_dtype: str
    fits: bool
    """Its weights and at least one request of `max-model-len` do."""
    weights_gib: float
    kv_bytes_per_token: float
    """Of layers that keep all tokens."""
    state_bytes_per_request: float
    """Of layers whose memory does not grow with the tokens: linear attention, and windows once they are full."""
    block_size: int
    """Tokens."""
    bytes_per_block: int
    num_gpu_blocks: int
    """As vLLM would report it: one of them is reserved, and holds nothing."""
    kv_budget_gib: float
    kv_cache_tokens: int
    """As vLLM would report it: for hybrids what requests of full length would add up to."""
    request_tokens: float
    """Prompt and answer of one request, which `max_concurrency` is for."""
    max_concurrency: int
    """Requests of `request_tokens` that are in memory at once."""
    requests_per_s: float | None
    """None: the time of one request is not known."""
    cost_per_million_tokens: float | None = None
    """In the currency of the GPU hour's price; None: no price, or no rate."""
    seconds_per_request: float | None
    """As measured, by whomever."""
    max_model_len: int
    """All of it is reckoned with this limit, these sequences and this share of memory: as set, or as recommended."""
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    blocks_per_request: int
    """Of `request_tokens`, at its end, states included."""
    blocks_to_begin: int
    """So many must be free for it to begin: more than it holds at its end where a window moves on."""
    memory_gib: float
    """What programs are offered of all GPUs. Weights, the KV budget and the next three are parts of the share of it that
    vLLM may use."""
    context_gib: float
    """CUDA's own; estimated, as the next two."""
    activation_gib: float
    graph_gib: float
    """Until vLLM 0.19 they come on top of that share."""
    parameters: int
    flags: dict[str, str]
    """Recommended, without dashes, e.g., {"max-model-len": "512"}."""
    advice: tuple[Advice, ...]
    """The same flags, each with its reason."""
    notes: tuple[str, ...] = ()


def plan(asked: PlanQuestion, quantization: str | None = None) -> Plan:
    """Say what fits. Raises ToolkitError when `tp` or `pp` cannot divide the model, or a name is not known."""
    shape, gpu, seconds = asked.shape, asked.gpu, asked.seconds_per_request
    tp, pp = asked.settings.tp, asked.settings.pp
    gpus = asked.settings.gpus
    if gpu.is_slice and gpus > 1:
        raise ToolkitError(
            f"{gpus} slices of the kind `{gpu.name}` cannot serve one model: a process sees one of them",
            "Take a larger slice, or the whole GPU",
        )
    stored = as_stored(shape, quantization).name
    of_gpu = weights_bytes(shape, quantization, tp=tp, pp=pp, on_disk=asked.on_disk)
    advice, settings, memory = choose(asked, of_gpu)
    cache, limit = memory.cache, settings.max_model_len or 0
    # for want of better as long as a request may get
    tokens = asked.load.request_tokens or float(limit)
    at_once = memory.at_once(tokens)

    others: list[tuple[str, object, str]] = []
    if tp > 1:
        others.append(("tensor-parallel-size", tp, f"each layer is shared by {tp} GPUs"))
    if pp > 1:
        why = f"the layers are dealt to {pp} stages, one after the other"
        others.append(("pipeline-parallel-size", pp, why))
    if settings.kv_cache_dtype != "auto":
        why = "as set: smaller tokens in the KV cache; compare answers before and after"
        others.append(("kv-cache-dtype", settings.kv_cache_dtype, why))
    if settings.block_size is not None:
        others.append(("block-size", settings.block_size, "as set"))
    # vLLM makes it itself while it loads 16-bit weights; all others are other checkpoints
    if stored == FP8 and as_stored(shape, None).name in ("bf16", "fp16"):
        others.append(("quantization", FP8, "made while loading: no other checkpoint is needed"))
    advice += [Advice(flag=flag, value=str(value), why=why) for flag, value, why in others]
    if not memory.fits:  # nobody should start what does not fit
        advice = []
    found = Plan(
        model=shape.name,
        gpu=gpu.name,
        gpus=gpus,
        quantization=stored,
        kv_cache_dtype=settings.kv_cache_dtype,
        fits=memory.fits,
        parameters=parameters(shape).total,
        weights_gib=weights_bytes(shape, quantization, on_disk=asked.on_disk) / GIB,
        kv_bytes_per_token=float(bytes_per_token(shape, settings)),
        state_bytes_per_request=float(bytes_per_request(shape, settings)),
        block_size=cache.block_size,
        bytes_per_block=cache.bytes_per_block * gpus,
        num_gpu_blocks=memory.blocks,
        kv_budget_gib=max(0, memory.kv) * gpus / GIB,
        kv_cache_tokens=cache.reported_tokens(memory.blocks, settings.version)
        if memory.fits
        else 0,
        request_tokens=tokens,
        blocks_per_request=cache.blocks_for(math.ceil(tokens)),
        blocks_to_begin=cache.blocks_to_begin(math.ceil(tokens)),
        max_concurrency=at_once,
        # Little's law: 52 at once of 5 s each are 10.4 a second
        requests_per_s=min(at_once, settings.seqs) / seconds if memory.fits and seconds else None,
        seconds_per_request=seconds,
        max_model_len=limit,
        max_num_seqs=settings.seqs,
        max_num_batched_tokens=settings.batched_tokens,
        gpu_memory_utilization=settings.utilization,
        memory_gib=gpu.memory_bytes * gpus / GIB,
        context_gib=memory.context * gpus / GIB,
        activation_gib=memory.activations * gpus / GIB,
        graph_gib=memory.graphs * gpus / GIB,
        advice=tuple(advice),
        flags={one.flag: one.value for one in advice},
    )
    # what matters most first
    chapters = (_of_the_start, _of_memory, _of_the_weights, _of_time)
    notes = [note for each in chapters for note in each(found, asked, memory)]
    return replace(found, notes=tuple(dict.fromkeys(notes)))


# --- What a reader must know beside the figures: what is an estimate, what is a floor, what does not fit ----------------


def _of_the_start(found: Plan, asked: PlanQuestion, left: Memory) -> Iterator[str]:
    """What does not fit, what was not given, and what vLLM, or the limit, would refuse."""
    shape, load, settings = asked.shape, asked.load, asked.settings
    if not found.fits and left.kv <= 0:
        yield (
            f"does not fit: {left.weights / GIB:.1f} GiB of weights and about"
            f" {(left.requested - left.weights - left.kv) / GIB:.1f} GiB beside them are more than the"
            f" {left.requested / GIB:.1f} GiB that vLLM may use of one GPU"
        )
    elif not found.fits:
        yield (
            f"does not start: one request of max-model-len, {found.max_model_len:,} tokens, does not fit into"
            f" {left.kv / GIB:.1f} GiB of KV cache"
        )
    if load.request_tokens is None:
        yield (
            "request lengths were not given, so all are counted as long as max-model-len: real ones are shorter, and more of them"
            " fit"
        )
    yield from (*load.notes, *shape.notes, *left.notes)
    limit, most = found.max_model_len, shape.max_positions
    if most is not None and limit > most:
        yield f"max-model-len {limit:,} is more than the {most:,} that the model was made for: vLLM refuses to start"
    if load.request_tokens is not None and load.request_tokens > limit:
        yield f"requests of {tokens_words(load.request_tokens)} are longer than max-model-len {limit:,}: they are refused"
    elif load.longest is not None and load.longest > limit:
        yield f"the longest requests, {load.longest:,} tokens, are longer than max-model-len {limit:,}: they are refused"
    if found.max_num_batched_tokens < found.max_num_seqs:
        yield "max-num-batched-tokens is less than max-num-seqs: vLLM refuses to start"
    # what vLLM checks before it captures graphs: each sequence that decodes needs a block for its state
    if (
        found.fits and not settings.eager and left.cache.has_states
    ) and found.max_num_seqs > left.blocks:
        yield (
            f"max-num-seqs {found.max_num_seqs:,} is more than the {left.blocks:,} blocks that hold the requests' states: vLLM refuses to"
            " start"
        )


def _of_memory(found: Plan, asked: PlanQuestion, left: Memory) -> Iterator[str]:
    """What takes memory, and how it is counted."""
    shape, settings = asked.shape, asked.settings
    kinds = [layer.attention for layer in shape.layers]
    states = sum(isinstance(one, Recurrent) for one in kinds)
    windows = {one.window for one in kinds if isinstance(one, KvHeads) and one.window is not None}
    if shape.other:
        size = shape.other * shape.element_bytes / GIB
        yield (
            f"{size:.1f} GiB of the weights are its image encoder, as its config describes it; what an image takes while it is read is not"
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
    if not (states or windows) and found.fits:
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


def _of_the_weights(found: Plan, asked: PlanQuestion, _: Memory) -> Iterator[str]:
    """What they leave out, and which engine and checkpoint are meant."""
    shape, gpu, settings = asked.shape, asked.gpu, asked.settings
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


def _of_time(found: Plan, asked: PlanQuestion, _: Memory) -> Iterator[str]:
    """What memory's speed alone allows, as each step reads the weights, whoever waits for it; and how far figures hold."""
    shape, gpu, settings, load = asked.shape, asked.gpu, asked.settings, asked.load
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
        running = min(found.max_concurrency, found.max_num_seqs)
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
    if found.max_num_seqs < found.max_concurrency:
        idle = 1 - found.max_num_seqs / found.max_concurrency
        if idle >= 0.1:
            yield f"max-num-seqs {found.max_num_seqs:,} leaves {math.floor(idle * 100)} % of the KV cache to the prefix cache"


# --- Side by side -----------------------------------------------------------------------------------------------


def names_for(shape: Shape) -> tuple[str, ...]:
    """Those to compare: the weights' own first, then the common ones."""
    own = as_stored(shape, None).name
    alike = {"bf16", "fp16"} if own in ("bf16", "fp16") else {own}
    return (own, *(name for name in COMMON if name not in alike))


def side_by_side(asked: PlanQuestion, names: Sequence[str] = ()) -> tuple[Plan, ...]:
    """One plan for each name, without names for those that are usual; each says what one change would make fit, or hold more."""
    plans = []
    for name in dict.fromkeys(names or names_for(asked.shape)):
        one, hint = plan(asked, name), ""
        if not one.fits:
            ways = ways_out(one, asked)
            hint = (
                f"it would fit with {', or '.join(ways)}"
                if ways
                else "no single change of quantization, KV cache, GPUs or length makes it fit: it needs a larger GPU"
            )
        elif asked.settings.kv_cache_dtype == "auto":
            smaller = otherwise(asked, one.quantization, kv_cache_dtype=FP8)
            if smaller and smaller.max_concurrency > WORTH * one.max_concurrency:
                hint = (
                    f"with --kv-cache-dtype {FP8} memory holds {smaller.max_concurrency:,} requests instead of"
                    f" {one.max_concurrency:,}"
                )
        plans.append(replace(one, notes=(*one.notes, hint)) if hint else one)
    return tuple(plans)


def otherwise(asked: PlanQuestion, name: str, **changes: Any) -> Plan | None:
    """The plan with other settings; None: they are impossible, e.g., heads that so many GPUs cannot share."""
    try:
        return plan(replace(asked, settings=replace(asked.settings, **changes)), name)
    except ToolkitError:
        return None


def ways_out(one: Plan, asked: PlanQuestion) -> tuple[str, ...]:
    """Each a change of one thing that makes it fit; none: it takes two."""
    own, ways = one.quantization, []
    for name in names_for(asked.shape):
        other = otherwise(asked, name) if name != own else None
        if other and other.fits:
            ways.append(f"quantization {name}")
    if asked.settings.kv_cache_dtype == "auto":
        other = otherwise(asked, own, kv_cache_dtype=FP8)
        if other and other.fits:
            ways.append(f"--kv-cache-dtype {FP8}")
    for count in MORE_GPUS:
        other = otherwise(asked, own, tp=count) if count > asked.settings.tp else None
        if other and other.fits:
            ways.append(f"{other.gpus} GPUs (--tensor-parallel-size {count})")
            break  # the fewest that do
    # a limit that memory allows, where the weights leave any
    shorter = otherwise(replace(asked, load=NO_LOAD), own, max_model_len=None)
    if shorter and shorter.fits:
        ways.append(f"requests of at most {shorter.max_model_len:,} tokens")
    return tuple(ways)


def best(plans: Sequence[Plan]) -> Plan:
    """The one to advise for: the first that fits, as weights lose least there; else the first."""
    return next((one for one in plans if one.fits), plans[0])


def serve_command(found: Plan, asked: PlanQuestion, known: KnownModel) -> str | None:
    """The line that starts vLLM as planned; None: it does not fit, or no checkpoint is known that is stored so."""
    own, wanted = as_stored(known.shape, None).name, found.quantization
    # vLLM rounds 32 bit to 16 while it loads them
    is_own = wanted == own or (wanted in ("bf16", "fp16") and own in ("fp32", "bf16", "fp16"))
    is_made = wanted == found.flags.get("quantization")
    served = known.served if is_own or is_made else known.published.get(wanted)
    if not found.fits or served is None:
        return None
    words = [word for flag in found.advice for word in (f"--{flag.flag}", flag.value)]
    if not asked.settings.prefix_caching:
        words.append("--no-enable-prefix-caching")
    return shlex.join(["vllm", "serve", served, *words])


def gains(plans: Sequence[Plan]) -> str | None:
    """`gptq-int4 holds 4.1 times the requests of bf16`: the most against the first that fits."""
    fitting = [one for one in plans if one.fits and one.max_concurrency]
    if not fitting:
        return None
    first, most = fitting[0], max(fitting, key=lambda one: one.max_concurrency)
    if most.max_concurrency <= first.max_concurrency:
        return None
    times = most.max_concurrency / first.max_concurrency
    return f"{most.quantization} holds {times:.1f} times the requests of {first.quantization}"
