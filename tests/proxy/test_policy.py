"""What may be read from the cache and what may be stored: every policy against every kind of request."""

from math import inf
from typing import Any

import pytest

from toolkit.proxy.config import CacheSetting, TeamSetting
from toolkit.proxy.headers import NO_CACHE_CONTROL, CacheControl
from toolkit.proxy.policy import CacheDecision, policy

PLAIN: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ALL = CacheSetting()
DECLARED = CacheSetting(policy="declared")


def rule(
    fields: dict[str, Any] | None = None,
    setting: CacheSetting = ALL,
    cache_control: CacheControl = NO_CACHE_CONTROL,
    endpoint: str = "chat/completions",
    *,
    team: TeamSetting | None = None,
    query: str = "",
) -> CacheDecision:
    return policy(
        setting,
        team or TeamSetting(name=""),
        {**PLAIN, **(fields or {})},
        endpoint,
        cache_control,
        query=query,
    )


def bypassed(decision: CacheDecision, reason: str) -> bool:
    return (decision.read, decision.write, decision.ttl_s, decision.reason) == (
        False,
        False,
        0.0,
        reason,
    )


DECLARING: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.0},
    {"temperature": -0.0},
    {"seed": 0},
    {"seed": 42, "temperature": 1},
    {"seed": -2},
    {"temperature": 0, "n": 4, "logprobs": True, "tools": [{"type": "function"}], "stream": True},
]
SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": None},
    {"temperature": 0.01},
    {"temperature": 1e-300},
    {"temperature": False},
    {"temperature": "0"},
    {"temperature": []},
    {"seed": None},
    # vLLM reads this as no seed
    {"seed": -1},
    {"seed": True},
    {"seed": "42"},
    {"seed": 1.5},
    {"top_p": 0},
    {"top_k": 1},
    {"sampling_params": {"temperature": 0}},
]


@pytest.mark.parametrize("fields", DECLARING)
def test_temperature_0_or_a_seed_declares_an_answer_as_good_as_another(
    fields: dict[str, Any],
) -> None:
    assert rule(fields, DECLARED) == CacheDecision(read=True, write=True, ttl_s=3600.0)


@pytest.mark.parametrize("fields", SAMPLING)
def test_nothing_else_does_and_a_temperature_left_out_is_not_0(fields: dict[str, Any]) -> None:
    assert bypassed(rule(fields, DECLARED), "sampled")
    assert rule(fields).write


@pytest.mark.parametrize(
    "fields",
    [
        {"store": True},
        {"store": "true"},
        {"store": 1},
        {"background": True},
        {"previous_response_id": "resp_1"},
        {"previous_response_id": ""},
        {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}},
        {"prompt": {"id": "pmpt_1"}},
        {"container": "cntr_1"},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": [{"role": "user", "content": "hi"}, {"id": "msg_1"}]},
        {"input": [{"type": None, "id": "msg_1"}]},
    ],
)
def test_what_is_about_things_that_a_server_keeps_is_never_cached(fields: dict[str, Any]) -> None:
    assert bypassed(rule({"temperature": 0, **fields}, endpoint="responses"), "conversation")


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
def test_what_names_blocks_in_one_servers_memory_is_never_cached(name: str) -> None:
    assert bypassed(rule({name: {"do_remote_decode": True}}), "transfer")
    assert bypassed(rule({name: {}}), "transfer")
    assert rule({name: None}).write


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "mcp", "server_url": "http://h"},
        {"type": "web_search_preview"},
        {"type": "code_interpreter"},
        {"type": "web_search_20250305"},
        {"type": 7},
        {"type": ["function"]},
    ],
)
def test_a_tool_that_the_server_would_run_forbids_it(tool: dict[str, Any]) -> None:
    mixed = [{"type": "function", "name": "f"}, tool]
    for endpoint in ("responses", "messages", "chat/completions"):
        assert bypassed(rule({"tools": mixed}, endpoint=endpoint), "server-tools")
    for field in ("mcp_servers", "web_search_options"):
        assert bypassed(rule({field: [{}]}, endpoint="messages"), "server-tools")
        assert rule({field: None}, endpoint="messages").write


def test_a_stored_answer_must_be_young_enough_and_last_long_enough() -> None:
    decision = rule(cache_control=CacheControl(max_age_s=60.0, min_fresh_s=10.0))
    assert decision.takes(age_s=60.0, left_s=10.0)
    assert not decision.takes(age_s=60.1, left_s=10.0)
    assert not decision.takes(age_s=60.0, left_s=9.9)
    assert decision.takes(age_s=0.0, left_s=None)


WISHES = [
    CacheControl(no_cache=a, no_store=b, max_age_s=d, min_fresh_s=e, ttl_s=f)
    for a in (False, True) for b in (False, True)
    for d in (inf, 0.0, 5.0) for e in (0.0, 5.0, inf) for f in (inf, 0.0, 5.0, 9e9)
]  # fmt: skip


@pytest.mark.parametrize(
    "setting", [ALL, DECLARED, CacheSetting(policy="off"), CacheSetting(ttl_s=None)]
)
@pytest.mark.parametrize("fields", [{}, {"temperature": 0}, {"store": True}])
def test_no_wish_makes_caching_looser(setting: CacheSetting, fields: dict[str, Any]) -> None:
    plain = rule(fields, setting)
    for cache_control in WISHES:
        wanted = rule(fields, setting, cache_control)
        assert wanted.read <= plain.read
        assert wanted.write <= plain.write
        assert (inf if wanted.ttl_s is None else wanted.ttl_s) <= (
            inf if plain.ttl_s is None else plain.ttl_s
        )
        for age_s in (0.0, 4.0, 6.0):
            for left_s in (0.0, 4.0, 6.0, None):
                told = {"age_s": age_s, "left_s": left_s}
                assert wanted.takes(**told) <= plain.takes(**told)
