"""Each of the lab's criteria, met, not met and unknown, on evidence made by hand. What the store holds, tests/cli/test_report_command asks."""

import json
from dataclasses import replace
from typing import Any

import pytest

from toolkit.plan.catalog import table
from toolkit.proxy.telemetry.access_log import request_line
from toolkit.proxy.telemetry.metrics import Served
from toolkit.records import Event, Run
from toolkit.tuning.cells import Cell
from toolkit.tuning.criteria import Costs, Criterion, RequestLog, criteria

LAB = table("criteria")
COSTS = Costs(gpu_hour=2.0, gpus=1, per_million_tokens=0.05, api_per_million_tokens=0.6)
STACK = Run(
    id="5" * 12, verb="serve", started_at=1.0, settings='{"engines": [{}], "proxy": {"media_hosts": []}}'
)  # fmt: skip
STARTS = (
    Event(at=1.0, kind="mark", text="ready after 41.2 s", name="e"),
    Event(at=2.0, kind="mark", text="cold TTFT 89000 ms, warm TTFT 219 ms", name="e"),
    Event(at=9.0, kind="mark", text="ready after 12.0 s", name="e"),
)
WHOLE: dict[str, Any] = {
    "ts": 100.0,
    "request_id": "a-1",
    "team": "bob",
    "model": "m",
    "status": 200,
    "latency_ms": 820.0,
    "prompt_tokens": 1842,
    "completion_tokens": 419,
}


def line(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (WHOLE | changes).items() if value is not None}


def rejection(team: str | None = "alice", ts: float = 100.0, **changes: Any) -> dict[str, Any]:
    tokens = {"prompt_tokens": None, "completion_tokens": None, "event": "rejection"}
    return line(
        **{"team": team, "ts": ts, "status": 429, "rejected": "team_queue_full"} | tokens | changes
    )


def log_of(*lines: dict[str, Any]) -> RequestLog:
    log = RequestLog("requests.jsonl")
    for each in lines:
        log.add(each)
    return log


def answered(ok: int = 0, **kinds: int) -> Cell:
    found = Cell(elapsed_s=1.0, ok=ok, errors=sum(kinds.values()))
    found.error_kinds.update(kinds)
    return found


LOG = log_of(line(), rejection())
GOOD = answered(990, timeout=10)
ALL: dict[str, Any] = {"events": STARTS, "serve": STACK, "costs": COSTS, "log": LOG}


def judged(alice: Cell = GOOD, bob: Cell | None = None, **changes: Any) -> dict[str, Criterion]:
    hosts = [("alice", alice), *([("bob", bob)] if bob else [])]
    return {one.code: one for one in criteria(LAB, hosts, **(ALL | changes))}


def test_without_any_evidence_nothing_is_claimed_and_each_says_what_would_settle_it() -> None:
    found = criteria(LAB, [("alice", answered())])
    assert {one.status for one in found} == {"unknown"}
    assert all(one.settle for one in found)


def test_what_is_met_needs_nothing_and_what_is_not_says_how_to_mend_it() -> None:
    assert {(one.status, one.settle) for one in judged().values()} == {("met", None)}
    found = judged(
        answered(timeout=100),
        events=STARTS[:1],
        serve=replace(STACK, settings='{"engines": [{}]}'),
        costs=replace(COSTS, per_million_tokens=None),
        log=log_of(line(model=None), rejection(None, rejected="queue_full")),
    ).values()
    assert [one.status for one in found] == ["not met"] * 7
    assert all(one.settle for one in found)


@pytest.mark.parametrize(
    ("events", "serve", "words"),
    [
        (STARTS[:1], None, "`toolkit watchdog` recorded cold start 41.2 s, but no warm restart"),
        ((), STACK, "`toolkit serve` recorded no time, but no cold start and no warm restart"),
        # of several engines the slowest counts, and of its warm starts the last
        (
            [*STARTS, *(replace(STARTS[0], name="f", text=f"ready after {s} s") for s in (9, 3, 90))],
            None,
            (
                "cold start 41.2 s, warm restart 90.0 s, first token after 89.0 s cold and 219 ms warm, recorded by"
                " `toolkit watchdog`"
            ),
        ),
    ],
)  # fmt: skip
def test_starts_are_told_with_their_times(events: Any, serve: Run | None, words: str) -> None:
    assert judged(events=events, serve=serve)["model_loading"].evidence == words


def test_the_official_clients_word_goes_before_our_own_readers() -> None:
    call = ("client_failed", {"problem": "failed"})
    assert judged(call=call)["api_compatibility"].status == "not met"
    # and it is no host's: the call went to whichever address was named
    several = judged(GOOD, answered(5), call=call)
    assert several["api_compatibility"].evidence == "OpenAI's client failed"
    dead = judged(answered(http_404=5, cut=7))["api_compatibility"]
    assert dead.evidence == "none of 12 chat calls was answered: 7 cut, 5 http_404"


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
    ],
)
def test_stability_counts_what_the_course_counts(
    ok: int, kinds: dict[str, int], memory: int, status: str
) -> None:
    events = [Event(at=1.0, kind="restart", text="CUDA out of memory", name="e")] * memory
    assert judged(answered(ok, **kinds), events=events)["stability"].status == status


