"""Least facts of a blast; a test names what it is about."""

from collections.abc import Sequence
from typing import Any

from toolkit.records import LoaderSecond, RequestRecord, Run, Tally
from toolkit.stats import Sketch
from toolkit.store import Store

S = 1_750_000_000
RUN = Run(id="0123456789ab", verb="blast", started_at=S + 0.25)
ALICE, BOB = ("alice", "http://10.0.0.4:8000"), ("bob", "http://10.0.0.5:8000")


def tally(at_s: int = S, host: tuple[str, str] = ALICE, worker: str = "w1", **more: Any) -> Tally:
    least = {"run": RUN.id, "name": host[0], "url": host[1], "kind": "ranked"}
    return Tally(**{**least, "at_s": at_s, "worker": worker, **more})


def second(at_s: int = S, worker: str = "w1", **more: Any) -> LoaderSecond:
    return LoaderSecond(**{"run": RUN.id, "at_s": at_s, "worker": worker, **more})


def shot(
    sent_at: float | None, /, host: tuple[str, str] = ALICE, slot: int = 0, **more: Any
) -> RequestRecord:
    least = {
        "run": RUN.id,
        "name": host[0],
        "url": host[1],
        "slot": slot,
        "kind": "unique",
        "prompt": "capital",
        "stream": True,
        "max_tokens": 64,
        "planned_at": RUN.started_at,
        "ok": False,
    }
    return RequestRecord(**{**least, "sent_at": sent_at, **more})


def apart(store: Store, tallies: Sequence[Tally]) -> None:
    """Store each as a row of its own, though several workers counted of one second."""
    for each in tallies:
        store.add_second([each])


def sketch(*values_ms: float) -> bytes:
    whole = Sketch()
    for value in values_ms:
        whole.add(value)
    return whole.to_bytes()
