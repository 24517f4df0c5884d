"""An upstream's answer as it comes: where its events end, when each came, and what of it is kept. Times are written by hand."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pairs import RECORDED, ended, recorder

from toolkit.protocol.sse import EventStream, event_ends
from toolkit.proxy.responses.recorder import Recorder

STREAM = (RECORDED / "chat_stream.txt").read_bytes()
EVENTS = [event + b"\n\n" for event in STREAM.split(b"\n\n")[:-1]]
"""A role, 16 tokens, the usage, the end."""
CUTS = st.lists(st.integers(0, 400), max_size=40)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data cut into reads of these sizes, over and over."""
    ends = [0, *accumulate(cuts), len(data)]
    return [data[first:end] for first, end in pairwise(ends)]


def fed(data: bytes, cuts: list[int] | None = None, **more: object) -> Recorder:
    recording = recorder(**more)  # type: ignore[arg-type]
    for number, piece in enumerate(pieces(data, cuts or [])):
        recording.feed(piece, 11.0 + number)
    return recording


def events(recording: Recorder) -> list[bytes]:
    """What it holds for who sees all of it, event by event."""
    data = b"".join(recording.parts)
    ends = [0, *event_ends(data)]
    assert ends[-1] == len(data)
    return [data[first:end] for first, end in pairwise(ends)]


def meaning(data: bytes) -> list[tuple[bytes, bytes]]:
    return EventStream(max_event_bytes=2**20).feed(data)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@given(cuts=CUTS)
def test_whatever_ends_its_lines_no_byte_is_lost_and_each_event_means_the_same(line_end, cuts):
    said = b": a comment\n\nevent: note\ndata: {}\n\n" + STREAM
    sent = said.replace(b"\n", line_end)
    recording = fed(sent, cuts)
    kept = ended(recording, 99.0).cached
    assert kept is not None
    # the LF of the very last CRLF may come when the end was read already
    assert sent.removeprefix(kept.body) in (b"", b"\n" if line_end == b"\r\n" else b"")
    assert b"".join(recording.parts) == kept.body
    assert [read for event in events(recording) for read in meaning(event)] == meaning(said)


def test_a_blank_line_is_never_seen_in_the_middle_of_a_line_end():
    """CR and LF of one CRLF in two reads, again and again: two lines, one event."""
    recording = fed(b"data: a\r\ndata: b\r\n\r\n", [1] * 30)
    assert events(recording)[0].startswith(b"data: a\r\ndata: b\r\n\r")
    assert len([event for event in events(recording) if event.strip()]) == 1


def test_what_is_kept_is_what_was_sent_and_what_it_told():
    recording = recorder(has_usage=True)
    for number, event in enumerate(EVENTS):
        # sent at 10 s: the role after 0.25 s, a token each 31.25 ms from then on
        recording.feed(event, 10.25 + number * 0.03125)
    found = ended(recording, 10.9)
    kept = found.cached
    assert found.why_not is None
    assert found.answer is not None and found.answer.ok  # noqa: PT018
    assert kept is not None
    assert (kept.endpoint, kept.streamed) == ("chat/completions", True)
    assert kept.content_type == "text/event-stream; charset=utf-8"
    assert kept.body == STREAM
    assert (kept.model, kept.finish_reason) == ("tiny", "length")
    assert (kept.prompt_tokens, kept.output_tokens) == (21, 16)
    # the first token is event 1; the last read was number 18, 250 + 18 x 31.25
    assert (kept.ttft_ms, kept.latency_ms) == (281.25, 812.5)
    assert kept.stored_at == 0.0


# --- what is not kept ----------------------------------------------------------------------------


def test_a_refusal_is_read_whole_whatever_it_calls_itself():
    recording = fed(b'{"error":{"message":"too long"}}', status=400)
    assert not recording.is_stream
    answer = ended(recording, 99.0).answer
    assert answer is not None
    assert (answer.error_kind, answer.error) == ("http_400", "too long")


