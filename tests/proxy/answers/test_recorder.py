"""An upstream's answer as it comes: where its events end, when each came, and what of it is kept. Times are written by hand."""

import json
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pairs import JSON_TYPE, PAIRS, RECORDED, recorder

from toolkit.event_stream import EventStream
from toolkit.proxy.answers.recorder import Recorder
from toolkit.proxy.exchange import View

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


def meaning(data: bytes) -> list[tuple[bytes, bytes]]:
    return EventStream(max_event_bytes=2**20).feed(data)


def test_a_stream_comes_out_as_its_events_byte_for_byte():
    assert len(EVENTS) == 19
    assert fed(STREAM).events == EVENTS


def test_feed_tells_how_many_events_are_new_and_when_each_was_complete():
    recording = recorder()
    # a whole one; one and a half; the rest of it and another; nothing; half of one; its end
    reads = [
        (EVENTS[0], 1),
        (EVENTS[1] + EVENTS[2][:90], 1),
        (EVENTS[2][90:] + EVENTS[3], 2),
        (b"", 0),
        (EVENTS[4][:-1], 0),
        (EVENTS[4][-1:], 1),
    ]
    for number, (data, new) in enumerate(reads):
        assert recording.feed(data, 10.0 + number) == new
    assert recording.events == EVENTS[:5]
    assert recording.times_s == [10.0, 11.0, 12.0, 12.0, 15.0]
    # the role has no token
    assert recording.first_token_at == 11.0
    assert not recording.is_finished


