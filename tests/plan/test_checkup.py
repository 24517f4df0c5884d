"""A scouted host's blocks as requests, in the words that a newcomer reads."""

from hypothesis import given
from hypothesis import strategies as st
from support.shapes import shape

from toolkit.plan.checkup import as_served, checkup, deviation
from toolkit.plan.engine import EngineSettings, Gpu
from toolkit.plan.kv_cache import layout
from toolkit.records import Sighting


def seen(**told: object) -> Sighting:
    return Sighting(name="alice", url="http://10.0.0.4:8000", at=0.0, status="ok", **told)  # type: ignore[arg-type]


def test_the_winners_661_blocks_are_38_sequences() -> None:
    found = checkup(seen(num_gpu_blocks=661, block_size=16), 271)
    assert found.at_once == 38
    assert found.text == (
        "661 blocks of 16, one of them reserved; at 271 tokens, 17 blocks each, that is 38 sequences"
    )


STATES = layout(shape("Qwen3.5-35B-A3B"), EngineSettings())
"""Blocks of 1,056 tokens and 21,626,880 bytes: one of tokens a request, and two for each of three groups of states."""
PLAIN = layout(shape("Qwen2.5-7B-Instruct"), EngineSettings())


def test_a_hybrid_counts_its_states_as_blocks() -> None:
    # (661 - 1) / 7 = 94.3
    found = checkup(seen(num_gpu_blocks=661, block_size=1056), 271, STATES)
    assert (found.at_once, found.notes) == (94, ())
    assert found.text.endswith("7 blocks each over all groups of layers, that is 94 sequences")


def test_windows_need_more_to_begin_than_a_request_holds_at_its_end() -> None:
    # 512 blocks, and 6 x 66 at the end, 6 x 190 to begin
    settings = EngineSettings(max_model_len=8192, max_num_batched_tokens=1000)
    windows = layout(shape("gemma-3-27b-it"), settings)
    # 1 + (5,000 - 1,652) // 908 = 1 + 3
    found = checkup(seen(num_gpu_blocks=5001, block_size=16), 8192, windows)
    assert found.at_once == 4
    assert found.text.endswith(
        "908 blocks each over all groups of layers (1,652 to begin), that is 4 sequences"
    )


def test_a_hybrid_that_tells_no_block_size_has_its_models() -> None:
    found = checkup(seen(num_gpu_blocks=661), 271, STATES)
    assert (found.block_size, found.at_once) == (1056, 94)


def test_blocks_too_small_for_a_state_are_counted_as_told_and_doubted() -> None:
    found = checkup(seen(num_gpu_blocks=661, block_size=16), 271, STATES)
    assert found.at_once == 38
    assert checkup(seen(num_gpu_blocks=661, block_size=16), 271, PLAIN) == checkup(
        seen(num_gpu_blocks=661, block_size=16), 271
    )
    [note] = found.notes
    assert "a request takes 7 of them, its states included, and 94 are in memory at once" in note
    # 661 x 21,626,880 = 13.3 GiB; x 16 / 1056 = 0.20
    assert note.endswith("They would take 13.3 GiB; blocks of 16 tokens 0.2 GiB")


def test_each_of_two_engines_reserves_a_block_and_none_borrows_from_the_other() -> None:
    # a sighting has the sum, 2 x 51; one pool of 102 would hold (102 - 1) / 17 = 5.9
    found = checkup(seen(num_gpu_blocks=2 * 51, block_size=16, engines=2), 271)
    # (51 - 1) / 17 = 2.9
    assert found.at_once == 4
    assert found.text == (
        "51 blocks of 16, one of them reserved; at 271 tokens, 17 blocks each, that is 2 sequences; 2 engines: 4"
    )


def test_a_host_that_does_not_tell_its_block_size_is_asked_nothing_of() -> None:
    found = checkup(seen(num_gpu_blocks=661), 271)
    assert found.at_once is None
    assert "does not tell how many tokens a block holds" in found.text