def test_the_limit_is_told_as_it_was_set():
    found = ended(fed(b"data: " + b"x" * 2**21 + b"\n\n" + STREAM, max_bytes=2**21), 99.0)
    assert found.why_not == "not an answer"
    found = ended(fed(b": " + b"x" * 2**21 + b"\n\n" + STREAM, max_bytes=2**21), 99.0)
    assert found.why_not == "larger than 2 MiB"
    found = ended(fed(b": " + b"x" * 2**21 + b"\n\n" + STREAM, max_bytes=2**20 + 1), 99.0)
    assert found.why_not == "larger than 1,048,577 bytes"


def test_an_event_without_an_end_is_not_held():
    recording = recorder()
    for number in range(64):
        recording.feed(b"x" * 2**17, 11.0 + number)
    assert recording.too_large
    # 8 MiB came; what is held back is never more than the 4 MiB that an event may have
    assert sum(map(len, recording.parts)) >= 2**22
    assert ended(recording, 99.0).cached is None


@pytest.mark.parametrize("end", [b"", b"\r"])
def test_part_of_an_event_without_an_end_is_passed_on_as_it_is(end):
    recording = recorder(has_usage=True)
    data = b'data: {"choices":[],"finish_reason":"' + b"x" * 2**22 + end
    assert recording.feed(data, 11.0)
    found = ended(recording, 12.0, "connection reset")
    assert (b"".join(recording.without_usage), found.cached) == (data, None)


def test_emptied_events_do_not_matter_to_an_answer_that_is_too_large():
    recording = recorder(max_bytes=100)
    for number, event in enumerate(EVENTS):
        recording.feed(event, 11.0 + number)
        recording.parts[-1] = b""
    assert ended(recording, 99.0).why_not == "larger than 100 bytes"


# --- for clients that did not ask for the usage --------------------------------------------------

WITH = b'"finish_reason":"stop"}],"system_fingerprint":"f"}\n\n'
FINISH = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"."},"finish_reason":"stop"}]}\n\n'
)
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":1},"system_fingerprint":"f"}\n\n'
FINISH_AS_SENT_ALONE = FINISH.replace(b'"finish_reason":"stop"}]}\n\n', WITH)
DONE = EVENTS[-1]


def shown(*parts: bytes, broken: str | None = None) -> list[bytes]:
    recording = recorder(has_usage=True)
    for number, part in enumerate(parts):
        assert recording.feed(part, 11.0 + number)
    recording.end(99.0, broken)
    assert len(recording.without_usage) == len(recording.parts)
    return recording.without_usage


def test_the_end_of_a_choice_waits_for_the_event_behind_it_and_no_longer():
    assert shown(*EVENTS[:3], FINISH, USAGE, DONE) == [
        *EVENTS[:3], b"", FINISH_AS_SENT_ALONE, DONE]  # fmt: skip
    assert shown(EVENTS[0], FINISH, DONE) == [EVENTS[0], b"", FINISH + DONE]
    # of several choices none waits for another to end
    assert shown(FINISH, EVENTS[1]) == [b"", FINISH + EVENTS[1]]
    assert shown(*EVENTS[:2], FINISH, EVENTS[2], FINISH, USAGE) == [
        *EVENTS[:2], b"", FINISH + EVENTS[2], b"", FINISH_AS_SENT_ALONE]  # fmt: skip
    # once the usage is there nothing waits
    assert shown(USAGE, FINISH) == [b"", FINISH]
    assert shown(FINISH + USAGE + DONE) == [FINISH_AS_SENT_ALONE + DONE]


def test_a_usage_beside_a_choice_or_a_list_of_nothing_without_one_stays():
    filtered = b'data: {"choices": [], "prompt_filter_results": []}\n\n'
    beside = b'data: {"choices":[{"index":0,"delta":{}}],"usage":{"completion_tokens":1}}\n\n'
    assert shown(filtered, beside, DONE) == [filtered, beside, DONE]


def test_an_event_that_lacks_its_blank_line_came_when_its_last_byte_did():
    recording = recorder()
    recording.feed(EVENTS[0], 11.0)
    recording.feed(EVENTS[1][:-1], 12.0)
    answer = ended(recording, 99.0).answer
    assert answer is not None
    assert (answer.last_token_at, answer.ended_at) == (12.0, 12.0)
