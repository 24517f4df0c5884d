"""Which model a host is asked for, from what it lists and what somebody named."""

import pytest

from toolkit.bench.requests import choose_model
from toolkit.records import ServedModel

BASE = ServedModel(id="base", root="org/Base")
ADAPTER = ServedModel(id="adapter", root="/lora/adapter")
BOTH = (BASE, ADAPTER)


@pytest.mark.parametrize(
    ("served", "listed", "wanted", "model"),
    [
        (BOTH, None, None, "base"),  # the first one, as vLLM lists base models first
        (BOTH, "adapter", None, "adapter"),
        (BOTH, "/lora/adapter", None, "adapter"),  # by where its weights came from
        (BOTH, "gone", None, "base"),  # measured all the same; a verdict says so
        (BOTH, None, "adapter", "adapter"),
        (BOTH, "adapter", "org/Base", "base"),  # the command line goes before the hosts file
        ((), "listed", None, "listed"),  # it does not say what it serves: believe the user
        ((), None, "wanted", "wanted"),
        ((), "listed", "wanted", "wanted"),
    ],
)
def test_a_model_is_chosen(
    served: tuple[ServedModel, ...], listed: str | None, wanted: str | None, model: str
) -> None:
    found = choose_model(served, listed=listed, wanted=wanted)
    assert (found.model, found.error) == (model, None)


def test_an_id_goes_before_a_root_of_the_same_name() -> None:
    served = (ServedModel(id="a", root="b"), ServedModel(id="b", root="a"))
    assert choose_model(served, listed=None, wanted="b").model == "b"


def test_a_model_of_the_command_line_that_is_not_served_is_not_replaced() -> None:
    found = choose_model(BOTH, listed="base", wanted="gone")
    assert found.model is None
    assert found.error == "it does not serve `gone` but `base`, `adapter`"


def test_without_any_name_there_is_nothing_to_ask_for() -> None:
    found = choose_model((), listed=None, wanted=None)
    assert found.model is None
    assert found.error == "it lists no model, and nobody named one"
