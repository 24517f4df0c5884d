"""A request's moments and its answer, put together by hand and by `request_record`."""

from dataclasses import replace
from typing import Any

import pytest

from toolkit.bench.request_record import Failure, RequestContext, Response, request_record
from toolkit.bench.requests import PlannedRequest
from toolkit.protocol.completion import Answer
from toolkit.records import RequestRecord
from toolkit.stats import Sketch

ASK = PlannedRequest(
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


def told(context: RequestContext = CLOSED, /, **more: Any) -> RequestRecord:
    """The record; `more` is what came back, and times that differ."""
    times = {name: more.pop(name, usual) for name, usual in TIMES.items()}
    return request_record(context, ASK, Response(**more), **times)


def test_a_streams_times_count_from_its_send() -> None:
    found = told(answer=ANSWER, status=200)
    assert (found.planned_at, found.sent_at) == (1010.0, 1010.5)
    assert (found.send_lag_ms, found.took_ms) == (500.0, 2500.0)
    assert (found.ttft_ms, found.ttft_visible_ms, found.e2e_ms) == (500.0, 1000.0, 2000.0)
    # (12.5 s - 11.0 s) / 3 tokens after the first chunk
    assert found.tpot_ms == 500.0


def test_in_an_open_loop_they_count_from_the_plan() -> None:
    found = told(OPEN, answer=ANSWER)
    assert (found.send_lag_ms, found.took_ms) == (500.0, 3000.0)
    assert (found.ttft_ms, found.ttft_visible_ms, found.e2e_ms) == (1000.0, 1500.0, 2500.0)
    assert found.concurrency is None


@pytest.mark.parametrize("context", [OPEN, CLOSED])
def test_a_send_before_its_plan_hides_no_latency(context: RequestContext) -> None:
    """A timer of whole milliseconds may end half a one early."""
    found = told(context, planned_s=10.75, answer=ANSWER)
    assert (found.send_lag_ms, found.ttft_ms, found.took_ms) == (-250.0, 500.0, 2500.0)


def test_a_whole_answer_ends_with_its_last_byte() -> None:
    whole = Answer(ok=True, streamed=False, ended_at=12.75, output_tokens=4, finish_reason="stop")
    found = told(answer=whole)
    assert (found.e2e_ms, found.ttft_ms, found.tpot_ms, found.itl) == (2250.0, None, None, None)
    assert found.token_chunks is None


def test_gaps_are_kept_per_token() -> None:
    found = told(answer=ANSWER)
    expected = Sketch()
    expected.add(500.0)  # 0.5 s for 1 token
    expected.add(500.0)  # 1 s for 2 tokens
    assert found.itl == expected.to_bytes()


def test_the_asks_and_the_answers_facts_are_the_shots() -> None:
    found = told(answer=ANSWER, status=200, cache_status="HIT")
    assert (found.run, found.name, found.url, found.concurrency) == ("r", "alice", "http://a", 8)
    assert (found.slot, found.kind, found.pair, found.prompt) == (7, "twin", 3, "robot")
    assert (found.stream, found.max_tokens, found.ignore_eos) == (True, 64, True)
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (9, 4, 2)
    assert (found.token_chunks, found.text_chars, found.finish_reason) == (3, 3, "length")
    assert (found.model, found.answer_id) == ("tiny", "id-1")
    assert (found.status_code, found.cache_status) == (200, "HIT")
    assert (found.ok, found.error_kind, found.error) == (True, None, None)
    assert found.text_hash == ANSWER.text_hash


def test_tokens_that_nobody_told_are_marked() -> None:
    found = told(answer=replace(ANSWER, output_tokens=3, output_tokens_estimated=True))
    assert (found.output_tokens, found.output_tokens_estimated) == (3, True)


def test_an_answers_own_fault_is_the_shots() -> None:
    broken = replace(ANSWER, ok=False, error_kind="no_finish", error="no reason")
    found = told(answer=broken)
    assert (found.ok, found.error_kind, found.error) == (False, "no_finish", "no reason")
    # what came before it broke is kept
    assert found.ttft_ms == 500.0


def test_a_failure_outside_goes_before_the_answers_own() -> None:
    broken = replace(ANSWER, ok=False, error_kind="cut", error="closed")
    found = told(answer=broken, failure=Failure(kind="timeout", error="late"))
    assert (found.ok, found.error_kind, found.error) == (False, "timeout", "late")


def test_without_an_answer_nothing_is_made_up() -> None:
    found = told(failure=Failure(kind="connect", error="refused"))
    assert (found.ok, found.error_kind, found.took_ms) == (False, "connect", 2500.0)
    unknown = (found.ttft_ms, found.e2e_ms, found.itl, found.output_tokens, found.text_hash)
    assert unknown == (None,) * 5


def test_a_request_that_never_left_has_no_send() -> None:
    found = told(sent_s=None, ended_s=12.0, failure=Failure(kind="not_sent", error="full"))
    assert (found.planned_at, found.sent_at, found.send_lag_ms) == (1010.0, None, None)