def test_a_host_that_tells_tokens_but_no_blocks_is_divided_by_tokens() -> None:
    # 2,097,152 / 271 = 7738.6
    found = checkup(seen(kv_cache_tokens=2_097_152), 271)
    assert found.at_once == 7738


def test_a_host_that_tells_nothing_is_unknown() -> None:
    found = checkup(seen(), 271)
    assert (found.at_once, found.num_gpu_blocks) == (None, None)
    assert found.text == "the host tells neither its blocks nor how many tokens it can keep"


def test_more_running_than_fits_is_said() -> None:
    found = checkup(seen(num_gpu_blocks=661, block_size=16, running=60.0), 271)
    assert "60 requests were running" in found.notes[0]
    # as many as fit, 38, are nothing to wonder at
    assert checkup(seen(num_gpu_blocks=661, block_size=16, running=38.0), 271).notes == ()


def test_the_plan_is_told_how_far_it_was_off() -> None:
    # (700 - 661) / 661 = 5.9 %; 39 blocks of 16 MiB are 0.6 GiB
    found = deviation(700, 661, block_bytes=16 * 2**20)
    assert found is not None
    assert found.text == "the plan has 700 blocks, the server reports 661: 5.9% more, 0.6 GiB"
    exact = deviation(661, 661, block_bytes=None)
    assert exact is not None
    assert exact.text == "the plan has 661 blocks, the server reports 661: exact"
    many = deviation(6610, 661, block_bytes=None)
    assert many is not None
    assert many.text.endswith("reports 661: 10 times as many")
    # twice as many are still a share, and more are times
    for planned, end in ((1322, "100.0% more"), (1653, "3 times as many")):
        told = deviation(planned, 661, block_bytes=None)
        assert told is not None
        assert told.text.endswith(end)
    assert deviation(700, None, block_bytes=None) is None


def test_a_plan_that_would_not_start_there_says_so() -> None:
    found = deviation(0, 661, block_bytes=None)
    assert found is not None
    assert found.text == "would not even start with what the server tells of itself"


def test_what_a_server_tells_of_its_settings_goes_before_what_is_planned() -> None:
    gpu = Gpu(name="a100-80gb", memory_bytes=80 * 2**30, is_a100=True)
    told = seen(
        version="0.17.1",
        gpu_memory_utilization=0.46,
        cache_dtype="fp8_e4m3",
        max_model_len=8192,
        block_size=32,
        prefix_caching=False,
    )
    found = as_served(EngineSettings(max_num_seqs=64), told, gpu)
    assert found == EngineSettings(
        version=(0, 17, 1),
        gpu_memory_utilization=0.46,
        kv_cache_dtype="fp8_e4m3",
        max_model_len=8192,
        block_size=32,
        prefix_caching=False,
        max_num_seqs=64,
        # not told: what vLLM takes on an A100 by itself
        max_num_batched_tokens=2048,
    )


def test_a_server_that_tells_nothing_is_planned_as_it_would_be() -> None:
    assert as_served(EngineSettings(max_model_len=512), seen()) == EngineSettings(max_model_len=512)


ANY = st.none() | st.integers(min_value=-(2**70), max_value=2**70)


@given(ANY, ANY, ANY, ANY, st.none() | st.floats(), st.none() | st.text(max_size=8))
def test_whatever_a_server_tells_is_counted_or_unknown(
    blocks: int | None,
    size: int | None,
    engines: int | None,
    tokens: int | None,
    share: float | None,
    version: str | None,
) -> None:
    told = seen(
        num_gpu_blocks=blocks,
        block_size=size,
        engines=engines,
        kv_cache_tokens=tokens,
        max_model_len=size,
        gpu_memory_utilization=share,
        running=share,
        version=version,
    )
    for states in (None, STATES):
        found = checkup(told, 271, states)
        assert found.text
        assert found.at_once is None or found.at_once >= 0
    served = as_served(EngineSettings(), told)
    assert served.gpu_memory_utilization is None or 0 < served.gpu_memory_utilization <= 1
    assert served.max_model_len is None or served.max_model_len > 0
    assert deviation(100, blocks, block_bytes=None) is None or (blocks or 0) > 0
