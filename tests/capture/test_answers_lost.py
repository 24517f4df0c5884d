"""Answers of which bytes are missing: declared damaged, never made up, and the next ones are found again."""

from support.answer_bytes import STREAM, chunk, events, json_answer, streamed, tokens
from support.recordings import recorded

from toolkit.capture.answers import AnswerReader
from toolkit.capture.records import HttpAnswer

CHAT = json_answer(recorded("chat.json"))
EVENTS = events(recorded("chat_stream.txt"))


class Reading:
    """Answers as they come, and the requests that they belong to."""

    def __init__(self, *sent_at: float) -> None:
        self.told: list[HttpAnswer] = []
        self.answers = AnswerReader(self.told.append)
        for at in sent_at:
            self.answers.asked("POST", at)

    def data(self, at: float, data: bytes) -> "Reading":
        self.answers.data(at, data)
        return self

    def gap(self, at: float, missing: int | None = None) -> "Reading":
        self.answers.gap(at, missing)
        return self


def test_a_hole_of_unknown_size_ends_an_answer_as_damaged_and_the_next_head_begins_anew() -> None:
    reading = Reading(0.0).data(1.0, STREAM).data(2.0, chunk(EVENTS[0])).data(3.0, chunk(EVENTS[1]))
    reading.gap(4.0)
    (first,) = reading.told
    assert (first.damaged, first.complete, first.status) == (True, False, 200)
    assert (first.first_at, first.token_at, first.last_at) == (1.0, 3.0, 3.0)
    reading.data(5.0, chunk(EVENTS[5])).data(6.0, b"0\r\n\r\n")
    reading.answers.asked("POST", 6.5)
    reading.data(7.0, CHAT)
    assert len(reading.told) == 2
    assert tokens(reading.told[1]) == (21, 16, None, "length")
    assert not reading.told[1].damaged


def test_a_hole_within_a_body_of_known_length_is_stepped_over() -> None:
    reading = Reading(0.0).data(1.0, CHAT[:250]).gap(2.0, 250).data(3.0, CHAT[500:])
    reading.answers.asked("POST", 4.0)
    reading.data(5.0, CHAT)
    first, second = reading.told
    assert (first.damaged, first.complete, first.last_at) == (True, False, 3.0)
    # its end is whole, and tells its usage; its beginning is lost, and nothing was made up for it
    assert tokens(first) == (21, 16, None, None)
    assert tokens(second) == (21, 16, None, "length")
    assert (second.damaged, second.complete) == (False, True)


def test_a_hole_at_the_end_of_a_body_of_known_length_ends_it() -> None:
    reading = Reading(0.0).data(1.0, CHAT[:-100]).gap(2.0, 100).data(3.0, CHAT)
    assert [answer.damaged for answer in reading.told] == [True, False]
    assert reading.told[0].last_at == 2.0


def test_a_hole_within_a_chunk_is_stepped_over() -> None:
    wire = chunk(b"".join(EVENTS[2:8]))
    reading = Reading(0.0).data(1.0, STREAM).data(2.0, chunk(EVENTS[0]) + wire[:200])
    reading.gap(3.0, 300).data(4.0, wire[500:]).data(5.0, b"".join(map(chunk, EVENTS[8:])))
    reading.data(6.0, b"0\r\n\r\n").data(7.0, CHAT)
    first, second = reading.told
    # when its first token came is not known any more
    assert (first.damaged, first.token_at, first.last_at) == (True, None, 6.0)
    assert tokens(first) == (21, 16, None, "length")
    assert not second.damaged


def test_a_hole_longer_than_the_body_is_not_stepped_over() -> None:
    reading = Reading(0.0).data(1.0, CHAT[:400]).gap(2.0, len(CHAT))
    assert reading.told[0].damaged
    assert reading.data(3.0, CHAT[-50:]).told == reading.told[:1]


def test_whole_answers_in_a_hole_are_told_as_damaged_so_that_the_next_one_finds_its_request() -> (
    None
):
    # a client sends a request once it has the answer to the one before: at 20 and 30 it had two of them
    reading = Reading(10.0).data(11.0, CHAT)
    for at in (12.0, 20.0, 30.0):
        reading.answers.asked("POST", at)
    reading.gap(31.0).data(31.0, CHAT)
    assert [answer.damaged for answer in reading.told] == [False, True, True, False]
    assert reading.told[1] == reading.told[2] == HttpAnswer(damaged=True)


