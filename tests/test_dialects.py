import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.metrics_pages import PAGES, numbers, plain, text_of

from toolkit.dialects import EngineNumbers, read_numbers
from toolkit.promtext import Quantile, read_page

WRITTEN = sorted(path.stem for path in (PAGES / "written").glob("*.txt"))
CONFIG = 'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"'


# Recorded from vLLM 0.32.0; expected values by grep


def test_a_recorded_idle_server_has_zeros_where_it_counted_nothing():
    found = numbers(text_of("recorded/idle"))
    assert plain(found) == EngineNumbers(
        engine="vllm",
        dialect="v1",
        models=("tiny",),
        engines=1,
        gpu_memory_utilization=0.92,
        cache_dtype="auto",
        block_size=128,
        num_gpu_blocks=16384,
        kv_cache_tokens=2097152,  # = 16384 * 128
        kv_cache_max_concurrency=4096,
        prefix_caching=True,
        running=0,
        waiting=0,
        kv_cache_usage=0,
        prefix_queries_total=0,
        prefix_hits_total=0,
        preemptions_total=0,
        prompt_tokens_total=0,
        generation_tokens_total=0,
        requests_total=0,
        started_at=1795200963.11,
    )
    assert found.ttft.quantile(0.5) == Quantile()
    assert found.queue.mean() is None


def test_a_recorded_server_under_load():
    found = numbers(text_of("recorded/during_load"))
    assert plain(found) == EngineNumbers(
        engine="vllm",
        dialect="v1",
        models=("tiny",),
        engines=1,
        gpu_memory_utilization=0.92,
        cache_dtype="auto",
        block_size=32,
        num_gpu_blocks=128,
        kv_cache_tokens=4096,
        kv_cache_max_concurrency=8,
        prefix_caching=True,
        running=14,
        waiting=18,
        kv_cache_usage=0.9763779527559056,
        prefix_queries_total=5661,
        prefix_hits_total=0,
        preemptions_total=6,
        prompt_tokens_total=5661,
        generation_tokens_total=3266,
        requests_total=16,  # 16 length, nothing else
        started_at=1795201992.1,
    )
    # 1.8132784479996644 s / 16 requests
    assert found.queue.mean() == pytest.approx(0.113330, abs=1e-6)
    # rank 8 of 16; 13 waited at most 0.3 s, the first edge
    assert found.queue.quantile(0.5) == Quantile(below=0.3)
    # 118.11045384407043 s / 31 requests
    assert found.ttft.mean() == pytest.approx(3.810015, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "after_load",
            {"requests_total": 1022, "prefix_queries_total": 98917, "prefix_hits_total": 6016},
        ),
        ("no_prefix_caching", {"prefix_caching": False, "requests_total": 146}),
        ("fp8", {"cache_dtype": "fp8", "kv_cache_tokens": 1536, "preemptions_total": 122}),
        ("queueing", {"running": 15, "waiting": 17, "requests_total": 29}),
    ],
)
def test_other_recorded_runs(name, expected):
    found = numbers(text_of(f"recorded/{name}"))
    assert {key: getattr(found, key) for key in expected} == expected


def test_a_vllm_without_stats_is_no_known_page():
    assert read_numbers(read_page(text_of("recorded/nostats"))) is None


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


def test_equal_settings_are_equal_after_a_load_and_differ_with_a_flag():
    idle, loaded, other = (
        numbers(text_of(f"recorded/{name}")).settings
        for name in ("idle", "after_load", "no_prefix_caching")
    )
    assert idle == loaded
    assert set(idle) ^ set(other) == {
        ("enable_prefix_caching", "True"),
        ("enable_prefix_caching", "False"),
    }


# vLLM, written from its sources


def test_v0():
    found = numbers(text_of("written/vllm_v0_0.6.6"))
    assert plain(found) == EngineNumbers(
        engine="vllm",
        dialect="v0",
        models=("Qwen/Qwen2.5-7B-Instruct",),
        gpu_memory_utilization=0.9,
        cache_dtype="auto",
        block_size=16,
        num_gpu_blocks=27881,
        swap_space_gib=4,  # 4294967296 / 2**30
        kv_cache_tokens=446096,  # 27881 * 16
        prefix_caching=True,
        running=12,
        waiting=3,
        kv_cache_usage=0.4375,
        prefix_hit_ratio=0.25,
        preemptions_total=7,
        prompt_tokens_total=51200,
        generation_tokens_total=20480,
        requests_total=100,  # 70 stop + 29 length + 1 abort
        started_at=1736000000.25,
    )
    # rank 50 in (0.04, 0.06], 20..60: 0.04 + 0.02 * 30 / 40
    assert found.ttft.quantile(0.5).value == pytest.approx(0.055)
    # rank 95 of 94 below the last edge
    assert found.ttft.quantile(0.95) == Quantile(above=10.0)
    assert found.queue.mean() == 0.125  # 12.5 s / 100
    assert ("swap_space_bytes", "4294967296") in found.settings


