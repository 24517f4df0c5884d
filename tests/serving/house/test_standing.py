"""Which changes of an engine leave its stored answers good."""

from dataclasses import replace

import pytest

from toolkit.serving.house.standing import answers_alike
from toolkit.serving.stack import EngineSetting

ENGINE = EngineSetting(name="e", model="org/m", served_name="m", flags=(("seed", "1"),), port=8001)


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 9000},
        {"gpus": "1"},
        {"preset": "wide"},
        {"flags": (("max-num-seqs", "8"), ("seed", "1"))},
        {"flags": (("seed", "1"), ("gpu-memory-utilization", "0.5"))},
    ],
)
def test_more_or_less_room_gives_the_same_answers(changes: dict[str, object]) -> None:
    assert answers_alike(ENGINE, replace(ENGINE, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "org/other"},
        {"served_name": "n"},
        {"kind": "sim"},
        {"flags": (("seed", "2"),)},
        {"flags": ()},
        {"flags": (("seed", "1"), ("quantization", "fp8"))},
        {"flags": (("seed", "1"), ("a-flag-of-tomorrow", "x"))},
        {"env": (("VLLM_ATTENTION_BACKEND", "x"),)},
        {"vllm": "/other/bin/vllm"},
    ],
)
def test_whatever_may_change_an_answer_counts_as_another_model(changes: dict[str, object]) -> None:
    assert not answers_alike(ENGINE, replace(ENGINE, **changes))  # type: ignore[arg-type]


def test_the_order_of_flags_says_nothing() -> None:
    one = replace(ENGINE, flags=(("a", "1"), ("b", True)))
    assert answers_alike(one, replace(one, flags=(("b", True), ("a", "1"))))
