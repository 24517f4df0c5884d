"""The simulated `/metrics` page: every line of the recorded one, and numbers that follow from what was served."""

from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from toolkit.sim.engine import EngineCore, EngineRequest
from toolkit.sim.metrics_page import (
    EngineMetrics,
    HttpMetrics,
    observations,
    page,
)
from toolkit.sim.presets import Dialect, Setup, setup_for

START_S = 1.7e9


def setup_of(dialect: Dialect = "v1", **changes: Any) -> Setup:
    plain = {"model": "tiny", "max_model_len": 512, "num_gpu_blocks": 1024, "jitter": 0}
    return setup_for(**(plain | {"dialect": dialect} | changes))


def core(setup: Setup) -> tuple[EngineCore, EngineMetrics]:
    return EngineCore(setup), EngineMetrics(setup.dialect, setup.max_model_len, START_S)


def written(dialect: Dialect = "v1", **changes: Any) -> str:
    setup = setup_of(dialect, **changes)
    return page(setup, [core(setup)], HttpMetrics(dialect, START_S)).decode()


def recorded_requests(dialect: Dialect = "v1") -> HttpMetrics:
    """The kinds of request that the recorded server had seen, in their order."""
    http = HttpMetrics(dialect, START_S)
    for handler, method, status in (
        ("/v1/models", "GET", 200),
        ("/openapi.json", "GET", 200),
        ("none", "GET", 404),
        ("/v1/chat/completions", "POST", 200),
        ("/v1/completions", "POST", 200),
        ("/v1/chat/completions", "POST", 400),
        ("/tokenize", "POST", 200),
        ("/metrics", "GET", 200),  # this and the next are not counted
        ("/health", "GET", 200),
    ):
        http.observe(
            *(handler, method, status),
            request_bytes=3,
            response_bytes=5,
            duration_s=0.3,
            now_s=START_S + 1,
        )
    return http


def ended(**changes: Any) -> EngineRequest:
    """Arrives at 10, starts at 11, speaks from 13 to 17: five tokens after a prompt of 40, 16 cached."""
    request = EngineRequest(
        id="a", prompt_ids=(1,) * 40, max_tokens=8, output_ids=(1,), arrived_at=10.0
    )
    told = {"scheduled_at": 11.0, "first_token_at": 13.0, "last_token_at": 17.0, "ended_at": 17.0}
    told |= {"cached_tokens": 16, "output_tokens": 5, "preemptions": 2}
    for name, value in (told | changes).items():
        setattr(request, name, value)
    return request


def test_a_finished_request_is_observed_as_vllm_defines_the_times() -> None:
    assert observations(ended()) == {
        "vllm:request_prompt_tokens": 40,
        "vllm:request_prefill_kv_computed_tokens": 24,  # 40 - 16
        "vllm:request_generation_tokens": 5,
        "vllm:request_max_num_generation_tokens": 5,
        "vllm:request_params_max_tokens": 8,
        "vllm:request_params_n": 1,
        "vllm:request_num_preemptions": 2,
        "vllm:e2e_request_latency_seconds": 7,  # 17 - 10
        "vllm:request_queue_time_seconds": 1,  # 11 - 10
        "vllm:time_in_queue_requests": 1,
        "vllm:request_prefill_time_seconds": 2,  # 13 - 11
        "vllm:request_decode_time_seconds": 4,  # 17 - 13
        "vllm:request_inference_time_seconds": 6,  # 17 - 11
        "vllm:request_time_per_output_token_seconds": 1,  # 4 s for the 4 tokens after the first
    }


def test_a_single_token_takes_no_time_and_what_never_started_waited_all_its_time() -> None:
    single = observations(ended(output_tokens=1, last_token_at=13.0))
    assert single["vllm:request_time_per_output_token_seconds"] == 0
    never = {"scheduled_at": None, "first_token_at": None, "last_token_at": None, "ended_at": 12.0}
    told = observations(ended(**never))
    assert told["vllm:request_queue_time_seconds"] == told["vllm:e2e_request_latency_seconds"] == 2
    assert told["vllm:request_prefill_time_seconds"] == 0


def two_requests(dialect: Dialect = "v1") -> bytes:
    """Two requests of 20 and 33 tokens with 3 and 2 tokens of answer; a step takes one second."""
    setup = setup_of(
        dialect, step_overhead_s=1.0, prefill_s_per_token=0, decode_s_per_sequence=0, time_scale=1
    )
    engine, metrics = core(setup)
    for name, prompt, output in (("a", 20, 3), ("b", 33, 2)):
        engine.submit(
            EngineRequest(
                id=name,
                prompt_ids=tuple(range(ord(name), ord(name) + prompt)),
                max_tokens=output,
                output_ids=tuple(range(output + 1)),
                arrived_at=0.5,
            )
        )
    now = 1.0
    while step := engine.plan(now):
        now += step.duration_s
        metrics.count(engine, engine.finish(step, now))
    return page(setup, [(engine, metrics)], recorded_requests(dialect))


def test_rust_speaks_openmetrics_that_its_own_parser_reads() -> None:
    text = two_requests("rust").decode()
    families = {family.name: family for family in read_openmetrics(text)}
    assert families["vllm:prompt_tokens"].type == "counter"
    assert families["vllm:prompt_tokens"].samples[0].value == 53
    assert families["vllm:iteration_tokens_total"].type == "histogram"
    assert "http_request_size_bytes" not in families
    assert families["http_requests"].samples[0].value == 1
    helps = [line for line in text.splitlines() if line.startswith("# HELP ")]
    assert all(line.endswith(".") and not line.endswith("..") for line in helps)


def test_a_model_name_with_quotes_stays_one_label() -> None:
    name = 'a"b\\c,engine="7"}%d'
    for dialect, read in (("v1", read_text), ("rust", read_openmetrics)):
        family = next(
            f for f in read(written(dialect, model=name)) if f.name == "vllm:num_requests_running"
        )
        assert family.samples[0].labels == {"model_name": name, "engine": "0"}
