"""Each of the lab's criteria, met, not met and unknown, on evidence made by hand."""

from dataclasses import replace
from typing import Any

import pytest

from toolkit.tuning.criteria import (
    Boundaries,
    ClientCall,
    Costs,
    Criterion,
    LogFacts,
    RequestOutcomes,
    Starts,
    criteria,
)

GOOD = RequestOutcomes(ok=990, errors=10, error_kinds={"timeout": 10}, streamed=500, window_s=60.0)
LOG = LogFacts(
    name="requests.jsonl",
    requests=1000,
    turned_away=30,
    rejected=30,
    own_rejections=30,
    reasons={"team_queue_full": 30},
    rejected_teams=("alice",),
    served_beside=("bob",),
    beside_ok_share=1.0,
)
ALL: dict[str, Any] = {
    "requests": GOOD,
    "hosts": {},
    "starts": Starts(
        by="`toolkit serve`", cold_s=41.2, warm_s=12.0, cold_ttft_ms=89_000.0, warm_ttft_ms=219.0
    ),
    "costs": Costs(gpu_hour=2.0, gpus=1, per_million_tokens=0.05, api_per_million_tokens=0.6),
    "log": LOG,
    "stack": Boundaries(has_proxy=True),
}
CODES = "model_loading api_compatibility stability cost observability boundaries admission".split()


def judged(**changes: Any) -> dict[str, Criterion]:
    return {one.code: one for one in criteria(**(ALL | changes))}


def test_with_all_that_a_lab_asks_for_every_criterion_is_met() -> None:
    found = judged()
    assert list(found) == CODES
    assert {one.status for one in found.values()} == {"met"}
    assert all(one.evidence and one.settle is None for one in found.values())


def test_without_any_evidence_nothing_is_claimed_and_each_says_what_would_settle_it() -> None:
    found = criteria(RequestOutcomes(), {})
    assert {one.status for one in found} == {"unknown"}
    assert all(one.settle for one in found)


def test_what_is_not_met_says_how_to_mend_it() -> None:
    found = criteria(
        RequestOutcomes(errors=100, error_kinds={"timeout": 100}),
        {},
        starts=Starts(by="`toolkit serve`", cold_s=41.2),
        call=ClientCall(ok=False, told="refused"),
        costs=Costs(gpu_hour=2.0, gpus=1, per_million_tokens=None, api_per_million_tokens=0.6),
        log=replace(LOG, missing={"tokens": 4}, own_rejections=0),
        stack=Boundaries(open_engines=("engine",), has_proxy=True),
    )
    assert [one.status for one in found] == ["not met"] * 7
    assert all(one.settle for one in found)


# --- model loading ---------------------------------------------------------------------------------------


def test_both_starts_are_told_with_their_times() -> None:
    assert judged()["model_loading"].evidence == (
        "cold start 41.2 s, warm restart 12.0 s, first token after 89.0 s cold and 219 ms warm, recorded by "
        "`toolkit serve`"
    )


@pytest.mark.parametrize(
    ("starts", "missing"),
    [
        (Starts(by="x", cold_s=4.0), "no warm restart"),
        (Starts(by="x", warm_s=4.0), "no cold start"),
        (Starts(by="x"), "no cold start and no warm restart"),
    ],
)
def test_a_start_that_is_not_recorded_is_named(starts: Starts, missing: str) -> None:
    found = judged(starts=starts)["model_loading"]
    assert found.status == "not met"
    assert found.evidence.endswith(missing)


# --- compatibility ---------------------------------------------------------------------------------------


def test_the_official_clients_word_goes_before_our_own_readers() -> None:
    call = ClientCall(ok=False, told="OpenAI's client failed")
    assert judged(call=call)["api_compatibility"].status == "not met"
    nothing = RequestOutcomes()
    told = ClientCall(ok=True, told="OpenAI's client 2.1 completed a chat call")
    assert judged(requests=nothing, call=told)["api_compatibility"].status == "met"


def test_a_server_that_answered_nobody_is_not_compatible() -> None:
    found = judged(requests=RequestOutcomes(errors=5, error_kinds={"http_404": 5}))[
        "api_compatibility"
    ]
    assert (found.status, found.evidence) == (
        "not met",
        "none of 5 chat calls was answered: 5 http_404",
    )


