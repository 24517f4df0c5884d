"""From a worker's counts to the database: nothing lost on the way, a wrong clock moved, what is refused kept."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import orjson
import pytest

from toolkit.blast import recorder
from toolkit.blast.recorder import MOST_MESSAGES, BlastRecorder
from toolkit.blast.tallying import Tallying
from toolkit.errors import ToolkitError
from toolkit.records import ErrorCount, Event, LoaderSecond, RequestRecord

RUN, WORKER, NAME, URL = "0123456789ab", "0-cafe", "alice", "http://10.0.0.4:8000"
SECOND = LoaderSecond(
    run=RUN, at_s=100, worker=WORKER, users=8, cpu_share=0.5, lag_ms=60.0, limited=True
)
SHOT = RequestRecord(
    run=RUN,
    name=NAME,
    url=URL,
    slot=7,
    kind="twin",
    pair=6,
    prompt="robot",
    stream=True,
    max_tokens=16,
    planned_at=100.25,
    sent_at=100.5,
    ok=True,
    e2e_ms=12.5,
    itl=b"\x01\x00\x01\x00",
)


def count(tallying: Tallying, at: float, **more: Any) -> None:
    usual = {"kind": "ranked", "prompt": "p", "repeats": False, "ok": True, "e2e_ms": 5.0}
    tallying.add((NAME, URL), at, **(usual | more))


class Worker:
    """Counts, and sends what it counted when it is told to."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.fails = False
        self.tallying = Tallying(RUN, WORKER, self.send)

    def send(self, message: Any) -> None:
        if self.fails:
            raise OSError("the master is gone")
        self.sent.append(message)

    def message(self, at_s: int = 100, sent_at: float = 101.05, **changes: Any) -> dict[str, Any]:
        """One second of each kind of thing that is counted."""
        count(self.tallying, at_s + 0.5)
        self.tallying.add_second(replace(SECOND, at_s=at_s))
        self.tallying.add_shot(replace(SHOT, slot=at_s))
        self.tallying.report(sent_at, before_s=None)
        return self.sent.pop() | changes


