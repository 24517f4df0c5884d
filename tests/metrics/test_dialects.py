"""What a page of a known engine says, over all its engines, and what is unknown. Numbers are read off the pages by eye."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.metrics.dialects import EngineNumbers, read_numbers
from toolkit.metrics.parser import read_page

PAGES = Path(__file__).parents[1] / "data" / "metrics"


def text_of(name: str) -> str:
    """A page by its folder and name, e.g., `recorded/idle`."""
    return (PAGES / f"{name}.txt").read_text(encoding="utf-8")


def numbers(text: str, content_type: str = "") -> EngineNumbers:
    """What a page of a known engine says."""
    found = read_numbers(read_page(text), content_type)
    assert found is not None
    return found


WRITTEN = sorted(path.stem for path in (PAGES / "written").glob("*.txt"))
CONFIG = 'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"'


def test_settings_are_what_was_chosen_and_nothing_that_was_measured():
    found = dict(numbers(text_of("recorded/fp8")).settings)
    # by eye from the page's 37 labels: 10 are "None", and of the other 27 these 6 are left out:
    # _block_size_resolved engine num_gpu_blocks kv_cache_max_concurrency kv_cache_memory_bytes
    # kv_cache_size_tokens
    assert sorted(found) == [
        "block_size",
        "cache_dtype",
        "effective_attention_block_size",
        "enable_mamba_shared_prefix_checkpoint",
        "enable_prefix_caching",
        "gpu_memory_utilization",
        "is_attention_free",
        "kv_cache_dtype_skip_layers",
        "kv_offloading_backend",
        "kv_sharing_fast_prefill",
        "mamba_cache_dtype",
        "mamba_cache_mode",
        "mamba_ssm_cache_dtype",
        "num_gpu_blocks_override",
        "prefix_cache_retention_interval",
        "prefix_caching_hash_algo",
        "replayssm_buffer_len",
        "swa_bounded_replay",
        "use_kda_recoverssm",
        "use_replayssm",
        "user_specified_block_size",
    ]
    assert (found["cache_dtype"], found["num_gpu_blocks_override"]) == ("fp8", "48")


# vLLM, written from its sources


def test_v0_says_minus_one_where_it_does_not_know():
    page = text_of("written/vllm_v0_0.6.6").replace('Instruct"} 0.25', 'Instruct"} -1.0')
    assert numbers(page).prefix_hit_ratio is None


def test_the_new_name_wins_where_a_version_has_both():
    page = (
        'vllm:gpu_cache_usage_perc{engine="0"} 0.1\nvllm:kv_cache_usage_perc{engine="0"} 0.2\n'
        'vllm:gpu_prefix_cache_queries_total{engine="0"} 10\n'
        'vllm:gpu_prefix_cache_hits_total{engine="0"} 5\n'
        'vllm:prefix_cache_queries_total{engine="0"} 160\n'
        'vllm:prefix_cache_hits_total{engine="0"} 80\n'
    )
    found = numbers(page)
    assert found.kv_cache_usage == 0.2
    assert (found.prefix_queries_total, found.prefix_hits_total) == (160, 80)


def test_no_capacity_is_claimed_while_one_engine_of_four_is_silent():
    page = text_of("written/vllm_v1_dp4_0.24").replace(
        'kv_cache_size_tokens="15002"', 'kv_cache_size_tokens="None"'
    )
    assert numbers(page).kv_cache_tokens is None


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        ("", 1600),  # 100 * 16
        (',mamba_block_size="None",mamba_cache_mode="none"', 1600),
        (',mamba_block_size="16"', None),
        (',mamba_page_size_padded="4096"', None),
        (',mamba_cache_mode="align"', None),
        (',is_attention_free="True"', None),
    ],
)
def test_labels_of_state_space_layers_mark_a_hybrid(labels, tokens):
    assert numbers(CONFIG + labels + "} 1\n").kv_cache_tokens == tokens


@pytest.mark.parametrize(
    ("block_size", "tokens"),
    [("16", 1600), ("128", 12800), ("256", 25600), ("512", None), ("544", None), ("24", None)],
)
def test_only_an_attention_kernels_block_size_is_multiplied(block_size, tokens):
    page = CONFIG.replace('"16"', f'"{block_size}"') + "} 1\n"
    assert numbers(page).kv_cache_tokens == tokens


@pytest.mark.parametrize(
    ("label", "gib"),
    [
        ('swap_space="4"', 4),
        ('swap_space="0.5"', 0.5),
        ('swap_space_bytes="4294967296"', 4),
        ('swap_space_bytes="4294967296.0"', 4),
        ('swap_space="0",swap_space_bytes="4294967296"', 0),
        ('swap_space="None"', None),
        ('swap_space="-1"', None),
    ],
)
def test_swap_space_is_read_in_either_unit(label, gib):
    assert numbers(f"{CONFIG},{label}}} 1\n").swap_space_gib == gib


@pytest.mark.parametrize("value", ["None", "", "many", "NaN", "inf", "-1", "1e300", "0.5"])
def test_a_configuration_value_that_is_no_count_is_unknown(value):
    found = numbers(CONFIG.replace('"100"', f'"{value}"') + "} 1\n")
    assert found.num_gpu_blocks is None
    assert found.kv_cache_tokens is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_a_gauge_that_is_no_amount_is_unknown(value):
    found = numbers(f'vllm:num_requests_running{{engine="0",model_name="m"}} {value}\n')
    assert found.running is None


def test_rust_is_known_by_its_content_type_too():
    page = text_of("written/vllm_rust_0.33").removesuffix("# EOF\n")
    assert numbers(page).dialect == "v1"
    kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert numbers(page, kind).dialect == "rust"


def test_a_python_page_that_a_proxy_rewrote_as_openmetrics_is_not_rust():
    assert numbers(text_of("recorded/idle") + "# EOF\n").dialect == "v1"


def test_names_with_underscores_for_colons_are_vllms():
    page = text_of("recorded/during_load").replace("vllm:", "vllm_")
    assert numbers(page) == numbers(text_of("recorded/during_load"))


def test_another_programs_vllm_prefix_is_not_vllm():
    assert read_numbers(read_page("vllm_router_requests_total 5\nvllm_router_up 1\n")) is None


# The peers of vLLM, and the router that is none


def test_sglang_before_its_first_cache_hit_has_its_gauge():
    lines = text_of("written/sglang_0.5.23").split("\n")
    found = numbers("\n".join(line for line in lines if "cached_tokens_total" not in line))
    assert (found.prefix_queries_total, found.prefix_hits_total) == (None, None)
    assert found.prefix_hit_ratio == 0.25


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


# Whatever comes

calm = settings(deadline=None, max_examples=30)


@calm
@given(st.sampled_from(WRITTEN), st.integers(0, 4000), st.integers(0, 200), st.text(max_size=20))
def test_no_damage_raises(name, start, length, instead):
    text = text_of(f"written/{name}")
    page = read_page(text[:start] + instead + text[start + length :])
    found = read_numbers(page)
    assert found is None or found.engine


@calm
@given(st.text())
def test_no_model_name_is_misread(model):
    spelled = model.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    page = f'vllm:num_requests_running{{engine="0",model_name="{spelled}"}} 3\n'
    found = numbers(page)
    assert found.models == ((model,) if model else ())
    assert found.running == 3


@pytest.mark.parametrize(
    ("page", "ended"),
    [
        # by grep: request_success_total
        (
            "recorded/after_load",
            {"abort": 0, "error": 0, "length": 1022, "repetition": 0, "stop": 0},
        ),
        ("written/vllm_v0_0.6.6", {"abort": 1, "length": 29, "stop": 70}),
        ("written/vllm_v1_dp4_0.22", {"abort": 0, "length": 4, "stop": 12}),  # 4 * 1, 4 * 3
        ("written/vllm_rust_0.33", {"error": 1, "stop": 19}),  # 15 + 4
        ("written/trtllm", {"length": 5, "stop": 150}),
    ],
)
def test_ended_requests_are_told_by_reason_over_all_engines(
    page: str, ended: dict[str, float]
) -> None:
    found = numbers(text_of(page))
    assert found.finished_by_reason == tuple(sorted(ended.items()))
    assert found.requests_total == sum(ended.values())


def test_what_was_asked_for_is_summed_over_engines() -> None:
    asked = "vllm:request_params_max_tokens"
    found = numbers(
        'vllm:num_requests_running{engine="0"} 0\n'
        f'{asked}_sum{{engine="0"}} 300\n{asked}_count{{engine="0"}} 3\n'
        f'{asked}_sum{{engine="1"}} 50\n{asked}_count{{engine="1"}} 2\n'
    ).asked_tokens
    assert found is not None
    assert (found.sum, found.count, found.mean()) == (350, 5, 70)


def test_a_reason_whose_count_is_unknown_is_not_told() -> None:
    ended = "vllm:request_success_total"
    found = numbers(
        f'{ended}{{finished_reason="stop"}} 2\n{ended}{{finished_reason="length"}} NaN\n'
        f'{ended}{{finished_reason="abort"}} -1\n'
    )
    assert found.finished_by_reason == (("stop", 2),)
