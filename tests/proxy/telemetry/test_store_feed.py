"""A store that hangs or fails holds up no request, and what it lost is told."""

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from toolkit.proxy.telemetry.metrics import Served
from toolkit.proxy.telemetry.store_feed import Hand, StoreFeed
from toolkit.records import Seen

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits a second for a batch."""
    monkeypatch.setattr(StoreFeed, "interval_s", 0.02)


def served(number: int = 0, **told: object) -> Served:
    return Served(ts=1000.0 + number, team="red", path="/v1/chat/completions", **told)  # type: ignore[arg-type]


class Batches:
    """A store that keeps what it is handed, and fails when it is told to."""

    def __init__(self) -> None:
        self.taken: queue.SimpleQueue[list[Seen]] = queue.SimpleQueue()
        self.fault: Exception | None = None
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_waiting = threading.Event()
        self.closed_in: list[str] = []

    @contextmanager
    def opened(self) -> Iterator[Hand]:
        yield self.take
        self.closed_in.append(threading.current_thread().name)

    def take(self, rows: Sequence[Seen]) -> None:
        self.is_waiting.set()
        assert self.may_go_on.wait(WAIT_S)
        if self.fault is not None:
            raise self.fault
        self.taken.put(list(rows))

    def all(self) -> list[Seen]:
        found = []
        while not self.taken.empty():
            found += self.taken.get()
        return found


def test_a_store_that_hangs_holds_up_nobody_and_what_is_too_much_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StoreFeed, "max_held", 100)
    batches = Batches()
    batches.may_go_on.clear()
    feed = StoreFeed(batches.opened, say=print)
    feed.put((served(), None))
    assert batches.is_waiting.wait(WAIT_S)
    for number in range(250):
        feed.put((served(number), None))
    assert feed.dropped == 151
    batches.may_go_on.set()
    feed.close()
    assert len(batches.all()) == 100


def test_a_store_that_fails_is_told_once_and_used_again_when_it_works() -> None:
    batches = Batches()
    batches.fault = OSError("disk I/O error")
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    feed = StoreFeed(batches.opened, say=told.put)
    feed.put((served(), None))
    assert told.get(timeout=WAIT_S) == "Cannot store requests: disk I/O error; it is tried again"
    batches.fault = None
    feed.put((served(1), None))
    assert told.get(timeout=WAIT_S) == "The store takes requests again; rows lost: 1"
    feed.close()
    assert [row.ts for row in batches.all()] == [1001.0]
    assert told.empty()
