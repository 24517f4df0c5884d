"""What Locust's options and its web form say of a load: texts and numbers, empty ones, and what makes no sense."""

from typing import Any

import pytest

from toolkit.blast.plan import WorkerPlan, plan_of
from toolkit.errors import ToolkitError


def read(text: str = "Hi", **said: Any) -> WorkerPlan:
    return plan_of(said, (text, "mine", "text"), "hash")


def test_options_and_a_forms_texts_are_the_same_and_an_empty_one_is_the_default() -> None:
    numbers = {"canaries": 2.5, "mix": 25, "max_tokens": 16, "rate": 3.0, "request_timeout": 9}
    plan = read(model="m", **numbers)
    assert plan == read(model="m", **{name: str(value) for name, value in numbers.items()})
    assert (plan.canary_share, plan.stream_share, plan.max_tokens) == (0.025, 0.25, 16)
    assert (plan.model, plan.rate, plan.request_timeout_s) == ("m", 3.0, 9.0)
    usual = read()
    assert (usual.canary_share, usual.stream_share, usual.max_tokens) == (0.01, None, None)
    assert (usual.model, usual.rate, usual.request_timeout_s) == (None, None, 60.0)
    assert usual == read(**dict.fromkeys([*numbers, "model"], ""))
    # a rate of nothing is a closed loop, and no canaries are none
    assert read(rate="0") == usual
    assert read(canaries=0).canary_share == 0


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"mix": 101}, "`--mix 101` is no number from 0 to 100"),
        ({"canaries": "many"}, "`--canaries many` is no number from 0 to 100"),
        ({"max_tokens": 0}, "`--max-tokens 0` is no number from 1 to 1e"),
        ({"rate": 100_001}, "`--rate 100001` is no number from 0 to 100000"),
        ({"request_timeout": "nan"}, "`--request-timeout nan` is no number from 0.001 to 3600"),
        ({"tokenizer": "model"}, "`--tokenizer` counts the tokens of random prompts"),
        ({"text": ""}, ""),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    said: dict[str, Any], message: str
) -> None:
    with pytest.raises(ToolkitError) as caught:
        read(**said)
    assert message in caught.value.message
    assert caught.value.hint
