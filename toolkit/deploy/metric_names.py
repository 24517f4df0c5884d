"""Which metrics of engines and proxy the rules, the dashboard and the scaling ask for, as Prometheus stores them.

It holds names, and no code but for quoting. Each stands on a live page: tests/real asks a real vLLM, tests/deploy a real proxy.

Of vLLM they are those that 0.11 to 0.33 have in common: what blog posts and old dashboards name besides (`gpu_cache_usage_perc`,
`time_per_output_token_seconds`, `avg_generation_throughput_toks_per_s`) is gone.
"""

import json

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = "vllm:kv_cache_usage_perc"
"""A share from 0 to 1, in spite of its name."""
PREEMPTIONS = "vllm:num_preemptions_total"
PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
"""Both in tokens."""
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
FINISHED = "vllm:request_success_total"
"""All that ended, by `finished_reason`: aborts and errors, too."""
ADMISSION_REJECTIONS = "vllm:admission_rejections_total"
HTTP_REQUESTS = "http_requests_total"
START_TIME = "process_start_time_seconds"
"""Absent where vLLM runs several API servers, and from its Rust front end."""

# Histograms, without `_bucket`, `_sum` and `_count`.
TTFT = "vllm:time_to_first_token_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"
E2E = "vllm:e2e_request_latency_seconds"
QUEUE = "vllm:request_queue_time_seconds"
PROMPT_LENGTH = "vllm:request_prompt_tokens"
GENERATION_LENGTH = "vllm:request_generation_tokens"
STEP_TOKENS = "vllm:iteration_tokens_total"
"""A histogram in spite of its name: `_count` is steps, `_sum` tokens."""

# Of the proxy's admin page.
PROXY_REQUESTS = "toolkit_proxy_requests_total"
PROXY_ERRORS = "toolkit_proxy_errors_total"
PROXY_REJECTIONS = "toolkit_proxy_rejections_total"
PROXY_LEFT = "toolkit_proxy_clients_left_total"
PROXY_BYPASSES = "toolkit_proxy_bypasses_total"
PROXY_OUTPUT_TOKENS = "toolkit_proxy_output_tokens_total"
PROXY_HITS = "toolkit_proxy_hits_total"
PROXY_UPSTREAM_ERRORS = "toolkit_proxy_upstream_errors_total"
PROXY_EVENTS = "toolkit_proxy_events_total"
PROXY_QUEUE = "toolkit_proxy_queue_length"
PROXY_SLOTS = "toolkit_proxy_slots_in_use"
PROXY_FLIGHTS = "toolkit_proxy_flights"
PROXY_CACHE_BYTES = "toolkit_proxy_cache_bytes"
PROXY_CACHE_LIMIT = "toolkit_proxy_cache_limit_bytes"
PROXY_UPSTREAM_STATE = "toolkit_proxy_upstream_state"
PROXY_EPOCH = "toolkit_proxy_model_epoch"
PROXY_REDIS_OPEN = "toolkit_proxy_redis_breaker_open"
PROXY_START_TIME = "toolkit_proxy_start_time_seconds"
PROXY_TTFT = "toolkit_proxy_ttft_seconds"
PROXY_LATENCY = "toolkit_proxy_latency_seconds"
PROXY_QUEUE_TIME = "toolkit_proxy_queue_seconds"
PROXY_TPOT = "toolkit_proxy_tpot_seconds"

# Jobs of the scrape configuration.
ENGINES = "engine"
PROXIES = "proxy"


def quoted(text: str) -> str:
    """A label's value as PromQL reads it."""
    # PromQL's strings are Go's, whose escapes hold all of JSON's but `\\/`, which is not written here
    return json.dumps(text, ensure_ascii=False)
