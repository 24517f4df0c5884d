"""Which values four of vLLM's flags should have, each with its reason in a sentence, and how they are made to agree with memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolkit.plan.engine import (
    GRAPHS_COUNT_FROM,
    NEWEST,
    EngineSettings,
    Gpu,
    PlanQuestion,
    Version,
)
from toolkit.plan.kv_cache import UNKNOWN_LENGTH
from toolkit.plan.memory import Memory, graph_bytes, longest_length, memory_of
from toolkit.units import GIB, digits

MARGIN_PERCENT = 15
"""Room above the longest request, as `toolkit workload` recommends it."""
STEP = 256
"""Limits are multiples of this, as there: blocks of 16 tokens, and the larger ones of hybrid models, waste little of it."""
GRAPHED = 512
"""Sequences up to which vLLM captures CUDA graphs by default; a larger batch decodes without."""
MOST_BATCHED, MOST_BATCHED_SMALL = 32_768, 8192
"""Tokens, on GPUs from 70 GiB on and on smaller ones. A longer step gains nothing that it does not cost: every other request
waits for it, and its activations take memory from the KV cache. vLLM's documentation has more than 8192 for large GPUs only."""
STEADIEST, STEADY = 2048, 8192
"""Tokens: what vLLM takes by itself on small and on large GPUs. Longer steps are felt in the gaps between the tokens of answers that are under way."""
RESERVE_BYTES = 1.5 * GIB
"""Left to the CUDA context, to what else is on the GPU, and to peaks that the dummy run at the start does not show. A guess, a
little less than vLLM's own 0.92 leaves of 24 GiB."""
MOST_UTILIZATION = 0.95
LEAST_UTILIZATION = 0.50
PEAK_FACTOR = 3
"""Times the target rate that max-num-seqs should admit."""
LARGE_GPU, LARGEST_GPU = 70 * GIB, 160 * GIB
ROUNDS = 8
"""Sequences ask for memory (graphs, logits), which takes room from sequences. Two rounds are nearly always enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One flag of vLLM's, as it should be, and why."""

    flag: str
    """Without dashes, e.g., `max-model-len`."""
    value: str
    why: str


def defaults(gpu: Gpu, version: Version = NEWEST) -> tuple[int, int]:
    """What `vllm serve` takes for max-num-seqs and max-num-batched-tokens by itself.

    By memory of the GPU; an A100 counts as small whatever it has. The third tier came between 0.27.1 and 0.30.
    """
    if gpu.memory_bytes >= LARGEST_GPU and version >= (0, 28):
        return 1024, 16_384
    if gpu.memory_bytes >= LARGE_GPU and not gpu.is_a100:
        return 1024, 8192
    return 256, 2048


def choose(asked: PlanQuestion, weights: int) -> tuple[list[Advice], EngineSettings, Memory]:
    """Four flags that agree with each other, from vLLM's own defaults down to what memory holds; the engine with them; its memory.

    `weights`: bytes on the fullest GPU.
    """
    seqs, batched = defaults(asked.gpu, asked.settings.version)
    settings = replace(
        asked.settings,
        max_model_len=int(max_model_len(asked).value),
        max_num_seqs=asked.settings.max_num_seqs or seqs,
        max_num_batched_tokens=asked.settings.max_num_batched_tokens or batched,
        gpu_memory_utilization=float(gpu_memory_utilization(asked, seqs).value),
    )
    memory = memory_of(asked.shape, asked.gpu.memory_bytes, weights, settings)
    flags: list[Advice] = []
    for _ in range(ROUNDS):
        better = agreeing(asked, memory, max_model_len(asked, memory.kv))
        if better == flags:
            break
        flags = better
        settings, memory = applied(asked, weights, flags)
    if not memory.fits:
        flags[0] = max_model_len(asked, memory.kv)
        settings, memory = applied(asked, weights, flags)
    tokens = asked.load.request_tokens
    if tokens and memory.at_once(tokens) < settings.seqs:
        # the rounds ended between two answers: the sequences are those that memory holds, the rest stays
        flags = [*agreeing(asked, memory, flags[0])[:-1], flags[-1]]
        settings, memory = applied(asked, weights, flags)
    return flags, settings, memory


