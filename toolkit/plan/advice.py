"""Which values four of vLLM's flags should have, each with its reason in a sentence. It fits nothing into memory: capacity is told."""

import math

from toolkit.plan.engine import NEWEST, Version
from toolkit.plan.memory import GRAPHS_COUNT_FROM, MemorySetting, utilization_of
from toolkit.plan.result import Advice
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


def defaults(memory_bytes: int, *, is_a100: bool, version: Version = NEWEST) -> tuple[int, int]:
    """What `vllm serve` takes for max-num-seqs and max-num-batched-tokens by itself.

    By memory of the GPU; an A100 counts as small whatever it has. The third tier came between 0.27.1 and 0.30.
    """
    if memory_bytes >= LARGEST_GPU and version >= (0, 28):
        return 1024, 16_384
    if memory_bytes >= LARGE_GPU and not is_a100:
        return 1024, 8192
    return 256, 2048


def with_room(longest: int) -> int:
    """The longest request and some room, as a multiple of 256: 271 tokens make 512."""
    # in whole numbers: 1.15 as a float puts some lengths on the wrong side of a step
    return math.ceil(longest * (100 + MARGIN_PERCENT) / (100 * STEP)) * STEP


def max_model_len(longest: int, *, told: int | None, most: int | None) -> Advice:
    """`longest`: prompt and answer of the longest request; `told`: as `toolkit workload` recommends; `most`: the model's limit."""
    wanted = told if told is not None else with_room(longest)
    if most is not None and wanted > most:
        why = f"the most that the model was made for; the workload's longest requests would want {wanted:,}"
        return Advice(flag="max-model-len", value=str(most), why=why)
    why = (
        f"as the workload's report recommends it; its longest request is {longest:,} tokens, prompt and answer"
        if told is not None
        else f"the longest request is {longest:,} tokens, prompt and answer; {MARGIN_PERCENT} % of room, then up to the next"
        f" {STEP}"
    )
    why += "; longer ones are refused at once instead of crowding out many"
    return Advice(flag="max-model-len", value=str(wanted), why=why)


def max_num_seqs(
    at_once: int, *, request_tokens: float, default: int, peak_under_way: float | None = None
) -> Advice:
    """`peak_under_way`: requests at once at the target rate; None: no rate, or no time of a request, is known."""
    wanted = None if peak_under_way is None else math.ceil(PEAK_FACTOR * peak_under_way - 1e-9)
    graphed = max(GRAPHED, default)
    if at_once < 1:
        value, why = 1, "not even one request fits: see below what would help"
    elif wanted is not None and wanted <= min(at_once, graphed):
        value = max(1, wanted)
        why = (
            f"the target rate has {digits(peak_under_way or 0)} requests under way; {PEAK_FACTOR} times that, for peaks (memory"
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
        why = f"memory holds so many requests of {tokens_words(request_tokens)} at once; one more would only push another out"
    return Advice(flag="max-num-seqs", value=str(value), why=why)


def unknown_num_seqs(default: int, states: int | None = None) -> Advice:
    """Nobody told how long requests are: a count of the longest would keep shorter ones out for nothing.

    `states`: requests whose states memory holds; None: the model has none. With more sequences than blocks vLLM 0.32 does not
    start: "max_num_seqs (1024) exceeds available Mamba cache blocks".
    """
    if states is not None and states < default:
        why = f"memory holds the states of so many requests, however short they are; vLLM's own {default:,} may not even start"
        return Advice(flag="max-num-seqs", value=str(max(1, states)), why=why)
    why = "as vLLM itself: how long requests are was not told. Too many do no harm but to wait, as blocks are taken as tokens come"
    return Advice(flag="max-num-seqs", value=str(default), why=why)


def most_batched(memory_bytes: int) -> int:
    """Tokens in one step that a GPU of this memory should not exceed."""
    return MOST_BATCHED if memory_bytes >= LARGE_GPU else MOST_BATCHED_SMALL


def batched_product(seqs: int, prompt_tokens: float) -> int:
    """All prompts that may come at once in one step: 58 requests of 500 tokens are 29,000."""
    return math.ceil(seqs * prompt_tokens - 1e-9)


def max_num_batched_tokens(
    seqs: int,
    *,
    prompt_tokens: float | None,
    default: int,
    longest_prompt: int | None = None,
    most: int = MOST_BATCHED,
    max_model_len: int | None = None,
) -> Advice:
    """`default`: what vLLM takes on this GPU by itself. A step must hold a token of each sequence.

    `max_model_len`: all sequences at full length are all that a step can hold; vLLM takes no more by itself, and warns of more.
    """
    whole = default if max_model_len is None else seqs * max_model_len
    least = max(min(default, whole), seqs)
    if prompt_tokens is None:
        value, why = least, "how long prompts are is not known, so as vLLM itself does on this GPU"
    else:
        product = batched_product(seqs, prompt_tokens)
        value = min(max(product, least), max(most, least))
        if max_model_len is not None:
            value = min(value, max(whole, seqs))
        why = (
            f"{seqs:,} requests x {tokens_words(prompt_tokens)} of prompt = {product:,} in one step"
        )
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
    return Advice(flag="max-num-batched-tokens", value=str(value), why=why)


def gpu_memory_utilization(
    memory_bytes: int, *, graph_bytes: float, version: Version = NEWEST
) -> Advice:
    """As much as the start survives. Until 0.19 graphs came on top of it, since 0.20 they are part of it."""
    counted = version >= GRAPHS_COUNT_FROM
    reserve = RESERVE_BYTES + (0 if counted else graph_bytes)
    share = math.floor((1 - reserve / memory_bytes) * 100) / 100
    share = min(MOST_UTILIZATION, max(LEAST_UTILIZATION, share))
    left, graphs = (1 - share) * memory_bytes / GIB, graph_bytes / GIB
    own = f"{utilization_of(MemorySetting(version=version)):.2f}"
    if counted:
        why = (
            f"leaves {left:.1f} GiB for the CUDA context and other processes; graphs are counted in"
        )
    else:
        why = (
            f"leaves {left:.1f} GiB for the CUDA context, other processes, and about {graphs:.1f} GiB of CUDA graphs, which this"
            " version does not count"
        )
    why += f" (vLLM itself would take {own}); lower it if the start says that too little is free"
    return Advice(flag="gpu-memory-utilization", value=f"{share:.2f}", why=why)


def as_told(recommended: Advice, told: float | None) -> Advice:
    """What the user set instead, beside what would have been recommended."""
    if told is None:
        return recommended
    value = f"{told:g}" if isinstance(told, float) else str(told)
    if float(recommended.value) == float(told):
        return Advice(
            flag=recommended.flag,
            value=recommended.value,
            why=f"as told, and as recommended: {recommended.why}",
        )
    why = f"as told; recommended is {recommended.value}: {recommended.why}"
    return Advice(flag=recommended.flag, value=value, why=why)


def tokens_words(tokens: float) -> str:
    """`271 tokens`, `271.4 tokens`."""
    return f"{tokens:,.0f} tokens" if float(tokens).is_integer() else f"{tokens:,.1f} tokens"
