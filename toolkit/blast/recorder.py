"""How a blast's master gets what its workers counted into the database: all that waits in one transaction.

Workers' messages become records here; whoever made the recorder gives it the function that stores them. What the database refuses
is kept and tried again. No network, no database, no clock.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.records import ErrorCount, Event, LoaderSecond, RequestRecord, Tally

MOST_TALLIES = 200_000
"""Kept while the database refuses: 20 hosts on one worker for over an hour, and about 200 MB."""
MOST_REQUESTS = 20_000
MOST_MESSAGES = 30
"""From which a worker's clock offset is estimated, half a minute of them: one that met no queue is among them."""
MOST_OFFSET_S = 1.0

Message = Mapping[str, Any]
Write = Callable[
    [Sequence[Tally], Sequence[LoaderSecond], Sequence[RequestRecord], Sequence[Event]], None
]


@dataclass(slots=True)
class _Batch:
    """What one transaction stores."""

    tallies: list[Tally] = field(default_factory=list)
    seconds: list[LoaderSecond] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


class BlastRecorder:
    """Takes workers' messages of any run, and stores them when it is asked to."""

    def __init__(self, write: Write, say: Callable[[str], None]) -> None:
        """`write` stores all or none, and raises ToolkitError; `say` shows a person one sentence."""
        self._write = write
        self._say = say
        self._waiting = _Batch()
        self._is_refused = False
        self._dropped = 0
        self._offsets_s: dict[str, deque[float]] = {}
        self._shifts_s: dict[str, int] = {}

    def take(self, message: Message, received_at: float) -> None:
        """Take a worker's message that came at `received_at`, by the master's wall clock; its times become the master's.

        `received_at` less the worker's `sent_at` is the offset between their clocks plus the delay on the way, which is never
        negative: the least of the last messages is nearest to the offset. Clocks within a second of each other are left alone,
        being better than this estimate. A larger offset shifts the worker's times by whole seconds; the shift stays while it is
        within a second of the estimate, so that no second is counted twice.
        """
        worker = message["worker"]
        offsets_s = self._offsets_s.setdefault(worker, deque(maxlen=MOST_MESSAGES))
        offsets_s.append(received_at - message["sent_at"])
        shift_s = self._shifts_s.get(worker, 0)
        if abs(min(offsets_s) - shift_s) > MOST_OFFSET_S:
            shift_s = self._shifts_s[worker] = round(min(offsets_s))

        def shifted(values: Mapping[str, Any], *times: str) -> dict[str, Any]:
            known = [name for name in times if values.get(name) is not None]
            return {**values, **{name: values[name] + shift_s for name in known}}

        waiting = self._waiting
        for values in message["tallies"]:
            kinds = tuple(ErrorCount(kind=kind, count=n) for kind, n in values["error_kinds"])
            waiting.tallies.append(Tally(**(shifted(values, "at_s") | {"error_kinds": kinds})))
        waiting.seconds += [LoaderSecond(**shifted(each, "at_s")) for each in message["seconds"]]
        waiting.requests += [
            RequestRecord(**shifted(each, "planned_at", "sent_at")) for each in message["shots"]
        ]
        self._drop_oldest()

    def add_event(self, event: Event) -> None:
        """Have an event stored with the next write."""
        self._waiting.events.append(event)

    def write_out(self) -> bool:
        """Store what waits; False where the database refuses it. What comes meanwhile waits for the next time."""
        batch, self._waiting = self._waiting, _Batch()
        if not (batch.tallies or batch.seconds or batch.requests or batch.events):
            return True
        try:
            self._write(batch.tallies, batch.seconds, batch.requests, batch.events)
        except BaseException as error:
            later, self._waiting = self._waiting, batch
            batch.tallies += later.tallies
            batch.seconds += later.seconds
            batch.requests += later.requests
            batch.events += later.events
            self._drop_oldest()
            if not isinstance(error, ToolkitError):
                raise
            if not self._is_refused:
                self._say(f"{error.message}; what was counted is kept and tried again each second")
            self._is_refused = True
            return False
        if self._is_refused:
            dropped = self._dropped
            lost = f"the oldest {dropped:,} tallies were" if dropped else "nothing of it was"
            self._say(f"The database takes what was counted again; {lost} lost")
        self._is_refused, self._dropped = False, 0
        return True

    def _drop_oldest(self) -> None:
        """Drop the oldest past a limit: two hours of a locked database must not fill the memory."""
        waiting = self._waiting
        del waiting.requests[: max(0, len(waiting.requests) - MOST_REQUESTS)]
        excess = max(0, len(waiting.tallies) - MOST_TALLIES)
        if excess and not self._dropped:
            self._say("The database has refused for too long; the oldest seconds are given up")
        self._dropped += excess
        del waiting.tallies[:excess]
