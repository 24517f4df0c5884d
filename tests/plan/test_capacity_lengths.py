"""Lengths from a workload's report."""

import pytest

from toolkit.errors import ToolkitError
from toolkit.plan.capacity import RequestLengths, of_workload

REPORT = {
    "source": "capture 38089784cd61",
    "recommended_max_model_len": 512,
    "model_length": {"longest": 270},
    "lengths": {
        "prompt_tokens": {"mean": 11.5, "max": 14.0},
        "prompt_tokens_estimated_share": 0.25,
        "output_tokens": {"mean": 91.0, "max": 256.0},
        "max_tokens": {"mean": 256.0, "max": 256.0},
    },
}


def with_lengths(**lengths: object) -> dict[str, object]:
    return REPORT | {"lengths": {**REPORT["lengths"], **lengths}}  # type: ignore[dict-item]


def test_means_are_the_usual_request_and_the_longest_is_kept() -> None:
    assert of_workload(REPORT) == RequestLengths(
        prompt_tokens=11.5,
        output_tokens=91.0,
        request_tokens=102.5,
        longest=270,
        longest_prompt=14,
        max_model_len=512,
        told="workload of capture 38089784cd61",
        notes=("25% of the prompts' lengths are estimated from their characters",),
    )


def test_unknown_answers_count_as_long_as_they_are_allowed_to_be() -> None:
    found = of_workload(with_lengths(output_tokens=None, prompt_tokens_estimated_share=0.0))
    assert found.request_tokens == 267.5
    assert len(found.notes) == 1
    assert "as long as their max_tokens allow" in found.notes[0]


def test_without_a_longest_request_the_longest_parts_are_added() -> None:
    # 14 + 256
    assert of_workload(REPORT | {"model_length": {"longest": None}}).longest == 270
    assert of_workload(with_lengths(output_tokens=None) | {"model_length": None}).longest is None


@pytest.mark.parametrize(
    ("lengths", "missing"),
    [
        ({"prompt_tokens": None}, "prompts"),
        ({"output_tokens": None, "max_tokens": None}, "answers"),
        ({"prompt_tokens": {"mean": "11"}}, "prompts"),
        ({"prompt_tokens": {"mean": True}}, "prompts"),
        ({"prompt_tokens": {"mean": float("nan")}}, "prompts"),
        ({"prompt_tokens": {"mean": -3}}, "prompts"),
        ({"prompt_tokens": []}, "prompts"),
    ],
)
def test_lengths_that_are_none_are_refused(lengths: dict[str, object], missing: str) -> None:
    with pytest.raises(ToolkitError, match=f"does not tell how long {missing} are"):
        of_workload(with_lengths(**lengths))


def test_what_is_no_report_is_refused() -> None:
    with pytest.raises(ToolkitError, match="how long prompts are"):
        of_workload({})


def test_answers_that_nobody_followed_are_told_with_the_way_to_know_them() -> None:
    with pytest.raises(ToolkitError) as refused:
        of_workload(with_lengths(output_tokens=None, max_tokens=None))
    assert "`--full`" in refused.value.hint