class Database:
    """Keeps what it is given, or refuses."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[Any], ...]] = []
        self.fault: Exception | None = None
        self.tried = 0
        self.said: list[str] = []
        self.record = BlastRecorder(self.write, self.said.append)

    def write(self, *batch: Sequence[Any]) -> None:
        self.tried += 1
        if self.fault:
            raise self.fault
        self.batches.append(tuple(list(part) for part in batch))

    def take(self, delay_s: float = 0.001, **changes: Any) -> None:
        """A message that came so many seconds after it left, by two clocks."""
        message = Worker().message(**changes)
        self.record.take(message, message["sent_at"] + delay_s)
        self.record.add_event(Event(run=RUN, at=message["seconds"][0]["at_s"], kind="phase"))

    def stored(self, part: int) -> list[Any]:
        return [each for batch in self.batches for each in batch[part]]


LOCKED = ToolkitError("`toolkit.db` is locked by another process")


# --- what a worker sends ------------------------------------------------------------------------------


def test_every_field_survives_the_way_in_plain_values() -> None:
    one, other, database = Worker(), Worker(), Database()
    for worker in (one, other):
        tallying = worker.tallying
        count(tallying, 100.1, streamed=True, ttft_ms=2.0, prompt_tokens=21, cache_status="HIT")
        for _ in range(3):
            count(tallying, 99.0, kind="unique", e2e_ms=1000.0)
        tokens = {"output_tokens": 9, "output_tokens_estimated": True}
        count(tallying, 100.2, repeats=True, e2e_ms=9.0, **tokens)
        for kind in ("timeout", "cut", "timeout"):
            count(tallying, 100.3, ok=False, error_kind=kind)
    expected = one.tallying.take()
    counted = expected[-1]
    kinds = (ErrorCount(kind="cut", count=1), ErrorCount(kind="timeout", count=2))
    assert counted.error_kinds == kinds
    nothing = [each.name for each in fields(counted) if not getattr(counted, each.name)]
    assert nothing == [], "a field that says nothing could get lost unseen"

    other.tallying.add_second(SECOND)
    other.tallying.add_shot(SHOT)
    other.tallying.report(101.05, before_s=None, final=True)
    (message,) = other.sent
    assert (message["run"], message["worker"], message["final"]) == (RUN, WORKER, True)
    assert orjson.dumps(message, default=bytes.hex)
    database.record.take(message, 101.06)
    start = Event(run=RUN, at=99.0, kind="start")
    database.record.add_event(start)
    assert database.record.write_out()
    assert database.batches == [(expected, [SECOND], [SHOT], [start])]


def test_a_report_holds_the_seconds_that_are_over_each_once_and_goes_out_though_nothing_was_counted() -> (
    None
):
    worker = Worker()
    worker.tallying.report(100.05, before_s=100)  # a master without a sign takes a worker for dead
    count(worker.tallying, 100.2)
    count(worker.tallying, 101.0)
    worker.fails = True
    with pytest.raises(OSError, match="gone"):
        worker.tallying.report(101.05, before_s=101)
    worker.fails = False  # what could not be sent goes with the next one
    worker.tallying.report(101.55, before_s=101)
    worker.tallying.report(102.6, before_s=None, final=True)
    assert [[tally["at_s"] for tally in each["tallies"]] for each in worker.sent] == [
        [],
        [100],
        [101],
    ]
    # 20 hosts and a canary of each: fields that say nothing are left out
    assert len(orjson.dumps(worker.sent[1], default=bytes.hex)) < 400


# --- a worker's clock ---------------------------------------------------------------------------------


def test_a_worker_whose_clock_is_off_has_its_seconds_moved() -> None:
    database = Database()
    database.take(delay_s=-3.0)
    database.record.write_out()
    (tally,), (second,), (shot,), _ = database.batches[0]
    assert (tally.at_s, second.at_s) == (97, 97)
    assert (shot.planned_at, shot.sent_at) == (97.25, 97.5)


@pytest.mark.parametrize(
    ("delays_s", "shift_s"),
    [
        # within a second a clock stays as it is
        ([0.002, 0.001], 0),
        ([0.99], 0),
        ([-0.99], 0),
        # else it is shifted by whole seconds
        ([1.2], 1),
        ([-7.6], -8),
        ([3600.1], 3600),
        # one slow message is no offset, not even the first
        ([0.001, 5.0, 9.0], 0),
        ([5.0, 0.001], 0),
        # a shift does not flap with the way
        ([3.4, 3.6, 3.3, 3.7], 3),
        ([3.4] * MOST_MESSAGES + [3.7] * MOST_MESSAGES, 3),
        # a clock that was set meanwhile is followed
        ([0.0] * 50 + [60.0] * MOST_MESSAGES, 60),
        ([60.0] * 50 + [0.0], 0),
    ],
)
def test_a_workers_clock_is_judged_by_its_quickest_messages(
    delays_s: list[float], shift_s: int
) -> None:
    database = Database()
    database.take(delay_s=50.0, worker="other")  # whose clock is its own
    for delay_s in delays_s:
        database.take(delay_s)
    database.record.write_out()
    assert database.stored(0)[-1].at_s == 100 + shift_s


# --- a database that refuses --------------------------------------------------------------------------


def test_what_is_refused_is_kept_in_order_said_once_and_stored_later() -> None:
    database = Database()
    assert database.record.write_out()
    assert database.tried == 0  # nothing is left to write
    database.fault = LOCKED
    for at_s in (100, 101):
        database.take(at_s=at_s)
        assert not database.record.write_out()
    assert len(database.said) == 1
    assert database.said[0].startswith("`toolkit.db` is locked by another process; ")
    database.fault = None
    assert database.record.write_out()
    assert [[one.at_s for one in database.stored(part)] for part in (0, 1)] == [[100, 101]] * 2
    assert [shot.slot for shot in database.stored(2)] == [100, 101]
    assert "nothing of it was lost" in database.said[1]


@pytest.mark.parametrize("fault", [None, LOCKED, TypeError("our mistake")])
def test_what_comes_during_a_write_follows_what_came_before_however_that_ends(
    fault: Exception | None,
) -> None:
    database = Database()
    whole = database.write

    def write(*batch: Sequence[Any]) -> None:
        is_first = not database.tried
        database.fault = fault if is_first else None
        if is_first:
            database.take(at_s=101)
        whole(*batch)

    database.record = BlastRecorder(write, database.said.append)
    database.take(at_s=100)
    # a refusal is waited out; another fault is a mistake of ours, and raised
    if isinstance(fault, TypeError):
        with pytest.raises(TypeError, match="our mistake"):
            database.record.write_out()
    else:
        assert database.record.write_out() is (fault is None)
    assert database.record.write_out()
    assert [[one.at_s for one in database.stored(part)] for part in (0, 1)] == [[100, 101]] * 2
    assert [one.slot for one in database.stored(2)] == [100, 101]
    assert [one.at for one in database.stored(3)] == [100, 101]


def test_a_database_that_refuses_for_too_long_costs_the_oldest_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder, "MOST_TALLIES", 3)
    monkeypatch.setattr(recorder, "MOST_REQUESTS", 1)
    database = Database()
    database.fault = LOCKED
    for at_s in range(100, 105):
        database.take(at_s=at_s)
        database.record.write_out()
    database.fault = None
    assert database.record.write_out()
    assert [tally.at_s for tally in database.stored(0)] == [102, 103, 104]
    # how the loader fared is a few bytes a second, and all of it is kept
    assert (len(database.stored(2)), len(database.stored(1))) == (1, 5)
    assert any("given up" in sentence for sentence in database.said)
    assert "the oldest 2 tallies were lost" in database.said[-1]