def test_v0_says_minus_one_where_it_does_not_know():
    page = text_of("written/vllm_v0_0.6.6").replace('Instruct"} 0.25', 'Instruct"} -1.0')
    assert numbers(page).prefix_hit_ratio is None


def test_v0_before_its_first_report_has_a_configuration_only():
    (config,) = [
        line
        for line in text_of("written/vllm_v0_0.6.6").split("\n")
        if line.startswith("vllm:cache_config_info")
    ]
    found = numbers(config + "\n")
    assert (found.dialect, found.running, found.num_gpu_blocks) == ("v0", None, 27881)


def test_v1_with_the_old_names():
    found = numbers(text_of("written/vllm_v1_0.8.5"))
    assert plain(found) == EngineNumbers(
        engine="vllm",
        dialect="v1",
        models=("llama",),
        engines=1,
        gpu_memory_utilization=0.85,
        cache_dtype="fp8_e4m3",
        block_size=16,
        num_gpu_blocks=8192,
        swap_space_gib=2.5,
        kv_cache_tokens=131072,  # 8192 * 16
        prefix_caching=False,
        running=5,
        waiting=0,
        kv_cache_usage=0.125,
        prefix_queries_total=1000,
        prefix_hits_total=400,
        preemptions_total=0,
        prompt_tokens_total=16000,
        generation_tokens_total=3000,
        requests_total=50,  # 20 + 30 + 0
        started_at=1746000000.5,
    )
    assert found.ttft.quantile(0.5) == Quantile(below=0.001)  # rank 25 of 40 in the first bucket
    # rank 47.5 in (0.001, 0.005], 40..50: 0.001 + 0.004 * 7.5 / 10
    assert found.ttft.quantile(0.95).value == pytest.approx(0.004)
    assert found.queue.mean() == 0.01


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


def test_data_parallel_engines_are_summed_but_their_blocks_are_summed_already():
    found = numbers(text_of("written/vllm_v1_dp4_0.22"))
    assert plain(found) == EngineNumbers(
        engine="vllm",
        dialect="v1",
        models=("qwen",),
        engines=4,
        gpu_memory_utilization=0.92,
        cache_dtype="auto",
        block_size=16,
        num_gpu_blocks=4000,  # on every engine's series
        kv_cache_tokens=64000,  # 4000 * 16
        prefix_caching=True,
        running=46,  # 10 + 11 + 12 + 13
        waiting=6,  # 0 + 1 + 2 + 3
        kv_cache_usage=pytest.approx(0.35),  # (0.1 + 0.2 + 0.3 + 0.8) / 4
        prefix_queries_total=1000,
        prefix_hits_total=250,  # 10 + 20 + 30 + 190
        preemptions_total=3,
        prompt_tokens_total=1000,
        generation_tokens_total=4000,
        requests_total=16,  # 4 * (3 + 1)
    )
    # summed buckets 4 12 16; rank 8 in (0.1, 0.25]: 0.1 + 0.15 * (8 - 4) / 8
    assert found.ttft.quantile(0.5).value == pytest.approx(0.175)
    assert found.ttft.quantile(0.95) == Quantile(above=0.25)  # rank 15.2 of 12
    assert found.ttft.mean() == 0.625  # (1 + 2 + 3 + 4) / 16


def test_token_and_concurrency_labels_are_per_engine():
    found = numbers(text_of("written/vllm_v1_dp4_0.24"))
    assert found.num_gpu_blocks == 4000
    assert found.kv_cache_tokens == 60006  # 15000 + 15001 + 15002 + 15003
    assert found.kv_cache_max_concurrency == 20  # 3.5 + 4.5 + 5.5 + 6.5


def test_no_capacity_is_claimed_while_one_engine_of_four_is_silent():
    page = text_of("written/vllm_v1_dp4_0.24").replace(
        'kv_cache_size_tokens="15002"', 'kv_cache_size_tokens="None"'
    )
    assert numbers(page).kv_cache_tokens is None


