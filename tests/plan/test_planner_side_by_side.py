"""Quantizations beside each other, and what would make fit what does not."""

from support.shapes import GIB, config, shape

from toolkit.plan.capacity import RequestLengths
from toolkit.plan.engine import EngineSettings, Gpu, PlanQuestion
from toolkit.plan.model_config import shape_of
from toolkit.plan.planner import (
    best,
    gains,
    names_for,
    otherwise,
    plan,
    side_by_side,
    ways_out,
)

QWEN, LLAMA = "Qwen2.5-7B-Instruct", "Llama-3.1-8B-Instruct"
LENGTHS = RequestLengths(prompt_tokens=500.0, output_tokens=50.0, request_tokens=550.0)


def asked(name: str, gib: float, **settings: object) -> PlanQuestion:
    return PlanQuestion(
        shape=shape(name),
        gpu=Gpu(name=f"{gib:g}GiB", memory_bytes=round(gib * GIB)),
        settings=EngineSettings(**settings),  # type: ignore[arg-type]
        load=LENGTHS,
    )


def test_the_usual_ones_are_compared_the_checkpoints_own_first() -> None:
    assert names_for(shape(QWEN)) == ("bf16", "fp8", "awq", "gptq-int4")
    awq = config(QWEN) | {"quantization_config": {"quant_method": "awq", "bits": 4}}
    assert names_for(shape_of(awq, "mine")) == ("awq", "bf16", "fp8", "gptq-int4")


def test_fewer_bits_hold_more_requests_and_the_gain_is_told() -> None:
    plans = side_by_side(asked(QWEN, 24))
    assert [one.quantization for one in plans] == ["bf16", "fp8", "awq", "gptq-int4"]
    counts = [one.max_concurrency for one in plans]
    assert counts[0] < counts[1] < counts[2]
    assert gains(plans) == f"awq holds {counts[2] / counts[0]:.1f} times the requests of bf16"


def test_only_those_that_are_asked_for_once_each() -> None:
    plans = side_by_side(asked(QWEN, 24), ("awq", "fp8", "awq"))
    assert [one.quantization for one in plans] == ["awq", "fp8"]


def test_advice_is_for_the_first_that_fits() -> None:
    plans = side_by_side(asked(QWEN, 14))
    assert [one.fits for one in plans] == [False, True, True, True]
    assert best(plans).quantization == "fp8"
    none = side_by_side(asked(QWEN, 3))
    assert best(none).quantization == "bf16"
    assert gains(none) is None


def test_what_does_not_fit_is_told_what_would_make_it() -> None:
    # 15.0 GiB of weights in 16 bit on 12 GiB: half of them on each of two, or half as many bytes
    question = asked(LLAMA, 12)
    (one,) = side_by_side(question, ("bf16",))
    assert ways_out(one, question) == (
        "quantization fp8",
        "quantization awq",
        "quantization gptq-int4",
        "2 GPUs (--tensor-parallel-size 2)",
    )
    assert one.notes[-1] == (
        "it would fit with quantization fp8, or quantization awq, or quantization gptq-int4, or 2 GPUs (--tensor-parallel-size 2)"
    )


def test_each_way_out_that_is_told_really_fits() -> None:
    question = asked(LLAMA, 12)
    (one,) = side_by_side(question, ("bf16",))
    assert not one.fits
    assert all(plan(question, name).fits for name in ("fp8", "awq", "gptq-int4"))
    two = otherwise(question, "bf16", tp=2)
    assert two is not None
    assert two.fits


def test_a_limit_that_is_too_long_is_told_the_longest_that_fits() -> None:
    question = asked(LLAMA, 20, max_model_len=131_072)
    (one,) = side_by_side(question, ("bf16",))
    assert not one.fits
    ways = ways_out(one, question)
    [shorter] = [way for way in ways if way.startswith("requests of at most ")]
    length = int(shorter.split()[4].replace(",", ""))
    told = otherwise(question, "bf16", max_model_len=length)
    assert told is not None
    assert told.fits


def test_what_cannot_fit_by_one_change_says_so() -> None:
    (one,) = side_by_side(asked("Llama-3.3-70B-Instruct", 2), ("bf16",))
    assert "no single change" in one.notes[-1]


def test_a_smaller_cache_is_proposed_where_it_is_worth_it() -> None:
    (plain,) = side_by_side(asked(QWEN, 24), ("bf16",))
    assert any(note.startswith("with --kv-cache-dtype fp8 memory holds ") for note in plain.notes)
    (already,) = side_by_side(asked(QWEN, 24, kv_cache_dtype="fp8"), ("bf16",))
    # states are not made smaller
    (hybrid,) = side_by_side(asked("Qwen3.5-35B-A3B", 40), ("awq",))
    for one in (already, hybrid):
        assert not any("--kv-cache-dtype" in note for note in one.notes)


def test_settings_that_are_impossible_are_no_answer() -> None:
    assert otherwise(asked(QWEN, 24), "bf16", tp=3) is None