def applied(
    asked: PlanQuestion, weights: int, flags: Sequence[Advice]
) -> tuple[EngineSettings, Memory]:
    """The engine with these four flags, and what they leave for requests."""
    length, seqs, batched, share = (one.value for one in flags)
    settings = replace(
        asked.settings,
        max_model_len=int(length),
        max_num_seqs=int(seqs),
        max_num_batched_tokens=int(batched),
        gpu_memory_utilization=float(share),
    )
    return settings, memory_of(asked.shape, asked.gpu.memory_bytes, weights, settings)


def agreeing(asked: PlanQuestion, left: Memory, length: Advice) -> list[Advice]:
    """The four flags, as far as the memory that others leave decides."""
    at_once: int | None = None
    if asked.load.request_tokens is not None or left.cache.has_states:
        at_once = left.at_once(asked.load.request_tokens or 1)
    seqs = max_num_seqs(asked, at_once)
    count = int(seqs.value)
    batched = max_num_batched_tokens(asked, count, int(length.value))
    return [length, seqs, batched, gpu_memory_utilization(asked, count)]


def with_room(longest: int) -> int:
    """The longest request and some room, as a multiple of 256: 271 tokens make 512."""
    # in whole numbers: 1.15 as a float puts some lengths on the wrong side of a step
    return math.ceil(longest * (100 + MARGIN_PERCENT) / (100 * STEP)) * STEP


def max_model_len(asked: PlanQuestion, kv_bytes: int = 0) -> Advice:
    """By the longest request; where that is not known, as long as the model and memory let it be.

    `kv_bytes`: what one GPU has for the KV cache; 0 or less: not known, or nothing.
    """
    given, most = asked.settings.max_model_len, asked.shape.max_positions
    longest, recommended = asked.load.most, asked.load.max_model_len
    if longest is None and given is not None:
        return Advice(flag="max-model-len", value=str(given), why="as set")
    if longest is None:
        value = most or UNKNOWN_LENGTH
        why = "as long as the model was made for: say how long requests are, and a shorter one follows"
        if kv_bytes > 0:
            _, batched = defaults(asked.gpu, asked.settings.version)
            settings = replace(asked.settings, max_num_batched_tokens=batched)
            held = longest_length(asked.shape, settings, kv_bytes)
            if 0 < held < value:
                why = f"the longest that fits: the model was made for {value:,}"
                value = held
        return advice(asked, "max-model-len", value, why)

    value = recommended if recommended is not None else with_room(longest)
    if most is not None and value > most:
        why = f"the most that the model was made for; the workload's longest requests would want {value:,}"
        value = most
    else:
        why = (
            f"as the workload's report recommends it; its longest request is {longest:,} tokens, prompt and answer"
            if recommended is not None
            else f"the longest request is {longest:,} tokens, prompt and answer; {MARGIN_PERCENT} % of room, then up to the next"
            f" {STEP}"
        )
        why += "; longer ones are refused at once instead of crowding out many"
    return advice(asked, "max-model-len", value, why)


def max_num_seqs(asked: PlanQuestion, at_once: int | None) -> Advice:
    """`at_once`: requests that memory holds; where that length is not known, those whose states it holds, None: it keeps none."""
    tokens, seconds = asked.load.request_tokens, asked.seconds_per_request
    default, _ = defaults(asked.gpu, asked.settings.version)
    graphed = max(GRAPHED, default)
    under_way = wanted = None
    if asked.target_rps is not None and seconds is not None:
        under_way = asked.target_rps * seconds
        wanted = max(1, math.ceil(PEAK_FACTOR * under_way - 1e-9))
    if tokens is None and at_once is not None and at_once < default:
        # with more sequences than blocks vLLM 0.32 does not start: "max_num_seqs (1024) exceeds available Mamba cache blocks"
        value = max(1, at_once)
        why = f"memory holds the states of so many requests, however short they are; vLLM's own {default:,} may not even start"
    elif tokens is None or at_once is None:
        # a count of the longest would keep shorter ones out for nothing
        value = default
        why = "as vLLM itself: request lengths were not given. Too many do no harm but to wait, as blocks are taken as tokens come"
    elif at_once < 1:
        value, why = 1, "not even one request fits: see below what would help"
    elif under_way is not None and wanted is not None and wanted <= min(at_once, graphed):
        value = wanted
        why = (
            f"the target rate has {digits(under_way)} requests under way; {PEAK_FACTOR} times that, for peaks (memory"
            f" would hold {at_once:,})"
        )
    elif at_once > graphed:
        value = graphed
        why = f"memory holds {at_once:,} requests; more than {graphed:,} at once gain little: "
        why += (
            "larger batches decode without CUDA graphs"
            if graphed == GRAPHED
            else "vLLM itself takes no more on any GPU"
        )
    else:
        value = at_once
        why = f"memory holds so many requests of {tokens_words(tokens)} at once; one more would only push another out"
    return advice(asked, "max-num-seqs", value, why)


