"""What a blast counted, on its way from the workers to the database. It touches the world only through what it is given.

A worker's Reporter makes messages of plain values, one a second; the master's Recorder makes records of them and hands
these to a function that stores all of them or none. What could not be stored is kept and tried again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from toolkit.blast.tallying import Tallying
from toolkit.errors import ToolkitError
from toolkit.records import ErrorCount, Event, LoaderSecond, RequestRecord, Tally

MESSAGE_FORMAT = 1
"""Of what workers send; a master and its workers must agree on it."""

MOST_TALLIES = 200_000
"""Kept while the database refuses: 20 hosts on one worker for over an hour, and about 200 MB."""
MOST_SHOTS = 20_000

Message = Mapping[str, Any]
Write = Callable[
    [Sequence[Tally], Sequence[LoaderSecond], Sequence[RequestRecord], Sequence[Event]], None
]
Record = TypeVar("Record", Tally, LoaderSecond, RequestRecord)


class Reporter:
    """One worker's side of one run."""

    def __init__(
        self, tallying: Tallying, send: Callable[[Message], None], *, run: str, worker: str
    ) -> None:
        """`send` takes a message of plain values and may raise; then its content goes with the next one."""
        self._tallying = tallying
        self._send = send
        self.run = run
        self._worker = worker
        self._tallies: list[Tally] = []
        self._seconds: list[LoaderSecond] = []
        self._shots: list[RequestRecord] = []

    def add_second(self, second: LoaderSecond) -> None:
        """Say how this worker fared in a second that is over."""
        self._seconds.append(second)

    def add_shot(self, shot: RequestRecord) -> None:
        """Have a canary's shot stored."""
        self._shots.append(shot)

    def report(self, sent_at: float, *, before_s: int | None, final: bool = False) -> None:
        """Send all seconds before `before_s`, None for all; `final`: this worker has no more of this run."""
        self._tallies += self._tallying.take(before_s)
        message = {
            "run": self.run,
            "worker": self._worker,
            "sent_at": sent_at,
            "final": final,
            "tallies": [plain(tally) for tally in self._tallies],
            "seconds": [plain(second) for second in self._seconds],
            "shots": [plain(shot) for shot in self._shots],
        }
        self._send(message)
        self._tallies, self._seconds, self._shots = [], [], []


@dataclass(slots=True)
class _Batch:
    """What waits to be stored."""

    tallies: list[Tally] = field(default_factory=list)
    seconds: list[LoaderSecond] = field(default_factory=list)
    shots: list[RequestRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.tallies or self.seconds or self.shots or self.events)

    def followed_by(self, later: "_Batch") -> "_Batch":
        return _Batch(
            tallies=self.tallies + later.tallies,
            seconds=self.seconds + later.seconds,
            shots=self.shots + later.shots,
            events=self.events + later.events,
        )


class BlastRecorder:
    """The master's side, whatever the run."""

    def __init__(self, write: Write, say: Callable[[str], None]) -> None:
        """`write` stores all or none, and raises ToolkitError; `say` tells a person one sentence."""
        self._write = write
        self._say = say
        self._waiting = _Batch()
        self._is_refused = False
        self._dropped = 0

    def hear(self, message: Message, shift_s: int = 0) -> None:
        """Take a worker's message. `shift_s` is added to its seconds, for a worker whose clock is off."""
        batch = self._waiting
        for told in message["tallies"]:
            counts = tuple(
                ErrorCount(kind=kind, count=count) for kind, count in told["error_kinds"]
            )
            batch.tallies.append(
                Tally(**{**told, "error_kinds": counts, "at_s": told["at_s"] + shift_s})
            )
        for told in message["seconds"]:
            batch.seconds.append(LoaderSecond(**{**told, "at_s": told["at_s"] + shift_s}))
        for told in message["shots"]:
            batch.shots.append(_shifted(told, shift_s))
        self._limit()

    def add_event(self, event: Event) -> None:
        """Have an event stored."""
        self._waiting.events.append(event)

    def write_out(self) -> bool:
        """Store what waits; whether nothing is left. What is heard meanwhile waits for the next time."""
        batch, self._waiting = self._waiting, _Batch()
        if not batch:
            return True
        try:
            self._write(batch.tallies, batch.seconds, batch.shots, batch.events)
        except BaseException as error:
            self._waiting = batch.followed_by(self._waiting)
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
            self._dropped = 0
        self._is_refused = False
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


def plain(record: Tally | LoaderSecond | RequestRecord) -> dict[str, Any]:
    """The fields that say something, in values that any message carries."""
    told = {}
    for each in fields(record):
        value = getattr(record, each.name)
        if each.default is MISSING or value != each.default:
            told[each.name] = value
    if isinstance(record, Tally):
        told["error_kinds"] = [[error.kind, error.count] for error in record.error_kinds]
    return told


def _shifted(told: Mapping[str, Any], shift_s: int) -> RequestRecord:
    moments = {
        name: told[name] + shift_s
        for name in ("planned_at", "sent_at")
        if told.get(name) is not None
    }
    return RequestRecord(**{**told, **moments})