def test_of_several_hosts_the_worst_is_told_by_name_and_else_all_together() -> None:
    fine = answered(100_000)
    found = judged(answered(50, timeout=50), fine)["stability"]
    assert (found.status, found.evidence[:20]) == ("not met", "`alice`: 50 timeouts")
    both = judged(answered(100_000), fine)["stability"]
    assert (both.status, "of 200,000 requests" in both.evidence) == ("met", True)
    # an engine out of memory is that host's alone
    events = [replace(STARTS[0], text="out of memory", name="bob")] * 3
    found = judged(answered(100), answered(100), events=events)["stability"]
    assert found.evidence.startswith("`bob`: 0 timeouts and 3 out-of-memory errors of 100")
    assert "several hosts" in judged(GOOD, fine, costs=None)["cost"].evidence


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        (COSTS, "the GPU is cheaper at this load"),
        (replace(COSTS, per_million_tokens=3.0), "the API is cheaper at this load"),
        (replace(COSTS, api_per_million_tokens=None), "an API's price was not given"),
        (None, "the price of a GPU hour was not given"),
    ],
)
def test_the_cheaper_one_is_named_or_the_price_that_was_not_told(
    costs: Costs | None, words: str
) -> None:
    assert judged(costs=costs)["cost"].evidence.endswith(words)


# --- the request log


@pytest.mark.parametrize(
    ("lines", "lacking"),
    [
        ([line(request_id=None), line(latency_ms=None)], "latency_ms (1), request_id (1)"),
        ([line(model=None), line(completion_tokens=None)], "model (1), tokens (1)"),
        ([line(completion_tokens=None, output_tokens=7)], None),
        # what failed, was left or was rejected has no tokens
        ([line(status=502, model=None, prompt_tokens=None)], None),
        ([line(left=True, completion_tokens=None, latency_ms=None), rejection()], None),
        # nor has an event of the proxy's own, or a page that asks no model
        ([line(), {"event": "upstream_left", "ts": 1.0}], None),
        ([line(), {"request_id": "p-1", "method": "GET", "path": "/v1/models", "status": 200}], None),
    ],
)  # fmt: skip
def test_what_requests_lack_is_counted_by_its_name(
    lines: list[dict[str, Any]], lacking: str | None
) -> None:
    found = judged(log=log_of(*lines))["observability"]
    assert found.status == ("not met" if lacking else "met")
    assert lacking is None or found.evidence.endswith(lacking)


@pytest.mark.parametrize(
    ("lines", "status", "words"),
    [
        ([line(), rejection()], "met", "1 rejection (1 team_queue_full) of team `alice` stand in"),
        ([line(), rejection(), line(ts=120.0, status=500)], "met", "team `bob` had 50.0 % of their"),
        ([line()], "unknown", "holds no rejection"),
        ([line(), rejection(rejected="too_many")], "not met", "from a queue that all share"),
        ([line(), rejection(), rejection(None, rejected="queue_full")], "not met", "all share"),
        ([line(), rejection(), line(status=429), line(status=503)], "not met", "2 of 3 requests that"),
        # nobody else: alice's own, and who came more than 30 s before or after
        ([rejection(), line(team="alice")], "unknown", "no other clients meanwhile"),
        ([rejection(ts=0.0), line(ts=50.0), rejection(ts=90.0)], "unknown", "no other clients"),
        # 30 s before one counts still, and lines need not be in order
        ([rejection(ts=80.0), rejection(ts=0.0), line(ts=50.0)], "met", "2 rejections"),
        ([rejection(ts=80.0), line(ts=50.0), line(ts=111.0, team="carol")], "met", "while team `bob`"),
    ],
)  # fmt: skip
def test_admission_is_judged_by_who_was_rejected_and_who_was_served_beside(
    lines: list[dict[str, Any]], status: str, words: str
) -> None:
    found = judged(log=log_of(*lines))["admission"]
    assert found.status == status
    assert words in found.evidence


def test_rows_of_the_store_alone_leave_admission_open() -> None:
    assert judged(log=log_of())["observability"].evidence == "`requests.jsonl` holds no request"
    found = judged(log=None, rejected=12)["admission"]
    assert found.status == "unknown"
    assert "12 requests were answered 429" in found.evidence


def test_strange_lines_break_nothing_and_the_proxys_own_are_read() -> None:
    nowhen = {"ts": float("nan"), "team": "alice", "rejected": "team_queue_full"}
    never = {"ts": 10**400, "team": "bob", "status": 200}
    strange = [{}, {"status": "200"}, {"ts": "soon", "team": 3, "rejected": 7}, nowhen, never]
    assert log_of(*strange).requests == 5
    served = Served(ts=5.0, request_id="x-1", method="POST", path="/v1/chat/completions")
    served.team, served.model, served.status = "alice", "m", 200
    served.prompt_tokens, served.output_tokens, served.latency_ms = 3, 4, 5.0
    found = judged(log=log_of(json.loads(request_line(served))))["observability"]
    assert found.status == "met"
