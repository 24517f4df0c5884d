"""Each of the lab's criteria, met, not met and unknown, on evidence made by hand. What the store tells, tests/cli/test_report_command asks."""

from dataclasses import replace
from typing import Any

import pytest
from support.tallies import BOB, S, tally

from toolkit.records import ErrorCount, Event, Run
from toolkit.tuning.criteria import Costs, Criterion, LogFacts, criteria
from toolkit.tuning.host_report import HostReport, host_report

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
COSTS = Costs(gpu_hour=2.0, gpus=1, per_million_tokens=0.05, api_per_million_tokens=0.6)
STACK = Run(
    id="5" * 12, verb="serve", started_at=1.0, settings='{"engines": [{}], "proxy": {"media_hosts": []}}'
)  # fmt: skip
STARTS = (
    Event(at=1.0, kind="mark", text="ready after 41.2 s", name="e"),
    Event(at=2.0, kind="mark", text="cold TTFT 89000 ms, warm TTFT 219 ms", name="e"),
    Event(at=9.0, kind="mark", text="ready after 12.0 s", name="e"),
)


def answered(ok: int = 0, *, host: tuple[str, str] = ("alice", "u"), **kinds: int) -> HostReport:
    found = tuple(ErrorCount(kind=kind, count=count) for kind, count in kinds.items())
    told = tally(S, host=host, ok=ok, errors=sum(kinds.values()), error_kinds=found)
    return host_report([told], S, S)


GOOD = answered(990, timeout=10)
ALL: dict[str, Any] = {"events": STARTS, "serve": STACK, "costs": COSTS, "log": LOG}


def judged(*hosts: HostReport, **changes: Any) -> dict[str, Criterion]:
    return {one.code: one for one in criteria(hosts or [GOOD], **(ALL | changes))}


def test_without_any_evidence_nothing_is_claimed_and_each_says_what_would_settle_it() -> None:
    found = criteria([answered()])
    assert {one.status for one in found} == {"unknown"}
    assert all(one.settle for one in found)


def test_what_is_not_met_says_how_to_mend_it() -> None:
    assert all(one.settle is None for one in judged().values())
    found = criteria(
        [answered(timeout=100)],
        events=STARTS[:1],
        serve=replace(STACK, settings='{"engines": [{}]}'),
        costs=replace(COSTS, per_million_tokens=None),
        log=replace(LOG, missing={"tokens": 4}, own_rejections=0),
    )
    assert [one.status for one in found] == ["not met"] * 7
    assert all(one.settle for one in found)


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (STARTS[:1], "`toolkit watchdog` recorded cold start 41.2 s, but no warm restart"),
        # of several engines the slowest counts, and of its warm starts the last
        (
            [*STARTS, *(replace(STARTS[0], name="f", text=f"ready after {s} s") for s in (9, 3, 90))],
            (
                "cold start 41.2 s, warm restart 90.0 s, first token after 89.0 s cold and 219 ms warm, recorded by"
                " `toolkit watchdog`"
            ),
        ),
    ],
)  # fmt: skip
def test_starts_are_told_with_their_times(events: list[Event], told: str) -> None:
    assert judged(events=events, serve=None)["model_loading"].evidence == told


def test_a_stack_that_recorded_no_start_lacks_both() -> None:
    found = judged(events=())["model_loading"]
    assert found.evidence.endswith("recorded no time, but no cold start and no warm restart")


def test_the_official_clients_word_goes_before_our_own_readers() -> None:
    call = ("not met", "OpenAI's client failed", "ask by hand")
    assert judged(call=call)["api_compatibility"].status == "not met"
    # and it is no host's: the call went to whichever address was named
    several = judged(GOOD, answered(5, host=BOB), call=call)
    assert several["api_compatibility"].evidence == "OpenAI's client failed"


def test_a_server_that_answered_nobody_is_not_compatible() -> None:
    found = judged(answered(http_404=5))["api_compatibility"]
    assert (found.status, found.evidence) == (
        "not met",
        "none of 5 chat calls was answered: 5 http_404",
    )


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
    events = [Event(at=1.0, kind="restart", text="CUDA out of memory", name="e")] * memory
    assert judged(answered(ok, **kinds), events=events)["stability"].status == status


def test_of_several_hosts_the_worst_is_told_by_name_and_else_all_together() -> None:
    fine = answered(100_000, host=BOB)
    found = judged(answered(50, timeout=50), fine)["stability"]
    assert found.status == "not met"
    assert found.evidence.startswith("`alice`: 50 timeouts")
    both = judged(answered(100_000), fine)["stability"]
    assert (both.status, "of 200,000 requests" in both.evidence) == ("met", True)
    # an engine out of memory is that host's alone
    events = [replace(STARTS[0], text="out of memory", name="bob")] * 3
    found = judged(answered(100), answered(100, host=BOB), events=events)["stability"]
    assert found.evidence.startswith("`bob`: 0 timeouts and 3 out-of-memory errors of 100")


@pytest.mark.parametrize(
    ("costs", "told"),
    [
        (COSTS, "the GPU is cheaper at this load"),
        (replace(COSTS, per_million_tokens=3.0), "the API is cheaper at this load"),
        (replace(COSTS, api_per_million_tokens=None), "an API's price was not told"),
        (None, "the price of a GPU hour was not told"),
    ],
)
def test_the_cheaper_one_is_named_or_the_price_that_was_not_told(
    costs: Costs | None, told: str
) -> None:
    assert judged(costs=costs)["cost"].evidence.endswith(told)


def test_what_several_hosts_cost_is_left_open() -> None:
    assert "several hosts" in judged(GOOD, answered(1, host=BOB), costs=None)["cost"].evidence


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


def test_rows_of_the_store_alone_leave_admission_open_and_an_empty_log_settles_nothing() -> None:
    found = judged(log=None, rejected=12)["admission"]
    assert found.status == "unknown"
    assert "12 requests were answered 429" in found.evidence
    assert judged(log=LogFacts(name="x"))["observability"].status == "unknown"