# --- stability --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ok", "kinds", "memory", "status"),
    [
        (100, {}, 0, "met"),
        (98, {"timeout": 2}, 0, "met"),  # 2 of 100 are allowed
        (97, {"timeout": 3}, 0, "not met"),
        (99, {"http_500": 1}, 1, "met"),
        (97, {"http_500": 3}, 3, "not met"),  # the engine said that it was out of memory, thrice
        (980, {"timeout": 10, "http_500": 10}, 0, "met"),  # even if all were: 2 of 100
        (979, {"timeout": 10, "http_500": 11}, 0, "unknown"),
        (900, {"http_429": 100}, 0, "met"),  # rejections are a boundary that was held
        (99, {}, 0, "unknown"),  # too few to judge
        (10, {"timeout": 5}, 0, "not met"),  # few, but a third of them
        (0, {}, 0, "unknown"),
    ],
)
def test_stability_counts_what_the_course_counts(
    ok: int, kinds: dict[str, int], memory: int, status: str
) -> None:
    requests = RequestOutcomes(
        ok=ok, errors=sum(kinds.values()), error_kinds=kinds, out_of_memory=memory
    )
    assert judged(requests=requests)["stability"].status == status


def test_of_several_hosts_the_worst_is_told_by_name() -> None:
    bad = RequestOutcomes(ok=50, errors=50, error_kinds={"timeout": 50})
    fine = RequestOutcomes(ok=100_000)
    both = RequestOutcomes(ok=100_050, errors=50, error_kinds={"timeout": 50}, of_several=True)
    found = judged(requests=both, hosts={"alice": bad, "bob": fine})["stability"]
    assert found.status == "not met"
    assert found.evidence.startswith("`alice`: 50 timeouts")
    assert judged(requests=both, hosts={"a": fine, "b": fine})["stability"].status == "met"


# --- cost ---------------------------------------------------------------------------------------------------


def test_the_cheaper_one_is_named() -> None:
    assert judged()["cost"].evidence.endswith("the GPU is cheaper at this load")
    dear = Costs(gpu_hour=2.0, gpus=1, per_million_tokens=3.0, api_per_million_tokens=0.6)
    assert judged(costs=dear)["cost"].evidence.endswith("the API is cheaper at this load")


def test_a_price_that_was_not_told_is_asked_for() -> None:
    own = Costs(gpu_hour=2.0, gpus=1, per_million_tokens=0.05, api_per_million_tokens=None)
    assert judged(costs=own)["cost"].evidence == "an API's price was not told"
    assert judged(costs=None)["cost"].evidence == "the price of a GPU hour was not told"
    several = replace(GOOD, of_several=True)
    assert "several hosts" in judged(costs=None, requests=several)["cost"].evidence


# --- boundaries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (Boundaries(), "no proxy stands before the engines"),
        (
            Boundaries(has_proxy=True, open_engines=("a", "b")),
            "`a`, `b` listens to more than its own machine",
        ),
        (
            Boundaries(has_proxy=True, media_anywhere=True),
            "requests may have engines fetch from anywhere",
        ),
        (Boundaries(has_proxy=True, file_engines=("a",)), "`a` lets requests read its files"),
        (
            Boundaries(has_proxy=True, code_engines=("a",)),
            "`a` runs code that came with the weights",
        ),
    ],
)
def test_each_open_boundary_is_named(found: Boundaries, told: str) -> None:
    one = judged(stack=found)["boundaries"]
    assert (one.status, one.evidence) == ("not met", told)


# --- admission -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "status", "told"),
    [
        ({}, "met", "while team `bob` had 100 % of their requests served"),
        ({"own_rejections": 1}, "met", "1 rejection ("),
        ({"rejected": 0, "reasons": {}}, "unknown", "holds no rejection"),
        ({"own_rejections": 0}, "not met", "from a queue that all share"),
        ({"nameless_rejections": 3}, "not met", "from a queue that all share"),
        ({"unlogged_rejections": 3}, "not met", "3 of 30 requests that were turned away"),
        ({"served_beside": ()}, "unknown", "but nobody else asked meanwhile"),
    ],
)
def test_admission_is_judged_by_who_was_rejected_and_who_was_served(
    changes: dict[str, Any], status: str, told: str
) -> None:
    found = judged(log=replace(LOG, **changes))["admission"]
    assert found.status == status
    assert told in found.evidence


def test_rows_of_the_store_alone_leave_admission_open() -> None:
    found = judged(log=None, rejected=12)["admission"]
    assert found.status == "unknown"
    assert "12 requests were answered 429" in found.evidence


def test_a_log_without_a_request_settles_nothing() -> None:
    assert judged(log=LogFacts(name="x"))["observability"].status == "unknown"
