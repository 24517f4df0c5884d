"""The simulated `/metrics` page: every line of the recorded one, and numbers that follow from what was served."""

import re
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from support.recordings import recorded
from support.simulated import numbers_of

from toolkit.sim.engine import Engine, EngineConfig, EngineRequest, Finished
from toolkit.sim.exposition import Served, page
from toolkit.sim.families import Dialect, edges, one_two_five
from toolkit.sim.meter import Exchange, Histogram, HttpMeter, Meter, observations

START_S = 1.7e9


def served(dialect: Dialect = "v1", **changes: Any) -> Served:
    told = {"model": "tiny", "gpu_memory_utilization": 0.92, "cache_dtype": "auto"} | changes
    return Served(dialect=dialect, **told)


def core(dialect: Dialect = "v1", **changes: Any) -> tuple[Engine, Meter]:
    config = EngineConfig(**({"max_model_len": 512} | changes))
    return Engine(config), Meter(edges(dialect, config.max_model_len), START_S)


def http() -> HttpMeter:
    return HttpMeter(created_s=START_S)


def written(dialect: Dialect = "v1", *cores: tuple[Engine, Meter], **changes: Any) -> str:
    return page(served(dialect, **changes), cores or (core(dialect),), http()).decode()


def names_of(text: str) -> list[str]:
    """Each line without its number; the labels' values of cache_config_info are the model's, not ours."""
    lines = [
        line if line.startswith("#") else line.rpartition(" ")[0] for line in text.splitlines()
    ]
    return [
        re.sub(r'="[^"]*"', "", line) if line.startswith("vllm:cache_config_info{") else line
        for line in lines
    ]


def recorded_exchanges() -> HttpMeter:
    """The kinds of request that the recorded server had seen, in their order."""
    meter = http()
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
        meter.observe(
            Exchange(
                handler=handler,
                method=method,
                status=status,
                request_bytes=3,
                response_bytes=5,
                duration_s=0.3,
            ),
            START_S + 1,
        )
    return meter


def process_families() -> Iterable[Any]:
    registry = CollectorRegistry()
    collectors = (
        GCCollector(registry),
        PlatformCollector(registry),
        ProcessCollector(registry=registry),
    )
    return [metric for collector in collectors for metric in collector.collect()]


def test_every_line_of_the_recorded_page_is_there_in_its_order() -> None:
    ours = page(served(), [core()], recorded_exchanges(), process_families()).decode()
    theirs = names_of(recorded("metrics_after_load.txt").decode())
    version = re.compile(r"python_info\{.*")
    assert [version.sub("", name) for name in names_of(ours)] == [
        version.sub("", name) for name in theirs
    ]
    assert len(theirs) > 600  # or the recording was cut


def test_an_idle_page_has_the_recorded_lines() -> None:
    ours = page(served(), [core()], http()).decode()
    theirs = recorded("metrics_idle.txt").decode()
    start = theirs.index("# HELP vllm:")
    assert names_of(ours) == names_of(theirs[start:])


def test_without_stats_only_the_http_families_stay() -> None:
    meter = http()
    exchange = recorded_exchanges_of_chat()
    meter.observe(exchange, START_S)
    ours = page(served(stats=False), [core()], meter).decode()
    theirs = recorded("nostats/metrics.txt").decode()
    assert names_of(ours) == names_of(theirs[theirs.index("# HELP http_") :])


def recorded_exchanges_of_chat() -> Exchange:
    return Exchange(
        handler="/v1/chat/completions",
        method="POST",
        status=200,
        request_bytes=388,
        response_bytes=0,
        duration_s=0.26,
    )


def test_http_requests_are_counted_by_handler_method_and_status() -> None:
    numbers = numbers_of(page(served(), [core()], recorded_exchanges()).decode())
    chat = 'handler="/v1/chat/completions"'
    assert numbers[f'http_requests_total{{{chat},method="POST",status="2xx"}}'] == 1
    assert numbers[f'http_requests_total{{{chat},method="POST",status="4xx"}}'] == 1
    assert numbers[f"http_request_size_bytes_sum{{{chat}}}"] == 6  # two of 3 bytes
    assert numbers[f"http_response_size_bytes_sum{{{chat}}}"] == 10
    few = "http_request_duration_seconds_bucket"
    assert numbers[f'{few}{{{chat},le="0.1",method="POST"}}'] == 0
    assert numbers[f'{few}{{{chat},le="0.5",method="POST"}}'] == 2
    assert numbers["http_request_duration_highr_seconds_count"] == 7
    assert numbers["http_request_duration_highr_seconds_created"] == START_S
    assert numbers[f'http_requests_created{{{chat},method="POST",status="2xx"}}'] == START_S + 1


def test_a_histogram_counts_an_edge_in_the_bucket_it_ends() -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in (0.5, 1, 2, 2.1, 5, 6):
        histogram.observe(value)
    # up to 1: 0.5 and 1; up to 2: 2; up to 5: 2.1 and 5; beyond: 6. Sum 16.6
    assert histogram.counts == [2, 1, 2, 1]
    assert histogram.total == pytest.approx(16.6)


