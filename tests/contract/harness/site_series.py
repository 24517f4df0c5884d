"""What Prometheus sees of the site in harness/deploys.py: `qwen` at work in the first of its two places, `big` idle, the proxy half hits.

In promtool's notation: `0+15x59` is 0, 15, 30 ... with 59 steps after the first. One step is 30 s, 60 samples are 30 minutes.
"""

STEPS = 59
QWEN = 'job="engine",host="qwen",instance="127.0.0.1:8101"'
SPARE = 'job="engine",host="qwen",instance="127.0.0.1:8102"'
BIG = 'job="engine",host="big",instance="[::1]:8105"'
PROXY = 'job="proxy",instance="127.0.0.1:8002"'
Q = f'{QWEN},model_name="q",engine="0"'
B = f'{BIG},model_name="b",engine="0"'
CHAT = 'handler="/v1/chat/completions",method="POST"'


def held(value: float) -> str:
    return f"{value}x{STEPS}"


def grows(by: float) -> str:
    return f"0+{by}x{STEPS}"


def then(before: str, after: str) -> str:
    """One for 20 samples, to 9:30; the other from 10:00 on. Both without their count of steps."""
    return f"{before}x19 {after}x39"


def histogram(name: str, labels: str, buckets: dict[str, str]) -> dict[str, str]:
    return {f'{name}_bucket{{{labels},le="{edge}"}}': values for edge, values in buckets.items()}


def vllm(labels: str, *, busy: bool) -> dict[str, str]:
    """A request every two seconds, of 40 prompt tokens and 100 output tokens; or nothing at all."""
    one = 15 if busy else 0
    return {
        f"vllm:num_requests_running{{{labels}}}": held(4 if busy else 0),
        f"vllm:num_requests_waiting{{{labels}}}": held(0),
        f"vllm:kv_cache_usage_perc{{{labels}}}": held(0.5 if busy else 0),
        f"vllm:num_preemptions_total{{{labels}}}": held(0),
        f"vllm:prompt_tokens_total{{{labels}}}": grows(40 * one),
        f"vllm:generation_tokens_total{{{labels}}}": grows(100 * one),
        f"vllm:iteration_tokens_total_count{{{labels}}}": grows(25 * one),
        f"vllm:prefix_cache_queries_total{{{labels}}}": grows(40 * one),
        f"vllm:prefix_cache_hits_total{{{labels}}}": grows(10 * one),
        f'vllm:request_success_total{{{labels},finished_reason="stop"}}': grows(one),
        f'vllm:request_success_total{{{labels},finished_reason="error"}}': held(0),
        **histogram(
            "vllm:time_to_first_token_seconds",
            labels,
            {
                "0.25": grows(14 * busy),
                "0.5": grows(one),
                "2560.0": grows(one),
                "+Inf": grows(one),
            },
        ),
        **histogram(
            "vllm:request_queue_time_seconds",
            labels,
            {"0.3": grows(one), "2.5": grows(one), "+Inf": grows(one)},
        ),
    }


HEALTHY: dict[str, str] = {
    f"up{{{QWEN}}}": held(1),
    f"up{{{SPARE}}}": held(0),
    f"up{{{BIG}}}": held(1),
    f"up{{{PROXY}}}": held(1),
    **vllm(Q, busy=True),
    **vllm(B, busy=False),
    f"process_start_time_seconds{{{QWEN}}}": held(1000),
    f"process_start_time_seconds{{{BIG}}}": held(1000),
    f'http_requests_total{{{QWEN},{CHAT},status="2xx"}}': grows(15),
    # what clients may not ask for is no error of the engine's
    f'http_requests_total{{{QWEN},handler="none",method="GET",status="5xx"}}': grows(15),
    f'toolkit_proxy_requests_total{{{PROXY},cache="hit"}}': grows(10),
    f'toolkit_proxy_requests_total{{{PROXY},cache="miss"}}': grows(10),
    f'toolkit_proxy_upstream_state{{{PROXY},upstream="qwen.a",state="up"}}': held(1),
    f'toolkit_proxy_upstream_state{{{PROXY},upstream="qwen.b",state="up"}}': held(0),
    f'toolkit_proxy_upstream_state{{{PROXY},upstream="qwen.b",state="left"}}': held(1),
    f"toolkit_proxy_redis_breaker_open{{{PROXY}}}": held(0),
    **histogram(
        "toolkit_proxy_queue_seconds", PROXY, {"0.1": grows(10), "2": grows(10), "+Inf": grows(10)}
    ),
}


def but(changes: dict[str, str | None]) -> dict[str, str]:
    """The healthy site with other values in some series, with some more, or without some (None).

    A key that is no series stands for all whose names begin with it.
    """
    found = dict(HEALTHY)
    for name, values in changes.items():
        if values is None:
            gone = [each for each in found if each.startswith(name)]
            assert gone, f"{name} stands for no series"
            for each in gone:
                del found[each]
        else:
            found[name] = values
    return found
