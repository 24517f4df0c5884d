"""Recorded and written `/metrics` pages of every dialect and engine, replayed by servers of raw bytes, through one `toolkit scout --json`.

Numbers of written pages are worked out by hand, the sum beside them; those of recorded ones by prometheus-client's parser.
"""

from contextlib import ExitStack
from typing import Any

import pytest
from contract.harness.programs import ROOT, rows, run
from contract.harness.servers import Answer, answer, server, vllm_pages
from prometheus_client.parser import text_string_to_metric_families

METRICS = ROOT / "tests" / "data" / "metrics"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

WRITTEN: dict[str, dict[str, Any]] = {
    "vllm_v0_0.6.6": {
        "engine": "vllm",
        "dialect": "v0",
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "block_size": 16,
        "num_gpu_blocks": 27881,
        "kv_cache_tokens": 446096,  # 27881 * 16
        "swap_space_gib": 4,
        "running": 12,
        "waiting": 3,
        "kv_cache_usage": 0.4375,
        "prefix_hit_ratio": 0.25,  # its own gauge; there are no counters, and -1 of the other is unknown
        "preemptions_total": 7,
        "prompt_tokens_total": 51200,
        "generation_tokens_total": 20480,
        "requests_total": 100,  # 70 + 29 + 1
        "prefix_caching": True,
        "ttft_p50_ms": pytest.approx(55),  # rank 50 in (0.04, 0.06], 20..60: 0.04 + 0.02 * 30 / 40
        "ttft_p95_above_ms": 10_000,  # rank 95 of 94 below the last edge
        "queue_mean_ms": 125,  # 12.5 s / 100
        "started_at": 1736000000.25,
    },
    "vllm_v1_0.8.5": {
        "engine": "vllm",
        "dialect": "v1",
        "model": "llama",
        "cache_dtype": "fp8_e4m3",
        "prefix_caching": False,
        "kv_cache_tokens": 131072,  # 8192 * 16
        "running": 5,
        "waiting": 0,
        "prefix_hit_ratio": 0.4,  # 400 / 1000
        "requests_total": 50,  # 20 + 30 + 0
        "prompt_tokens_total": 16000,
        "generation_tokens_total": 3000,
        "swap_space_gib": 2.5,
        "ttft_p50_ms": None,
        "ttft_p50_below_ms": 1,  # all in the first bucket: no number is invented
        "ttft_p95_ms": pytest.approx(
            4
        ),  # rank 47.5 in (0.001, 0.005], 40..50: 0.001 + 0.004 * 7.5 / 10
        "queue_mean_ms": 10,
    },
    "vllm_v1_dp4_0.22": {
        "engines": 4,
        "num_gpu_blocks": 4000,  # the sum stands on each engine's series
        "kv_cache_tokens": 64000,  # 4000 * 16
        "running": 46,  # 10 + 11 + 12 + 13
        "waiting": 6,  # 0 + 1 + 2 + 3
        "kv_cache_usage": pytest.approx(0.35),  # (0.1 + 0.2 + 0.3 + 0.8) / 4
        "prefix_hit_ratio": 0.25,  # (10 + 20 + 30 + 190) / (100 + 200 + 300 + 400)
        "preemptions_total": 3,
        "prompt_tokens_total": 1000,
        "generation_tokens_total": 4000,
        "requests_total": 16,  # 4 * (3 + 1 + 0)
        # summed buckets 4 12 16; rank 8 in (0.1, 0.25]: 0.1 + 0.15 * (8 - 4) / 8
        "ttft_p50_ms": pytest.approx(175),
    },
    "vllm_v1_dp4_0.24": {
        "engines": 4,
        "kv_cache_tokens": 60006,  # 15000 + 15001 + 15002 + 15003, as the label says
        "kv_cache_max_concurrency": 20,  # 3.5 + 4.5 + 5.5 + 6.5
    },
    "vllm_v1_hybrid_0.20": {"kv_cache_tokens": None, "num_gpu_blocks": 1200, "block_size": 1056},
    "vllm_v1_hybrid_0.33": {"kv_cache_tokens": 720896, "kv_cache_max_concurrency": 2.75},
    "vllm_ray_serve": {
        "engine": "vllm",
        "engines": 2,
        "running": 7,  # 3 + 4
        "num_gpu_blocks": 2100,  # 1000 + 1100
        "kv_cache_tokens": 33600,  # 2100 * 16
        "kv_cache_usage": pytest.approx(0.6),  # (0.5 + 0.7) / 2
        "prompt_tokens_total": 250,
        "generation_tokens_total": 100,
    },
    "vllm_rust_0.33": {
        "engine": "vllm",
        "dialect": "rust",
        "engines": 2,
        "running": 14,
        "waiting": 1,
        "kv_cache_usage": 0.375,  # (0.5 + 0.25) / 2
        "preemptions_total": 3,
        "ttft_p50_ms": pytest.approx(
            45
        ),  # summed buckets 8 16 20; rank 10 in (0.04, 0.06]: 0.04 + 0.02 * 2 / 8
        "prefix_hit_ratio": 0.35,  # (300 + 50) / (900 + 100), timestamps are no values
        "prompt_tokens_total": 1000,  # 900 + 100, the exemplar's 12 is none
        "generation_tokens_total": 4500,
        "requests_total": 20,  # 15 + 1 + 4
        "queue_mean_ms": 25,  # over both engines
        "ttft_p95_ms": None,
        "ttft_p95_above_ms": 60,
    },
    "sglang_0.5.23": {
        "engine": "sglang",
        "engines": 2,
        "model": "qwen",
        "max_model_len": 32768,
        "kv_cache_tokens": 800000,  # 2 * 400000: two ranks of one engine say the same
        "running": 20,  # max(14, 13) + 6
        "waiting": 3,
        "kv_cache_usage": 0.5,  # (0.25 + 0.75) / 2
        "block_size": 64,
        "num_gpu_blocks": 12500,  # 6250 * 2
        "prefix_hit_ratio": 0.25,  # (1500 + 500) / 8000
        "preemptions_total": 4,
        "prompt_tokens_total": 8000,
        "generation_tokens_total": 3000,  # 2500 streaming + 500
        "requests_total": 40,
        "ttft_p50_ms": pytest.approx(150),  # rank 20 in (0.1, 0.2], 10..30
        "queue_mean_ms": 100,  # (3 + 1) / (30 + 10)
    },
    "tgi_3.3.7": {
        "engine": "tgi",
        "running": 16,
        "waiting": 4,
        "kv_cache_tokens": 96000,
        "kv_cache_usage": 0.25,  # 24000 / 96000
        "prompt_tokens_total": 6400,
        "generation_tokens_total": 3200,
        "ttft_p50_ms": None,
        "requests_total": 55,  # 50 + 3 + 2
        "queue_mean_ms": 50,  # 2.5 / 50
    },
    "trtllm": {
        "engine": "trtllm",
        "model": "Qwen/Qwen3-0.6B",
        "block_size": 32,
        "num_gpu_blocks": 2048,
        "running": 11,
        "waiting": 2,
        "kv_cache_usage": 0.375,
        "prompt_tokens_total": 3100,
        "generation_tokens_total": 15500,
        "ttft_p50_ms": pytest.approx(15),  # rank 77.5 of 155, all in (0.01, 0.02]: the middle
        "prefix_hit_ratio": 0.6,  # 90 / (90 + 60)
        "requests_total": 155,  # 150 + 5
        "queue_mean_ms": 200,  # 31 / 155
    },
    "llama_cpp": {
        "engine": "llama.cpp",
        "running": 4,
        "waiting": 46,
        "prompt_tokens_total": 9001,
        "generation_tokens_total": 4242,
    },
    "litellm_1.109": {
        "engine": "litellm",
        "models": ["qwen", "llama"],
        "running": 3,
        "prompt_tokens_total": 5000,  # 4000 + 1000
        "generation_tokens_total": 700,  # 600 + 100
        "requests_total": 30,  # 20 + 2 + 8
        "started_at": 1790000000.1,
        "ttft_p50_ms": pytest.approx(
            233.333, abs=1e-3
        ),  # rank 8 in (0.1, 0.5], 4..16: 0.1 + 0.4 * 4 / 12
        "queue_mean_ms": pytest.approx(1),  # 0.03 / 30
    },
    "production_stack_router": {
        "engine": "production-stack-router",
        "models": ["qwen", "llama"],
        "running": 7,  # 5 + 2
        "requests_total": 115,  # 110 + 5
        "generation_tokens_total": 1000,  # 700 + 300
    },
}
GATEWAYS = {"litellm_1.109", "production_stack_router"}
RECORDED = sorted(file.stem for file in (METRICS / "recorded").glob("*.txt"))


