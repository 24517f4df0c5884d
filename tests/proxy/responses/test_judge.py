"""Answers without choices: which of them are complete, and what they tell of tokens."""

import json

import pytest
from support.pairs import JSON_TYPE, PAIRS, ended, recorder

from toolkit.proxy.responses.recorder import Recorder

RESPONSES = (PAIRS / "responses.txt").read_bytes()
MESSAGES = (PAIRS / "messages.txt").read_bytes()


def read(
    data: bytes,
    endpoint: str,
    *,
    content_type: str = "text/event-stream",
    broken: str | None = None,
) -> Recorder:
    """The events of a stream, or the whole body, one after the other from 11 s on, each a second later."""
    recording = recorder(content_type, endpoint=endpoint)
    parts = data.split(b"\n\n") if recording.is_stream else [data]
    for number, part in enumerate(parts):
        last = number + 1 == len(parts)
        recording.feed(part if last else part + b"\n\n", 11.0 + number)
    found = ended(recording, 60.0, broken)
    assert found.answer is None
    return found


@pytest.mark.parametrize(
    ("data", "endpoint", "reason", "first_token"),
    [
        # 4 events come before the first delta; and 2
        (RESPONSES, "responses", None, 4),
        (MESSAGES, "messages", "max_tokens", 2),
    ],
)
def test_a_recorded_stream_is_kept_byte_for_byte(data, endpoint, reason, first_token):
    kept = read(data, endpoint).cached
    assert kept is not None
    assert (kept.body, kept.streamed) == (data, True)
    # sent at 10 s, the first event came at 11 s
    assert kept.ttft_ms == (1 + first_token) * 1000.0
    assert (kept.model, kept.prompt_tokens, kept.output_tokens) == ("tiny", 16, 4)
    assert kept.finish_reason == reason


@pytest.mark.parametrize(("data", "endpoint"), [(RESPONSES, "responses"), (MESSAGES, "messages")])
def test_a_stream_is_kept_only_with_its_last_event(data, endpoint):
    events = [event + b"\n\n" for event in data.split(b"\n\n")[:-1]]
    without = b"".join(events[:-1])
    assert read(without, endpoint).why_not == "no finish reason"
    assert read(without, endpoint, broken="connection reset").why_not == "cut"
    assert read(data.removesuffix(b"\n\n"), endpoint, broken="connection reset").why_not == "cut"
    # who has it needs no more; a server may also forget the blank line
    assert read(data, endpoint, broken="connection reset").cached is not None
    kept = read(data.removesuffix(b"\n\n"), endpoint).cached
    assert kept is not None
    assert kept.body == data
    # another endpoint's end ends nothing
    other = {"responses": "messages", "messages": "responses"}[endpoint]
    assert read(data, other).cached is None


@pytest.mark.parametrize("name", ["error", "response.failed", "response.cancelled"])
def test_a_stream_with_an_error_inside_is_not_kept(name):
    for data, endpoint in ((RESPONSES, "responses"), (MESSAGES, "messages")):
        events = data.split(b"\n\n")
        spoilt = b"\n\n".join([*events[:3], f"event: {name}\ndata: {{}}".encode(), *events[3:]])
        assert read(spoilt, endpoint).why_not == "an error inside it"
        recording = recorder(endpoint=endpoint)
        recording.feed(spoilt, 11.0)
        assert recording.has_failed


@pytest.mark.parametrize(
    ("said", "endpoint", "why_not"),
    [
        ({"object": "list", "data": [], "usage": {"prompt_tokens": 3}}, "embeddings", None),
        ({"object": "list", "data": [{"score": 0.5}]}, "score", None),
        ({"object": "error", "message": "no"}, "embeddings", "an error inside it"),
        ({"error": {"message": "no"}}, "rerank", "an error inside it"),
        ({"type": "error", "error": {}}, "messages", "an error inside it"),
        ({"error": None, "output": [], "status": "completed"}, "responses", None),
        ({"output": [], "status": "in_progress"}, "responses", "no finish reason"),
        ({"output": [], "status": "failed"}, "responses", "no finish reason"),
        ({"output": []}, "responses", "no finish reason"),
        ({"output": "a", "status": "completed"}, "responses", "not an answer"),
        ({"content": [], "stop_reason": None}, "messages", "no finish reason"),
        ({"content": "a", "stop_reason": "end_turn"}, "messages", "not an answer"),
        ([1], "embeddings", "not an answer"),
        ({}, "embeddings", "not an answer"),
        ({"detail": "loading"}, "score", "not an answer"),
        ({"data": "soon"}, "embeddings", "not an answer"),
        ({"embeddings": {"float": [[0.5]]}}, "embed", None),
        ({"results": [{"index": 0, "relevance_score": 0.5}]}, "rerank", None),
        ({"scores": [[0.5]]}, "score", None),
    ],
)
def test_a_body_is_kept_if_it_says_that_it_is_complete(said, endpoint, why_not):
    found = read(json.dumps(said).encode(), endpoint, content_type=JSON_TYPE)
    assert found.why_not == why_not
    assert (found.cached is None) == (why_not is not None)


def test_only_its_own_last_event_ends_a_stream_without_choices():
    first, _, rest = MESSAGES.partition(b"\n\n")
    sent = first + b"\n\ndata: [DONE]\n\n" + rest
    kept = read(sent, "messages").cached
    assert kept is not None
    assert kept.body == sent
