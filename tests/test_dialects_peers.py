"""The peers of vLLM, and the router that is none. All pages here are written from their sources."""

import pytest
from support.metrics_pages import numbers, plain, text_of

from toolkit.dialects import EngineNumbers, read_numbers
from toolkit.promtext import read_page


def test_sglang():
    found = numbers(text_of("written/sglang_0.5.23"))
    assert plain(found) == EngineNumbers(
        engine="sglang",
        dialect="sglang",
        models=("qwen",),
        engines=2,
        block_size=64,
        num_gpu_blocks=12500,  # 6250 * 2
        kv_cache_tokens=800000,  # 400000 * 2, not * 3: dp_rank 0 has two tp_ranks
        max_model_len=32768,
        running=20,  # max(14, 13) + 6; 9 and 5 are the 14 by priority
        waiting=3,  # 2 + 1
        kv_cache_usage=0.5,  # (0.25 + 0.75) / 2
        prefix_queries_total=8000,
        prefix_hits_total=2000,  # 1500 device + 500 host
        prefix_hit_ratio=0.25,  # (0.5 + 0) / 2
        preemptions_total=4,
        prompt_tokens_total=8000,
        generation_tokens_total=3000,  # 2500 streaming + 500
        requests_total=40,
    )
    # rank 20 in (0.1, 0.2], 10..30: 0.1 + 0.1 * 10 / 20
    assert found.ttft.quantile(0.5).value == pytest.approx(0.15)
    assert found.queue.mean() == 0.1  # (3 + 1) / (30 + 10)
    assert found.settings == (("context_len", "32768"), ("page_size", "64"))


def test_sglang_before_its_first_cache_hit_has_its_gauge():
    lines = text_of("written/sglang_0.5.23").split("\n")
    found = numbers("\n".join(line for line in lines if "cached_tokens_total" not in line))
    assert (found.prefix_queries_total, found.prefix_hits_total) == (None, None)
    assert found.prefix_hit_ratio == 0.25


def test_tgi():
    found = numbers(text_of("written/tgi_3.3.7"))
    assert plain(found) == EngineNumbers(
        engine="tgi",
        dialect="tgi",
        kv_cache_tokens=96000,
        running=16,
        waiting=4,
        kv_cache_usage=0.25,  # 24000 / 96000
        prompt_tokens_total=6400,
        generation_tokens_total=3200,
        requests_total=55,  # 50 + 3 + 2
    )
    assert found.ttft is None
    assert found.queue.mean() == 0.05  # 2.5 / 50


def test_a_tgi_that_only_failed_still_counts_its_requests():
    assert numbers('tgi_queue_size 0\ntgi_request_failure{err="x"} 3\n').requests_total == 3
    assert numbers("tgi_queue_size 0\n").requests_total is None


def test_llama_cpp():
    found = numbers(text_of("written/llama_cpp"))
    assert found == EngineNumbers(
        engine="llama.cpp",
        dialect="llama.cpp",
        running=4,
        waiting=46,
        prompt_tokens_total=9001,
        generation_tokens_total=4242,
    )


def test_an_old_llama_cpp_tells_its_cache_usage():
    assert numbers("llamacpp:kv_cache_usage_ratio 0.5\n").kv_cache_usage == 0.5


def test_trtllm():
    found = numbers(text_of("written/trtllm"))
    assert plain(found) == EngineNumbers(
        engine="trtllm",
        dialect="trtllm",
        models=("Qwen/Qwen3-0.6B",),
        block_size=32,
        num_gpu_blocks=2048,
        running=11,
        waiting=2,
        kv_cache_usage=0.375,
        prefix_queries_total=150,  # 90 reused + 60 missed
        prefix_hits_total=90,
        prefix_hit_ratio=0.6,
        prompt_tokens_total=3100,
        generation_tokens_total=15500,
        requests_total=155,  # 150 + 5
    )
    assert found.finished_by_reason == (("length", 5), ("stop", 150))
    # rank 77.5 of 155, all in (0.01, 0.02]: the middle
    assert found.ttft.quantile(0.5).value == pytest.approx(0.015)
    assert found.queue.mean() == 0.2  # 31 / 155


def test_litellm():
    found = numbers(text_of("written/litellm_1.109"))
    assert plain(found) == EngineNumbers(
        engine="litellm",
        dialect="litellm",
        models=("qwen", "llama"),
        running=3,
        prompt_tokens_total=5000,
        generation_tokens_total=700,
        requests_total=30,  # 20 + 2 + 8
        started_at=1790000000.1,
    )
    # rank 8 in (0.1, 0.5], 4..16: 0.1 + 0.4 * 4 / 12
    assert found.ttft.quantile(0.5).value == pytest.approx(0.233333, abs=1e-6)
    assert found.queue.mean() == pytest.approx(0.001)  # 0.03 / 30


def test_a_router_is_a_router_and_never_vllm():
    found = numbers(text_of("written/production_stack_router"))
    assert found == EngineNumbers(
        engine="production-stack-router",
        dialect="production-stack-router",
        models=("qwen", "llama"),
        running=7,  # 5 + 2
        prompt_tokens_total=10000,
        generation_tokens_total=1000,
        requests_total=115,  # 110 + 5; its dead prefix-cache gauges are not read
        started_at=1790000002.0,
    )


@pytest.mark.parametrize(
    "page",
    [
        'vllm:healthy_pods_total{server="http://10.0.0.4:8000"} 1\n',
        'vllm:num_requests_running{server="http://10.0.0.4:8000"} 1\n',
        'vllm:num_incoming_requests_total{model="qwen"} 1\n',
    ],
)
def test_a_router_is_known_by_any_of_its_marks(page):
    assert numbers(page).engine == "production-stack-router"


def test_an_engine_scraped_with_a_server_label_is_still_an_engine():
    page = 'vllm:num_requests_running{engine="0",model_name="m",server="rack-4"} 1\n'
    assert numbers(page).engine == "vllm"


@pytest.mark.parametrize("text", ["", "Not Found", '[{"iter":1}]', "python_info 1\n", "up 1\n"])
def test_other_pages_are_no_known_engines(text):
    assert read_numbers(read_page(text)) is None
