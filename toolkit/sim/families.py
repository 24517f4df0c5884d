"""Which families does a vLLM show at `/metrics`, in what words, with which labels and buckets? Tables only.

V1 as recorded from 0.32.0; V0 as 0.7.3 had them; RUST is what the Rust front end of 0.33 keeps of V1.
"""

from typing import Literal, NamedTuple

Dialect = Literal["v0", "v1", "rust"]

VERSIONS: dict[Dialect, str] = {"v0": "0.7.3", "v1": "0.32.0", "rust": "0.33.0"}
"""The vLLM that speaks it: a page and a `/version` that contradict each other would help nobody."""

CONTENT_TYPES: dict[Dialect, str] = {
    "v0": "text/plain; version=0.0.4; charset=utf-8",
    "v1": "text/plain; version=1.0.0; charset=utf-8",
    "rust": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}


class Family(NamedTuple):
    """One family; `source` is the Meter's word for its number or histogram."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    """Without `vllm:` and without a counter's `_total`."""
    help: str
    source: str = ""
    split: tuple[str, tuple[tuple[str, str], ...]] | None = None
    """A further label and, for each of its values, the source."""
    per_engine: bool = True
    """False: one sample for the whole server, without the `engine` label."""


TIMES = ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
FIRST = ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
GAPS = ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80"
ITERATION = "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384"
HIGHR = ".01 .025 .05 .075 .1 .25 .5 .75 1 1.5 2 2.5 3 3.5 4 4.5 5 7.5 10 30 60"
"""Of `http_request_duration_highr_seconds`."""
FEW = ".1 .5 1"
"""Of `http_request_duration_seconds`."""

TOKEN_SOURCES = ("prompt_tokens", "output_tokens", "max_tokens", "computed_prompt_tokens")
"""Histograms whose 1-2-5 buckets end at the model's length."""

_V1_EDGES = {
    "ttft": FIRST,
    "gap": GAPS,
    "tpot": GAPS,
    "e2e": TIMES,
    "queue": TIMES,
    "inference": TIMES,
    "prefill": TIMES,
    "decode": TIMES,
    "iteration_tokens": ITERATION,
    "n": "1 2 5 10 20",
    "preemptions": "1 2 3 4 5 10 20",
}


def _upto(edges: str, last: float) -> str:
    return " ".join(edge for edge in edges.split() if float(edge) <= last)


_V0_EDGES = _V1_EDGES | {
    "ttft": _upto(FIRST, 10),
    "gap": _upto(GAPS, 2.5),
    "e2e": _upto(TIMES, 60),
    "queue": _upto(TIMES, 60),
    "inference": _upto(TIMES, 60),
    "prefill": _upto(TIMES, 60),
    "decode": _upto(TIMES, 60),
    "iteration_tokens": _upto(ITERATION, 4096) + " 8096",  # vLLM's own slip
}


def edges(dialect: Dialect, max_model_len: int) -> dict[str, tuple[float, ...]]:
    """Bucket edges of every histogram, by its source."""
    written = _V0_EDGES if dialect == "v0" else _V1_EDGES
    counted = dict.fromkeys(TOKEN_SOURCES, one_two_five(max_model_len))
    return {name: numbers(text) for name, text in written.items()} | counted


def numbers(text: str) -> tuple[float, ...]:
    """Read a row of numbers."""
    return tuple(float(word) for word in text.split())


