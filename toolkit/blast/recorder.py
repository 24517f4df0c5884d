"""What workers counted, on its way into the database. It touches the world only through what it is given.

Workers' messages become records, which go to a function that stores all of them or none. What could not be stored is kept
and tried again.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.records import ErrorCount, Event, LoaderSecond, RequestRecord, Tally

MOST_TALLIES = 200_000
"""Kept while the database refuses: 20 hosts on one worker for over an hour, and about 200 MB."""
MOST_SHOTS = 20_000
MOST_MESSAGES = 30
"""By which a worker's clock is judged, half a minute of them: one that met no queue is among them."""
MOST_OFF_S = 1.0

Message = Mapping[str, Any]
Write = Callable[
    [Sequence[Tally], Sequence[LoaderSecond], Sequence[RequestRecord], Sequence[Event]], None
]


@dataclass(slots=True)
class _Batch:
    """What waits to be stored."""

    tallies: list[Tally] = field(default_factory=list)
    seconds: list[LoaderSecond] = field(default_factory=list)
    shots: list[RequestRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


class BlastRecorder:
    """The master's side, whatever the run."""

    def __init__(self, write: Write, say: Callable[[str], None]) -> None:
        """`write` stores all or none, and raises ToolkitError; `say` shows a person one sentence."""
        self._write = write
        self._say = say
        self._waiting = _Batch()
        self._is_refused = False
        self._dropped = 0
        self._delays_s: dict[str, deque[float]] = {}
        self._shifts_s: dict[str, int] = {}

    def take(self, message: Message, received_at: float) -> None:
        """Take a worker's message that came at `received_at`, by the master's wall clock.

        A message bears the worker's wall clock when it left. The difference is the clocks' offset plus the way, which only
        adds: the least of the last messages is nearest to the offset. A worker within a second of the master stays as it
        is, for neighbouring clocks are better than a guess; one that is off by more is shifted by whole seconds, and keeps
        its shift while it is within a second of the estimate, so that no second is counted twice.
        """
        worker = message["worker"]
        delays_s = self._delays_s.setdefault(worker, deque(maxlen=MOST_MESSAGES))
        delays_s.append(received_at - message["sent_at"])
        shift_s = self._shifts_s.get(worker, 0)
        if abs(min(delays_s) - shift_s) > MOST_OFF_S:
            shift_s = self._shifts_s[worker] = round(min(delays_s))

        def shifted(values: Mapping[str, Any], *moments: str) -> dict[str, Any]:
            moved = {
                name: values[name] + shift_s for name in moments if values.get(name) is not None
            }
            return {**values, **moved}

        batch = self._waiting
        for values in message["tallies"]:
            kinds = [ErrorCount(kind=kind, count=n) for kind, n in values["error_kinds"]]
            tally = shifted(values, "at_s") | {"error_kinds": tuple(kinds)}
            batch.tallies.append(Tally(**tally))
        batch.seconds += [LoaderSecond(**shifted(each, "at_s")) for each in message["seconds"]]
        batch.shots += [
            RequestRecord(**shifted(each, "planned_at", "sent_at")) for each in message["shots"]
        ]
        self._limit()

    def add_event(self, event: Event) -> None:
        """Have an event stored."""
        self._waiting.events.append(event)

    def write_out(self) -> bool:
        """Store what waits; whether nothing is left. What comes meanwhile waits for the next time."""
        batch, self._waiting = self._waiting, _Batch()
        if not (batch.tallies or batch.seconds or batch.shots or batch.events):
            return True
        try:
            self._write(batch.tallies, batch.seconds, batch.shots, batch.events)
        except BaseException as error:
            later, self._waiting = self._waiting, batch
            batch.tallies += later.tallies
            batch.seconds += later.seconds
            batch.shots += later.shots
            batch.events += later.events
            self._limit()
            if not isinstance(error, ToolkitError):
                raise
            if not self._is_refused:
                self._say(f"{error.message}; what was counted is kept and tried again each second")
            self._is_refused = True
            return False
        if self._is_refused:
            lost = (
                f"the oldest {self._dropped:,} tallies were"
                if self._dropped
                else "nothing of it was"
            )
            self._say(f"The database takes what was counted again; {lost} lost")
        self._is_refused, self._dropped = False, 0
        return True

    def _limit(self) -> None:
        """Give up the oldest past a limit: two hours of a locked database must not fill the memory."""
        batch = self._waiting
        del batch.shots[: max(0, len(batch.shots) - MOST_SHOTS)]
        excess = max(0, len(batch.tallies) - MOST_TALLIES)
        if excess and not self._dropped:
            self._say("The database has refused for too long; the oldest seconds are given up")
        self._dropped += excess
        del batch.tallies[:excess]
