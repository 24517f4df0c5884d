"""Who stood in the contest, as plain data: what each server tells of itself and how it behaves.

The contest: 19 A100s with 80 GB, one model, two hours of Locust. 64 clients with ~25-token prompts
and 256 tokens of answer keep these engines busy at the contest's own speeds. Nothing here acts.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from toolkit.sim.engine import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What stands between the client and the engine, and how it misbehaves.

    Times are simulated seconds: whoever acts on them multiplies by the engine's `time_scale`.
    """

    response_cache: bool = False
    """Answer a request seen before from memory, without the engine."""
    cache_hit_s: float = 0.003
    """Time to the answer from memory; the contest's cache took under 5 ms."""
    first_token_only: bool = False
    """Send one token of what was asked for and claim a complete answer."""
    down_after_s: float | None = None
    """Refuse connections from this moment on, counted from the start. None: never."""
    down_for_s: float = 0.0
    error_share: float = 0.0
    """Share of requests answered with status 500."""
    cut_share: float = 0.0
    """Share of requests whose connection is closed in the middle of the answer."""
    stream_error_share: float = 0.0
    """Share of requests whose stream, begun with status 200, ends in an error event."""
    drip_bytes_per_s: float | None = None
    """Every answer, `/metrics` too, leaves at this speed. None: at once."""
    cpu_s_per_request: float = 0.0
    """CPU time of the API process for each request before an engine hears of it, all of them on one core, which
    `process_cpu_seconds_total` tells."""
    seed: int = 0
    """For the dice that choose which request fails, and how."""

    def __post_init__(self) -> None:
        shares = (self.error_share, self.cut_share, self.stream_error_share)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(
                "the shares of failing requests must be at least 0, and at most 1 together"
            )
        if self.drip_bytes_per_s is not None and self.drip_bytes_per_s <= 0:
            raise ValueError("`drip_bytes_per_s` must be above 0")
        if min(self.cache_hit_s, self.down_for_s, self.down_after_s or 0.0) < 0:
            raise ValueError("`cache_hit_s`, `down_after_s` and `down_for_s` must not be negative")
        if self.cpu_s_per_request < 0:
            raise ValueError("`cpu_s_per_request` must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Personality:
    """One server of the cast."""

    name: str
    summary: str
    engine: EngineConfig
    front: Front = Front()
    model: str = "Qwen3.5-35B-A3B"
    """Served name: what requests call it, and the metrics' `model_name`."""
    root: str = "Qwen/Qwen3.5-35B-A3B"
    """Where the weights came from, as `/v1/models` tells it."""
    gpu_memory_utilization: float = 0.9
    cache_dtype: str = "auto"
    later: "Personality | None" = None
    """What it is when it comes back from its downtime. None: the same."""

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus answer, in tokens."""
        return self.engine.max_model_len


# What makes the three models differ, so that 64 clients get the contest's tokens a second from each
# (1,070, 1,211, 3,114; tests/sim/test_personalities.py drives them and measures):
#
#             weights   memory for KV cache          blocks   running   step
#   fp8       35 GB     39 GB (the contest's figure)    397     39 of 64    36 ms
#   awq       25 GB     49 GB (10 GB less weights)      499     48          39 ms
#   gptq-int4 24.5 GB   0.98 * 80 - 24.5 = 53.9 GB,    1097     64          20 ms
#                       twice the tokens in fp8
#
# Few blocks mean few running requests, a queue, and preempted work done twice. The contest's post gives
# the tokens a second, the memory, the 219 ms and the winner's 661 blocks; the rest is reckoned or fitted:
#
#   step_overhead_s        reckoned: weights / 2,040 GB/s, an A100's memory; a batch of 64 touches nearly
#                          all of them (8 of 256 experts a token)
#   num_gpu_blocks         10.2 a GB of KV cache, FITTED so that 64 clients fill the smallest. The real
#                          model is a hybrid with blocks of 1,056 tokens and constant state beside them.
#   decode_s_per_sequence  FITTED: what remains to the contest's tokens a second. That fp8 and awq need
#                          four times gptq-int4's has its reason (no FP8 arithmetic on an A100, AWQ unpacks
#                          in every step, Marlin does not); the figures themselves nobody measured.
#   prefill_s_per_token    FITTED: 64 prompts of 25 tokens in one warm step take 0.012 + 1,600 * 0.000129
#                          = 0.218 s; the contest saw 219 ms to the first token
#   jitter                 a guess
_PREFILL_S_PER_TOKEN = 0.000129

_FP8 = Personality(
    name="fp8",
    summary="35 GB of weights leave few KV blocks: requests queue and are preempted (1,070 tok/s)",
    root="Qwen/Qwen3.5-35B-A3B-FP8",
    engine=EngineConfig(
        max_model_len=4096,  # 396 blocks of 16 hold 6,336 tokens; vLLM refuses to promise more
        num_gpu_blocks=397,
        step_overhead_s=0.0172,
        prefill_s_per_token=_PREFILL_S_PER_TOKEN,
        decode_s_per_sequence=0.0004,
        jitter=0.05,
    ),
)

_AWQ = Personality(
    name="awq",
    summary="25 GB of weights: more KV blocks, but slow kernels (1,211 tok/s)",
    root="QuantTrio/Qwen3.5-35B-A3B-AWQ",
    engine=replace(
        _FP8.engine, num_gpu_blocks=499, step_overhead_s=0.0123, decode_s_per_sequence=0.00049
    ),
)

_GPTQ = Personality(
    name="gptq-int4",
    summary="24.5 GB of weights, fp8 KV cache, 98 % of the memory: the fastest model (3,114 tok/s)",
    root="Qwen/Qwen3.5-35B-A3B-GPTQ-Int4",
    cache_dtype="fp8_e4m3",
    gpu_memory_utilization=0.98,
    engine=replace(
        _FP8.engine,
        max_model_len=8192,
        max_num_seqs=512,
        num_gpu_blocks=1097,
        step_overhead_s=0.012,
        decode_s_per_sequence=0.000115,
    ),
)

# Both hosts that won without the model looked like this from outside; the post gives the same scraped
# figures to the response cache and to the first-token trick.
_IDLE_BEHIND = replace(
    _GPTQ,
    gpu_memory_utilization=0.46,
    engine=replace(_GPTQ.engine, num_gpu_blocks=661, max_num_seqs=256),
)

_CACHED = replace(
    _IDLE_BEHIND,
    name="cached",
    summary="the winner: a response cache in front, and a model that hardly works",
    front=Front(response_cache=True),
)

_FIRST_TOKEN = replace(
    _IDLE_BEHIND,
    name="first-token",
    summary="returns one token and claims success",
    front=Front(first_token_only=True),
)

_SWITCHER = replace(
    _AWQ,
    name="switcher",
    summary="after two minutes down for five, to change its model: AWQ goes, GPTQ comes",
    later=_GPTQ,
    # the contest's five minutes; after two, so that an ordinary practice run sees the fall
    front=Front(down_after_s=120, down_for_s=300),
)

_COLD = replace(
    _GPTQ,
    name="cold",
    summary="never warmed up: the first step at each batch size takes 89 s",
    # 88.78 + 0.218 = 89.0 s to the first token of 64 cold requests, 407 times the warm 0.218 s
    engine=replace(_GPTQ.engine, cold_s=88.78),
)

_FLAKY = replace(
    _GPTQ,
    name="flaky",
    summary="one request in five fails: status 500, cut streams, errors inside the stream",
    front=Front(error_share=0.1, cut_share=0.05, stream_error_share=0.05),
)

_DRIP = replace(
    _GPTQ,
    name="drip",
    summary="lets every answer trickle out, `/metrics` too",
    # a recorded /metrics page of 47 KB takes four minutes: no deadline waits for it
    front=Front(drip_bytes_per_s=200),
)

_CAST = (_FP8, _AWQ, _GPTQ, _CACHED, _FIRST_TOKEN, _SWITCHER, _COLD, _FLAKY, _DRIP)
PERSONALITIES: dict[str, Personality] = {each.name: each for each in _CAST}


# One bottleneck each, in the fastest model, for whoever looks for them. They were not in the contest; each shows under
# the load that it is bad at: 32 clients, or as its summary says.

_KV_STARVED = replace(
    _GPTQ,
    name="kv_starved",
    summary="a KV cache of 150 blocks: 32 clients queue and are preempted",
    # 149 blocks of 16 hold 2,384 tokens: eight requests of the contest's 281
    engine=replace(_GPTQ.engine, num_gpu_blocks=150, max_model_len=512),
)

_SEQ_LIMITED = replace(
    _GPTQ,
    name="seq_limited",
    summary="max_num_seqs 8: more clients than that queue, though memory is free",
    engine=replace(_GPTQ.engine, max_num_seqs=8),
)

_LONG_PREFILL = replace(
    _GPTQ,
    name="long_prefill",
    summary="reads a long prompt in one step: everybody else's tokens stand still (mix in long prompts)",
    # 16,000 tokens at 0.000129 s each are a step of 2.1 s
    engine=replace(
        _GPTQ.engine, max_model_len=32_768, max_num_batched_tokens=32_768, num_gpu_blocks=8_193
    ),
)

_NO_PREFIX_CACHE = replace(
    _GPTQ,
    name="no_prefix_cache",
    summary="prefix caching is off: a beginning that all prompts share is read again and again",
    engine=replace(_GPTQ.engine, prefix_caching=False, num_gpu_blocks=4_097),
)

_PREFIX_EVICTED = replace(
    _GPTQ,
    name="prefix_evicted",
    summary="forgets shared beginnings before they come again (many beginnings in turn, e.g., 24 of 800 tokens)",
    # 24 beginnings of 50 blocks are 1,200, and eight requests at once hold 500 of the 640
    engine=replace(_GPTQ.engine, num_gpu_blocks=641),
)

_SLOW_DECODE = replace(
    _GPTQ,
    name="slow_decode",
    summary="120 ms for each token, however few clients there are",
    engine=replace(_GPTQ.engine, step_overhead_s=0.12),
)

_CPU_BOUND = replace(
    _GPTQ,
    name="cpu_bound",
    summary="the API process needs 0.25 s of CPU for each request: four a second, and an engine that waits",
    front=Front(cpu_s_per_request=0.25),
)

_ILL = (
    *(_KV_STARVED, _SEQ_LIMITED, _LONG_PREFILL, _NO_PREFIX_CACHE, _PREFIX_EVICTED),
    *(_SLOW_DECODE, _CPU_BOUND),
)
BOTTLENECKS: dict[str, Personality] = {each.name: each for each in _ILL}


def personality(name: str, /, **changes: Any) -> Personality:
    """Take one of the cast, or one with a bottleneck, with fields of Personality, EngineConfig or Front changed.

    `seed`, which engine and front share, changes in both. Raises ValueError on a name that nobody
    bears, with the known ones, and on an unknown field.
    """
    known = PERSONALITIES | BOTTLENECKS
    if name not in known:
        raise ValueError(f"`{name}` is no personality; known are {', '.join(known)}")
    base = known[name]
    _refuse_unknown(base, changes)
    return _changed(base, changes)


def _changed(base: Personality, changes: dict[str, Any]) -> Personality:
    """Change all its parts, and what it will be later."""
    return replace(
        base,
        engine=replace(base.engine, **_of(EngineConfig, changes)),
        front=replace(base.front, **_of(Front, changes)),
        later=_changed(base.later, changes) if base.later else None,
        **_of(Personality, changes),
    )


def _of(record: type, changes: dict[str, Any]) -> dict[str, Any]:
    """Pick the changes that are fields of a record."""
    return {field.name: changes[field.name] for field in fields(record) if field.name in changes}


def _refuse_unknown(base: Personality, changes: dict[str, Any]) -> None:
    known = _of(EngineConfig, changes) | _of(Front, changes) | _of(Personality, changes)
    unknown = sorted(set(changes) - set(known) | {"engine", "front", "later"} & set(changes))
    if unknown:
        raise ValueError(f"`{base.name}` has no setting `{unknown[0]}`")