def one_two_five(last: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... up to `last`: the last finite bucket hints at the model's length."""
    decades = (10**power for power in range(len(str(last))))
    return tuple(
        float(digit * decade) for decade in decades for digit in (1, 2, 5) if digit * decade <= last
    )


_MFU = "(for Model Flops Utilization calculations)."
_EXTERNAL = "from KV connector cross-instance cache sharing, in terms of number of"
_REASONS = ("stop", "length", "abort", "error")

_ENDED = Family(
    "counter",
    "request_success",
    "Count of successfully processed requests.",
    split=(
        "finished_reason",
        (*((reason, reason) for reason in _REASONS), ("repetition", "zero")),
    ),
)

_LATENCIES = (
    Family(
        "histogram",
        "e2e_request_latency_seconds",
        "Histogram of e2e request latency in seconds.",
        "e2e",
    ),
    Family(
        "histogram",
        "request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        "queue",
    ),
    Family(
        "histogram",
        "request_inference_time_seconds",
        "Histogram of time spent in RUNNING phase for request.",
        "inference",
    ),
    Family(
        "histogram",
        "request_prefill_time_seconds",
        "Histogram of time spent in PREFILL phase for request.",
        "prefill",
    ),
    Family(
        "histogram",
        "request_decode_time_seconds",
        "Histogram of time spent in DECODE phase for request.",
        "decode",
    ),
)

_SIZES = (
    Family(
        "histogram", "request_prompt_tokens", "Number of prefill tokens processed.", "prompt_tokens"
    ),
    Family(
        "histogram",
        "request_generation_tokens",
        "Number of generation tokens processed.",
        "output_tokens",
    ),
)

_ITERATION = Family(
    "histogram",
    "iteration_tokens_total",  # a histogram despite its name
    "Histogram of number of tokens per engine_step.",
    "iteration_tokens",
)

_PARAMETERS = (
    Family(
        "histogram",
        "request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        "output_tokens",  # of n answers the longest, whatever the help says
    ),
    Family("histogram", "request_params_n", "Histogram of the n request parameter.", "n"),
    Family(
        "histogram",
        "request_params_max_tokens",
        "Histogram of the max_tokens request parameter.",
        "max_tokens",
    ),
)

_FIRST_TOKEN = Family(
    "histogram",
    "time_to_first_token_seconds",
    "Histogram of time to first token in seconds.",
    "ttft",
)

V1: tuple[Family, ...] = (
    Family(
        "counter",
        "estimated_flops_per_gpu",
        f"Estimated number of floating point operations per GPU {_MFU}",
        "zero",
    ),
    Family(
        "counter",
        "estimated_read_bytes_per_gpu",
        f"Estimated number of bytes read from memory per GPU {_MFU}",
        "zero",
    ),
    Family(
        "counter",
        "estimated_write_bytes_per_gpu",
        f"Estimated number of bytes written to memory per GPU {_MFU}",
        "zero",
    ),
    Family(
        "gauge", "num_requests_running", "Number of requests in model execution batches.", "running"
    ),
    Family(
        "gauge", "num_requests_waiting", "Number of requests waiting to be processed.", "waiting"
    ),
    Family(
        "gauge",
        "num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling "
        "capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked "
        "status). Sum of all reasons equals vllm:num_requests_waiting.",
        split=("reason", (("capacity", "waiting"), ("deferred", "zero"))),
    ),
    Family(
        "gauge",
        "engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
        "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
        split=(
            "sleep_state",
            (("awake", "one"), ("weights_offloaded", "zero"), ("discard_all", "zero")),
        ),
    ),
    Family(
        "gauge", "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", "kv_usage"
    ),
    Family(
        "counter",
        "prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        "prefix_queries",
    ),
    Family(
        "counter",
        "prefix_cache_hits",
        "Prefix cache hits, in terms of number of cached tokens.",
        "prefix_hits",
    ),
    Family(
        "counter",
        "external_prefix_cache_queries",
        f"External prefix cache queries {_EXTERNAL} queried tokens.",
        "zero",
    ),
    Family(
        "counter",
        "external_prefix_cache_hits",
        f"External prefix cache hits {_EXTERNAL} cached tokens.",
        "zero",
    ),
    Family(
        "counter",
        "mm_cache_queries",
        "Multi-modal cache queries, in terms of number of queried items.",
        "zero",
    ),
    Family(
        "counter",
        "mm_cache_hits",
        "Multi-modal cache hits, in terms of number of cached items.",
        "zero",
    ),
    Family(
        "counter",
        "num_preemptions",
        "Cumulative number of preemption from the engine.",
        "preemptions",
    ),
    Family("counter", "prompt_tokens", "Number of prefill tokens processed.", "prompt_tokens"),
    Family(
        "counter",
        "prompt_tokens_by_source",
        "Number of prompt tokens by source.",
        split=(
            "source",
            (
                ("local_compute", "computed_prompt_tokens"),
                ("local_cache_hit", "cached_tokens"),
                ("external_kv_transfer", "zero"),
            ),
        ),
    ),
    Family(
        "counter",
        "prompt_tokens_cached",
        "Number of cached prompt tokens (local + external).",
        "cached_tokens",
    ),
    Family(
        "counter",
        "prompt_tokens_cached_by_source",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host "
        "(offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or "
        "external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + "
        "vllm:external_prefix_cache_hits.",
        split=(
            "source",
            (
                ("device", "prefix_hits"),
                *((tier, "zero") for tier in ("host", "p2p", "disk", "external_unspecified")),
            ),
        ),
    ),
    Family(
        "counter", "generation_tokens", "Number of generation tokens processed.", "output_tokens"
    ),
    _ENDED,
    Family(
        "counter",
        "admission_rejections",
        "Number of admission attempts rejected by a queue limit, by reason.",
        split=("reason", (("max_num_queued_reqs", "zero"), ("max_num_queued_tokens", "zero"))),
        per_engine=False,
    ),
    *_SIZES,
    _ITERATION,
    *_PARAMETERS,
    _FIRST_TOKEN,
    Family(
        "histogram",
        "inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        "gap",
    ),
    Family(
        "histogram",
        "request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        "tpot",
    ),
    *_LATENCIES,
    Family(
        "histogram",
        "request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        "preemptions",
    ),
    Family(
        "histogram",
        "request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        "computed_prompt_tokens",
    ),
)

_NOT_IN_RUST = ("engine_sleep_state", "mm_cache_queries", "mm_cache_hits", "admission_rejections")
RUST = tuple(family for family in V1 if family.name not in _NOT_IN_RUST)

V0: tuple[Family, ...] = (
    Family(
        "gauge", "num_requests_running", "Number of requests currently running on GPU.", "running"
    ),
    Family(
        "gauge", "num_requests_waiting", "Number of requests waiting to be processed.", "waiting"
    ),
    Family("gauge", "num_requests_swapped", "Number of requests swapped to CPU.", "zero"),
    Family(
        "gauge",
        "gpu_cache_usage_perc",
        "GPU KV-cache usage. 1 means 100 percent usage.",
        "kv_usage",
    ),
    Family(
        "gauge", "cpu_cache_usage_perc", "CPU KV-cache usage. 1 means 100 percent usage.", "zero"
    ),
    Family("gauge", "cpu_prefix_cache_hit_rate", "CPU prefix cache block hit rate.", "minus_one"),
    Family("gauge", "gpu_prefix_cache_hit_rate", "GPU prefix cache block hit rate.", "hit_rate"),
    Family(
        "counter",
        "num_preemptions",
        "Cumulative number of preemption from the engine.",
        "preemptions",
    ),
    Family("counter", "prompt_tokens", "Number of prefill tokens processed.", "prompt_tokens"),
    Family(
        "counter", "generation_tokens", "Number of generation tokens processed.", "output_tokens"
    ),
    Family(
        "counter", "tokens", "Number of prefill plus generation tokens processed.", "all_tokens"
    ),
    _ITERATION,
    _FIRST_TOKEN,
    Family(
        "histogram",
        "time_per_output_token_seconds",
        "Histogram of time per output token in seconds.",
        "gap",
    ),
    _LATENCIES[0]._replace(help="Histogram of end to end request latency in seconds."),
    *_LATENCIES[1:],
    Family(
        "histogram",
        "time_in_queue_requests",  # seconds, whatever its name
        "Histogram of time the request spent in the queue in seconds.",
        "queue",
    ),
    *_SIZES,
    *_PARAMETERS,
    _ENDED._replace(
        split=("finished_reason", tuple((reason, reason) for reason in ("stop", "length", "abort")))
    ),
)

FAMILIES: dict[Dialect, tuple[Family, ...]] = {"v0": V0, "v1": V1, "rust": RUST}

HTTP_HELP = {
    "requests": "Total number of requests by method, status and handler.",
    "request_size": (
        "Content length of incoming requests by handler. Only value of header is respected. "
        "Otherwise ignored. No percentile calculated. "
    ),
    "response_size": (
        "Content length of outgoing responses by handler. Only value of header is respected. "
        "Otherwise ignored. No percentile calculated. "
    ),
    "highr": (
        "Latency with many buckets but no API specific labels. Made for more accurate percentile "
        "calculations. "
    ),
    "few": (
        "Latency with only few buckets by handler. Made to be only used if aggregation by handler "
        "is important. "
    ),
}