def max_num_batched_tokens(asked: PlanQuestion, seqs: int, max_model_len: int) -> Advice:
    """All prompts that may come at once in one step: 58 requests of 500 tokens are 29,000.

    A step must hold a token of each sequence; all sequences at full length are all that it can hold, and vLLM warns of more.
    """
    prompt, longest_prompt = asked.load.prompt_tokens, asked.load.longest_prompt
    _, default = defaults(asked.gpu, asked.settings.version)
    whole = seqs * max_model_len
    least = max(min(default, whole), seqs)
    if prompt is None:
        value, why = least, "how long prompts are is not known, so as vLLM itself does on this GPU"
    else:
        product = math.ceil(seqs * prompt - 1e-9)
        most = MOST_BATCHED if asked.gpu.memory_bytes >= LARGE_GPU else MOST_BATCHED_SMALL
        value = min(max(product, least), max(most, least), max(whole, seqs))
        why = f"{seqs:,} requests x {tokens_words(prompt)} of prompt = {product:,} in one step"
        if value > product:
            why += f"; less than the {value:,} that vLLM itself takes on this GPU saves nothing"
        elif value < product:
            why += f"; more than {value:,} makes each step so long that every answer stutters"
        if value > STEADY:
            why += (
                f". Where steady streams matter more than first tokens, {STEADIEST:,} to {STEADY:,}; vLLM itself takes"
                f" {default:,} on this GPU: compare them"
            )
    if longest_prompt is not None and longest_prompt > value:
        why += f". Prompts of up to {longest_prompt:,} tokens are read in parts (chunked prefill)"
    return advice(asked, "max-num-batched-tokens", value, why)


def gpu_memory_utilization(asked: PlanQuestion, seqs: int) -> Advice:
    """As much as the start survives. Until 0.19 graphs came on top of it, since 0.20 they are part of it."""
    memory, version = asked.gpu.memory_bytes, asked.settings.version
    _, batched = defaults(asked.gpu, version)
    settings = replace(asked.settings, max_num_seqs=seqs, max_num_batched_tokens=batched)
    counted, graphs = version >= GRAPHS_COUNT_FROM, graph_bytes(asked.shape, settings)
    reserve = RESERVE_BYTES + (0 if counted else graphs)
    share = math.floor((1 - reserve / memory) * 100) / 100
    share = min(MOST_UTILIZATION, max(LEAST_UTILIZATION, share))
    left_gib = (1 - share) * memory / GIB
    if counted:
        why = f"leaves {left_gib:.1f} GiB for the CUDA context and other processes; graphs are counted in"
    else:
        why = (
            f"leaves {left_gib:.1f} GiB for the CUDA context, other processes, and about {graphs / GIB:.1f} GiB of CUDA graphs, which this"
            " version does not count"
        )
    own = EngineSettings(version=version).utilization
    why += (
        f" (vLLM itself would take {own:.2f}); lower it if the start says that too little is free"
    )
    return advice(asked, "gpu-memory-utilization", f"{share:.2f}", why)


def advice(asked: PlanQuestion, flag: str, value: float | str, why: str) -> Advice:
    """What is recommended; what the user set instead of it goes before, and says what was recommended."""
    given, recommended = getattr(asked.settings, flag.replace("-", "_")), str(value)
    if given is None:
        return Advice(flag=flag, value=recommended, why=why)
    if float(recommended) == float(given):
        return Advice(flag=flag, value=recommended, why=f"as set, and as recommended: {why}")
    value = f"{given:g}" if isinstance(given, float) else str(given)
    return Advice(flag=flag, value=value, why=f"as set; recommended is {recommended}: {why}")


def tokens_words(tokens: float) -> str:
    """`271 tokens`, `271.4 tokens`."""
    return f"{tokens:,.0f} tokens" if float(tokens).is_integer() else f"{tokens:,.1f} tokens"
