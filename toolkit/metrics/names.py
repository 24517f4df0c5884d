"""How each engine spells its metrics: sample names and labels as plain data, no code.

From the engines' sources: vLLM 0.6.6 to 0.33.0, SGLang 0.5.23, TGI 3.3.7, LiteLLM 1.109,
TensorRT-LLM's metrics collector, llama.cpp's server and production-stack's router.
"""

from collections.abc import Mapping

Names = Mapping[str, tuple[str, ...]]
"""Field of EngineNumbers, or what else is read of a page -> sample names to try, the newest first."""

# Counters without `_total` are Ray's: older versions of its exporter do not append it.
VLLM: Names = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "prefix_queries_total": (
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_queries",
        "vllm:gpu_prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries",
    ),
    "prefix_hits_total": (
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_hits",
        "vllm:gpu_prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits",
    ),
    "prefix_hit_ratio": ("vllm:gpu_prefix_cache_hit_rate",),
    "preemptions_total": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "prompt_tokens_total": ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
    "generation_tokens_total": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
    "requests_total": ("vllm:request_success_total", "vllm:request_success"),
    "ttft": ("vllm:time_to_first_token_seconds",),
    "queue": ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
    "gap": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "tpot": ("vllm:request_time_per_output_token_seconds",),
    "prompt": ("vllm:request_prompt_tokens",),
    "output": ("vllm:request_generation_tokens",),
    "drafts": ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts"),
    "drafted": ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens"),
    "accepted": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_accepted_tokens",
    ),
    "asked_tokens": ("vllm:request_params_max_tokens",),
    "config": ("vllm:cache_config_info",),
}
HISTOGRAMS = ("ttft", "queue", "gap", "tpot", "prompt", "output")
"""What engines measure as histograms: `toolkit diagnose` reads them."""
VLLM_PREFIXES = ("vllm:", "ray_vllm_", "vllm_")
"""Ray's exporter allows no colon and puts its own prefix before."""
VLLM_V0_ONLY = (
    "num_requests_swapped",
    "cpu_cache_usage_perc",
    "gpu_prefix_cache_hit_rate",
    "cpu_prefix_cache_hit_rate",
    "avg_generation_throughput_toks_per_s",
    "time_in_queue_requests_count",
)
"""V1 never swaps; these went with it."""

ROUTER: Names = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "prompt_tokens_total": ("vllm:input_tokens_total",),
    "generation_tokens_total": ("vllm:output_tokens_total",),
    "requests_total": ("vllm:request_latency_seconds_count",),
    "models": ("vllm:num_incoming_requests_total",),
}
ROUTER_ONLY = (
    "vllm:healthy_pods_total",
    "vllm:current_qps",
    "vllm:num_incoming_requests_total",
    "vllm:num_prefill_requests",
)

