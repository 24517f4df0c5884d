"""What is asked for beside the prompt: values counted by request, and what no source tells."""

from dataclasses import replace

import pytest
from support.arrived import arrived

from toolkit.workload import RequestColumns
from toolkit.workload.distribution import declared, mix


def parameter(columns: RequestColumns, name: str) -> list[tuple[object, int, float]]:
    found = next(one for one in mix(columns).parameters if one.name == name)
    return [(one.value, one.requests, one.share) for one in found.values]


def test_values_are_counted_by_request_the_most_frequent_first() -> None:
    columns = arrived(list("aaab"), max_tokens=[256, 256, 64, None], model="qwen")
    assert parameter(columns, "max_tokens") == [(256, 2, 0.5), (64, 1, 0.25), (None, 1, 0.25)]
    assert parameter(columns, "model") == [("qwen", 4, 1.0)]
    assert [one.name for one in mix(columns).parameters] == ["model", "max_tokens"]


def test_only_streaming_none_streaming_and_half_of_them() -> None:
    assert mix(arrived(list("ab"), stream=True)).stream_share == 1.0
    assert mix(arrived(list("ab"), stream=False)).stream_share == 0.0
    assert mix(arrived(list("aabb"), stream=[True, False, True, False])).stream_share == 0.5


def test_a_body_without_the_field_asks_for_no_stream_but_a_trace_has_no_body_to_tell() -> None:
    assert mix(arrived(list("ab"), stream=[None, True])).stream_share == 0.5
    assert mix(arrived(list("ab"))).stream_share == 0.0
    trace = mix(replace(arrived(list("ab"), model="gpt"), identities="prompts"))
    assert trace.stream_share is trace.declared_share is trace.images_share is None
    assert [one.name for one in trace.parameters] == ["model"]
    # a log without bodies may tell streams all the same
    told = replace(arrived(list("ab"), stream=[True, False]), identities="prompts")
    assert mix(told).stream_share == 0.5


def test_temperature_0_or_a_seed_declares_a_request_repeatable_a_default_does_not() -> None:
    columns = arrived(
        range(5), temperature=[0.0, 0.7, None, 0.7, 1.0], seed=[None, None, None, 42, 0]
    )
    assert declared(columns).tolist() == [True, False, False, True, True]
    assert mix(columns).declared_share == pytest.approx(3 / 5)


def test_values_beyond_the_listed_are_counted_together() -> None:
    columns = arrived(["a"] * 12, max_tokens=[*range(100, 110), 100, 100])
    found = mix(columns).parameters[0]
    assert (found.different, len(found.values), found.rest) == (10, 8, 2)
    assert found.values[0].requests == 3


def test_other_fields_and_images_are_told_with_their_share() -> None:
    columns = arrived(
        list("aab"), options=[("tools",), (), ("logprobs", "tools")], images=[0, 1, 0]
    )
    found = mix(columns)
    assert [(one.name, one.requests) for one in found.options] == [("tools", 2), ("logprobs", 1)]
    assert [one.share for one in found.options] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert found.images_share == pytest.approx(1 / 3)


def test_of_no_requests_no_share_is_told() -> None:
    found = mix(arrived([]))
    assert found.stream_share is found.declared_share is found.images_share is None
    assert (found.parameters, found.options) == ((), ())
    assert declared(arrived([])).tolist() == []
