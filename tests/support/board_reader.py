"""A reader for the board's feed that keeps all in lists, and parts to fill it with."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from support.tallies import sketch

from toolkit.records import Event, Host, LoaderSecond, Part, RequestRecord, Run, Sighting, Tally

START_S = 1_800_000_000
RUN = Run(id="abcdef012345", verb="blast", started_at=START_S + 0.25)


class ListReader:
    """What the store answers, from memory; `reads` counts what was asked for."""

    def __init__(self, *names: str, run: Run = RUN) -> None:
        self.the_run: Run | None = run
        self.hosts = {
            number: Host(name=name, url=f"http://{name}:8000")
            for number, name in enumerate(names, start=1)
        }
        self.kept: list[Part] = []
        self.loader: list[LoaderSecond] = []
        self.happened: list[Event] = []
        self.counted: list[Tally] = []
        self.shots: list[RequestRecord] = []
        self.sightings: list[Sighting] = []
        self.reads: list[str] = []
        self.asked_from: list[int | None] = []
        """The first second of each reading of tallies."""
        self.refuse: Exception | None = None

    # writing

    def part(
        self,
        host: str,
        at_s: int,
        *,
        e2e: Sequence[float] = (),
        ttft: Sequence[float] = (),
        **counts: int,
    ) -> Part:
        """Add a part of second START_S + `at_s`; `ok` and `streamed` are as many as there are latencies."""
        number = next(number for number, known in self.hosts.items() if known.name == host)
        values: dict[str, Any] = dict.fromkeys(Part._fields, 0)
        values |= {"ok": len(e2e), "streamed": len(ttft), **counts}
        values |= {"row": len(self.kept) + 1, "host": number, "at_s": START_S + at_s}
        made = Part(**values | {"e2e": sketch(*e2e), "ttft": sketch(*ttft)})
        self.kept.append(made)
        return made

    def second(
        self, at_s: int, *, worker: str = "w1", limited: bool = False, users: int | None = None
    ) -> None:
        at_s += START_S
        second = LoaderSecond(run=RUN.id, at_s=at_s, worker=worker, limited=limited, users=users)
        self.loader.append(second)

    def seconds(
        self, from_s: int, to_s: int, *, worker: str = "w1", users: int | None = None
    ) -> None:
        """Let a worker report all seconds up to before `to_s`."""
        for at_s in range(from_s, to_s):
            self.second(at_s, worker=worker, users=users)

    def look(self, name: str, at_s: int, **more: Any) -> None:
        """What scout saw of a host in second START_S + `at_s`."""
        usual = {"status": "ok", "models": ("tiny",), "started_at": START_S - 900.0}
        known = {"name": name, "url": f"http://{name}:8000", "at": float(START_S + at_s)}
        self.sightings.append(Sighting(**usual | known | more))  # type: ignore[arg-type]

    def event(self, kind: Any, at_s: float, name: str | None = None, text: str = "") -> None:
        self.happened.append(Event(run=RUN.id, name=name, at=START_S + at_s, kind=kind, text=text))

    def end(self, at_s: float) -> None:
        self.the_run = replace(RUN, ended_at=START_S + at_s)

    # reading, as the store does

    def _read(self, what: str, run_id: str = RUN.id) -> None:
        assert run_id == RUN.id
        self.reads.append(what)
        if self.refuse:
            raise self.refuse

    def run(self, run_id: str) -> Run | None:
        self._read("run")
        return self.the_run if run_id == RUN.id else None

    def hosts_of(self, run_id: str) -> dict[int, Host]:
        self._read("hosts_of", run_id)
        return dict(self.hosts)

    def last_second(self, run_id: str) -> int | None:
        self._read("last_second", run_id)
        found = [part.at_s for part in self.kept] + [second.at_s for second in self.loader]
        return max(found, default=None)

    def last_row(self, run_id: str) -> int:
        self._read("last_row", run_id)
        return len(self.kept)

    def parts(
        self,
        run_id: str,
        *,
        after_row: int = 0,
        from_s: int | None = None,
        to_s: int | None = None,
        limit: int | None = None,
    ) -> list[Part]:
        self._read("parts", run_id)
        low = -(2**62) if from_s is None else from_s
        high = 2**62 if to_s is None else to_s
        found = [p for p in self.kept if p.row > after_row and low <= p.at_s <= high]
        return found if limit is None else found[:limit]

    def loader_seconds(
        self, run_id: str, *, after_row: int = 0, from_s: int | None = None
    ) -> list[tuple[int, LoaderSecond]]:
        self._read("loader_seconds", run_id)
        low = -(2**62) if from_s is None else from_s
        rows = enumerate(self.loader, start=1)
        return [(row, each) for row, each in rows if row > after_row and each.at_s >= low]

    def events(self, run_id: str, *, after_row: int = 0) -> list[tuple[int, Event]]:
        self._read("events", run_id)
        rows = enumerate(self.happened, start=1)
        return [(row, each) for row, each in rows if row > after_row]

    def tallies(
        self,
        run_id: str,
        *,
        name: str | None = None,
        kind: str | None = None,
        from_s: int | None = None,
        to_s: int | None = None,
    ) -> list[Tally]:
        self._read("tallies", run_id)
        self.asked_from.append(from_s)
        low = -(2**62) if from_s is None else from_s
        high = 2**62 if to_s is None else to_s
        return [
            each
            for each in self.counted
            if name in (None, each.name) and kind in (None, each.kind) and low <= each.at_s <= high
        ]

    def shots_between(
        self, run_id: str, from_at: float, to_at: float, *, most_per_host: int = 200
    ) -> list[RequestRecord]:
        self._read("shots_between", run_id)
        found: dict[str, list[RequestRecord]] = {}
        for each in self.shots:
            if from_at <= (each.sent_at or each.planned_at) <= to_at:
                found.setdefault(each.name, []).append(each)
        return [each for of_host in found.values() for each in of_host[-most_per_host:]]

    def sightings_between(self, from_at: float, to_at: float) -> list[Sighting]:
        self._read("sightings_between")
        found = [each for each in self.sightings if from_at <= each.at <= to_at]
        return sorted(found, key=lambda each: (each.name, each.at))
