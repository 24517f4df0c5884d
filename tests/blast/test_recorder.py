import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest

from toolkit.blast import recorder
from toolkit.blast.recorder import MOST_MESSAGES, BlastRecorder
from toolkit.blast.tallying import Tallying, plain
from toolkit.errors import ToolkitError
from toolkit.records import ErrorCount, Event, LoaderSecond, RequestRecord, Tally

RUN, WORKER = "0123456789ab", "0-cafe"
ALICE = ("alice", "http://10.0.0.4:8000")
TALLY = Tally(
    run=RUN,
    name="alice",
    url=ALICE[1],
    at_s=100,
    worker=WORKER,
    kind="ranked",
    ok=3,
    errors=2,
    error_kinds=(ErrorCount(kind="cut", count=1), ErrorCount(kind="timeout", count=1)),
    streamed=1,
    prompt_tokens=21,
    output_tokens=6,
    output_tokens_estimated=2,
    cache_told=1,
    cache_hits=1,
    cache_judged=1,
    cache_inferred=1,
    e2e=b"\x01\x00\x03\x00",
    ttft=b"\x01\x00\x01\x00",
)
SECOND = LoaderSecond(
    run=RUN, at_s=100, worker=WORKER, users=8, cpu_share=0.5, lag_ms=60.0, limited=True
)
SHOT = RequestRecord(
    run=RUN,
    name="alice",
    url=ALICE[1],
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


class Database:
    """Keeps what it is given, or refuses."""

    def __init__(self) -> None:
        self.batches: list[tuple[Sequence[Any], ...]] = []
        self.refuses = False
        self.tried = 0

    def write(self, *batch: Sequence[Any]) -> None:
        self.tried += 1
        if self.refuses:
            raise ToolkitError("`toolkit.db` is locked by another process")
        self.batches.append(tuple(list(part) for part in batch))

    def stored(self, part: int) -> list[Any]:
        return [each for batch in self.batches for each in batch[part]]


def message(**changes: Any) -> dict[str, Any]:
    usual = {
        "run": RUN,
        "worker": WORKER,
        "sent_at": 101.05,
        "final": False,
        "tallies": [plain(TALLY)],
        "seconds": [plain(SECOND)],
        "shots": [plain(SHOT)],
    }
    return usual | changes


def hear(record: BlastRecorder, way_s: float = 0.001, **changes: Any) -> None:
    """A message that came so many seconds after it left, by two clocks."""
    told = message(**changes)
    record.hear(told, told["sent_at"] + way_s)


def recording() -> tuple[BlastRecorder, Database, list[str]]:
    database, said = Database(), list[str]()
    return BlastRecorder(database.write, said.append), database, said


def test_what_a_worker_says_is_stored_as_it_was_in_one_go() -> None:
    record, database, _ = recording()
    hear(record)
    start = Event(run=RUN, at=99.0, kind="start")
    record.add_event(start)
    assert record.write_out()
    assert database.batches == [([TALLY], [SECOND], [SHOT], [start])]


def test_every_field_survives_the_way() -> None:
    """Each of the records above has a value in every field that could get lost on it."""
    for whole in (TALLY, SECOND):
        for each in fields(whole):
            assert getattr(whole, each.name) not in (None, 0, b"", ()), each.name
    record, database, _ = recording()
    hear(record)
    record.write_out()
    assert database.stored(0) == [TALLY]
    assert database.stored(1) == [SECOND]


def test_a_message_holds_plain_values_only() -> None:
    def check(value: object) -> None:
        if isinstance(value, dict):
            assert all(type(key) is str for key in value)
            check(list(value.values()))
        elif isinstance(value, list):
            for each in value:
                check(each)
        else:
            assert value is None or type(value) in (int, float, bool, str, bytes)

    check(message())


def test_a_worker_whose_clock_is_off_has_its_seconds_moved() -> None:
    record, database, _ = recording()
    hear(record, way_s=-3.0)
    record.write_out()
    (tally,), (second,), (shot,), _ = database.batches[0]
    assert (tally.at_s, second.at_s) == (97, 97)
    assert (shot.planned_at, shot.sent_at) == (97.25, 97.5)


@pytest.mark.parametrize(
    ("ways_s", "shift_s"),
    [
        # within a second a clock stays as it is
        ([0.002, 0.001], 0),
        ([0.99], 0),
        ([-0.99], 0),
        # else it is shifted by whole seconds
        ([1.2], 1),
        ([3.2], 3),
        ([-7.6], -8),
        ([3600.1], 3600),
        # one slow message is no offset, not even the first
        ([0.001, 5.0, 9.0], 0),
        ([5.0], 5),
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
    ways_s: list[float], shift_s: int
) -> None:
    record, database, _ = recording()
    hear(record, way_s=50.0, worker="other")  # whose clock is its own
    for way_s in ways_s:
        hear(record, way_s)
    record.write_out()
    assert database.stored(0)[-1].at_s == TALLY.at_s + shift_s


def test_a_shot_that_never_left_has_no_moment_to_move() -> None:
    record, database, _ = recording()
    unsent = {**plain(SHOT), "sent_at": None}
    hear(record, way_s=2.0, shots=[unsent])
    record.write_out()
    (shot,) = database.stored(2)
    assert (shot.planned_at, shot.sent_at) == (102.25, None)


def test_nothing_is_written_where_nothing_was_heard() -> None:
    record, database, _ = recording()
    assert record.write_out()
    assert database.tried == 0


def test_what_is_refused_is_kept_in_order_said_once_and_stored_later() -> None:
    record, database, said = recording()
    database.refuses = True
    hear(record)
    assert not record.write_out()
    hear(record, tallies=[plain(TALLY) | {"at_s": 101}], seconds=[], shots=[])
    assert not record.write_out()
    assert len(said) == 1
    assert said[0].startswith("`toolkit.db` is locked by another process; ")
    database.refuses = False
    assert record.write_out()
    assert [tally.at_s for tally in database.stored(0)] == [100, 101]
    assert database.stored(1) == [SECOND]
    assert len(said) == 2
    assert "nothing of it was lost" in said[1]
    tried = database.tried
    assert record.write_out()
    assert database.tried == tried  # nothing is left to write


@pytest.mark.parametrize("fault", [None, ToolkitError("it is locked"), TypeError("our mistake")])
def test_what_is_heard_during_a_write_follows_what_was_heard_before_however_that_ends(
    fault: Exception | None,
) -> None:
    stored: list[tuple[Any, ...]] = []
    writes = 0

    def hear_of(at_s: int) -> None:
        told = {"tallies": TALLY, "seconds": SECOND}
        moved = {name: [plain(one) | {"at_s": at_s}] for name, one in told.items()}
        hear(record, shots=[plain(SHOT) | {"slot": at_s}], **moved)
        record.add_event(Event(run=RUN, at=at_s, kind="phase"))

    def write(*batch: Sequence[Any]) -> None:
        nonlocal writes
        writes += 1
        if writes == 1:
            hear_of(101)
            if fault is not None:
                raise fault
        tallies, seconds, shots, events = batch
        moments = zip(
            [one.at_s for one in tallies],
            [one.at_s for one in seconds],
            [one.slot for one in shots],
            [one.at for one in events],
            strict=True,
        )
        stored.extend(moments)

    record = BlastRecorder(write, lambda _: None)
    hear_of(100)
    # a refusal is waited out; another fault is a mistake of ours, and raised
    if isinstance(fault, TypeError):
        with pytest.raises(TypeError, match="our mistake"):
            record.write_out()
    else:
        assert record.write_out() is (fault is None)
    assert record.write_out()
    assert stored == [(100,) * 4, (101,) * 4]


def test_an_event_alone_is_stored() -> None:
    record, database, _ = recording()
    stop = Event(run=RUN, at=99.0, kind="stop")
    record.add_event(stop)
    assert record.write_out()
    assert database.batches == [([], [], [], [stop])]


def test_a_database_that_refuses_for_ever_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder, "MOST_TALLIES", 3)
    monkeypatch.setattr(recorder, "MOST_SHOTS", 1)
    record, database, said = recording()
    database.refuses = True
    for at_s in range(100, 105):
        hear(record, tallies=[plain(TALLY) | {"at_s": at_s}])
        record.write_out()
    database.refuses = False
    record.write_out()
    assert [tally.at_s for tally in database.stored(0)] == [102, 103, 104]
    assert len(database.stored(2)) == 1
    # how the loader fared is a few bytes a second, and all of it is kept
    assert len(database.stored(1)) == 5
    assert any("given up" in sentence for sentence in said)
    assert "the oldest 2 tallies were lost" in said[-1]


def reporting() -> tuple[Tallying, list[Any]]:
    sent: list[Any] = []
    return Tallying(RUN, WORKER, sent.append), sent


def count(tallying: Tallying, at: float) -> None:
    tallying.add(ALICE, at, kind="ranked", prompt="robot", repeats=False, ok=True, e2e_ms=5.0)


def test_a_report_holds_the_seconds_that_are_over_each_once() -> None:
    tallying, sent = reporting()
    count(tallying, 100.2)
    count(tallying, 101.0)
    tallying.add_second(SECOND)
    tallying.add_shot(SHOT)
    tallying.report(101.05, before_s=101)
    tallying.report(101.6, before_s=None, final=True)
    first, last = sent
    assert [tally["at_s"] for tally in first["tallies"]] == [100]
    assert (first["sent_at"], first["final"], first["worker"], first["run"]) == (
        101.05,
        False,
        WORKER,
        RUN,
    )
    assert (len(first["seconds"]), len(first["shots"])) == (1, 1)
    assert [tally["at_s"] for tally in last["tallies"]] == [101]
    assert (last["final"], last["seconds"], last["shots"]) == (True, [], [])


def test_a_report_goes_out_though_nothing_was_asked() -> None:
    """A master that hears nothing takes a worker for dead."""
    tallying, sent = reporting()
    tallying.report(101.05, before_s=101)
    assert len(sent) == 1


def test_what_could_not_be_sent_goes_with_the_next_report() -> None:
    sent: list[Any] = []
    broken = [True]

    def send(told: Any) -> None:
        if broken.pop() if broken else False:
            raise OSError("the master is gone")
        sent.append(told)

    tallying = Tallying(RUN, WORKER, send)
    count(tallying, 100.2)
    tallying.add_second(SECOND)
    tallying.add_shot(SHOT)
    with pytest.raises(OSError, match="gone"):
        tallying.report(101.05, before_s=101)
    count(tallying, 101.2)
    tallying.report(102.05, before_s=102)
    (told,) = sent
    assert [tally["at_s"] for tally in told["tallies"]] == [100, 101]
    assert (len(told["seconds"]), len(told["shots"])) == (1, 1)


def test_a_message_is_small() -> None:
    """20 hosts and a canary of each: fields that say nothing are left out."""
    bare = Tally(run=RUN, name="alice", url=ALICE[1], at_s=100, worker=WORKER, kind="ranked")
    assert set(plain(bare)) == {"run", "name", "url", "at_s", "worker", "kind", "error_kinds"}
    assert len(json.dumps(plain(bare))) < 200
