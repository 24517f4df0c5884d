"""Calls of the proxy over real sockets to scripted upstreams, and clients that only take down what they are told."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from support.scripted_upstream import Script, ScriptedUpstream

from toolkit.proxy.calls.admission import Admission
from toolkit.proxy.calls.attempt import Means
from toolkit.proxy.calls.call import Call
from toolkit.proxy.calls.calls import Calls
from toolkit.proxy.calls.flights import Flights
from toolkit.proxy.exchange import Job, Kept, Rejection, View
from toolkit.proxy.settings import Settings, UpstreamSetting
from toolkit.proxy.upstreams.routing import Routing
from toolkit.proxy.upstreams.upstream import Upstream

KEY = b"k" * 16
JOB = Job(
    path="/v1/chat/completions",
    body=b'{"model": "tiny", "messages": [], "stream": true}',
    endpoint="chat/completions",
    model="tiny",
    view=View(stream=True),
)
WHOLE_JOB = replace(JOB, body=b'{"model": "tiny", "messages": []}', view=View())


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def gates(count: int) -> list[asyncio.Event]:
    return [asyncio.Event() for _ in range(count)]


class Client:
    """Takes down what it is told, and reads what it is given unless it is slow."""

    def __init__(self, *, slow: bool = False, waits: bool = False) -> None:
        self.slow, self.waits = slow, waits
        self.told: list[str] = []
        """`began`, `ended`, `rejected`; not each `grew`."""
        self.data: list[bytes] = []
        self.next = 0
        self.call: Call | None = None
        self.rejection: Rejection | None = None
        self.over = asyncio.Event()
        self._moved = asyncio.Event()

    @property
    def taken(self) -> int | None:
        return None if self.waits else self.next

    def join(self, call: Call) -> None:
        """As the desk does after `ask`: take what is there already."""
        self.call = call
        if call.recorder is not None:
            self.take(call)

    def began(self, call: Call) -> None:
        self.told.append("began")
        self._take(call)

    def grew(self, call: Call) -> None:
        self._take(call)

    def ended(self, call: Call) -> None:
        self.told.append("ended")
        if call.recorder is not None:
            self._take(call)
        self.over.set()

    def rejected(self, rejection: Rejection) -> None:
        self.told.append("rejected")
        self.rejection = rejection
        self.over.set()

    def _take(self, call: Call) -> None:
        self.call = call
        if not (self.slow or self.waits):
            self.take(call)
        self._moved.set()

    def take(self, call: Call) -> None:
        assert call.recorder is not None
        self.data += call.recorder.events[self.next :]
        self.next = len(call.recorder.events)
        call.moved()

    @property
    def text(self) -> bytes:
        return b"".join(self.data)

    async def until(self, part: bytes) -> None:
        """Wait until so much of the answer came."""
        while part not in self.text:
            self._moved.clear()
            await self._moved.wait()

    async def held(self) -> None:
        """Wait until the upstream is held back."""
        while self.call is None or not self.call.is_held:  # noqa: ASYNC110 (nobody is told of it)
            await asyncio.sleep(0)


class Clock:
    """The monotonic clock, and a hand to move it."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


class Bench:
    """One Calls, its upstreams and all that it told."""

    def __init__(self, servers: list[ScriptedUpstream], settings: Settings) -> None:
        self.servers, self.settings, self.clock = servers, settings, Clock()
        self.events: list[tuple[str, dict[str, object]]] = []
        self.kept: list[tuple[bytes, Job, Kept]] = []
        self.in_flight_when_kept: list[int] = []
        self.flights: Flights[bytes, Call] = Flights()
        self.admission = Admission(settings.admission, settings.teams)
        self.routing = Routing(settings.upstreams, settings.routing)
        self.upstreams = {each.name: Upstream(each) for each in settings.upstreams}
        means = Means(
            upstreams=self.upstreams,
            routing=self.routing,
            settings=settings,
            event=lambda name, told: self.events.append((name, told)),
            clock=self.clock,
        )
        self.calls = Calls(means, flights=self.flights, admission=self.admission, keep=self.keep)

    @property
    def server(self) -> ScriptedUpstream:
        return self.servers[0]

    def keep(self, key: bytes, job: Job, kept: Kept) -> None:
        self.kept.append((key, job, kept))
        self.in_flight_when_kept.append(len(self.flights))

    def ask(self, key: bytes | None = KEY, job: Job = JOB, client: Client | None = None) -> Client:
        """A client that asked; arrived now."""
        client = client or Client()
        call, client.led = self.calls.ask(key, replace(job, arrived_s=self.clock()), client)
        client.join(call)
        return client

    def leave(self, client: Client) -> None:
        assert client.call is not None
        self.calls.leave(client.call, client)

    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    async def idle(self) -> None:
        """No slot, no flight, no call; and no connection in use once the upstreams have noticed."""
        assert self.admission.in_use == 0
        assert self.admission.waiting == 0
        assert len(self.flights) == 0
        assert len(self.calls) == 0
        # a moment later the connections are given back
        await self.calls.drain(5.0)
        assert all(state.in_flight == 0 for state in self.routing.states(self.clock()))
        for server in self.servers:
            await server.until(lambda at=server: not at.under_way)


@contextlib.asynccontextmanager
async def bench(
    *scripts: Script,
    upstreams: Mapping[str, Mapping[str, Any]] = {},
    ticks: bool = True,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """One upstream for each script, named `a`, `b`, ...; `upstreams` has more of their settings by name."""
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(ScriptedUpstream(each)) for each in scripts]
        told = tuple(
            UpstreamSetting(name=name, url=server.url, **upstreams.get(name, {}))
            for name, server in zip("abcdefgh", servers, strict=False)
        )
        made = Bench(servers, Settings(upstreams=told, **settings))
        for upstream in made.upstreams.values():
            await stack.enter_async_context(upstream)
        ticking = asyncio.ensure_future(_tick(made.calls if ticks else None))
        try:
            yield made
            await made.calls.drain(0.0)
        finally:
            ticking.cancel()


async def _tick(calls: Calls | None) -> None:
    while calls is not None:
        calls.tick()
        await asyncio.sleep(0.01)