@pytest.mark.parametrize("size", [1, 2, 3, 7, 213, 214, 215, 216, 1000])
def test_however_it_is_cut_the_events_are_the_same(size):
    recording = fed(STREAM, [size] * (len(STREAM) // size))
    assert recording.events == EVENTS
    assert recording.usage_event == 17
    assert recording.is_finished


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@given(cuts=CUTS)
def test_whatever_ends_its_lines_no_byte_is_lost_and_each_event_means_the_same(line_end, cuts):
    said = b": a comment\n\nevent: note\ndata: {}\n\n" + STREAM
    sent = said.replace(b"\n", line_end)
    recording = fed(sent, cuts)
    kept = recording.end(99.0).kept
    assert kept is not None
    # the LF of the very last CRLF may come when the end was read already
    assert sent.removeprefix(kept.body) in (b"", b"\n" if line_end == b"\r\n" else b"")
    assert b"".join(recording.events) == kept.body
    assert [read for event in recording.events for read in meaning(event)] == meaning(said)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_comments_and_names_stay_with_the_event_that_they_stand_before(line_end):
    first = b": hello\nid: 7\nevent: note\ndata: a\ndata: b\n\n".replace(b"\n", line_end)
    second = b"data: c\n\n".replace(b"\n", line_end)
    recording = fed(first + second)
    assert recording.events == [first, second]


def test_a_blank_line_is_never_seen_in_the_middle_of_a_line_end():
    """CR and LF of one CRLF in two reads, again and again: two lines, one event."""
    recording = fed(b"data: a\r\ndata: b\r\n\r\n", [1] * 30)
    assert recording.events[0].startswith(b"data: a\r\ndata: b\r\n\r")
    assert len([event for event in recording.events if event.strip()]) == 1


def test_what_is_kept_is_what_was_sent_and_what_it_told():
    recording = recorder(usage_is_ours=True)
    for number, event in enumerate(EVENTS):
        # sent at 10 s: the role after 0.25 s, a token each 31.25 ms from then on
        recording.feed(event, 10.25 + number * 0.03125)
    found = recording.end(10.9)
    kept = found.kept
    assert found.why_not is None
    assert found.answer is not None and found.answer.ok  # noqa: PT018
    assert kept is not None
    assert (kept.endpoint, kept.streamed) == ("chat/completions", True)
    assert kept.content_type == "text/event-stream; charset=utf-8"
    assert kept.body == STREAM
    assert kept.event_ends == tuple(accumulate(map(len, EVENTS)))
    # 250, 281.25, 312.5, 343.75, 375 ...
    assert kept.event_ms[:5] == (250, 281, 312, 344, 375)
    assert (kept.usage_event, kept.usage_was_ours) == (17, True)
    assert (kept.model, kept.finish_reason) == ("tiny", "length")
    assert (kept.prompt_tokens, kept.output_tokens) == (21, 16)
    # the first token is event 1; the last read was number 18, 250 + 18 x 31.25
    assert (kept.ttft_ms, kept.latency_ms) == (281.25, 812.5)
    assert kept.stored_at == 0.0


def test_a_whole_body_is_kept_as_its_parts_came():
    body = (PAIRS / "chat.json").read_bytes()
    recording = recorder(JSON_TYPE, usage_is_ours=True)
    assert [recording.feed(part, at) for part, at in ((body[:100], 10.5), (body[100:], 10.75))] == [
        1,
        1,
    ]
    assert recording.events == [body[:100], body[100:]]
    assert (recording.is_stream, recording.usage_event, recording.first_token_at) == (
        False,
        None,
        None,
    )
    kept = recording.end(11.0).kept
    assert kept is not None
    assert (kept.streamed, kept.body, kept.event_ends, kept.event_ms) == (False, body, (), ())
    assert (kept.prompt_tokens, kept.output_tokens, kept.finish_reason) == (16, 6, "length")
    assert (kept.ttft_ms, kept.latency_ms, kept.usage_was_ours) == (None, 750.0, False)


def test_without_a_usage_the_tokens_are_unknown():
    kept = fed((RECORDED / "chat_stream_nousage.body").read_bytes()).end(99.0).kept
    assert kept is not None
    assert (kept.usage_event, kept.prompt_tokens, kept.output_tokens) == (None, None, None)


def test_a_usage_beside_a_choice_is_no_usage_event():
    recording = fed((RECORDED / "chat_stream_contusage.body").read_bytes())
    # role and 4 tokens come first
    assert recording.usage_event == 5
    spaced = json.dumps({"choices": [], "usage": {"completion_tokens": 1}})
    filtered = json.dumps({"choices": [], "prompt_filter_results": []})
    recording = fed(f"data: {filtered}\n\ndata: {spaced}\n\n".encode())
    assert recording.usage_event == 1


def test_what_comes_after_the_end_is_no_part_of_the_answer():
    recording = fed(STREAM + b"data: {}\n\n" + STREAM)
    assert recording.is_finished
    assert recording.feed(b"data: more\n\n", 50.0) == 0
    assert recording.events == EVENTS
    kept = recording.end(99.0, "connection reset").kept
    assert kept is not None
    assert kept.body == STREAM


def test_a_stream_without_its_last_blank_line_gets_one():
    for left in (b"", b"\n"):
        recording = fed(STREAM.removesuffix(b"\n\n") + left)
        assert len(recording.events) == 18
        kept = recording.end(99.0).kept
        assert kept is not None
        assert kept.body == STREAM
        assert recording.events == EVENTS


def test_a_line_end_that_comes_after_all_is_kept_with_the_last_event():
    sent = STREAM.replace(b"\n", b"\r\n")
    recording = recorder()
    recording.feed(sent[:-1], 11.0)
    assert recording.is_finished
    recording.feed(sent[-1:], 11.5)
    kept = recording.end(12.0).kept
    assert kept is not None
    assert meaning(kept.body) == meaning(STREAM)


# --- what is not kept ----------------------------------------------------------------------------

ABORTED = STREAM.replace(b'"finish_reason":"length"', b'"finish_reason":"abort"')
ENDLESS = STREAM.replace(b'"finish_reason":"length"', b'"finish_reason":null')
ERROR = b'data: {"error":{"message":"out of memory","code":500}}\n\n'


@pytest.mark.parametrize(
    ("data", "broken", "why_not"),
    [
        (STREAM.removesuffix(EVENTS[-1]), None, "no [DONE]"),
        (STREAM.removesuffix(EVENTS[-1]), "connection reset", "cut"),
        (STREAM[:1000], "connection reset", "cut"),
        (STREAM.removesuffix(b"\n\n")[:-2], "connection reset", "cut"),
        (ABORTED, None, "an error inside it"),
        (ENDLESS, None, "no finish reason"),
        (b"".join((*EVENTS[:5], ERROR, EVENTS[-1])), None, "an error inside it"),
        (b"".join((*EVENTS[:-1], ERROR, EVENTS[-1])), None, "an error inside it"),
        (
            (RECORDED / "slow/stream_during_engine_death.txt").read_bytes(),
            None,
            "an error inside it",
        ),
        (b"".join((*EVENTS[:5], b"data: {broken\n\n", *EVENTS[5:])), None, "not an answer"),
        (b"data: [DONE]\n\n", None, "no finish reason"),
        (b"", None, "no finish reason"),
    ],
)
def test_a_stream_that_is_not_complete_is_not_kept(data, broken, why_not):
    found = fed(data).end(99.0, broken)
    assert (found.kept, found.why_not) == (None, why_not)
    assert found.answer is not None


def test_half_an_event_is_not_among_the_events():
    recording = fed(STREAM[:1000])
    # 255 + 3 x 209 ... : as many as are whole in 1,000 bytes
    whole = [end for end in accumulate(map(len, EVENTS)) if end <= 1000]
    recording.end(99.0, "connection reset")
    assert recording.events == EVENTS[: len(whole)]


@pytest.mark.parametrize(
    ("data", "broken", "why_not"),
    [
        (b"", None, "not an answer"),
        (b"<html>", None, "not an answer"),
        (b'{"choices":[]}', None, "no finish reason"),
        (b'{"error":{"message":"no"}}', None, "an error inside it"),
        ((PAIRS / "chat.json").read_bytes()[:-1], None, "not an answer"),
        ((PAIRS / "chat.json").read_bytes(), "content-length promised more", "cut"),
    ],
)
def test_a_body_that_is_not_complete_is_not_kept(data, broken, why_not):
    found = fed(data, content_type=JSON_TYPE).end(99.0, broken)
    assert (found.kept, found.why_not) == (None, why_not)


@pytest.mark.parametrize("status", [201, 206, 400, 429, 500, 503])
def test_only_status_200_is_kept(status):
    body = (PAIRS / "chat.json").read_bytes()
    for data, content_type in ((STREAM, "text/event-stream"), (body, JSON_TYPE)):
        found = fed(data, status=status, content_type=content_type).end(99.0)
        assert (found.kept, found.why_not) == (None, f"status {status}")


def test_a_refusal_is_read_whole_whatever_it_calls_itself():
    recording = fed(b'{"error":{"message":"too long"}}', status=400)
    assert not recording.is_stream
    answer = recording.end(99.0).answer
    assert answer is not None
    assert (answer.error_kind, answer.error) == ("http_400", "too long")


def test_an_answer_over_the_limit_is_not_kept_but_goes_on_coming():
    recording = fed(STREAM, [100] * 50, max_bytes=len(STREAM) - 1)
    assert recording.too_large
    assert recording.events == EVENTS
    found = recording.end(99.0)
    assert (found.kept, found.why_not) == (None, f"larger than {len(STREAM) - 1:,} bytes")
    assert found.answer is not None
    assert found.answer.ok
    assert fed(STREAM, max_bytes=len(STREAM)).end(99.0).kept is not None


def test_the_limit_is_told_as_it_was_set():
    found = fed(b"data: " + b"x" * 2**21 + b"\n\n" + STREAM, max_bytes=2**21).end(99.0)
    assert found.why_not == "not an answer"
    found = fed(b": " + b"x" * 2**21 + b"\n\n" + STREAM, max_bytes=2**21).end(99.0)
    assert found.why_not == "larger than 2 MiB"
    found = fed(b": " + b"x" * 2**21 + b"\n\n" + STREAM, max_bytes=2**20 + 1).end(99.0)
    assert found.why_not == "larger than 1,048,577 bytes"


def test_an_event_without_an_end_is_not_held():
    recording = recorder()
    for number in range(64):
        recording.feed(b"x" * 2**17, 11.0 + number)
    assert recording.too_large
    # 8 MiB came; what is held back is never more than the 4 MiB that an event may have
    assert sum(map(len, recording.events)) >= 2**22
    assert recording.end(99.0).kept is None


def test_emptied_events_do_not_matter_to_an_answer_that_is_too_large():
    recording = recorder(max_bytes=100)
    for number, event in enumerate(EVENTS):
        recording.feed(event, 11.0 + number)
        recording.events[-1] = b""
    assert recording.usage_event == 17
    assert recording.end(99.0).why_not == "larger than 100 bytes"


def test_an_error_inside_is_told_as_soon_as_it_was_read():
    recording = recorder()
    assert [recording.feed(event, 11.0) for event in EVENTS[:3]] == [1, 1, 1]
    assert not recording.has_failed
    recording.feed(ERROR, 12.0)
    assert recording.has_failed


def test_a_clock_that_steps_back_leaves_no_event_before_another():
    recording = recorder()
    for event, at in zip(EVENTS, [9.0, 12.0, 11.0, *[11.5] * 16], strict=True):
        recording.feed(event, at)
    kept = recording.end(12.0).kept
    assert kept is not None
    assert kept.event_ms == (0, *[2000] * 18)


def test_the_view_that_led_to_the_call_can_be_asked_for():
    assert recorder().view == View(stream=True)
