"""What of a GPU is left for the KV cache, against what vLLM told on real ones."""

import pytest
from support.shapes import GIB, shape, tiny

from toolkit.plan.engine import EngineSettings
from toolkit.plan.memory import GRAPHS_POOL, MIB, activation_bytes, budget, graph_bytes
from toolkit.plan.weights import weights_of_gpu

H100 = round(79.19 * GIB)
"""What CUDA says an H100 80 GB has."""
ON_H100 = EngineSettings(
    gpu_memory_utilization=0.95, max_num_batched_tokens=8192, max_num_seqs=1024, version=(0, 19, 0)
)
"""How the runs were started whose logs are public (llm-d-planner, accuracy_report.md)."""


@pytest.mark.parametrize(
    # GiB for the cache that vLLM 0.19 told; what is not cache is an estimate, which may miss by 0.6 GiB of 79
    ("name", "tp", "told_gib"),
    [
        ("Llama-3.1-8B-Instruct", 1, 58.11),
        ("Qwen2.5-7B-Instruct", 1, 58.53),
        ("gemma-2-27b-it", 1, 20.59),
        ("gemma-3-27b-it", 1, 19.53),
    ],
)
def test_the_cache_gets_what_vllm_told_on_an_h100(name: str, tp: int, told_gib: float) -> None:
    model = shape(name)
    found = budget(H100, weights_of_gpu(model, tp=tp), model, ON_H100)
    assert found.kv / GIB == pytest.approx(told_gib, abs=0.6)


@pytest.mark.parametrize(
    ("name", "told_gib"),
    [
        ("Llama-3.1-8B-Instruct", 1.89),
        ("Qwen2.5-7B-Instruct", 2.21),
        ("Qwen3-8B", 2.21),
        ("gemma-2-27b-it", 3.66),
        ("gemma-2-9b-it", 3.62),
        ("gemma-3-27b-it", 3.99),
        ("Qwen3-30B-A3B", 2.68),
        ("DeepSeek-V2-Lite", 1.93),
    ],
)
def test_activations_are_near_what_vllm_told(name: str, told_gib: float) -> None:
    assert activation_bytes(shape(name), ON_H100) / GIB == pytest.approx(told_gib, rel=0.06)


def test_a_step_has_no_more_logits_than_tokens() -> None:
    few, many = (
        EngineSettings(max_num_batched_tokens=64, max_num_seqs=seqs) for seqs in (64, 1024)
    )
    model = shape("Qwen2.5-7B-Instruct")
    assert activation_bytes(model, few) == activation_bytes(model, many)


def test_before_0_17_the_dummy_run_took_more_than_twice_as_much() -> None:
    model = shape("Qwen2.5-7B-Instruct")
    before = EngineSettings(max_num_batched_tokens=8192, max_num_seqs=1024, version=(0, 16))
    # llm-d-planner's constant of that time: 5.60 GiB
    assert activation_bytes(model, before) / GIB == pytest.approx(5.6, rel=0.03)
    since = EngineSettings(max_num_batched_tokens=8192, max_num_seqs=1024, version=(0, 17))
    assert activation_bytes(model, since) / GIB == pytest.approx(2.2, rel=0.03)


def test_many_tokens_weigh_more_than_few_requests_logits() -> None:
    wide = tiny(intermediate_size=8192)
    few = EngineSettings(max_num_batched_tokens=8192, max_num_seqs=8)
    # hidden in and three of hidden and of width inside, of two bytes each: 8,192 x (4 x 128 + 3 x 8,192) x 2
    assert activation_bytes(wide, few) == 8192 * (4 * 128 + 3 * 8192) * 2
    # and the width is divided among GPUs
    halved = EngineSettings(max_num_batched_tokens=8192, max_num_seqs=8, tp=2)
    assert activation_bytes(wide, halved) == 8192 * (4 * 128 + 3 * 4096) * 2


