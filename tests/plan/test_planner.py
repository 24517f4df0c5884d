"""The whole answer for one model on one machine: by hand where it is exact, and by what must hold where it is an estimate."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shapes import GIB, shape

from toolkit.errors import ToolkitError
from toolkit.plan.capacity import RequestLengths
from toolkit.plan.engine import EngineSettings, Gpu, PlanQuestion, version_of
from toolkit.plan.planner import Plan, plan

QWEN, HYBRID, EXAMPLE = "Qwen2.5-7B-Instruct", "Qwen3.5-35B-A3B", "example-27b"
A100 = Gpu(name="a100-80gb", memory_bytes=round(79.25 * GIB), is_a100=True)
FIXED = EngineSettings(
    max_model_len=2048, max_num_seqs=64, max_num_batched_tokens=2048, gpu_memory_utilization=0.9
)
"""All that the plan would otherwise choose."""
EXAMPLE_GPU = Gpu(name="80GB", memory_bytes=80_000_000_000)
EXAMPLE_SETTINGS = EngineSettings(gpu_memory_utilization=1.0, overhead_bytes=6_000_000_000)


def lengths(prompt: float, output: float) -> RequestLengths:
    return RequestLengths(
        prompt_tokens=prompt, output_tokens=output, request_tokens=prompt + output
    )


def planned(name: str, gpu: Gpu, quantization: str | None = None, **asked: Any) -> Plan:
    return plan(PlanQuestion(shape=shape(name), gpu=gpu, **asked), quantization)


def worked_example() -> Plan:
    return planned(
        EXAMPLE,
        EXAMPLE_GPU,
        on_disk=54_000_000_000,
        settings=EXAMPLE_SETTINGS,
        load=lengths(500, 50),
    )


def test_the_27b_example_holds_51_in_blocks_where_bytes_alone_hold_52() -> None:
    found = worked_example()
    assert found.kv_bytes_per_token == 688_128
    assert found.kv_budget_gib * GIB == pytest.approx(20e9)
    # 20e9 // (16 x 688,128) = 1816 blocks; 35 for each of 550 tokens; 1815 // 35 = 51
    assert (found.num_gpu_blocks, found.blocks_per_request, found.max_concurrency) == (1816, 35, 51)
    assert any(note.startswith("bytes alone would hold 52 requests") for note in found.notes)


def test_tokens_in_a_step_are_all_prompts_that_may_come_at_once() -> None:
    # 51 x 500
    assert worked_example().flags["max-num-batched-tokens"] == "25500"


def test_a_hybrids_states_are_counted_as_vllm_does() -> None:
    found = planned(HYBRID, A100, quantization="gptq-int4", load=lengths(15, 256))
    # 10 full layers x 2 x 2 heads x 256 x 2 bytes
    assert found.kv_bytes_per_token == 20_480
    # 30 layers x (49,152 + 2,097,152)
    assert found.state_bytes_per_request == 30 * 2_146_304
    assert found.block_size == 1056
    # 10 pages of 1056 x 2,048 bytes
    assert found.bytes_per_block == 10 * 1056 * 2048
    # one block of tokens, and two states in each of three groups of layers
    assert found.blocks_per_request == 7
    without = planned(
        HYBRID,
        A100,
        quantization="gptq-int4",
        settings=EngineSettings(prefix_caching=False),
        load=lengths(15, 256),
    )
    assert without.blocks_per_request == 4


def test_the_gauntlets_661_blocks_come_out_within_a_tenth() -> None:
    """0.46 of an A100, GPTQ-Int4, fp8 cache, vLLM 0.17.1: the post tells 661 blocks, and not its other settings.

    Taken as blocks of 16 tokens they would be 0.1 GiB, a hundredth of what 0.46 of the GPU leaves.
    """
    found = planned(
        HYBRID,
        A100,
        quantization="gptq-int4",
        settings=EngineSettings(
            version=(0, 17, 1),
            gpu_memory_utilization=0.46,
            kv_cache_dtype="fp8_e4m3",
            max_model_len=8192,
            max_num_seqs=256,
            max_num_batched_tokens=2048,
        ),
    )
    assert found.num_gpu_blocks == pytest.approx(661, rel=0.1)


def test_everything_that_vllm_may_use_is_accounted_for() -> None:
    found = planned(QWEN, A100, settings=FIXED)
    parts = (
        found.weights_gib,
        found.context_gib or 0,
        found.activation_gib or 0,
        found.graph_gib or 0,
        found.kv_budget_gib,
    )
    assert sum(parts) == pytest.approx(0.9 * 79.25, abs=1e-6)


def test_what_is_told_stands_and_what_is_not_is_recommended() -> None:
    found = planned(QWEN, A100, settings=FIXED, load=lengths(500, 50))
    assert found.flags == {
        "max-model-len": "2048",
        "max-num-seqs": "64",
        "max-num-batched-tokens": "2048",
        "gpu-memory-utilization": "0.9",
    }
    assert all(one.why.startswith("as told") for one in found.advice)
    free = planned(QWEN, A100, load=lengths(500, 50))
    # 550 x 1.15 = 632.5, up to 768; graphs are captured for 512
    assert free.flags["max-model-len"] == "768"
    assert free.flags["max-num-seqs"] == "512"


def test_a_target_rate_lowers_the_sequences_to_three_times_what_it_needs() -> None:
    found = planned(QWEN, A100, load=lengths(500, 50), seconds_per_request=5.0, target_rps=10.0)
    assert found.flags["max-num-seqs"] == "150"
    # 150 at once of 5 s
    assert found.requests_per_s == 30.0


def test_nobody_told_how_long_requests_are_so_all_count_as_the_longest() -> None:
    found = planned(QWEN, A100)
    assert found.request_tokens == found.max_model_len == 32_768
    assert found.flags["max-num-seqs"] == "256"
    assert any("was not told" in note for note in found.notes)
    # on another GPU vLLM itself takes other numbers
    h100 = planned(QWEN, replace(A100, is_a100=False))
    assert h100.flags["max-num-seqs"] == "1024"
    assert h100.flags["max-num-batched-tokens"] == "8192"


def test_a_hybrid_of_unknown_lengths_is_given_no_more_sequences_than_start() -> None:
    h100 = Gpu(name="h100-80gb", memory_bytes=round(79.18 * GIB))
    # 65.4 GiB of weights leave about 400 blocks: vLLM's own 1,024 sequences would not start; 7 blocks hold the shortest request
    found = planned(HYBRID, h100)
    blocks, sequences = found.num_gpu_blocks or 0, found.max_num_seqs or 0
    assert blocks < 1024
    assert 1 < sequences <= (blocks - 1) // 7
    assert not any("refuses to start" in note for note in found.notes)


def test_more_sequences_than_states_are_told_to_be_refused_but_without_graphs() -> None:
    h100 = Gpu(name="h100-80gb", memory_bytes=round(79.18 * GIB))
    many = EngineSettings(max_num_seqs=1024)
    told = "hold the requests' states: vLLM refuses to start"
    for name, asked, refused in (
        (HYBRID, many, True),
        (HYBRID, replace(many, eager=True), False),
        (HYBRID, replace(many, max_num_seqs=64), False),
        ("gemma-3-27b-it", many, False),
    ):
        found = planned(name, h100, settings=asked, load=lengths(100, 10))
        assert any(note.endswith(told) for note in found.notes) is refused


def test_a_model_longer_than_memory_is_cut_to_what_fits() -> None:
    small = Gpu(name="24GiB", memory_bytes=24 * GIB)
    found = planned("Llama-3.1-8B-Instruct", small)
    assert found.fits
    assert found.max_model_len is not None
    assert 0 < found.max_model_len < 131_072
    # one more block would not be there
    longer = replace(EngineSettings(), max_model_len=found.max_model_len + 2 * 16 + 1)
    assert not planned("Llama-3.1-8B-Instruct", small, settings=longer).fits


def test_weights_larger_than_memory_do_not_fit_and_hold_nothing() -> None:
    found = planned(
        "Llama-3.3-70B-Instruct",
        A100,
        load=lengths(500, 50),
        seconds_per_request=1.0,
    )
    assert not found.fits
    assert (found.max_concurrency, found.kv_cache_tokens, found.kv_budget_gib) == (0, 0, 0)
    assert found.requests_per_s is None
    assert found.notes[0].startswith("does not fit: ")
    # nobody should start it
    assert (found.flags, found.advice) == ({}, ())


def test_a_limit_longer_than_memory_does_not_start() -> None:
    small = Gpu(name="20GiB", memory_bytes=20 * GIB)
    found = planned("Llama-3.1-8B-Instruct", small, settings=EngineSettings(max_model_len=131_072))
    assert not found.fits
    assert "does not start: one request of max-model-len, 131,072 tokens" in found.notes[0]


def test_fp8_without_another_checkpoint_is_a_flag_and_4_bit_is_another_checkpoint() -> None:
    fp8 = planned(QWEN, A100, quantization="fp8", load=lengths(500, 50))
    assert fp8.flags["quantization"] == "fp8"
    assert not any("another checkpoint" in note for note in fp8.notes)
    awq = planned(QWEN, A100, quantization="awq", load=lengths(500, 50))
    assert "quantization" not in awq.flags
    assert any("another checkpoint" in note for note in awq.notes)


def test_an_a100_is_told_that_it_does_not_compute_in_fp8() -> None:
    told = "does not compute in fp8"
    a100 = planned(QWEN, replace(A100, fp8=False), quantization="fp8")
    h100 = planned(QWEN, replace(A100, fp8=True), quantization="fp8")
    assert any(told in note for note in a100.notes)
    assert not any(told in note for note in h100.notes)


def test_the_speed_of_memory_is_a_floor_under_each_token() -> None:
    fast = replace(A100, bandwidth_bytes_s=2.0e12)
    found = planned(QWEN, fast, on_disk=15_000_000_000, load=lengths(500, 50))
    # the embedding is looked up: 15e9 - 152,064 x 3584 x 2 = 13.91e9; / 2e12 = 6.955 ms; 50 of them 0.348 s
    [note] = [note for note in found.notes if note.startswith("a token takes")]
    assert "6.96 ms or more" in note
    assert "50 tokens 0.35 s or more" in note
    # two GPUs read half each
    two = planned(QWEN, fast, on_disk=15_000_000_000, settings=EngineSettings(tp=2))
    assert any("a token takes 3.48 ms or more" in note for note in two.notes)
    # an image encoder is not read for text: 35,107,181,936 - 446,571,248 - 248,320 x 2048 parameters of 2 bytes = 68.30e9
    hybrid = planned(HYBRID, fast)
    assert any("reads 68.3 GB of weights" in note for note in hybrid.notes)


def test_a_time_that_memory_does_not_leave_is_doubted() -> None:
    fast = replace(A100, bandwidth_bytes_s=2.0e12)
    for seconds, doubted in ((0.34, True), (0.36, False)):  # 50 x 6.955 ms = 0.348 s
        found = planned(
            QWEN,
            fast,
            on_disk=15_000_000_000,
            load=lengths(500, 50),
            seconds_per_request=seconds,
        )
        told = [note for note in found.notes if "did a cache answer?" in note]
        assert bool(told) is doubted


@pytest.mark.parametrize(
    ("changes", "load", "told"),
    [
        ({"max_model_len": 65_536}, lengths(500, 50), "is more than the 32,768 that the model was made for"),
        ({"max_model_len": 512}, lengths(500, 50), "requests of 550 tokens are longer than max-model-len 512"),
        ({}, replace(lengths(500, 50), longest=4000), "the longest requests, 4,000 tokens, are longer"),
        ({"max_num_batched_tokens": 32}, lengths(500, 50), "max-num-batched-tokens is less than max-num-seqs"),
    ],
)  # fmt: skip
def test_settings_that_vllm_or_the_limit_refuses_are_told(
    changes: dict[str, int], load: RequestLengths, told: str
) -> None:
    found = planned(QWEN, A100, settings=replace(FIXED, **changes), load=load)
    assert any(told in note for note in found.notes)
    fine = planned(QWEN, A100, settings=FIXED, load=lengths(500, 50))
    assert not any("refuse" in note for note in fine.notes)


def test_an_image_encoder_is_among_the_weights_and_what_it_computes_is_not_counted() -> None:
    found = planned(HYBRID, A100, quantization="awq")
    # 446,571,248 parameters of 2 bytes
    assert any(
        note.startswith("0.8 GiB of the weights are its image encoder") for note in found.notes
    )


def test_requests_of_unlike_lengths_are_told_what_the_longest_would_leave() -> None:
    alike, unlike = (
        planned(QWEN, A100, settings=FIXED, load=replace(lengths(500, 50), longest=longest))
        for longest in (600, 1100)
    )
    # twice as long: half as many
    assert any(
        f"about {unlike.max_concurrency / 2:,.0f} would fit" in note for note in unlike.notes
    )
    assert not any("preemption" in note for note in alike.notes)
    # from one and a half times on: 825
    for longest, said in ((824, False), (825, True)):
        load = replace(lengths(500, 50), longest=longest)
        found = planned(QWEN, A100, settings=FIXED, load=load)
        assert any("preemption" in note for note in found.notes) is said


def test_sequences_that_leave_much_of_memory_idle_are_told() -> None:
    most = planned(QWEN, A100, settings=FIXED, load=lengths(500, 50)).max_concurrency
    for sequences, said in ((round(most * 0.85), True), (round(most * 0.95), False)):
        settings = replace(FIXED, max_num_seqs=sequences, overhead_bytes=2**30)
        found = planned(QWEN, A100, settings=settings, load=lengths(500, 50))
        # what sequences take of memory themselves is told, so that only they change
        assert found.max_concurrency == pytest.approx(most, rel=0.05)
        assert any("to the prefix cache" in note for note in found.notes) is said


def test_tensor_parallel_is_a_flag_and_adds_up_over_gpus() -> None:
    one = planned(QWEN, A100, settings=FIXED)
    two = planned(QWEN, A100, settings=replace(FIXED, tp=2))
    assert two.flags["tensor-parallel-size"] == "2"
    assert (two.gpus, two.weights_gib) == (2, one.weights_gib)
    # 4 KV heads on 2 GPUs: 2 each, none twice
    assert two.kv_bytes_per_token == one.kv_bytes_per_token
    # a block of 16 tokens has the same bytes, half of them on each
    assert two.bytes_per_block == one.bytes_per_block == 16 * 57_344
    assert two.memory_gib == 2 * 79.25
    assert sum(
        part or 0
        for part in (two.context_gib, two.activation_gib, two.graph_gib, two.kv_budget_gib)
    ) == pytest.approx(2 * 0.9 * 79.25 - two.weights_gib, abs=0.01)
    # states are divided, too, and add up
    halved = planned(HYBRID, A100, settings=EngineSettings(tp=2))
    assert halved.state_bytes_per_request == 30 * 2_146_304
    eight = planned("Qwen2.5-72B-Instruct", A100, settings=replace(FIXED, tp=16))
    # 8 KV heads on 16 GPUs: each is held twice; 80 x 2 x 8 x 128 x 2 = 327,680
    assert eight.kv_bytes_per_token == 2 * 327_680
    assert any("hold copies" in note for note in eight.notes)


def test_what_speculates_is_told_not_to_be_counted() -> None:
    told = "and their KV cache are not counted"
    for name, spec_tokens, said in ((HYBRID, 2, True), (QWEN, 2, True), (HYBRID, 0, False)):
        found = planned(
            name, A100, quantization="awq", settings=EngineSettings(spec_tokens=spec_tokens)
        )
        notes = [note for note in found.notes if told in note]
        assert bool(notes) is said
        assert any("multi-token prediction have 1.6 GiB" in note for note in notes) is (
            said and name == HYBRID
        )


def test_each_note_is_told_once_the_load_first_then_memory_then_weights_then_time() -> None:
    load = replace(lengths(500, 50), notes=("as captured", "as captured"))
    speculating = replace(FIXED, spec_tokens=2)
    asked = {"settings": speculating, "load": load, "seconds_per_request": 1.0}
    notes = planned(HYBRID, A100, "awq", **asked).notes
    parts = ("as captured", "keep a state instead", "n-grams need none", "requests a second hold")
    assert [part for note in notes for part in parts if part in note] == list(parts)


def test_an_engine_of_old_is_told_to_deal_memory_otherwise() -> None:
    for version, said in (((0, 7, 3), True), ((0, 8), False), ((0, 8, 5), False)):
        found = planned(QWEN, A100, settings=replace(FIXED, version=version))
        assert any("another engine (V0)" in note for note in found.notes) is said


def test_a_pipelines_gpus_hold_a_part_of_the_weights_each() -> None:
    # 131.4 GiB of weights: too many for one, and for each of two with half of them there is room
    llama = "Llama-3.3-70B-Instruct"
    assert not planned(llama, A100, settings=FIXED).fits
    halved = planned(llama, A100, settings=replace(FIXED, pp=2))
    assert halved.fits
    assert halved.flags["pipeline-parallel-size"] == "2"


def test_slices_of_a_gpu_cannot_be_joined() -> None:
    slice_ = Gpu(name="1g.10gb", memory_bytes=round(9.5 * GIB), is_slice=True)
    with pytest.raises(ToolkitError, match="slices of the kind"):
        planned(QWEN, slice_, settings=EngineSettings(tp=2))


MEMORY = st.integers(min_value=4 * GIB, max_value=300 * GIB)
NAMES = st.sampled_from([QWEN, HYBRID, "gemma-3-27b-it", "DeepSeek-V2-Lite", "gpt-oss-20b"])
TOKENS = st.integers(min_value=1, max_value=2048)


def at_once(name: str, memory: int, tokens: float, settings: EngineSettings = FIXED) -> int:
    return planned(
        name,
        Gpu(name="some", memory_bytes=memory),
        settings=settings,
        load=RequestLengths(request_tokens=tokens),
    ).max_concurrency


@settings(max_examples=50)
@given(NAMES, MEMORY, MEMORY, TOKENS)
def test_more_memory_never_holds_fewer_requests(
    name: str, one: int, other: int, tokens: int
) -> None:
    less, more = sorted((one, other))
    assert at_once(name, less, tokens) <= at_once(name, more, tokens)


@settings(max_examples=50)
@given(NAMES, MEMORY, TOKENS, TOKENS)
def test_longer_requests_are_never_more(name: str, memory: int, one: int, other: int) -> None:
    short, long = sorted((one, other))
    assert at_once(name, memory, long) <= at_once(name, memory, short)


@settings(max_examples=50)
@given(NAMES, MEMORY, TOKENS)
def test_more_gpus_never_hold_fewer_requests(name: str, memory: int, tokens: int) -> None:
    few, more = (at_once(name, memory, tokens, replace(FIXED, tp=tp)) for tp in (1, 2))
    assert few <= more


@settings(max_examples=50)
@given(NAMES, MEMORY, TOKENS)
def test_a_smaller_cache_never_holds_fewer_requests(name: str, memory: int, tokens: int) -> None:
    plain, fp8 = (
        at_once(name, memory, tokens, replace(FIXED, kv_cache_dtype=dtype))
        for dtype in ("auto", "fp8")
    )
    assert plain <= fp8


@settings(max_examples=50)
@given(NAMES, MEMORY, TOKENS, st.sampled_from([(0, 17, 1), (0, 33)]))
def test_recommended_flags_agree_with_what_memory_holds(
    name: str, memory: int, tokens: int, version: tuple[int, ...]
) -> None:
    found = planned(
        name,
        Gpu(name="some", memory_bytes=memory),
        settings=EngineSettings(version=version),
        load=RequestLengths(prompt_tokens=tokens / 2, request_tokens=float(tokens)),
    )
    assert 0.5 <= (found.gpu_memory_utilization or 0) <= 0.95
    assert (found.max_num_batched_tokens or 0) >= (found.max_num_seqs or 0)
    # vLLM warns of more
    together = (found.max_num_seqs or 0) * (found.max_model_len or 0)
    assert (found.max_num_batched_tokens or 0) <= together
    if found.fits:
        assert found.flags["max-num-seqs"] == str(found.max_num_seqs)
        assert 1 <= (found.max_num_seqs or 0) <= found.max_concurrency
        assert tokens <= (found.max_model_len or 0)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.17.1", (0, 17, 1)),
        ("v0.19", (0, 19)),
        ("0.32.0+cpu", (0, 32, 0)),
        ("0.20.1rc2.dev3", (0, 20, 1)),
        ("x", None),
        ("", None),
        (None, None),
        ("12345.1", None),
    ],
)
def test_a_version_is_read_as_servers_and_people_write_it(
    text: str | None, version: tuple[int, ...] | None
) -> None:
    assert version_of(text) == version
