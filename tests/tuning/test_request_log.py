"""A request log's lines, as the proxy writes them, counted."""

from typing import Any

from toolkit.proxy.telemetry.access_log import request_line as proxy_line
from toolkit.tuning.criteria import log_facts

WHOLE: dict[str, Any] = {
    "ts": 100.0,
    "request_id": "a-1",
    "team": "alice",
    "model": "m",
    "status": 200,
    "latency_ms": 820.0,
    "prompt_tokens": 1842,
    "completion_tokens": 419,
}


def line(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (WHOLE | changes).items() if value is not None}


def rejection(team: str | None, ts: float, reason: str = "team_queue_full") -> dict[str, Any]:
    return line(
        team=team,
        ts=ts,
        status=429,
        event="rejection",
        rejected=reason,
        prompt_tokens=None,
        completion_tokens=None,
    )


def test_a_whole_line_lacks_nothing() -> None:
    found = log_facts("f", [line(), line(request_id="a-2")])
    assert (found.requests, dict(found.missing), found.turned_away) == (2, {}, 0)


def test_what_lines_do_not_tell_is_counted_by_its_name() -> None:
    found = log_facts(
        "f",
        [
            line(request_id=None),
            line(model=None),
            line(latency_ms=None),
            line(completion_tokens=None),
            line(completion_tokens=None, output_tokens=7),
        ],
    )
    assert found.missing == {"request_id": 1, "model": 1, "latency_ms": 1, "tokens": 1}


def test_what_failed_or_was_left_has_no_tokens_to_tell() -> None:
    found = log_facts(
        "f",
        [
            line(status=502, model=None, prompt_tokens=None, completion_tokens=None),
            line(left=True, completion_tokens=None, latency_ms=None),
            rejection("alice", 1.0),
        ],
    )
    assert found.missing == {}


def test_events_are_no_requests_and_rejections_are_both() -> None:
    found = log_facts("f", [{"event": "upstream_left", "ts": 1.0}, rejection("alice", 2.0), line()])
    assert (found.requests, found.rejected, dict(found.reasons)) == (2, 1, {"team_queue_full": 1})


def test_a_page_that_asks_no_model_is_no_request() -> None:
    # bench and blast ask for the models' names, scout looks at pages; none of them has tokens to tell
    page = {"ts": 99.0, "request_id": "p-1", "method": "GET", "path": "/v1/models", "status": 200}
    found = log_facts("f", [page, page | {"path": "/metrics", "status": 404}, line(method="POST")])
    assert (found.requests, dict(found.missing)) == (1, {})
    lacking = log_facts("f", [page, line(method="POST", model=None)])
    assert (lacking.requests, dict(lacking.missing)) == (1, {"model": 1})


def test_who_was_served_beside_a_rejection_is_told() -> None:
    found = log_facts(
        "f",
        [
            line(team="bob", ts=95.0),
            rejection("alice", 100.0),
            line(team="alice", ts=101.0),
            line(team="bob", ts=120.0, status=500),
            line(team="carol", ts=1000.0),  # long after
        ],
    )
    assert found.rejected_teams == ("alice",)
    assert found.served_beside == ("bob",)
    assert found.beside_ok_share == 0.5


def test_between_two_rejections_far_apart_nobody_was_beside_one() -> None:
    # bob asks at noon, alice is turned away in the morning and in the evening: each is further off than 30 s
    found = log_facts(
        "f", [rejection("alice", 0.0), line(team="bob", ts=50.0), rejection("alice", 90.0)]
    )
    assert found.served_beside == ()
    # 30 s before one counts still, and lines need not be in order
    late = log_facts(
        "f", [rejection("alice", 80.0), rejection("alice", 0.0), line(team="bob", ts=50.0)]
    )
    assert late.served_beside == ("bob",)


def test_a_shared_queue_and_a_missing_reason_are_told_apart() -> None:
    found = log_facts("f", [rejection(None, 1.0, "queue_full"), line(status=503), line(status=429)])
    assert (found.turned_away, found.rejected, found.unlogged_rejections) == (3, 1, 2)
    assert (found.own_rejections, found.nameless_rejections) == (0, 1)


def test_strange_lines_break_nothing() -> None:
    nowhen = {"ts": float("nan"), "team": "alice", "rejected": "team_queue_full"}
    never = {"ts": 10**400, "team": "bob", "status": 200}
    strange = [{}, {"status": "200"}, {"ts": "soon", "team": 3, "rejected": 7}, nowhen, never]
    assert log_facts("f", strange).requests == 5


def test_the_proxys_own_words_are_read() -> None:
    import json

    from toolkit.proxy.telemetry.metrics import Served

    served = Served(ts=5.0, request_id="x-1", method="POST", path="/v1/chat/completions")
    served.team, served.model, served.status = "alice", "m", 200
    served.prompt_tokens, served.output_tokens, served.latency_ms = 3, 4, 5.0
    found = log_facts("f", [json.loads(proxy_line(served))])
    assert (found.requests, dict(found.missing)) == (1, {})
