"""How many requests are in memory at once, how many a second that is, how many users keep the GPU busy, and what it costs.

Plain numbers in, plain numbers out. It knows no model and no GPU, reads no file and measures nothing: times, prices and lengths
are given. No currency is meant.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.errors import ToolkitError

BUSY = 0.95
"""A GPU that computes for this share of the time counts as busy."""
SPARE = (2.0, 3.0)
"""Times the peak that a server should be able to answer: between the two, peaks are met and the GPU is not idle for nothing."""
SLACK = 1e-9
"""Quotients that are whole must not be pushed to the next number by rounding."""
HOUR_S = 3600.0
MILLION = 1e6
WRONG_FILE = "Is it the output of `toolkit workload --json`?"
NO_ANSWERS = (
    "Capture with `--full`, or give --prompt-tokens and --output-tokens in place of --workload"
)


def blocks(tokens: float, block_size: int) -> int:
    """Blocks that so many tokens take; the last one need not be full."""
    return math.ceil(tokens / block_size - SLACK)


def held(num_gpu_blocks: int, blocks_per_request: int, blocks_to_begin: int | None = None) -> int:
    """Requests that fit at once; vLLM keeps one block for itself (the null block).

    661 blocks at 17 for each request: (661 - 1) // 17 = 38. `blocks_to_begin`: must be free for the last one, where that is more:
    with windows what its prompt takes while it is read.
    """
    left = num_gpu_blocks - 1 - max(blocks_per_request, blocks_to_begin or 0)
    return 1 + left // blocks_per_request if blocks_per_request > 0 and left >= 0 else 0


def held_by_bytes(kv_bytes: float, request_bytes: float) -> int:
    """Requests that fit at once if memory were not dealt in blocks: the school's formula.

    20 GB at 688,128 bytes a token and 550 tokens (378 MB): 52. Where the same example says 58, it has divided by
    the 500 tokens of the prompt alone, and its 59 is a slip of the pen.
    """
    return math.floor(kv_bytes / request_bytes + SLACK) if request_bytes > 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Requests of users that make several calls each, one after the other, with other work between them."""

    calls: int
    busy_s: float
    """All calls of one request together."""
    total_s: float
    """From its first call to its end, what lies between the calls included."""
    busy_share: float
    """Of the time, with one user: `busy_s` / `total_s`."""
    users_busy: int
    """So many keep the GPU computing for 95 % of the time, if they do not wait for each other."""
    users_full: int
    """So many have as many calls under way, on average, as fit in memory."""
    requests_per_s: float
    """Of users, not of calls, when memory is full."""


def chain(calls_s: tuple[float, ...], idle_s: float, at_once: int) -> Chain:
    """Say what calls that follow each other mean for the load: the more idle time, the more users it takes.

    Calls of 300, 300, 300 and 100 ms with 429 ms between them: one user keeps the GPU busy for 1000 / 1429 = 70 %
    of the time, three for 1 - 0.3 ** 3 = 97 %. (The example that these calls come from reckons 700 ms of 1000;
    its calls add up to 1000, so 70 % means 429 ms of idle time.)
    """
    busy_s = math.fsum(calls_s)
    total_s = busy_s + idle_s
    share = busy_s / total_s
    return Chain(
        calls=len(calls_s),
        busy_s=busy_s,
        total_s=total_s,
        busy_share=share,
        users_busy=users_for(share, BUSY),
        users_full=math.ceil(at_once / share - SLACK),
        requests_per_s=at_once / busy_s,
    )


def busy_with(users: int, share: float) -> float:
    """Share of time in which at least one of them is in a call, each at a moment of its own."""
    return 1 - (1 - share) ** users


