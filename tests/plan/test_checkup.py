"""A scouted host's blocks as requests, in the words that a newcomer reads."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.shapes import shape

from toolkit.plan.checkup import as_served, checkup, deviation
from toolkit.plan.engine import EngineSettings, Gpu
from toolkit.plan.kv_cache import Layout, layout
from toolkit.records import Sighting


def seen(**reported: Any) -> Sighting:
    return Sighting(name="alice", url="http://10.0.0.4:8000", at=0.0, status="ok", **reported)


STATES = layout(shape("Qwen3.5-35B-A3B"), EngineSettings())
"""Blocks of 1,056 tokens and 21,626,880 bytes: one of tokens a request, and two for each of three groups of states."""
PLAIN = layout(shape("Qwen2.5-7B-Instruct"), EngineSettings())
WINDOWS = layout(
    shape("gemma-3-27b-it"), EngineSettings(max_model_len=8192, max_num_batched_tokens=1000)
)
BLOCKS = {"num_gpu_blocks": 661, "block_size": 16}
AT = "one of them reserved; at 271 tokens, "


@pytest.mark.parametrize(
    ("reported", "tokens", "laid", "at_once", "text"),
    [
        # (661 - 1) / 17 = 38.8
        (BLOCKS, 271, None, 38, f"661 blocks of 16, {AT}17 blocks each, that is 38 sequences"),
        (BLOCKS, 271, PLAIN, 38, f"661 blocks of 16, {AT}17 blocks each, that is 38 sequences"),
        # (661 - 1) / 7 = 94.3, also where the block size is the model's own
        *(
            (each, 271, STATES, 94, f"661 blocks of 1,056, {AT}7 blocks each over all groups of layers, that is 94 sequences")
            for each in ({"num_gpu_blocks": 661, "block_size": 1056}, {"num_gpu_blocks": 661})
        ),
        # 512 blocks, and 6 x 66 at the end, 6 x 190 to begin: 1 + (5,000 - 1,652) // 908 = 1 + 3
        (
            {"num_gpu_blocks": 5001, "block_size": 16}, 8192, WINDOWS, 4,
            "5,001 blocks of 16, one of them reserved; at 8,192 tokens, 908 blocks each over all groups of layers (1,652 to begin), that is 4 sequences",
        ),
        # a sighting has the sum, 2 x 51; each engine reserves one: (51 - 1) / 17 = 2.9
        (
            {"num_gpu_blocks": 2 * 51, "block_size": 16, "engines": 2}, 271, None, 4,
            f"51 blocks of 16, {AT}17 blocks each, that is 2 sequences; 2 engines: 4",
        ),
        (
            {"num_gpu_blocks": 661}, 271, None, None,
            "661 blocks, but the host does not report how many tokens a block holds",
        ),
        # 2,097,152 / 271 = 7738.6
        (
            {"kv_cache_tokens": 2_097_152}, 271, None, 7738,
            "room for 2,097,152 tokens; at 271 tokens that is 7,738 sequences, less what blocks round away",
        ),
        ({}, 271, None, None, "the host reports neither its blocks nor how many tokens it can keep"),
    ],
)  # fmt: skip
def test_a_hosts_blocks_are_so_many_sequences(
    reported: dict[str, Any], tokens: float, laid: Layout | None, at_once: int | None, text: str
) -> None:
    found = checkup(seen(**reported), tokens, laid)
    assert (found.at_once, found.text, found.notes) == (at_once, text, ())


def test_blocks_too_small_for_a_state_are_counted_as_reported_and_doubted() -> None:
    found = checkup(seen(**BLOCKS), 271, STATES)
    assert found.at_once == 38
    [note] = found.notes
    assert "a request takes 7 of them, its states included, and 94 are in memory at once" in note
    # 661 x 21,626,880 = 13.3 GiB; x 16 / 1056 = 0.20
    assert note.endswith("They would take 13.3 GiB; blocks of 16 tokens 0.2 GiB")


def test_more_running_than_fits_is_said() -> None:
    assert "60 requests were running" in checkup(seen(**BLOCKS, running=60.0), 271).notes[0]
    # as many as fit, 38, are nothing to wonder at
    assert checkup(seen(**BLOCKS, running=38.0), 271).notes == ()


@pytest.mark.parametrize(
    ("planned", "block_bytes", "text"),
    [
        # (700 - 661) / 661 = 5.9 %; 39 blocks of 16 MiB are 0.6 GiB
        (700, 2**24, "the plan has 700 blocks, the server reports 661: 5.9% more, 0.6 GiB"),
        (622, None, "the plan has 622 blocks, the server reports 661: 5.9% less"),
        (661, None, "the plan has 661 blocks, the server reports 661: exact"),
        # twice as many are still a share, and more are times
        (1322, None, "the plan has 1,322 blocks, the server reports 661: 100.0% more"),
        (1653, None, "the plan has 1,653 blocks, the server reports 661: 3 times as many"),
        (0, None, "would not even start with what the server reports of itself"),
    ],
)
def test_the_plan_says_how_far_it_was_off(planned: int, block_bytes: int | None, text: str) -> None:
    found = deviation(planned, 661, block_bytes=block_bytes)
    assert found is not None
    assert found.text == text
    assert deviation(planned, None, block_bytes=None) is None


def test_what_a_server_reports_of_its_settings_goes_before_what_is_planned() -> None:
    gpu = Gpu(name="a100-80gb", memory_bytes=80 * 2**30, is_a100=True)
    reported = {
        "gpu_memory_utilization": 0.46,
        "max_model_len": 8192,
        "block_size": 32,
        "prefix_caching": False,
    }
    sighting = seen(version="0.17.1", cache_dtype="fp8_e4m3", **reported)
    assert as_served(EngineSettings(max_num_seqs=64), sighting, gpu) == EngineSettings(
        version=(0, 17, 1),
        kv_cache_dtype="fp8_e4m3",
        max_num_seqs=64,
        # not reported: what vLLM takes on an A100 by itself
        max_num_batched_tokens=2048,
        **reported,  # type: ignore[arg-type]
    )
    planned = EngineSettings(max_model_len=512)
    assert as_served(planned, seen()) == planned


ANY = st.none() | st.integers(min_value=-(2**70), max_value=2**70)


@given(ANY, ANY, ANY, ANY, st.none() | st.floats(), st.none() | st.text(max_size=8))
def test_whatever_a_server_reports_is_counted_or_unknown(
    blocks: int | None,
    size: int | None,
    engines: int | None,
    tokens: int | None,
    share: float | None,
    version: str | None,
) -> None:
    sighting = seen(
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
        found = checkup(sighting, 271, states)
        assert found.text
        assert found.at_once is None or found.at_once >= 0
    served = as_served(EngineSettings(), sighting)
    assert served.gpu_memory_utilization is None or 0 < served.gpu_memory_utilization <= 1
    assert served.max_model_len is None or served.max_model_len > 0
    assert deviation(100, blocks, block_bytes=None) is None or (blocks or 0) > 0
