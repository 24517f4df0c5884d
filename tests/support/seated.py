"""A seat whose engines and proxy are made up and write down, in one journal, what was done to them and in which order."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.records import Event, Host
from toolkit.serving.house.gate import Gate
from toolkit.serving.house.seat import Seat
from toolkit.serving.stack import EngineSetting, GuardSetting
from toolkit.serving.warm.warm_rounds import Warmed

SETTING = EngineSetting(name="e", kind="sim", model="old", served_name="m", port=1, spare_port=2)
PATIENT = GuardSetting(refused_s=1000.0, look_s=1000.0)
"""Nothing listens where these engines say: the watchdog must not mind."""


class Journal(list[str]):
    """What happened, line by line; somebody may wait for a line."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[str, asyncio.Event]] = []

    def append(self, line: str) -> None:
        super().append(line)
        for wanted, event in self._waiting:
            if wanted == line:
                event.set()

    async def until(self, line: str) -> None:
        event = asyncio.Event()
        self._waiting.append((line, event))
        if line not in self:
            await event.wait()


class MadeUpEngine:
    def __init__(
        self, setting: EngineSetting, upstream: str, journal: list[str], bad: set[str]
    ) -> None:
        self.setting, self.upstream, self.key = setting, upstream, None
        self.host = Host(name=setting.name, url=setting.url)
        self.process = self.kv_cache_tokens = None
        self.ready_s: float | None = None
        self.warmed: Warmed | None = None
        self.took_s, self.log = 90.0, Path("e.log")
        self.served_name = setting.served_name
        self.hangs = asyncio.Event()
        self.exit_code: int | None = None
        self._journal, self._bad = journal, bad

    def code(self) -> int | None:
        return self.exit_code

    def say(self, sentence: str) -> None:
        if "lost" in sentence:
            self._journal.append(f"say {sentence}")

    async def start(self) -> None:
        self._note("start")
        await asyncio.sleep(0)
        if self.setting.model in self._bad:
            raise ToolkitError(f"{self.setting.model} does not start")
        self.ready_s, self.exit_code = 1.0, None

    async def warm(self) -> Warmed:
        self._note("warm")
        if self.setting.model == "hanging":
            self.hangs.set()
            await asyncio.Event().wait()
        self.warmed = Warmed(
            name="e", url=self.setting.url, measure="ttft", cold_ttft_ms=9.0, warm_ttft_ms=3.0
        )
        return self.warmed

    async def stop(self) -> None:
        self._note("stop")

    def _note(self, deed: str) -> None:
        self._journal.append(f"{deed} {self.setting.model} at {self.upstream}")


@dataclass
class MadeUpFront:
    journal: list[str]
    upstreams: tuple[str, ...] = ("e.a", "e.b")
    url: str = "http://clients"
    admin_url: str = "http://admin"
    in_flight: dict[str, int] = field(default_factory=dict)
    up: dict[str, str] = field(default_factory=dict)

    async def drain(self, upstream: str, why: str, back_in_s: float | None) -> None:
        del why, back_in_s
        self.journal.append(f"keep out {upstream}")

    async def undrain(self, upstream: str, start_s: float | None) -> None:
        del start_s
        self.journal.append(f"let in {upstream}")

    async def forget(self, model: str | None) -> None:
        self.journal.append(f"forget {model}")

    async def stop(self) -> None:
        self.journal.append("close")

    async def state(self) -> Mapping[str, Any]:
        return {
            "lately": {"hit_ratio": 0.5, "requests_per_s": 3.0},
            "upstreams": [
                {"name": name, "state": self.up.get(name, "up"), "in_flight": self.in_flight.get(name, 0)}
                for name in self.upstreams
            ],
        }  # fmt: skip


@dataclass
class Scene:
    """One seat that is open, and what happened since."""

    seat: Seat
    front: MadeUpFront
    gate: Gate
    journal: Journal
    events: list[Event]
    bad: set[str]
    engines: list[MadeUpEngine]


async def opened(setting: EngineSetting = SETTING) -> Scene:
    journal = Journal()
    bad: set[str] = set()
    events: list[Event] = []
    engines: list[MadeUpEngine] = []

    def make(chosen: EngineSetting, upstream: str) -> Any:
        engines.append(MadeUpEngine(chosen, upstream, journal, bad))
        return engines[-1]

    gate, front = Gate(look_s=0.01), MadeUpFront(journal)
    seat = Seat(setting, make=make, gate=gate, guard=PATIENT, tell=events.append)
    await gate.keep_out("e.b", "spare")
    await seat.open()
    await gate.open(front)
    journal.clear()
    events.clear()
    return Scene(seat, front, gate, journal, events, bad, engines)
