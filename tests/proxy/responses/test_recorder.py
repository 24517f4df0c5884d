"""An upstream's answer as it comes: where its events end, when each came, and what of it is kept. Times are written by hand."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pairs import PAIRS, RECORDED, ended, recorder

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


# --- what is not kept ----------------------------------------------------------------------------


def test_an_event_without_an_end_is_not_held():
    recording = recorder()
    for number in range(64):
        recording.feed(b"x" * 2**17, 11.0 + number)
    assert recording.too_large
    # 8 MiB came; what is held back is never more than the 4 MiB that an event may have
    assert sum(map(len, recording.parts)) >= 2**22
    assert ended(recording, 99.0).cached is None


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
