"""Events of a live stream for a client that did not ask for the usage: without the event that tells it. Pure.

vLLM 0.32 tells its fingerprint in that event, or, where no usage is asked for, in each event that ends a choice. So that a
client sees what it would have seen by itself, the last one of those has to wait for the event behind it.
"""

from collections.abc import Sequence
from itertools import accumulate

from toolkit.proxy.answers.recorder import Recorder
from toolkit.proxy.answers.views import FINISH, shown
from toolkit.proxy.exchange import Kept, View


def upto(recorder: Recorder) -> int:
    """Up to which event may be sent now; the one that ends a choice is followed by the usage in the same step of the engine."""
    events = recorder.events
    waits = recorder.usage_event is None and bool(events) and FINISH in events[-1]
    return len(events) - waits


def left_out(recorder: Recorder, first: int, last: int) -> bytes:
    """The events from `first` up to `last`, which is not included, without the usage."""
    part, usage = recorder.events[first:last], recorder.usage_event
    if usage is None or not first <= usage < last:
        return part[0] if len(part) == 1 else b"".join(part)
    mine = shown(_as_kept(recorder, part, usage - first), View(stream=True))
    if mine is not None:
        return mine.body
    del part[usage - first]
    return b"".join(part)


def _as_kept(recorder: Recorder, part: Sequence[bytes], usage: int) -> Kept:
    return Kept(
        endpoint=recorder.endpoint,
        streamed=True,
        content_type=recorder.content_type,
        body=b"".join(part),
        event_ends=tuple(accumulate(map(len, part))),
        event_ms=(0,) * len(part),
        usage_event=usage,
    )