def test_no_capacity_is_claimed_where_engines_disagree_about_their_blocks():
    page = text_of("written/vllm_v1_dp4_0.22").replace('blocks="4000"', 'blocks="1000"', 1)
    found = numbers(page)
    assert found.kv_cache_tokens is None
    assert found.num_gpu_blocks == 4000


def test_a_hybrids_blocks_are_not_multiplied():
    found = numbers(text_of("written/vllm_v1_hybrid_0.20"))
    assert (found.block_size, found.num_gpu_blocks) == (1056, 1200)
    assert found.kv_cache_tokens is None


def test_a_hybrids_own_token_count_is_taken():
    found = numbers(text_of("written/vllm_v1_hybrid_0.33"))
    assert found.kv_cache_tokens == 720896
    assert found.kv_cache_max_concurrency == 2.75


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


def test_a_share_above_one_is_unknown():
    assert numbers('vllm:kv_cache_usage_perc{engine="0"} 97.6\n').kv_cache_usage is None


def test_rust():
    found = numbers(text_of("written/vllm_rust_0.33"))
    assert plain(found) == EngineNumbers(
        engine="vllm",
        dialect="rust",
        models=("gpt-oss",),
        engines=2,
        running=14,  # 8 + 6
        waiting=1,
        kv_cache_usage=0.375,  # (0.5 + 0.25) / 2
        prefix_queries_total=1000,
        prefix_hits_total=350,
        preemptions_total=3,
        prompt_tokens_total=1000,  # 900 and not its exemplar's 12
        generation_tokens_total=4500,
        requests_total=20,  # 15 + 1 + 4
    )
    # summed buckets 8 16 20; rank 10 in (0.04, 0.06]: 0.04 + 0.02 * 2 / 8
    assert found.ttft.quantile(0.5).value == pytest.approx(0.045)
    assert found.ttft.quantile(0.95) == Quantile(above=0.06)  # rank 19 of 16
    assert found.ttft.mean() == pytest.approx(0.155)  # 3.1 / 20
    assert found.queue.mean() == pytest.approx(0.025)  # 0.4 / 16


def test_rust_is_known_by_its_content_type_too():
    page = text_of("written/vllm_rust_0.33").removesuffix("# EOF\n")
    assert numbers(page).dialect == "v1"
    kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert numbers(page, kind).dialect == "rust"


def test_a_python_page_that_a_proxy_rewrote_as_openmetrics_is_not_rust():
    assert numbers(text_of("recorded/idle") + "# EOF\n").dialect == "v1"


def test_ray_serve():
    found = numbers(text_of("written/vllm_ray_serve"))
    assert plain(found) == EngineNumbers(
        engine="vllm",
        dialect="v1",
        models=("qwen",),
        engines=2,  # two replicas, each with its engine 0
        gpu_memory_utilization=0.9,
        cache_dtype="auto",
        block_size=16,
        num_gpu_blocks=2100,  # 1000 + 1100, one sum per replica
        kv_cache_tokens=33600,  # 2100 * 16
        prefix_caching=True,
        running=7,
        kv_cache_usage=pytest.approx(0.6),  # (0.5 + 0.7) / 2
        prompt_tokens_total=250,
        generation_tokens_total=100,  # a counter without `_total`
    )
    assert [key for key, _ in found.settings] == [
        "block_size",
        "cache_dtype",
        "enable_prefix_caching",
        "gpu_memory_utilization",
    ]


def test_names_with_underscores_for_colons_are_vllms():
    page = text_of("recorded/during_load").replace("vllm:", "vllm_")
    assert numbers(page) == numbers(text_of("recorded/during_load"))


def test_another_programs_vllm_prefix_is_not_vllm():
    assert read_numbers(read_page("vllm_router_requests_total 5\nvllm_router_up 1\n")) is None


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
@given(st.sampled_from(WRITTEN), st.data())
def test_garbage_lines_change_no_number(name, data):
    text = text_of(f"written/{name}")
    lines = text.split("\n")
    at = data.draw(st.integers(0, len(lines) - 1))
    words = st.text(st.characters(exclude_characters="\n"))
    garbage = data.draw(st.sampled_from(["!", "vllm:num_requests_running{", "<"])) + data.draw(
        words
    )
    page = read_page("\n".join([*lines[:at], garbage + '"', *lines[at:]]))
    assert read_numbers(page) == read_numbers(read_page(text))


@calm
@given(st.text())
def test_no_model_name_is_misread(model):
    spelled = model.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    page = f'vllm:num_requests_running{{engine="0",model_name="{spelled}"}} 3\n'
    found = numbers(page)
    assert found.models == ((model,) if model else ())
    assert found.running == 3
