"""Answers of every framing, in any order, cut anywhere, with a hole anywhere: all are found, none is made up."""

import random
from itertools import accumulate

import pytest
from support.answer_bytes import json_answer, streamed
from support.recordings import recorded

from toolkit.capture.answers import AnswerReader
from toolkit.capture.records import HttpAnswer

ROUNDS = 100
Sent = tuple[str, int, bytes]
"""Method, status, and the answer's bytes."""


def text(chance: random.Random) -> bytes:
    """What looks like framing, and is none."""
    return bytes(chance.choices(b"abcHTTP/1.1 200 \r\n{}05", k=chance.randrange(200)))


def known_length(chance: random.Random) -> Sent:
    status, body = chance.choice([200, 201, 400, 503]), text(chance)
    head = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
    return "POST", status, head + body


def chunked(chance: random.Random) -> Sent:
    body, wire = text(chance), b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    while body:
        size = min(len(body), chance.randrange(1, 40))
        wire += b"%x%s\r\n%s\r\n" % (size, chance.choice([b"", b";a=b", b" "]), body[:size])
        body = body[size:]
    return "POST", 200, wire + chance.choice([b"0\r\n\r\n", b"000;x\r\nt: v\r\n\r\n"])


def without_body(chance: random.Random) -> Sent:
    method, status = chance.choice([("HEAD", 200), ("POST", 204), ("GET", 304)])
    return method, status, b"HTTP/1.1 %d X\r\ncontent-length: 7\r\n\r\n" % status


def from_a_model(chance: random.Random) -> Sent:
    if chance.random() < 0.5:
        return "POST", 200, json_answer(recorded("chat.json"))
    return "POST", 200, b"".join(streamed(recorded("chat_stream_nousage.body")))


KINDS = (known_length, chunked, without_body, from_a_model)


def sent(chance: random.Random) -> list[Sent]:
    return [chance.choice(KINDS)(chance) for _ in range(chance.randrange(2, 8))]


def before_an_answer(chance: random.Random) -> bytes:
    """What is none and may come before one."""
    return chance.choice([b"", b"\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])


def reading() -> tuple[AnswerReader, list[HttpAnswer]]:
    told: list[HttpAnswer] = []
    return AnswerReader(told.append), told


@pytest.mark.parametrize("most", [1, 7, 500])
def test_answers_cut_anywhere_are_all_found(most: int) -> None:
    for seed in range(ROUNDS):
        chance = random.Random(seed)
        answers, told = reading()
        row = sent(chance)
        for method, _, _ in row:
            answers.asked(method, 0.0)
        wire, at = b"".join(before_an_answer(chance) + one for _, _, one in row), 0
        while at < len(wire):
            size = chance.randrange(1, most + 1)
            answers.data(float(at), wire[at : at + size])
            at += size
        assert [answer.status for answer in told] == [status for _, status, _ in row], seed
        assert all(answer.complete and not answer.damaged for answer in told), seed


@pytest.mark.parametrize("is_size_known", [False, True])
@pytest.mark.parametrize("most", [1, 100])
def test_an_answer_that_lost_bytes_is_never_told_as_whole(most: int, is_size_known: bool) -> None:
    for seed in range(ROUNDS):
        chance = random.Random(seed)
        answers, told = reading()
        row = sent(chance)
        ends = list(accumulate(len(wire) for _, _, wire in row))
        lost = chance.randrange(ends[-1])
        behind = min(ends[-1], lost + chance.randrange(1, 400))
        clock, at = 0.0, 0
        for (method, _, wire), end in zip(row, ends, strict=True):
            clock += 1
            answers.asked(method, clock)
            while at < end:
                clock += 1
                stop = min(end, at + chance.randrange(1, most + 1))
                if stop <= lost or at >= behind:
                    answers.data(clock, wire[at - end :][: stop - at])
                elif lost <= at:
                    stop = min(end, behind)
                    answers.gap(clock, stop - at if is_size_known else None)
                else:
                    stop = lost
                    answers.data(clock, wire[at - end :][: stop - at])
                at = stop
        answers.end(clock)
        hit = sum(
            start < behind and end > lost for start, end in zip([0, *ends], ends, strict=False)
        )
        whole = [answer for answer in told if answer.complete]
        assert len(whole) <= len(row) - hit, seed
        assert not any(answer.damaged for answer in whole), seed


def test_every_answer_beside_a_hole_is_found_and_keeps_its_request() -> None:
    for seed in range(10 * ROUNDS):
        chance = random.Random(seed)
        answers, told = reading()
        # the last one is whole, so that what was lost before it is known to be
        row = [*sent(chance), ("POST", 202, b"HTTP/1.1 202 X\r\ncontent-length: 0\r\n\r\n")]
        ends = list(accumulate(len(wire) for _, _, wire in row))
        lost = chance.randrange(ends[-2])
        behind = min(ends[-2], lost + chance.choice([1, 50, 500, 5000]))
        is_hit = []
        for number, ((method, _, wire), end) in enumerate(zip(row, ends, strict=True)):
            start = end - len(wire)
            answers.asked(method, 2.0 * number)
            is_hit.append(start < behind and end > lost)
            answers.data(2.0 * number + 1, wire[: max(0, lost - start)])
            if start < behind <= end:
                answers.gap(2.0 * number + 1, None)
            answers.data(2.0 * number + 1, wire[max(0, behind - start, lost - start) :])
        assert [answer.damaged for answer in told] == is_hit, seed
        whole = [status for (_, status, _), hit in zip(row, is_hit, strict=True) if not hit]
        assert [answer.status for answer in told if answer.complete] == whole, seed