def test_token_buckets_go_one_two_five_up_to_the_models_length() -> None:
    assert one_two_five(512) == (1, 2, 5, 10, 20, 50, 100, 200, 500)
    assert one_two_five(200) == (1, 2, 5, 10, 20, 50, 100, 200)
    assert one_two_five(199) == (1, 2, 5, 10, 20, 50, 100)
    assert one_two_five(1) == (1,)


def finished(**changes: Any) -> Finished:
    """Arrives at 10, starts at 11, speaks from 13 to 17: five tokens after a prompt of 40, 16 cached."""
    told: dict[str, Any] = {
        "id": "a",
        "reason": "length",
        "arrived_at": 10.0,
        "scheduled_at": 11.0,
        "first_token_at": 13.0,
        "last_token_at": 17.0,
        "ended_at": 17.0,
        "prompt_tokens": 40,
        "cached_tokens": 16,
        "output_tokens": 5,
        "max_tokens": 8,
        "preemptions": 2,
    }
    return Finished(**(told | changes))


def test_a_finished_request_is_observed_as_vllm_defines_the_times() -> None:
    assert observations(finished()) == {
        "prompt_tokens": 40,
        "computed_prompt_tokens": 24,  # 40 - 16
        "output_tokens": 5,
        "max_tokens": 8,
        "n": 1,
        "preemptions": 2,
        "e2e": 7,  # 17 - 10
        "queue": 1,  # 11 - 10
        "prefill": 2,  # 13 - 11
        "decode": 4,  # 17 - 13
        "inference": 6,  # 17 - 11
        "tpot": 1,  # 4 s for the 4 tokens after the first
    }


def test_a_single_token_takes_no_time_per_token() -> None:
    assert observations(finished(output_tokens=1, last_token_at=13.0))["tpot"] == 0


def test_what_never_started_waited_all_its_time() -> None:
    never = finished(
        reason="error", scheduled_at=None, first_token_at=None, last_token_at=None, ended_at=12.0
    )
    observed = observations(never)
    assert (observed["queue"], observed["prefill"], observed["e2e"]) == (2, 0, 2)


def two_requests() -> tuple[Engine, Meter]:
    """Two requests of 20 and 33 tokens with 3 and 2 tokens of answer; a step takes one second."""
    engine, meter = core(
        step_overhead_s=1.0, prefill_s_per_token=0, decode_s_per_sequence=0, jitter=0
    )
    arrived = {}
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
        arrived[name] = 0.5
    now = 1.0
    while step := engine.plan(now):
        now += step.duration_s
        meter.step(engine, engine.finish(step, now), now, arrived)
    return engine, meter


def test_the_numbers_follow_from_two_requests() -> None:
    numbers = numbers_of(written("v1", two_requests()))
    labels = '{engine="0",model_name="tiny"}'
    expected = {
        "vllm:prompt_tokens_total": 53,  # 20 + 33
        "vllm:generation_tokens_total": 5,  # 3 + 2
        "vllm:num_requests_running": 0,
        "vllm:kv_cache_usage_perc": 0,
        "vllm:time_to_first_token_seconds_sum": 3,  # both came at 0.5 and spoke at 2
        "vllm:time_to_first_token_seconds_count": 2,
        "vllm:inter_token_latency_seconds_count": 3,  # 2 gaps of `a`, 1 of `b`
        "vllm:inter_token_latency_seconds_sum": 3,  # one second each
        "vllm:e2e_request_latency_seconds_sum": 6,  # `a` ends at 4: 3.5; `b` at 3: 2.5
        "vllm:request_queue_time_seconds_sum": 1,  # both waited from 0.5 to 1
        "vllm:iteration_tokens_total_count": 3,
        "vllm:iteration_tokens_total_sum": 58,  # 53 computed and 5 said
        "vllm:request_params_max_tokens_sum": 5,
    }
    assert {name: numbers[name + labels] for name in expected} == expected
    by_reason = 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}'
    assert numbers[by_reason] == 2
    first = 'vllm:time_to_first_token_seconds_bucket{engine="0",le="%s",model_name="tiny"}'
    assert (numbers[first % "1.0"], numbers[first % "2.5"]) == (0, 2)
    assert numbers[f"vllm:prompt_tokens_created{labels}"] == START_S


