"""What a figure of a sweep is called, and which way is better."""

import pytest

from toolkit.tuning.figures import meant, metric


@pytest.mark.parametrize("name", ["ttft_p95_ms:short", "rps", "invalid_json_ratio"])
def test_a_figure_has_a_definition(name: str) -> None:
    found = metric(name)
    assert found is not None
    assert found.definition


@pytest.mark.parametrize("name", ["nonsense", "rps:short", "ttft_p96_ms:short", ""])
def test_what_is_no_figure_has_none(name: str) -> None:
    assert metric(name) is None
    assert meant(name).title == name, "it is told all the same"


def test_a_figure_of_some_prompts_is_told_with_them() -> None:
    found = meant("ttft_p95_ms:short")
    assert found.title == "TTFT p95 of `short`"
    assert not found.more_is_better