def pages(name: str) -> dict[str, Answer]:
    file = METRICS / ("recorded" if name in RECORDED else "written") / f"{name}.txt"
    if name in RECORDED:
        return vllm_pages() | {"/metrics": answer(file.read_bytes(), content_type=TEXT)}
    page = answer(file.read_bytes(), content_type=OPENMETRICS if "rust" in name else TEXT)
    if name == "trtllm":  # JSON where others have text
        return {"/health": answer(), "/metrics": answer([]), "/prometheus/metrics": page}
    if name in GATEWAYS:
        cards = {"data": [{"id": "qwen", "object": "model"}, {"id": "llama", "object": "model"}]}
        return {"/health": answer(), "/metrics": page, "/v1/models": answer(cards)}
    return {"/health": answer(), "/metrics": page}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Name -> what one scout of all of them says."""
    folder = tmp_path_factory.mktemp("pages")
    with ExitStack() as life:
        hosts = [
            f"{name} {life.enter_context(server(pages(name))).url}"
            for name in (*WRITTEN, *RECORDED)
        ]
        (folder / "hosts.txt").write_text("\n".join(hosts))
        done = run("scout", "--json", "--no-store", "--timeout", "60s", cwd=folder)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in rows(done.stdout)}


def test_every_page_of_the_data_has_a_row(told: dict[str, dict[str, Any]]) -> None:
    files = {file.stem for file in METRICS.glob("*/*.txt")}
    assert told.keys() == files == {*WRITTEN, *RECORDED}
    gateways = {
        name for name in told for found in told[name]["findings"] if found["code"] == "gateway"
    }
    assert gateways == GATEWAYS


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_pages_numbers_are_those_worked_out_by_hand(
    name: str, told: dict[str, dict[str, Any]]
) -> None:
    row = told[name]
    assert (row["status"], row["error"]) == ("ok", None)
    assert {key: row[key] for key in WRITTEN[name]} == WRITTEN[name]


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_pages_numbers_are_those_of_prometheus_client(
    name: str, told: dict[str, dict[str, Any]]
) -> None:
    row = told[name]
    text = (METRICS / "recorded" / f"{name}.txt").read_text()
    sums: dict[str, float] = {}
    buckets: dict[float, float] = {}
    config: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
            if sample.name == "vllm:time_to_first_token_seconds_bucket":
                buckets[float(sample.labels["le"])] = sample.value
            if sample.name == "vllm:cache_config_info":
                config = sample.labels
    assert row["started_at"] == (None if name == "nostats" else sums["process_start_time_seconds"])
    if name == "nostats":  # --disable-log-stats: a vLLM that tells nothing
        assert (row["status"], row["engine"], row["running"]) == ("degraded", "vllm", None)
        return
    assert (row["status"], row["engine"], row["version"]) == ("ok", "vllm", "0.32.0")
    assert row["requests_total"] == sums["vllm:request_success_total"]
    for key, sample in {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "kv_cache_usage": "vllm:kv_cache_usage_perc",
        "preemptions_total": "vllm:num_preemptions_total",
        "prompt_tokens_total": "vllm:prompt_tokens_total",
        "generation_tokens_total": "vllm:generation_tokens_total",
    }.items():
        assert row[key] == sums[sample], key
    asked = sums["vllm:prefix_cache_queries_total"]
    hits = sums["vllm:prefix_cache_hits_total"]
    assert row["prefix_hit_ratio"] == (pytest.approx(hits / asked) if asked else None)
    count = sums["vllm:request_queue_time_seconds_count"]
    mean_s = sums["vllm:request_queue_time_seconds_sum"] / count if count else None
    assert row["queue_mean_ms"] == (None if mean_s is None else pytest.approx(1000 * mean_s))
    for share in (
        50,
        95,
    ):  # as Prometheus' histogram_quantile: linear inside the bucket of the rank
        rank = share / 100 * buckets[float("inf")]
        edges = sorted(buckets)
        if not rank:
            assert row[f"ttft_p{share}_ms"] is None
            continue
        at = next(place for place, edge in enumerate(edges) if buckets[edge] >= rank)
        low, high = edges[at - 1], edges[at]
        inside = buckets[high] - buckets[low]
        expected_s = low + (high - low) * (rank - buckets[low]) / inside
        assert row[f"ttft_p{share}_ms"] == pytest.approx(1000 * expected_s)
    assert row["block_size"] == int(config["block_size"])
    assert row["num_gpu_blocks"] == int(config["num_gpu_blocks"])
    assert row["kv_cache_tokens"] == int(config["kv_cache_size_tokens"])
    assert row["gpu_memory_utilization"] == float(config["gpu_memory_utilization"])
    assert row["cache_dtype"] == config["cache_dtype"]
    assert row["prefix_caching"] is (config["enable_prefix_caching"] == "True")
