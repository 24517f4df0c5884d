"""The whole answer for one model on one machine: by hand where it is exact, and by what must hold where it is an estimate."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shapes import GIB, config, shape, tiny

from toolkit.errors import ToolkitError
from toolkit.plan.advice import with_room
from toolkit.plan.capacity import RequestLengths
from toolkit.plan.engine import EngineSettings, Gpu, PlanQuestion, version_of
from toolkit.plan.model_config import Shape, shape_of
from toolkit.plan.planner import Plan, best, gains, plan, side_by_side
from toolkit.workload.lengths import rounded_up

QWEN, HYBRID, LLAMA = "Qwen2.5-7B-Instruct", "Qwen3.5-35B-A3B", "Llama-3.1-8B-Instruct"
A100 = Gpu(name="a100-80gb", memory_bytes=round(79.25 * GIB), is_a100=True)
H100 = Gpu(name="h100-80gb", memory_bytes=round(79.18 * GIB))
FIXED = EngineSettings(
    max_model_len=2048, max_num_seqs=64, max_num_batched_tokens=2048, gpu_memory_utilization=0.9
)
"""All that the plan would otherwise choose."""


def lengths(prompt: float, output: float, **more: Any) -> RequestLengths:
    return RequestLengths(
        prompt_tokens=prompt, output_tokens=output, request_tokens=prompt + output, **more
    )


USUAL = lengths(500, 50)


def planned(model: str | Shape, gpu: Gpu, quantization: str | None = None, **asked: Any) -> Plan:
    known = shape(model) if isinstance(model, str) else model
    return plan(PlanQuestion(shape=known, gpu=gpu, **asked), quantization)


def has(found: Plan, words: str) -> bool:
    return any(words in note for note in found.notes)


# --- the four flags ---------------------------------------------------------------------------------


def advised(
    gib: float = 24, blocks: int = 10_000, most: int | None = 262_144, **asked: Any
) -> dict[str, tuple[str, str]]:
    """Flag -> value and reason for a tiny model that leaves exactly so many blocks of 16 tokens; a request takes 5 s."""
    memory = round(gib * GIB)
    settings = EngineSettings(
        # a token has 4 x 2 x 2 x 32 x 2 = 1,024 bytes
        gpu_memory_utilization=1.0, overhead_bytes=memory - blocks * 16 * 1024
    )  # fmt: skip
    model, gpu = tiny(max_position_embeddings=most), Gpu(name="some", memory_bytes=memory)
    usual: dict[str, Any] = {"settings": settings, "on_disk": 0, "seconds_per_request": 5.0}
    return {one.flag: (one.value, one.why) for one in planned(model, gpu, **usual, **asked).advice}


def request(tokens: float, **more: Any) -> RequestLengths:
    return RequestLengths(request_tokens=tokens, **more)


@pytest.mark.parametrize(
    ("load", "most", "value", "why"),
    [
        # 222 * 1.15 = 255.3; 223 * 1.15 = 256.45; 271 * 1.15 = 311.7; 8192 * 1.15 = 9420.8 = 36.8 * 256
        (request(1.0), 262_144, "256", "the longest request is 1 tokens"),
        (request(1.0, longest=222), 262_144, "256", "the longest request is 222 tokens"),
        (request(1.0, longest=223), 262_144, "512", "15 % of room, then up to the next 256"),
        (request(270.5), 262_144, "512", "the longest request is 271 tokens"),
        (request(1.0, longest=8192), 262_144, "9472", "longer ones are refused at once"),
        (request(1.0, longest=8192), 8192, "8192", "would want 9,472"),
        (request(1.0, longest=271, max_model_len=768), 262_144, "768", "as the workload's report"),
        (RequestLengths(), 8192, "8192", "as long as the model was made for"),
        # 10,000 blocks, one reserved, hold 159,984 tokens
        (RequestLengths(), 262_144, "159984", "the longest that fits"),
    ],
)
def test_the_limit_follows_the_longest_request(
    load: RequestLengths, most: int, value: str, why: str
) -> None:
    found = advised(most=most, load=load)["max-model-len"]
    assert found[0] == value
    assert why in found[1]


def test_the_same_longest_request_gets_the_limit_that_a_workloads_report_recommends() -> None:
    assert [n for n in range(1, 40_000) if with_room(n) != rounded_up(n)] == []


@pytest.mark.parametrize(
    ("gib", "blocks", "load", "rps", "value", "why"),
    [
        # 550 tokens are 35 blocks, and one is reserved
        (24, 52 * 35 + 1, request(550), None, "52", "memory holds so many requests of 550 tokens"),
        # 10 a second of 5 s are 50; 3 * 50; memory may hold less than that
        (24, 400 * 35 + 1, request(550), 10.0, "150", "50.0 requests under way"),
        (24, 52 * 35 + 1, request(550), 10.0, "52", "memory holds so many requests"),
        # no more than graphs are captured for, or vLLM itself takes on any GPU
        (24, 3001, request(9), None, "512", "without CUDA graphs"),
        (80, 3001, request(9), None, "1024", "vLLM itself takes no more"),
        (24, 10_000, RequestLengths(), None, "256", "request lengths were not given"),
    ],
)  # fmt: skip
def test_sequences_are_as_many_as_memory_holds_or_the_rate_asks_for(
    gib: int, blocks: int, load: RequestLengths, rps: float | None, value: str, why: str
) -> None:
    found = advised(gib, blocks, load=load, target_rps=rps)["max-num-seqs"]
    assert found[0] == value
    assert why in found[1]


@pytest.mark.parametrize(
    ("gib", "seqs", "load", "value", "why"),
    [
        # all prompts that may come at once: 58 x 500
        (80, 58, lengths(500, 50), "29000", "58 requests x 500 tokens of prompt = 29,000"),
        (80, 58, lengths(500, 50), "29000", "vLLM itself takes 8,192 on this GPU"),
        # short ones leave the step as vLLM has it: 52 x 15 = 780
        (24, 52, lengths(15, 535), "2048", "less than the 2,048 that vLLM itself takes"),
        # it is bounded, less on a small GPU
        (80, 58, lengths(4000, 50), "32768", "makes each step so long"),
        (24, 58, lengths(200, 350), "8192", "more than 8,192"),
        # no longer than all requests together, 3 x 256: vLLM warns of more
        (24, 3, lengths(200, 10), "768", "600 in one step"),
        (24, 52, request(550), "2048", "how long prompts are is not known"),
        (24, 4, lengths(100, 10, longest_prompt=2049), "1024", "Prompts of up to 2,049 tokens are read in parts"),
    ],
)  # fmt: skip
def test_a_steps_tokens_are_the_prompts_that_may_come_at_once(
    gib: int, seqs: int, load: RequestLengths, value: str, why: str
) -> None:
    each = -(-(load.request_tokens or 0) // 16)
    found = advised(gib, round(seqs * each + 1), load=load)["max-num-batched-tokens"]
    assert found[0] == value
    assert why in found[1]


@pytest.mark.parametrize(
    ("memory", "is_a100", "version", "seqs", "batched"),
    [
        # each tier begins at its own size, and the largest with a version between 0.27.1 and 0.30; an A100 is small
        (70 * GIB - 1, False, (0, 33), "256", "2048"),
        (70 * GIB, False, (0, 33), "1024", "8192"),
        (80 * GIB, True, (0, 33), "256", "2048"),
        (160 * GIB - 1, False, (0, 33), "1024", "8192"),
        (160 * GIB, False, (0, 33), "1024", "16384"),
        (178 * GIB, False, (0, 27, 1), "1024", "8192"),
        (178 * GIB, False, (0, 30), "1024", "16384"),
    ],
)
def test_vllms_defaults_follow_the_gpu_and_the_version(
    memory: int, is_a100: bool, version: tuple[int, ...], seqs: str, batched: str
) -> None:
    gpu = Gpu(name="some", memory_bytes=memory, is_a100=is_a100)
    flags = planned(QWEN, gpu, settings=EngineSettings(version=version)).flags
    assert (flags["max-num-seqs"], flags["max-num-batched-tokens"]) == (seqs, batched)


@pytest.mark.parametrize(
    ("gib", "layers", "settings", "value", "why"),
    [
        # 1 - 1.5 / 9.5 = 0.842; 1 - 1.5 / 22.03 = 0.932; 1 - 1.5 / 40 = 0.9625, at most 0.95; 1 - 1.5 / 2 = 0.25, at least 0.5
        (9.5, 4, EngineSettings(), "0.84", "(vLLM itself would take 0.92)"),
        (22.03, 4, EngineSettings(), "0.93", "graphs are counted in"),
        (40, 4, EngineSettings(), "0.95", "leaves 2.0 GiB"),
        (2, 4, EngineSettings(), "0.50", "leaves 1.0 GiB"),
        # before 0.20 graphs came on top: 51 sizes of 162 layers take 250 + 51 x 162 / 3 MiB = 2.93 GiB: 1 - 4.43 / 40 = 0.889
        (40, 162, EngineSettings(version=(0, 17, 1)), "0.88", "about 2.9 GiB of CUDA graphs"),
        (40, 162, EngineSettings(version=(0, 17, 1)), "0.88", "would take 0.90"),
        # 64 sequences' 19 sizes take 1.25 GiB, and with a speculated token 35 sizes 2.09
        (40, 162, EngineSettings(version=(0, 17), max_num_seqs=64), "0.93", "about 1.2 GiB"),
        (40, 162, EngineSettings(version=(0, 17), max_num_seqs=64, spec_tokens=1), "0.91", "about 2.1 GiB"),
    ],
)  # fmt: skip
def test_a_small_gpu_leaves_a_larger_share_to_the_rest(
    gib: float, layers: int, settings: EngineSettings, value: str, why: str
) -> None:
    gpu = Gpu(name="some", memory_bytes=round(gib * GIB))
    advice = planned(tiny(num_hidden_layers=layers), gpu, settings=settings).advice
    [found] = [one for one in advice if one.flag == "gpu-memory-utilization"]
    assert found.value == value
    assert why in found.why


def test_what_is_set_stands_beside_what_would_be_recommended() -> None:
    found = planned(QWEN, A100, settings=FIXED, load=USUAL)
    assert found.flags == {
        "max-model-len": "2048",
        "max-num-seqs": "64",
        "max-num-batched-tokens": "2048",
        "gpu-memory-utilization": "0.9",
    }
    # 550 x 1.15 = 632.5, up to 768
    reasons = [one.why.split(":")[0] for one in found.advice]
    assert reasons[0] == "as set; recommended is 768"
    assert all(why.startswith("as set") for why in reasons)


# --- figures ----------------------------------------------------------------------------------------


def test_the_27b_example_holds_51_in_blocks_where_bytes_alone_hold_52() -> None:
    example = EngineSettings(gpu_memory_utilization=1.0, overhead_bytes=6_000_000_000)
    gpu = Gpu(name="80GB", memory_bytes=80_000_000_000)
    found = planned("example-27b", gpu, on_disk=54_000_000_000, settings=example, load=USUAL)
    assert found.kv_bytes_per_token == 688_128
    assert found.kv_budget_gib * GIB == pytest.approx(20e9)
    # 20e9 // (16 x 688,128) = 1816 blocks; 35 for each of 550 tokens; 1815 // 35 = 51
    assert (found.num_gpu_blocks, found.blocks_per_request, found.max_concurrency) == (1816, 35, 51)
    assert has(found, "bytes alone would hold 52 requests")
    assert found.flags["max-num-batched-tokens"] == "25500"  # 51 x 500


def test_a_hybrids_states_are_counted_as_vllm_does() -> None:
    asked: dict[str, Any] = {"quantization": "gptq-int4", "load": lengths(15, 256)}
    found = planned(HYBRID, A100, **asked)
    # 10 full layers x 2 x 2 heads x 256 x 2 bytes; 30 layers x (49,152 + 2,097,152); 10 pages of 1056 x 2,048 bytes
    assert (found.kv_bytes_per_token, found.state_bytes_per_request) == (20_480, 30 * 2_146_304)
    assert (found.block_size, found.bytes_per_block) == (1056, 10 * 1056 * 2048)
    # one block of tokens, and two states in each of three groups of layers
    assert found.blocks_per_request == 7
    without = planned(HYBRID, A100, settings=EngineSettings(prefix_caching=False), **asked)
    assert without.blocks_per_request == 4


def test_the_gauntlets_661_blocks_come_out_within_a_tenth() -> None:
    """0.46 of an A100, GPTQ-Int4, fp8 cache, vLLM 0.17.1: the post names 661 blocks, and not its other settings.

    Taken as blocks of 16 tokens they would be 0.1 GiB, a hundredth of what 0.46 of the GPU leaves.
    """
    winner = EngineSettings(
        version=(0, 17, 1),
        gpu_memory_utilization=0.46,
        kv_cache_dtype="fp8_e4m3",
        max_model_len=8192,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
    )
    found = planned(HYBRID, A100, quantization="gptq-int4", settings=winner)
    assert found.num_gpu_blocks == pytest.approx(661, rel=0.1)


def test_tensor_parallel_is_a_flag_and_adds_up_over_gpus() -> None:
    one = planned(QWEN, A100, settings=FIXED)
    two = planned(QWEN, A100, settings=replace(FIXED, tp=2))
    assert two.flags["tensor-parallel-size"] == "2"
    assert (two.gpus, two.weights_gib, two.memory_gib) == (2, one.weights_gib, 2 * 79.25)
    # 4 KV heads on 2 GPUs: 2 each, none twice; a block of 16 tokens has the same bytes, half of them on each
    assert two.kv_bytes_per_token == one.kv_bytes_per_token
    assert two.bytes_per_block == one.bytes_per_block == 16 * 57_344
    for found in (one, two):
        # all that vLLM may use is accounted for
        parts = (found.weights_gib, found.context_gib, found.activation_gib, found.graph_gib)
        total = sum((*parts, found.kv_budget_gib))
        assert total == pytest.approx(found.gpus * 0.9 * 79.25, abs=0.01)
    eight = planned("Qwen2.5-72B-Instruct", A100, settings=replace(FIXED, tp=16))
    # 8 KV heads on 16 GPUs: each is held twice; 80 x 2 x 8 x 128 x 2 = 327,680
    assert eight.kv_bytes_per_token == 2 * 327_680
    assert has(eight, "hold copies")


def test_a_pipelines_gpus_hold_a_part_of_the_weights_each_and_slices_are_not_joined() -> None:
    # 131.4 GiB of weights: too many for one, and for each of two with half of them there is room
    llama = "Llama-3.3-70B-Instruct"
    assert not planned(llama, A100, settings=FIXED).fits
    halved = planned(llama, A100, settings=replace(FIXED, pp=2))
    assert halved.fits
    assert halved.flags["pipeline-parallel-size"] == "2"
    slice_ = Gpu(name="1g.10gb", memory_bytes=round(9.5 * GIB), is_slice=True)
    with pytest.raises(ToolkitError, match="slices of the kind"):
        planned(QWEN, slice_, settings=EngineSettings(tp=2))


def test_a_target_rate_is_met_by_three_times_its_requests() -> None:
    found = planned(QWEN, A100, load=USUAL, seconds_per_request=5.0, target_rps=10.0)
    # 150 at once of 5 s
    assert (found.flags["max-num-seqs"], found.requests_per_s) == ("150", 30.0)


def test_requests_of_unknown_length_all_count_as_the_longest() -> None:
    found = planned(QWEN, A100)
    assert found.request_tokens == found.max_model_len == 32_768
    assert has(found, "request lengths were not given")
    # 65.4 GiB of weights leave about 400 blocks: vLLM's own 1,024 sequences would not start; 7 blocks hold the shortest request
    hybrid = planned(HYBRID, H100)
    blocks, sequences = hybrid.num_gpu_blocks, hybrid.max_num_seqs
    assert blocks < 1024
    assert 1 < sequences <= (blocks - 1) // 7
    assert not has(hybrid, "refuses to start")
    [why] = [one.why for one in hybrid.advice if one.flag == "max-num-seqs"]
    assert "may not even start" in why


def test_a_model_longer_than_memory_is_cut_to_what_fits() -> None:
    small = Gpu(name="24GiB", memory_bytes=24 * GIB)
    found = planned(LLAMA, small)
    assert found.fits
    assert 0 < found.max_model_len < 131_072
    # one more block would not be there
    longer = EngineSettings(max_model_len=found.max_model_len + 2 * 16 + 1)
    too_long = planned(LLAMA, small, settings=longer)
    assert not too_long.fits
    assert too_long.notes[0].startswith("does not start: one request of max-model-len, ")


def test_weights_larger_than_memory_do_not_fit_and_hold_nothing() -> None:
    found = planned("Llama-3.3-70B-Instruct", A100, load=USUAL, seconds_per_request=1.0)
    assert not found.fits
    assert (found.max_concurrency, found.kv_cache_tokens, found.kv_budget_gib) == (0, 0, 0)
    assert found.notes[0].startswith("does not fit: ")
    # nobody should start it
    assert (found.flags, found.advice, found.requests_per_s) == ({}, (), None)


# --- notes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "yes", "no"),
    [
        ("hold the requests' states: vLLM refuses to start",
         (HYBRID, H100, {"settings": EngineSettings(max_num_seqs=1024), "load": USUAL}),
         (HYBRID, H100, {"settings": EngineSettings(max_num_seqs=1024, eager=True), "load": USUAL})),
        ("hold the requests' states: vLLM refuses to start",
         (HYBRID, H100, {"settings": EngineSettings(max_num_seqs=1024), "load": USUAL}),
         ("gemma-3-27b-it", H100, {"settings": EngineSettings(max_num_seqs=1024), "load": USUAL})),
        ("is more than the 32,768 that the model was made for",
         (QWEN, A100, {"settings": replace(FIXED, max_model_len=65_536), "load": USUAL}),
         (QWEN, A100, {"settings": FIXED, "load": USUAL})),
        ("requests of 550 tokens are longer than max-model-len 512",
         (QWEN, A100, {"settings": replace(FIXED, max_model_len=512), "load": USUAL}),
         (QWEN, A100, {"settings": replace(FIXED, max_model_len=550), "load": USUAL})),
        ("the longest requests, 4,000 tokens, are longer",
         (QWEN, A100, {"settings": FIXED, "load": lengths(500, 50, longest=4000)}),
         (QWEN, A100, {"settings": FIXED, "load": lengths(500, 50, longest=2048)})),
        ("max-num-batched-tokens is less than max-num-seqs",
         (QWEN, A100, {"settings": replace(FIXED, max_num_batched_tokens=32)}),
         (QWEN, A100, {"settings": replace(FIXED, max_num_batched_tokens=64)})),
        # from one and a half times the mean on: 825
        ("preemption",
         (QWEN, A100, {"settings": FIXED, "load": lengths(500, 50, longest=825)}),
         (QWEN, A100, {"settings": FIXED, "load": lengths(500, 50, longest=824)})),
        ("does not compute in fp8",
         (QWEN, replace(A100, fp8=False), {"quantization": "fp8"}),
         (QWEN, replace(A100, fp8=True), {"quantization": "fp8"})),
        ("is another checkpoint",
         (QWEN, A100, {"quantization": "awq"}),
         (QWEN, A100, {"quantization": "fp8"})),
        # 446,571,248 parameters of 2 bytes
        ("0.8 GiB of the weights are its image encoder",
         (HYBRID, A100, {"quantization": "awq"}),
         (QWEN, A100, {})),
        ("multi-token prediction have 1.6 GiB",
         (HYBRID, A100, {"quantization": "awq", "settings": EngineSettings(spec_tokens=2)}),
         (HYBRID, A100, {"quantization": "awq"})),
        ("and their KV cache are not counted",
         (QWEN, A100, {"settings": EngineSettings(spec_tokens=2)}),
         (QWEN, A100, {})),
        ("another engine (V0)",
         (QWEN, A100, {"settings": replace(FIXED, version=(0, 7, 3))}),
         (QWEN, A100, {"settings": replace(FIXED, version=(0, 8))})),
        ("each GPU holds the whole KV cache of every token (MLA)",
         ("DeepSeek-V2-Lite", A100, {"settings": EngineSettings(tp=2)}),
         ("DeepSeek-V2-Lite", A100, {})),
    ],
)  # fmt: skip
def test_a_note_stands_where_it_holds(words: str, yes: Any, no: Any) -> None:
    for (model, gpu, asked), expected in ((yes, True), (no, False)):
        assert has(planned(model, gpu, **asked), words) is expected


def test_fp8_without_another_checkpoint_is_a_flag() -> None:
    assert planned(QWEN, A100, quantization="fp8").flags["quantization"] == "fp8"
    assert "quantization" not in planned(QWEN, A100, quantization="awq").flags


def test_the_speed_of_memory_is_a_floor_under_each_token() -> None:
    fast = replace(A100, bandwidth_bytes_s=2.0e12)
    asked: dict[str, Any] = {"on_disk": 15_000_000_000, "load": USUAL}
    # the embedding is looked up: 15e9 - 152,064 x 3584 x 2 = 13.91e9; / 2e12 = 6.955 ms; 50 of them 0.348 s
    found = planned(QWEN, fast, **asked)
    assert has(found, "a token takes 6.96 ms or more")
    assert has(found, "50 tokens 0.35 s or more")
    # two GPUs read half each
    assert has(planned(QWEN, fast, settings=EngineSettings(tp=2), **asked), "takes 3.48 ms")
    # an image encoder is not read for text: 35,107,181,936 - 446,571,248 - 248,320 x 2048 parameters of 2 bytes = 68.30e9
    assert has(planned(HYBRID, fast), "reads 68.3 GB of weights")
    # an embedding that is the output's matrix, too, is read
    assert has(planned("gemma-2-27b-it", fast, on_disk=54_000_000_000), "reads 54.0 GB of weights")
    for seconds, doubted in ((0.34, True), (0.36, False)):
        measured = planned(QWEN, fast, seconds_per_request=seconds, **asked)
        assert has(measured, "did a cache answer?") is doubted


def test_sequences_that_leave_much_of_memory_idle_are_named() -> None:
    most = planned(QWEN, A100, settings=FIXED, load=USUAL).max_concurrency
    for sequences, said in ((round(most * 0.85), True), (round(most * 0.95), False)):
        # what sequences take of memory themselves is given, so that only they change
        given_ = replace(FIXED, max_num_seqs=sequences, overhead_bytes=2**30)
        found = planned(QWEN, A100, settings=given_, load=USUAL)
        assert has(found, "to the prefix cache") is said


def test_each_note_stands_once_the_load_first_then_memory_then_weights_then_time() -> None:
    load = replace(USUAL, notes=("as captured", "as captured"))
    speculating = replace(FIXED, spec_tokens=2)
    found = planned(HYBRID, A100, "awq", settings=speculating, load=load, seconds_per_request=1.0)
    parts = ("as captured", "keep a state instead", "n-grams need none", "requests a second hold")
    assert [part for note in found.notes for part in parts if part in note] == list(parts)


# --- what must always hold --------------------------------------------------------------------------

MEMORY = st.integers(min_value=4 * GIB, max_value=300 * GIB)
NAMES = st.sampled_from([QWEN, HYBRID, "gemma-3-27b-it", "DeepSeek-V2-Lite", "gpt-oss-20b"])
TOKENS = st.integers(min_value=1, max_value=2048)


@settings(max_examples=100)
@given(NAMES, MEMORY, TOKENS, st.integers(0, 2**34), st.integers(0, 2000))
def test_more_room_never_holds_fewer_requests(
    name: str, memory: int, tokens: int, more: int, longer: int
) -> None:
    def at_once(memory: int, tokens: int, **changes: Any) -> int:
        gpu, load = Gpu(name="some", memory_bytes=memory), request(tokens)
        return planned(name, gpu, settings=replace(FIXED, **changes), load=load).max_concurrency

    usual = at_once(memory, tokens)
    assert usual <= at_once(memory + more, tokens)
    assert usual >= at_once(memory, tokens + longer)
    assert usual <= at_once(memory, tokens, tp=2)
    assert usual <= at_once(memory, tokens, kv_cache_dtype="fp8")


@settings(max_examples=50)
@given(NAMES, MEMORY, TOKENS, st.sampled_from([(0, 17, 1), (0, 33)]))
def test_recommended_flags_agree_with_what_memory_holds(
    name: str, memory: int, tokens: int, version: tuple[int, ...]
) -> None:
    found = planned(
        name,
        Gpu(name="some", memory_bytes=memory),
        settings=EngineSettings(version=version),
        load=request(tokens, prompt_tokens=tokens / 2),
    )
    seqs, batched = found.max_num_seqs, found.max_num_batched_tokens
    assert 0.5 <= found.gpu_memory_utilization <= 0.95
    # vLLM warns of more than all sequences at full length
    assert seqs <= batched <= seqs * found.max_model_len
    if found.fits:
        assert found.flags["max-num-seqs"] == str(seqs)
        assert 1 <= seqs <= found.max_concurrency
        assert tokens <= found.max_model_len


# --- side by side -----------------------------------------------------------------------------------


def question(name: str, gib: float, **engine: Any) -> PlanQuestion:
    gpu = Gpu(name=f"{gib:g}GiB", memory_bytes=round(gib * GIB))
    return PlanQuestion(shape=shape(name), gpu=gpu, settings=EngineSettings(**engine), load=USUAL)


def test_the_usual_ones_are_compared_the_checkpoints_own_first() -> None:
    plans = side_by_side(question(QWEN, 24))
    assert [one.quantization for one in plans] == ["bf16", "fp8", "awq", "gptq-int4"]
    counts = [one.max_concurrency for one in plans]
    assert counts[0] < counts[1] < counts[2]
    assert gains(plans) == f"awq holds {counts[2] / counts[0]:.1f} times the requests of bf16"
    own = config(QWEN) | {"quantization_config": {"quant_method": "awq", "bits": 4}}
    mine = side_by_side(replace(question(QWEN, 24), shape=shape_of(own, "mine")))
    assert [one.quantization for one in mine] == ["awq", "bf16", "fp8", "gptq-int4"]
    # of those that are named each once
    named = side_by_side(question(QWEN, 24), ("awq", "fp8", "awq"))
    assert [one.quantization for one in named] == ["awq", "fp8"]


def test_advice_is_for_the_first_that_fits() -> None:
    plans = side_by_side(question(QWEN, 14))
    assert [one.fits for one in plans] == [False, True, True, True]
    assert best(plans).quantization == "fp8"
    none = side_by_side(question(QWEN, 3))
    assert (best(none).quantization, gains(none)) == ("bf16", None)


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        # 15.0 GiB of weights in 16 bit on 12 GiB: half of them on each of two, or half as many bytes
        (
            question(LLAMA, 12),
            "it would fit with quantization fp8, or quantization awq, or quantization gptq-int4, or 2 GPUs (--tensor-parallel-size 2)",
        ),
        (
            question("Llama-3.3-70B-Instruct", 2),
            "no single change of quantization, KV cache, GPUs or length makes it fit: it needs a larger GPU",
        ),
    ],
)
def test_what_does_not_fit_names_each_single_change_that_makes_it(
    asked: PlanQuestion, hint: str
) -> None:
    (found,) = side_by_side(asked, ("bf16",))
    assert not found.fits
    assert found.notes[-1] == hint


def test_the_ways_that_are_named_really_fit() -> None:
    asked = question(LLAMA, 20, max_model_len=131_072)
    (found,) = side_by_side(asked, ("bf16",))
    words = found.notes[-1].partition("requests of at most ")[2].split()[0]
    shorter = replace(asked.settings, max_model_len=int(words.replace(",", "")))
    assert plan(replace(asked, settings=shorter), "bf16").fits
    two = replace(question(LLAMA, 12), settings=EngineSettings(tp=2))
    assert plan(two, "bf16").fits


def test_a_smaller_cache_is_proposed_where_it_is_worth_it() -> None:
    for asked, name, proposed in (
        (question(QWEN, 24), "bf16", True),
        (question(QWEN, 24, kv_cache_dtype="fp8"), "bf16", False),
        # states are not made smaller
        (question(HYBRID, 40), "awq", False),
    ):
        (found,) = side_by_side(asked, (name,))
        assert has(found, "with --kv-cache-dtype fp8 memory holds ") is proposed


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.17.1", (0, 17, 1)),
        ("v0.19", (0, 19)),
        ("0.32.0+cpu", (0, 32, 0)),
        ("0.20.1rc2.dev3", (0, 20, 1)),
        ("x", None),
        (None, None),
        ("12345.1", None),
    ],
)
def test_a_version_is_read_as_servers_and_people_write_it(
    text: str | None, version: tuple[int, ...] | None
) -> None:
    assert version_of(text) == version
