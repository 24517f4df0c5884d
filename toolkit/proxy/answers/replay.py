"""When each event of a stored stream is to be sent: at once, at its own pace, or at so many tokens a second. No clock."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Literal

from toolkit.completion import Completion
from toolkit.proxy.answers.other_answers import has_token
from toolkit.proxy.answers.views import Shown

Mode = Literal["instant", "original"] | float
"""A number: tokens a second."""

Step = tuple[float, int]
"""So many seconds after the answer began, the events up to this one (not included) are due."""


def plan(ms: Sequence[int], tokens: Sequence[int], mode: Mode) -> list[Step]:
    """The steps of a stream whose events came at `ms` and hold so many `tokens` each; the last step ends with the last event.

    At N tokens a second no more than that have been sent at any time: the first token at once, and an event with several
    when its last one is due. An event without a token goes with the one before it.
    """
    if not ms:
        return []
    if mode == "instant":
        return [(0.0, len(ms))]
    if mode == "original":
        # a clock read out of order must not send an event before the one before it
        times = [time / 1000 for time in accumulate(ms, max)]
    else:
        times = [max(0, sent - 1) / mode for sent in accumulate(tokens, initial=0)][1:]
    return _steps(times)


def tokens_by_event(shown: Shown) -> list[int]:
    """How many tokens each event of a stream holds, by its usage where it tells; 0 for a role, the usage, the end."""
    events = [shown.body[first:end] for first, end in pairwise((0, *shown.ends))]
    reader = Completion(status=200, content_type="text/event-stream")
    for number, event in enumerate(events):
        # the number of an event is its time: what was timed tells which event it was
        reader.feed(event, float(number))
    answer = reader.end(float(len(events)))
    if answer.first_token_at is None:
        # responses and messages, of which each event has a name
        return [int(has_token(_name(event))) for event in events]
    counts = [0] * len(events)
    number = round(answer.first_token_at)
    counts[number] = answer.first_chunk_tokens or 1
    for wait, tokens in answer.gaps:
        number += round(wait)
        counts[number] = tokens
    return counts


def _name(event: bytes) -> bytes:
    line = event.lstrip(b"\r\n").partition(b"\n")[0].strip()
    return line.removeprefix(b"event:").strip() if line.startswith(b"event:") else b""


def _steps(times: list[float]) -> list[Step]:
    """One step for all events that are due at one time."""
    last = len(times)
    return [
        (time, number)
        for number, time in enumerate(times, start=1)
        if number == last or times[number] > time
    ]