def test_data_parallel_engines_repeat_the_sum_of_blocks_but_tell_their_own_tokens() -> None:
    text = written("v1", core(num_gpu_blocks=100), core(num_gpu_blocks=100))
    configs = [line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")]
    assert len(configs) == 2
    for index, line in enumerate(configs):
        assert f'engine="{index}"' in line
        assert 'num_gpu_blocks="200"' in line
        # 100 blocks of 16 tokens; a request of 512 tokens takes 32 blocks, 100 / 32 = 3.125
        assert 'kv_cache_size_tokens="1600"' in line
        assert 'kv_cache_max_concurrency="3.125"' in line
    assert 'vllm:num_requests_running{engine="1",model_name="tiny"} 0.0' in text
    assert text.count("vllm:admission_rejections_total{") == 2  # once per reason, for all engines


V0_NAMES = """
num_requests_running num_requests_waiting num_requests_swapped gpu_cache_usage_perc
cpu_cache_usage_perc cpu_prefix_cache_hit_rate gpu_prefix_cache_hit_rate num_preemptions prompt_tokens
generation_tokens tokens iteration_tokens_total time_to_first_token_seconds
time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds
time_in_queue_requests request_prompt_tokens request_generation_tokens
request_max_num_generation_tokens request_params_n request_params_max_tokens request_success
cache_config_info
"""


def test_v0_has_its_own_names_and_only_the_model_as_label() -> None:
    families = {
        family.name: family
        for family in read_text(written("v0", two_requests_of("v0")))
        if family.name.startswith("vllm:")
    }
    assert set(families) == {f"vllm:{name}" for name in V0_NAMES.split()}
    config = families.pop("vllm:cache_config_info").samples[0].labels
    assert set(config) == set(
        "block_size gpu_memory_utilization swap_space_bytes num_gpu_blocks_override cache_dtype"
        " is_attention_free sliding_window enable_prefix_caching cpu_offload_gb num_gpu_blocks"
        " num_cpu_blocks calculate_kv_scales".split()
    )
    labels = {
        label
        for family in families.values()
        for sample in family.samples
        for label in sample.labels
    }
    assert labels == {"model_name", "le", "finished_reason"}


def two_requests_of(dialect: Dialect) -> tuple[Engine, Meter]:
    return two_requests()[0], Meter(edges(dialect, 512), START_S)


@pytest.mark.parametrize(
    ("family", "last_edges"),
    [
        ("time_to_first_token_seconds", ["7.5", "10.0", "+Inf"]),
        ("time_per_output_token_seconds", ["1.0", "2.5", "+Inf"]),
        ("e2e_request_latency_seconds", ["50.0", "60.0", "+Inf"]),
        ("time_in_queue_requests", ["50.0", "60.0", "+Inf"]),
        ("iteration_tokens_total", ["4096.0", "8096.0", "+Inf"]),
        ("request_prompt_tokens", ["200.0", "500.0", "+Inf"]),
    ],
)
def test_v0_buckets_end_where_v0_ended_them(family: str, last_edges: list[str]) -> None:
    text = written("v0")
    assert re.findall(rf'vllm:{family}_bucket{{le="([^"]+)"', text)[-3:] == last_edges


def test_v0_has_no_created_series_and_no_prefix_rate_without_a_prefix_cache() -> None:
    text = written("v0", core("v0", prefix_caching=False))
    assert "_created" not in text
    assert numbers_of(text)['vllm:gpu_prefix_cache_hit_rate{model_name="tiny"}'] == -1


def test_rust_speaks_openmetrics_that_its_own_parser_reads() -> None:
    engine, _ = two_requests()
    text = page(
        served("rust"),
        [(engine, Meter(edges("rust", 512), START_S))],
        recorded_exchanges(),
        process_families(),
    ).decode()
    families = {family.name: family for family in read_openmetrics(text)}
    assert text.endswith("# EOF\n")
    assert families["vllm:prompt_tokens"].type == "counter"
    assert families["vllm:prompt_tokens"].samples[0].value == 53
    assert families["vllm:iteration_tokens_total"].type == "histogram"
    missing = (
        "cache_config_info engine_sleep_state mm_cache_queries mm_cache_hits admission_rejections"
    )
    assert not {f"vllm:{name}" for name in missing.split()} & set(families)
    assert not any(name.startswith(("process_", "python_")) for name in families)
    assert "http_request_size_bytes" not in families
    assert "http_requests" in families


def test_rust_names_counters_without_total_puts_the_model_first_and_ends_help_with_a_stop() -> None:
    lines = written("rust").splitlines()
    assert "# TYPE vllm:prompt_tokens counter" in lines
    assert 'vllm:prompt_tokens_total{model_name="tiny",engine="0"} 0.0' in lines
    assert (
        'vllm:request_success_total{model_name="tiny",engine="0",finished_reason="stop"} 0.0'
        in lines
    )
    assert 'vllm:request_params_n_bucket{model_name="tiny",engine="0",le="+Inf"} 0.0' in lines
    helps = [line for line in lines if line.startswith("# HELP ")]
    assert helps
    assert all(line.endswith(".") and not line.endswith("..") for line in helps)
    assert "_created" not in "".join(lines)


def test_a_model_name_with_quotes_stays_one_label() -> None:
    name = 'a"b\\c,engine="7"}'
    for dialect, read in (("v1", read_text), ("rust", read_openmetrics)):
        page_text = written(dialect, model=name)
        family = next(f for f in read(page_text) if f.name == "vllm:num_requests_running")
        assert family.samples[0].labels == {"model_name": name, "engine": "0"}