def test_a_hole_within_a_head_leaves_an_answer_without_a_status() -> None:
    reading = Reading(0.0).data(1.0, CHAT[:20]).gap(2.0, 10)
    reading.answers.asked("POST", 3.0)
    reading.data(4.0, CHAT)
    first, second = reading.told
    assert (first.status, first.first_at, first.damaged) == (None, 1.0, True)
    assert (second.status, second.damaged) == (200, False)


def test_a_capture_that_begins_within_an_answer_waits_for_the_next_one() -> None:
    wire = b"".join(streamed(recorded("chat_stream.txt")))
    for cut in (1, 100, 1000, len(wire) - 4):
        reading = Reading().data(1.0, wire[cut:])
        assert reading.told == []
        reading.answers.asked("POST", 2.0)
        assert len(reading.data(3.0, CHAT).told) == 1


def test_an_answer_that_comes_before_its_request_is_whole_is_not_counted_twice() -> None:
    refusal = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 100\r\n\r\n"
    reading = Reading().data(1.0, refusal)
    reading.answers.asked("HEAD", 2.0)
    reading.data(3.0, b"x" * 100)
    reading.answers.asked("POST", 4.0)
    # a request to HEAD that still waited would have this one end with its head
    reading.data(5.0, CHAT)
    assert [answer.status for answer in reading.told] == [413, 200]
    assert reading.told[1].output_tokens == 16


def test_a_request_sent_while_the_first_ones_answer_begins_keeps_its_place() -> None:
    reading = Reading(0.0).data(1.0, b"HTTP/1.1 200 OK\r\ncontent-le")
    reading.answers.asked("HEAD", 1.5)
    reading.data(2.0, b"ngth: 2\r\n\r\n{}")
    # the second one's answer has no body, whatever its length says
    reading.data(3.0, b"HTTP/1.1 201 Created\r\ncontent-length: 99\r\n\r\n")
    assert [(answer.status, answer.complete) for answer in reading.told] == [
        (200, True),
        (201, True),
    ]


def test_what_is_no_http_is_no_answer() -> None:
    for garbage in (
        b"\x16\x03\x01\x00",
        b"PRI * HTTP/2.0",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2x0 \r\n\r\n",
    ):
        reading = Reading(0.0).data(1.0, garbage).data(2.0, b"more of it")
        assert reading.told == []
        assert len(reading.data(3.0, CHAT).told) == 1


def test_a_head_without_an_end_is_given_up() -> None:
    reading = Reading(0.0).data(1.0, b"HTTP/1.1 200 OK\r\n")
    for _ in range(300):
        reading.data(2.0, b"x-filler: " + b"x" * 1000 + b"\r\n")
    assert reading.told == []
    assert len(reading.data(3.0, CHAT).told) == 1


def test_broken_chunks_damage_the_answer() -> None:
    for broken in (
        b"zz\r\n",
        b"-5\r\n",
        b"\r\n",
        b"5\r\nabcdeX\r\n",
        b"f" * 17 + b"\r\n",
        b"5" * 20_000,
    ):
        reading = Reading(0.0).data(1.0, STREAM).data(2.0, chunk(EVENTS[0])).data(3.0, broken)
        (answer,) = reading.told
        assert (answer.damaged, answer.complete) == (True, False), broken
        reading.answers.asked("POST", 4.0)
        assert not reading.data(5.0, CHAT).told[1].damaged


def test_an_empty_line_before_an_answer_hides_it_from_nobody() -> None:
    reading = Reading(0.0).gap(1.0).data(2.0, b"\r\n" + CHAT)
    assert [answer.status for answer in reading.told] == [200]


def test_requests_sent_ahead_after_a_hole_keep_their_answers() -> None:
    reading = Reading(0.0).data(1.0, CHAT[:200]).gap(2.0)
    reading.answers.asked("POST", 3.0)
    reading.data(4.0, CHAT)
    for at in (5.0, 5.1, 5.2):
        reading.answers.asked("POST", at)
    reading.data(6.0, CHAT).data(7.0, CHAT + CHAT)
    assert [answer.damaged for answer in reading.told] == [True, False, False, False, False]
