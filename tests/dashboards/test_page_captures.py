"""The page beside a capture in the same database: what it tells of it, and what a freeze hides."""

from pathlib import Path

from support import feeder
from support.feeder import BEGAN
from support.page_app import opened, page

from toolkit.records import Event, Run
from toolkit.store import Store


def captured(path: Path, run: str, from_s: int, to_s: int, requests: int) -> None:
    with Store.open(path) as store:
        store.add_run(Run(id=run, verb="capture", started_at=BEGAN + from_s))
        told = {"requests": requests, "from_ts": BEGAN + from_s, "to_ts": BEGAN + to_s, "top": []}
        store.set_capture(run, told)


def test_the_newest_capture_is_told(blast: Path) -> None:
    captured(blast, "c1", 10, 20, 1111)
    captured(blast, "c2", 30, 40, 2222)
    assert "requests captured 2,222" in page(opened()).text


def test_a_look_back_tells_the_capture_that_had_begun_by_then(blast: Path) -> None:
    captured(blast, "c1", 10, 20, 1111)
    captured(blast, "c2", 30, 40, 2222)
    assert "requests captured 1,111" in page(opened(t=str(BEGAN + 25))).text


def test_what_a_capture_saw_after_a_freeze_stays_hidden(blast: Path) -> None:
    captured(blast, "c1", 10, 20, 1111)
    captured(blast, "c2", 30, 90, 2222)
    with Store.open(blast) as store:
        store.add_event(Event(run=feeder.RUN, at=BEGAN + 60.5, kind="freeze"))
    shown = page(opened()).text
    assert "requests captured 1,111" in shown
    assert "2,222" not in shown