def users_for(share: float, wanted: float) -> int:
    """Fewest users with whom the GPU is busy for the wanted share of time."""
    if share >= wanted:
        return 1
    return math.ceil(math.log(1 - wanted) / math.log(1 - share) - SLACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What a target rate asks for, with 2 to 3 times of it to spare."""

    target_rps: float
    tested_rps: tuple[float, float]
    """To be tried before it counts."""
    under_way: float | None
    """Requests at once at the target, by Little's law: 10 a second of 5 s are 50. None: their time is not known."""
    engines: tuple[int, int] | None
    """Servers like this one for 2 times, and for 3 times the target."""
    factor: float | None
    """What this server can do / target."""


def headroom(target_rps: float, seconds: float | None, rps: float | None) -> Headroom:
    """Compare a peak rate with what one server does; `rps` None or 0: nobody knows, or nothing fits."""
    low, high = (times * target_rps for times in SPARE)
    return Headroom(
        target_rps=target_rps,
        tested_rps=(low, high),
        under_way=None if seconds is None else target_rps * seconds,
        engines=(math.ceil(low / rps - SLACK), math.ceil(high / rps - SLACK)) if rps else None,
        factor=None if rps is None else rps / target_rps,
    )


# --- Costs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One server at full load against an API."""

    hour: float
    """All its GPUs."""
    per_million_tokens: float | None
    """Prompt and answer tokens together, as they come in this workload; None: the rate is not known."""
    per_thousand_requests: float | None
    api_per_million_tokens: float | None
    """The same mix of tokens at the API's prices."""
    api_per_thousand_requests: float | None
    even_rps: float | None
    """Requests a second from which on the GPUs are cheaper than the API."""
    even_share: float | None
    """The same / what the server can do: above 1 it never pays."""


def cost(
    gpu_hour: float,
    api_price: tuple[float, float] | None = None,
    *,
    gpus: int,
    requests_per_s: float | None,
    prompt_tokens: float | None,
    output_tokens: float | None,
    request_tokens: float,
) -> Cost:
    """What requests cost. `gpu_hour`: of one GPU; `api_price`: of a million prompt and of a million answer tokens at the alternative.

    A GPU at 2.00 an hour that answers 10.4 requests a second of 550 tokens: 3600 * 10.4 * 550 = 20,592,000 tokens an
    hour, so 2.00 / 20.592 = 0.0971 a million tokens. A request of 300 and 250 tokens at an API of 0.50 and 1.50 is 0.000525.
    """
    hour = gpu_hour * gpus
    own = hour / (HOUR_S * requests_per_s) if requests_per_s else None
    api = None
    if api_price is not None and api_price[0] == api_price[1]:
        # nobody need know which tokens are which
        api = api_price[0] * request_tokens / MILLION
    elif api_price is not None and prompt_tokens is not None and output_tokens is not None:
        api = (api_price[0] * prompt_tokens + api_price[1] * output_tokens) / MILLION
    even = hour / (HOUR_S * api) if api else None
    return Cost(
        hour=hour,
        per_million_tokens=None if own is None else own / request_tokens * MILLION,
        per_thousand_requests=None if own is None else own * 1000,
        api_per_million_tokens=None if api is None else api / request_tokens * MILLION,
        api_per_thousand_requests=None if api is None else api * 1000,
        even_rps=even,
        even_share=even / requests_per_s if even is not None and requests_per_s else None,
    )


# --- Lengths of requests ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLengths:
    """Lengths in tokens. None: not known."""

    prompt_tokens: float | None = None
    """Of a usual prompt: the mean."""
    output_tokens: float | None = None
    """Of a usual answer."""
    request_tokens: float | None = None
    """Prompt and answer of a usual request: what it holds in memory when it ends."""
    longest: int | None = None
    """Prompt and answer of the longest request, as far as it is known."""
    longest_prompt: int | None = None
    max_model_len: int | None = None
    """As the workload's report recommends it, its room included."""
    source: str = ""
    """Where they come from, if not from the user."""
    notes: tuple[str, ...] = ()

    @property
    def most(self) -> int | None:
        """The longest request, for want of better a usual one."""
        if self.longest is None and self.request_tokens is not None:
            return math.ceil(self.request_tokens)
        return self.longest


NO_LOAD = RequestLengths()


def of_workload(report: Mapping[str, Any]) -> RequestLengths:
    """Read the object of `toolkit workload --json`. Raises ToolkitError where it has no lengths."""

    def number(*keys: str) -> float | None:
        """A finite number above 0; None for anything else."""
        value: Any = report
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if 0 < value < math.inf else None

    def whole(value: float | None) -> int | None:
        return None if value is None else math.ceil(value)

    notes = []
    prompt = number("lengths", "prompt_tokens", "mean")
    answer = number("lengths", "output_tokens", "mean")
    if answer is None:
        # else as long as they were allowed to be
        answer = number("lengths", "max_tokens", "mean")
        notes.append(
            "no answer's length is known: all are counted as long as their max_tokens allow, real ones are shorter"
        )
    if prompt is None:
        raise ToolkitError("the workload does not say how long prompts are", WRONG_FILE)
    if answer is None:
        raise ToolkitError("the workload does not say how long answers are", NO_ANSWERS)
    longest_prompt = number("lengths", "prompt_tokens", "max")
    longest_answer = number("lengths", "output_tokens", "max")
    longest = number("model_length", "longest")
    if longest is None and longest_prompt is not None and longest_answer is not None:
        longest = longest_prompt + longest_answer
    if estimated := number("lengths", "prompt_tokens_estimated_share"):
        notes.append(f"{estimated:.0%} of the prompts' lengths are estimated from their characters")
    source = report.get("source")
    return RequestLengths(
        prompt_tokens=prompt,
        output_tokens=answer,
        request_tokens=prompt + answer,
        longest=whole(longest),
        longest_prompt=whole(longest_prompt),
        max_model_len=whole(number("recommended_max_model_len")),
        source=f"workload of {source}" if isinstance(source, str) else "workload",
        notes=tuple(notes),
    )