SGLANG: Names = {
    "running": ("sglang:num_running_reqs",),
    "waiting": ("sglang:num_queue_reqs",),
    "kv_cache_usage": ("sglang:token_usage",),
    "prefix_queries_total": ("sglang:prompt_tokens_total",),
    "prefix_hits_total": ("sglang:cached_tokens_total",),
    "prefix_hit_ratio": ("sglang:cache_hit_rate",),
    "preemptions_total": ("sglang:num_retracted_requests_total",),
    "prompt_tokens_total": ("sglang:prompt_tokens_total",),
    "generation_tokens_total": ("sglang:generation_tokens_total",),
    "requests_total": ("sglang:num_requests_total", "sglang:e2e_request_latency_seconds_count"),
    "ttft": ("sglang:time_to_first_token_seconds",),
    "queue": ("sglang:queue_time_seconds",),
    "gap": ("sglang:inter_token_latency_seconds",),
    "kv_cache_tokens": ("sglang:max_total_num_tokens",),
    "num_gpu_blocks": ("sglang:num_pages",),
    "block_size": ("sglang:page_size",),
    "max_model_len": ("sglang:context_len",),
}
TGI: Names = {
    "running": ("tgi_batch_current_size",),
    "waiting": ("tgi_queue_size",),
    "prompt_tokens_total": ("tgi_request_input_length_sum",),
    "generation_tokens_total": ("tgi_request_generated_tokens_sum",),
    "queue": ("tgi_request_queue_duration",),
    "gap": ("tgi_request_mean_time_per_token_duration",),
    "prompt": ("tgi_request_input_length",),
    "output": ("tgi_request_generated_tokens",),
    "kv_cache_tokens": ("tgi_batch_max_total_tokens",),
    "requests_total": ("tgi_request_success",),
}
LLAMA_CPP: Names = {
    "running": ("llamacpp:requests_processing",),
    "waiting": ("llamacpp:requests_deferred",),
    "kv_cache_usage": ("llamacpp:kv_cache_usage_ratio",),  # old builds only
    "prompt_tokens_total": ("llamacpp:prompt_tokens_total",),
    "generation_tokens_total": ("llamacpp:tokens_predicted_total",),
}
TRTLLM: Names = {
    "running": ("trtllm_num_requests_running",),
    "waiting": ("trtllm_num_requests_waiting",),
    "kv_cache_usage": ("trtllm_kv_cache_utilization",),
    "prefix_hits_total": ("trtllm_kv_cache_reused_blocks_total",),
    "prefix_hit_ratio": ("trtllm_kv_cache_hit_rate",),
    "prompt_tokens_total": ("trtllm_prompt_tokens_total",),
    "generation_tokens_total": ("trtllm_generation_tokens_total",),
    "requests_total": ("trtllm_request_success_total",),
    "ttft": ("trtllm_time_to_first_token_seconds",),
    "queue": ("trtllm_request_queue_time_seconds",),
    "num_gpu_blocks": ("trtllm_kv_cache_max_blocks",),
    "block_size": ("trtllm_kv_cache_tokens_per_block",),
}
LITELLM: Names = {
    "running": ("litellm_in_flight_requests",),
    "prompt_tokens_total": ("litellm_input_tokens_metric_total",),
    "generation_tokens_total": ("litellm_output_tokens_metric_total",),
    "requests_total": (
        "litellm_proxy_total_requests_metric_total",
        "litellm_request_total_latency_metric_count",
    ),
    "ttft": ("litellm_llm_api_time_to_first_token_metric",),
    "queue": ("litellm_request_queue_time_seconds",),
}
REASON_LABEL = "finished_reason"
"""On the counter of ended requests: vLLM's and TensorRT-LLM's word; the other engines tell no reason there."""
MODEL_LABELS = ("model_name", "requested_model", "model")
NO_MODEL = ("requested_model", "")
"""LiteLLM's label on what is counted of no LLM request."""
REPEATING_LABELS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})
"""SGLang's ranks of one engine each say the same; only `dp_rank` is another engine."""

PEERS: tuple[tuple[str, Names], ...] = (
    ("sglang", SGLANG),
    ("tgi", TGI),
    ("llama.cpp", LLAMA_CPP),
    ("trtllm", TRTLLM),
    ("litellm", LITELLM),
)
# A setting is hashed to see whether somebody changed something. Left out: what vLLM measures at
# start (it differs by a few blocks from start to start), what it fills in unless the user did
# (kv_cache_memory_bytes holds the measured budget), and who speaks (engine, Ray's labels).
NOT_SETTINGS = frozenset(
    "num_gpu_blocks num_cpu_blocks kv_cache_size_tokens kv_cache_max_concurrency"
    " kv_cache_memory_bytes simple_cpu_offload_num_blocks _block_size_resolved"
    " engine model_name deployment replica application".split()
)

GATEWAYS = ("litellm", "production-stack-router", "vllm-router")
"""In front of engines, and none themselves; vLLM's router has no page of numbers there, it passes on an engine's."""