def test_requested_is_rounded_up() -> None:
    # 1,001 x 0.92 = 920.92
    assert budget(1001, 0, tiny(), EngineSettings()).requested == 921


@pytest.mark.parametrize(
    ("version", "share"), [((0, 19, 1), 0.9), ((0, 20), 0.92), ((0, 33), 0.92)]
)
def test_the_default_utilization_is_the_versions(version: tuple[int, ...], share: float) -> None:
    assert EngineSettings(version=version).utilization == share
    assert EngineSettings(version=version, gpu_memory_utilization=0.46).utilization == 0.46


def test_graphs_are_taken_from_the_cache_from_0_20_on() -> None:
    model = shape("Qwen2.5-7B-Instruct")
    old = budget(H100, 0, model, EngineSettings(gpu_memory_utilization=0.9, version=(0, 19)))
    new = budget(H100, 0, model, EngineSettings(gpu_memory_utilization=0.9, version=(0, 20)))
    assert new.graphs == old.graphs > 0
    assert old.kv - new.kv == new.graphs


def test_eager_captures_no_graphs() -> None:
    found = budget(H100, 0, tiny(), EngineSettings(eager=True))
    assert found.graphs == 0
    assert found.kv == found.requested - found.context - found.activations


def test_graphs_that_do_not_fit_beside_an_old_versions_share_are_told() -> None:
    model = shape("Llama-3.1-8B-Instruct")
    tight = budget(H100, 0, model, EngineSettings(gpu_memory_utilization=0.995, version=(0, 19)))
    roomy = budget(H100, 0, model, EngineSettings(gpu_memory_utilization=0.9, version=(0, 19)))
    assert any("lower it" in note for note in tight.notes)
    assert not any("lower it" in note for note in roomy.notes)


@pytest.mark.parametrize(
    ("seqs", "batched", "spec", "sizes"),
    [
        # reference: 256 and 1,024 sequences 51 sizes up to 512, 64 sequences 19 up to 128
        (256, 8192, 0, 51),
        (1024, 8192, 0, 51),
        (64, 8192, 0, 19),
        # one speculated token: up to 256: 1, 2, 4, 31 times 8 and 256
        (64, 8192, 1, 35),
        # no more than are batched: 1, 2, 4, 8, 16
        (64, 16, 0, 5),
    ],
)
def test_the_captured_sizes_are_vllms(seqs: int, batched: int, spec: int, sizes: int) -> None:
    setting = EngineSettings(max_num_seqs=seqs, max_num_batched_tokens=batched, spec_tokens=spec)
    # of three layers each size takes a MiB
    assert graph_bytes(tiny(num_hidden_layers=3), setting) == GRAPHS_POOL + sizes * MIB


@pytest.mark.parametrize(
    # told by vLLM 0.19 as "Estimated CUDA graph memory": a rule of two numbers comes near
    ("name", "told_gib"),
    [("gemma-3-27b-it", 1.05), ("gemma-2-27b-it", 1.13), ("Llama-3.1-8B-Instruct", 0.84)],
)
def test_graphs_are_near_what_vllm_estimated(name: str, told_gib: float) -> None:
    assert graph_bytes(shape(name), ON_H100) / GIB == pytest.approx(told_gib, rel=0.25)


def test_what_is_an_estimate_is_called_one() -> None:
    assert "estimates" in budget(H100, 0, tiny(), EngineSettings()).notes[0]
    assert MIB == 1_048_576


@pytest.mark.parametrize(
    ("version", "tp", "gib"),
    # told for Qwen3-14B: 0.13 GiB up to 0.17, 0.25 from 0.18 on; for several GPUs together 2.07 to 2.17 each
    [((0, 17), 1, 0.13), ((0, 18), 1, 0.25), ((0, 33), 2, 2.1)],
)
def test_a_gpus_context_is_what_vllm_told(version: tuple[int, ...], tp: int, gib: float) -> None:
    found = budget(H100, 0, tiny(), EngineSettings(version=version, tp=tp))
    assert found.context == round(gib * GIB)
