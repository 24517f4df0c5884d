"""A request's moments and its answer, put together by hand and by `request_record`."""

from dataclasses import replace
from typing import Any

import pytest

from toolkit.bench.request_record import Failure, RequestContext, Response, request_record
from toolkit.bench.requests import PlannedRequest
from toolkit.protocol.completion import Answer
from toolkit.records import RequestRecord
from toolkit.stats import Sketch

REQUEST = PlannedRequest(
    slot=7,
    kind="twin",
    pair=3,
    prompt="robot",
    body={"ignore_eos": True},
    stream=True,
    max_tokens=64,
)
CLOSED = RequestContext(run="r", name="alice", url="http://a", concurrency=8, wall_offset_s=1000.0)
OPEN = replace(CLOSED, concurrency=None)
TIMES: dict[str, float | None] = {"planned_s": 10.0, "sent_s": 10.5, "ended_s": 13.0}
ANSWER = Answer(
    ok=True,
    streamed=True,
    first_token_at=11.0,
    first_visible_at=11.5,
    last_token_at=12.5,
    ended_at=12.75,
    gaps=((0.5, 1), (1.0, 2)),
    token_chunks=3,
    first_chunk_tokens=1,
    prompt_tokens=9,
    output_tokens=4,
    cached_tokens=2,
    text="ab",
    reasoning="c",
    finish_reason="length",
    model="tiny",
    answer_id="id-1",
)
WHOLE = Answer(ok=True, streamed=False, ended_at=12.75, output_tokens=4, finish_reason="stop")
NO_FINISH = replace(ANSWER, ok=False, error_kind="no_finish", error="no reason")


def record_of(context: RequestContext = CLOSED, /, **more: Any) -> RequestRecord:
    """The record; `more` is what came back, and times that differ."""
    times = {name: more.pop(name, usual) for name, usual in TIMES.items()}
    return request_record(context, REQUEST, Response(**more), **times)


@pytest.mark.parametrize(
    ("context", "facts", "expected"),
    [
        # a closed loop's times count from the send; TPOT is (12.5 s - 11.0 s) / 3 tokens after the first chunk
        (CLOSED, {"answer": ANSWER}, {
            "planned_at": 1010.0, "sent_at": 1010.5, "send_lag_ms": 500.0, "took_ms": 2500.0,
            "ttft_ms": 500.0, "ttft_visible_ms": 1000.0, "e2e_ms": 2000.0, "tpot_ms": 500.0}),
        # an open loop's from the plan
        (OPEN, {"answer": ANSWER}, {
            "send_lag_ms": 500.0, "took_ms": 3000.0, "ttft_ms": 1000.0, "ttft_visible_ms": 1500.0,
            "e2e_ms": 2500.0, "concurrency": None}),
        # a timer of whole milliseconds may end half a one early: that hides no latency
        (OPEN, {"answer": ANSWER, "planned_s": 10.75}, {"send_lag_ms": -250.0, "ttft_ms": 500.0, "took_ms": 2500.0}),
        (CLOSED, {"answer": ANSWER, "planned_s": 10.75}, {"send_lag_ms": -250.0, "ttft_ms": 500.0, "took_ms": 2500.0}),
        (CLOSED, {"answer": WHOLE}, {
            "e2e_ms": 2250.0, "ttft_ms": None, "tpot_ms": None, "itl": None, "token_chunks": None}),
        # 0.5 s for 1 token, 1 s for 2 tokens
        (CLOSED, {"answer": ANSWER}, {"itl": Sketch.of([500.0, 500.0]).to_bytes()}),
        (CLOSED, {"answer": ANSWER, "status": 200, "cache_status": "HIT"}, {
            "run": "r", "name": "alice", "url": "http://a", "concurrency": 8, "slot": 7, "kind": "twin", "pair": 3,
            "prompt": "robot", "stream": True, "max_tokens": 64, "ignore_eos": True, "prompt_tokens": 9,
            "output_tokens": 4, "cached_tokens": 2, "token_chunks": 3, "text_chars": 3, "finish_reason": "length",
            "model": "tiny", "answer_id": "id-1", "status_code": 200, "cache_status": "HIT", "ok": True,
            "error_kind": None, "error": None, "text_hash": ANSWER.text_hash}),
        (CLOSED, {"answer": replace(ANSWER, output_tokens_estimated=True)}, {"output_tokens_estimated": True}),
        # an answer's own fault keeps what came before it; a failure outside goes before it
        (CLOSED, {"answer": NO_FINISH}, {
            "ok": False, "error_kind": "no_finish", "error": "no reason", "ttft_ms": 500.0}),
        (CLOSED, {"answer": NO_FINISH, "failure": Failure(kind="timeout", error="late")}, {
            "ok": False, "error_kind": "timeout", "error": "late"}),
        (CLOSED, {"failure": Failure(kind="connect", error="refused")}, {
            "ok": False, "error_kind": "connect", "took_ms": 2500.0, "ttft_ms": None, "e2e_ms": None, "itl": None,
            "output_tokens": None, "text_hash": None}),
        (CLOSED, {"sent_s": None, "ended_s": 12.0, "failure": Failure(kind="not_sent", error="full")}, {
            "planned_at": 1010.0, "sent_at": None, "send_lag_ms": None}),
    ],
)  # fmt: skip
def test_a_record_holds_the_requests_moments_and_what_came_back(
    context: RequestContext, facts: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = record_of(context, **facts)
    assert {key: getattr(found, key) for key in expected} == expected
