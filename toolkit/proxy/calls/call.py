"""One call upstream and all who wait for it: what has come of it so far, who is told, and how far behind the slowest is.

The answer is held once, by its recorder; clients read there. It opens no connection, starts no task and decides no end:
calls.py does. It waits, with asyncio, only for clients that are too far behind in an answer too large to be kept.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from toolkit.proxy.answers.recorder import Recorder
from toolkit.proxy.answers.views import Shown
from toolkit.proxy.calls.admission import Slot, Waiting
from toolkit.proxy.calls.flights import Flight, Flights
from toolkit.proxy.exchange import Headers, Job, Recorded, Rejection, View
from toolkit.proxy.faults import Fault, FaultKind
from toolkit.proxy.settings import MIB, AdmissionSetting

WINDOW_BYTES: Final = 4 * MIB
"""Of an answer that is too large to be kept, as much is held for clients that have not taken it."""
Told = Callable[[str, dict[str, object]], None]
"""Takes an event's name and what is known of it."""


class Listener(Protocol):
    """One client of a call. It is called in the loop, and may leave or ask within."""

    @property
    def taken(self) -> int | None:
        """The first of the recorder's events that it has not written yet; None: it waits for the end.

        Asked only once the recorder is too large: then what all have taken is held no longer.
        """

    def began(self, call: "Call") -> None:
        """The answer's status, headers and first event or part are there."""

    def grew(self, call: "Call") -> None:
        """There are more events than before."""

    def ended(self, call: "Call") -> None:
        """Nothing more comes: `call.recorded` says what it was, `call.error` why it is not whole."""

    def rejected(self, rejection: Rejection) -> None:
        """The call is not made."""


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A request upstream, and what became of it so far. Times are seconds of the proxy's monotonic clock."""

    key: bytes | None
    """None: it is nobody else's."""
    job: Job
    """Of the client that led."""
    flights: Flights[bytes, "Call"]
    flight: Flight[bytes, "Call"] | None = None
    told: Told
    asked_s: float
    kept_for: Job | None = None
    """The job of the first client aboard whose answer may be stored."""
    slot: Slot | None = None
    waiting: Waiting | None = None
    queue_ms: float | None = None
    """From the leader's first byte to the slot; None while there is none."""
    sent_s: float | None = None
    """When it was first sent upstream, and `attempt_s` when it was last."""
    attempt_s: float | None = None
    upstream: str | None = None
    waits_for_room: bool = False
    """It has a slot, and all upstreams that are well are full."""
    turned_away: bool = False
    """What is asked now is given up, for another upstream."""
    is_fallback: bool = False
    """The upstream is one that is asked when no other can be."""
    other_model: str | None = None
    """It was asked for this model instead of the client's: its answer is not stored."""
    retries: int = 0
    status: int | None = None
    headers: Headers = ()
    """Those that clients may see."""
    ends_by_closing: bool = False
    """Its answer has no end of its own but the connection's."""
    recorder: Recorder | None = None
    """None until it began."""
    read_s: float | None = None
    """When the last bytes were read."""
    recorded: Recorded | None = None
    """None until it ended, and of a call that got no answer."""
    shown_as: dict[View, Shown | None] = field(default_factory=dict)
    """The whole in views other than its own, each made once for all who wait for it."""
    stored: bool = False
    error: Fault | None = None
    """An answer of the upstream's own is none, whatever its status."""
    rejection: Rejection | None = None
    is_over: bool = False
    ended_s: float | None = None
    aboard: dict[Listener, None] = field(default_factory=dict)
    for_others: Listener | None = None
    """Aboard for those that wait at other proxies; no client."""
    _gone: int | None = None
    """Events before this place were let go; None: all are held."""
    _seen: int = 0
    _behind: int = 0
    """Bytes of the events between these two: what the slowest has not taken."""
    _room: asyncio.Future[None] | None = None
    _is_troubled: bool = False

    @property
    def led_by_view(self) -> View:
        """How the client that led wants to see the answer, and thus how it comes."""
        return self.job.view

    @property
    def clients(self) -> int:
        """How many wait for it here."""
        return len(self.aboard) - (self.for_others in self.aboard)

    @property
    def is_held(self) -> bool:
        """The upstream is not read: a client is too far behind."""
        return self._room is not None

    def begin(self, status: int, headers: Headers, recorder: Recorder) -> None:
        """Its first event or part is in the recorder."""
        self.status, self.headers, self.recorder = status, headers, recorder
        if status != 200 or recorder.forbidden is not None:
            # it is told to those who wait for it, and to nobody who comes later
            self.close()
        self._look()
        self.tell(lambda listener: listener.began(self))
        self.tell(lambda listener: listener.grew(self))

    def grow(self) -> None:
        """More is in the recorder."""
        self._look()
        self.tell(lambda listener: listener.grew(self))

    def close(self) -> None:
        """Let nobody join any more."""
        if self.flight is not None:
            self.flights.close(self.flight)

    def tell(self, what: Callable[[Listener], None]) -> None:
        """Tell all aboard. What one of them throws hurts no other."""
        for listener in tuple(self.aboard):
            if listener not in self.aboard:
                continue
            try:
                what(listener)
            except Exception as error:  # noqa: BLE001 (a client's fault is no other client's)
                self._note(error)

    def _note(self, error: Exception) -> None:
        if not self._is_troubled:
            self._is_troubled = True
            self.told("listener_failed", {"error": f"{type(error).__name__}: {error}"})

    # --- an answer too large to be kept --------------------------------------------------------------

    def _look(self) -> None:
        """Whether others may still join, and whether all of it is held."""
        recorder = self.recorder
        assert recorder is not None
        if recorder.has_failed or recorder.too_large:
            self.close()
        if recorder.too_large:
            self._let_go()

    def _let_go(self) -> None:
        """Hold no more than what somebody has not taken; the places of events stay."""
        assert self.recorder is not None
        events = self.recorder.events
        self._behind += sum(map(len, events[self._seen :]))
        self._seen = len(events)
        gone = self._gone or 0
        places = [place for each in self.aboard if (place := each.taken) is not None]
        upto = min(places, default=self._seen)
        self._behind -= sum(map(len, events[gone:upto]))
        for place in range(gone, upto):
            events[place] = b""
        self._gone = max(gone, upto)

    def moved(self) -> None:
        """A client has taken more: if the upstream was held back for it, go on."""
        if self._room is None:
            return
        self._let_go()
        if self._behind <= WINDOW_BYTES and not self._room.done():
            self._room.set_result(None)

    async def waited_for_room(self) -> bool:
        """Return once no client is too far behind; whether that took any time."""
        if self._gone is None:
            return False
        self._let_go()
        if self._behind <= WINDOW_BYTES:
            return False
        self._room = asyncio.get_running_loop().create_future()
        try:
            await self._room
        finally:
            self._room = None
        return True

    # --- deadlines -----------------------------------------------------------------------------------

    def overdue(self, setting: AdmissionSetting, now: float) -> FaultKind | None:
        """The deadline that it missed."""
        if self.sent_s is None or self.attempt_s is None:
            return None
        if setting.whole_s is not None and now - self.sent_s >= setting.whole_s:
            return "timeout_whole"
        recorder = self.recorder
        has_token = recorder is not None and (
            not recorder.is_stream or recorder.first_token_at is not None
        )
        if not has_token:
            # of a whole body nobody knows when its first token was made
            first_s = setting.first_token_s if self.job.view.stream else None
            late = first_s is not None and now - self.attempt_s >= first_s
            return "timeout_first_token" if late else None
        gap_s = setting.token_gap_s
        if gap_s is None or self.read_s is None or self.is_held:
            return None
        return "timeout_gap" if now - self.read_s >= gap_s else None
