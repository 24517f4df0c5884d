"""Looks at the upstreams, each second, each by itself: how busy, alive, the same as before? It touches sockets and the clock.

What it sees it tells routing and the epochs; it decides nothing. No client's request waits for a look. One that hangs, drips or
sends without end costs its own look and nobody else's. Only paths of a fixed list are asked, at the configured addresses.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from toolkit.proxy.exchange import Job
from toolkit.proxy.faults import FaultKind
from toolkit.proxy.upstreams import upstream_pages as pages
from toolkit.proxy.upstreams.epoch_keeper import EpochKeeper
from toolkit.proxy.upstreams.identity import Identity, identity
from toolkit.proxy.upstreams.routing import LookFailure, Routing
from toolkit.proxy.upstreams.upstream import Answer, Upstream, UpstreamError

METRICS, HEALTH, MODELS, VERSION = "/metrics", "/health", "/v1/models", "/version"
LITELLM_ALIVE: Final = "/health/liveliness"
"""LiteLLM calls all of its models at /health, and answers 500 there while it has no database; here it says that it lives."""
METRICS_BYTES: Final = 16 * 2**20
"""Sixteen engines behind one address: 16 times the recorded 56 KB is 0.9 MB."""
PAGE_BYTES: Final = 2**20
"""Of any other page. 2,000 LoRA adapters at the recorded 449 bytes a model are 0.9 MB."""
LONG_PAGE_BYTES: Final = 2**16
"""Longer ones are read in a thread: 56 KB take 0.7 to 1 ms, which hits that come meanwhile wait."""
READING_SHARE: Final = 0.1
"""Reading a server's pages takes no more than this part of the time: a page that takes 1 s is asked for each 10 s."""
LOOKER, PROBER = b"llm-serving-toolkit-watch", b"llm-serving-toolkit-probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the settings don't say of the watch's times."""

    limit_s: float = 2.0
    """Of one look at /metrics and /health, and of one at the pages that say who it is."""
    identity_s: float = 10.0
    """How often /v1/models and /version are read while nothing happens, and /metrics where there was none."""
    tick_s: float = 0.25
    """How often it is asked whether somebody wants a probe: its delay counts towards the time until a stuck engine is left."""


PACE: Final = Pace()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A page as it came last."""

    body: bytes
    content_type: str
    at_s: float
    """Monotonic."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Place:
    """What is known of one upstream's pages."""

    upstream: Upstream
    metrics: Seen | None = None
    version: Seen | None = None
    known: Identity | None = None
    started_at: float | None = None
    is_well: bool = False
    """The last look came."""
    was_refused: bool = False
    """Nobody listened there since the last look that came."""
    health: str | None = None
    """Where it says whether it is well; None: not known yet."""
    without_metrics_s: float | None = None
    """When there was no /metrics last; None: there is."""
    identified_s: float = float("-inf")
    probe_path: str = pages.COMPLETIONS
    model: str | None = None
    """One that it serves, to be asked for a token."""
    reading_s: float = 0.0


class Watch:
    """Watches the upstreams whose setting says so; `run` it in the loop that they were opened in."""

    def __init__(
        self,
        upstreams: Mapping[str, Upstream],
        routing: Routing,
        *,
        keeper: EpochKeeper,
        event: Callable[[str, dict[str, object]], None],
        pace: Pace = PACE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keeper` is told an upstream's identity, a part of it perhaps, at each look."""
        self._routing, self._keeper, self._event, self._clock = routing, keeper, event, clock
        self._pace = pace
        self._places = {
            name: _Place(upstream=each)
            for name, each in upstreams.items()
            if each.setting.is_watched
        }
        self._probes: set[asyncio.Task[None]] = set()
        self._states: dict[str, tuple[str, str | None]] = {}
        self._unseen = set(self._places)
        """Not looked at yet."""
        self._seen_all = asyncio.Event()

    async def run(self) -> None:
        """Look until cancelled; every look and probe ends with it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for number, place in enumerate(self._places.values()):
                    tasks.create_task(self._look_on(place, number / len(self._places)))
                tasks.create_task(self._tick_on())
        finally:
            for probe in self._probes:
                probe.cancel()
            await asyncio.gather(*self._probes, return_exceptions=True)

    async def first_look(self) -> None:
        """Wait until each upstream was looked at once, in vain or not, and what was stored of another is unreachable."""
        if self._unseen:
            await self._seen_all.wait()

    def metrics(self, name: str) -> Seen | None:
        """An upstream's last good /metrics page."""
        place = self._places.get(name)
        return place.metrics if place else None

    def version(self, name: str) -> Seen | None:
        """An upstream's last /version page."""
        place = self._places.get(name)
        return place.version if place else None

    # --- one look ---------------------------------------------------------------------------------------

    async def _look_on(self, place: _Place, phase: float) -> None:
        """Look again and again; several upstreams' looks do not fall together."""
        look_s = self._routing.setting.look_s
        due_s = self._clock()
        while True:
            await self._guarded(self._look(place), place.upstream.name)
            self._unseen.discard(place.upstream.name)
            if not self._unseen:
                self._seen_all.set()
            if place.is_well and phase:
                due_s, phase = due_s + phase * look_s, 0.0
            pause_s = max(look_s, place.reading_s / READING_SHARE)
            due_s = max(due_s + pause_s, self._clock())
            await asyncio.sleep(due_s - self._clock())

    async def _guarded(self, work: Awaitable[None], name: str) -> None:
        """A page that nobody foresaw must not end the watch."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 (told, not hidden)
            self._event(
                "watch_failed", {"upstream": name, "error": f"{type(error).__name__}: {error}"}
            )

    async def _look(self, place: _Place) -> None:
        name = place.upstream.name
        try:
            async with asyncio.timeout(self._pace.limit_s):
                told = await self._asked(place)
        except TimeoutError:
            self._fail(place, "timeout")
        except UpstreamError as error:
            self._fail(place, _FAILURES.get(error.fault.kind, "other"))
        except _UnhealthyError:
            self._fail(place, "unhealthy")
        else:
            self._routing.looked(name, pages.look(told, place.known), self._clock())
            self._tell_changes()
            await self._came(place, told)

    async def _came(self, place: _Place, told: pages.Metrics | None) -> None:
        came_back, place.is_well = not place.is_well, True
        was_refused, place.was_refused = place.was_refused, False
        started_at = told.numbers.started_at if told else None
        is_new = came_back or started_at != place.started_at
        place.started_at = started_at
        if was_refused:
            await self._keeper.came_back(place.upstream.name)
        await self._identify(place, told, whole=is_new)

    def _fail(self, place: _Place, reason: LookFailure) -> None:
        place.is_well, place.health = False, None
        place.was_refused |= reason == "refused"
        self._routing.failed_look(place.upstream.name, reason, self._clock())
        self._tell_changes()

    async def _asked(self, place: _Place) -> pages.Metrics | None:
        """What /metrics says; where there is none, /health must not say that it is ill."""
        without_s = place.without_metrics_s
        if (
            without_s is None
            or not place.is_well
            or self._clock() - without_s >= self._pace.identity_s
        ):
            told = await self._metrics(place)
            place.without_metrics_s = None if told else self._clock()
            if told is not None:
                return told
        if place.health is None:
            page = await self._page(place, LITELLM_ALIVE, PAGE_BYTES)
            is_litellm = page is not None and page.status == 200 and b"I'm alive!" in page.body
            place.health = LITELLM_ALIVE if is_litellm else HEALTH
        page = await self._page(place, place.health, PAGE_BYTES)
        if page is not None and page.status >= 500:
            raise _UnhealthyError
        return None

    async def _metrics(self, place: _Place) -> pages.Metrics | None:
        page = await self._page(place, METRICS, METRICS_BYTES)
        if page is None or page.status != 200:
            return None
        began_s = self._clock()
        try:
            if len(page.body) > LONG_PAGE_BYTES:
                told = await asyncio.to_thread(pages.metrics, page.body, page.content_type)
            else:
                told = pages.metrics(page.body, page.content_type)
        finally:
            # too late, too: the thread reads on
            place.reading_s = self._clock() - began_s
        if told is not None:
            place.metrics = Seen(body=page.body, content_type=page.content_type, at_s=began_s)
        return told

    async def _identify(self, place: _Place, told: pages.Metrics | None, *, whole: bool) -> None:
        """Tell who it is: by its metrics at once, and by its other pages now and then."""
        numbers = told.numbers if told else None
        await self._saw_it(place, identity(None, None, numbers))
        if not whole and self._clock() - place.identified_s < self._pace.identity_s:
            return
        place.identified_s = self._clock()
        with contextlib.suppress(TimeoutError, UpstreamError):
            async with asyncio.timeout(self._pace.limit_s):
                models = await self._page(place, MODELS, PAGE_BYTES)
                version = await self._page(place, VERSION, PAGE_BYTES)
                await self._saw_it(place, self._identity(place, models, version, told))
                # the same look once more, now with what it serves
                self._routing.looked(
                    place.upstream.name, pages.look(told, place.known), self._clock()
                )

    def _identity(
        self,
        place: _Place,
        models: "_Page | None",
        version: "_Page | None",
        told: pages.Metrics | None,
    ) -> Identity:
        word = None
        if version is not None and version.status == 200:
            word = pages.version(version.body)
            place.version = Seen(
                body=version.body, content_type=version.content_type, at_s=self._clock()
            )
        body = models.body if models is not None and models.status == 200 else None
        place.known = identity(word, body, told.numbers if told else None)
        place.model = _served(place, told)
        return place.known

    async def _saw_it(self, place: _Place, seen: Identity) -> None:
        await self._keeper.saw(place.upstream.name, seen, self._clock())

    async def _page(self, place: _Place, path: str, most_bytes: int) -> "_Page | None":
        """A page; None where it is too long. Raises UpstreamError."""
        job = Job(path=path, method="GET", body=b"", headers=((b"user-agent", LOOKER),))
        answer = await place.upstream.ask(job)
        return await _whole(answer, most_bytes)

    # --- probes -----------------------------------------------------------------------------------------

    async def _tick_on(self) -> None:
        while True:
            for name in self._routing.wants_probe(self._clock()):
                place = self._places.get(name)
                if place is None:
                    self._routing.probed(name, None, self._clock())
                    continue
                task = asyncio.create_task(self._guarded(self._probe(place), name))
                self._probes.add(task)
                task.add_done_callback(self._probes.discard)
            self._tell_changes()
            self._keeper.refresh()
            await asyncio.sleep(self._pace.tick_s)

    async def _probe(self, place: _Place) -> None:
        """Ask for one token, and say whether it came."""
        made: bool | None = None
        try:
            async with asyncio.timeout(self._routing.setting.probe_s):
                made = await self._token(place)
        except TimeoutError:
            made = False
        except UpstreamError as error:
            made = None if error.fault.kind in ("connect", "tls") else False
        finally:
            self._routing.probed(place.upstream.name, made, self._clock())
        self._event("probe", {"upstream": place.upstream.name, "token": made})

    async def _token(self, place: _Place) -> bool | None:
        model = place.upstream.setting.model or place.model
        if model is None:
            return None
        page = await self._asked_token(place, model)
        if page is not None and page.status in (404, 405) and place.probe_path != pages.CHAT:
            place.probe_path = pages.CHAT
            page = await self._asked_token(place, model)
        return None if page is None else pages.made_token(page.status, page.body)

    async def _asked_token(self, place: _Place, model: str) -> "_Page | None":
        headers = (
            (b"user-agent", PROBER),
            (b"content-type", b"application/json"),
            # another cache before the engine must not answer for it
            (b"cache-control", b"no-cache, no-store"),
        )
        body = pages.probe(place.probe_path, model)
        job = Job(path=place.probe_path, method="POST", body=body, headers=headers)
        return await _whole(await place.upstream.ask(job), PAGE_BYTES)

    def _tell_changes(self) -> None:
        """An event for each upstream that was left or is back."""
        for each in self._routing.states(self._clock()):
            state = (each.state, each.reason)
            before = self._states.get(each.name, ("up", None))
            self._states[each.name] = state
            if (before[0] == "up") != (state[0] == "up"):
                self._event(
                    "upstream_back" if state[0] == "up" else "upstream_left",
                    {"upstream": each.name, "reason": each.reason or before[1]},
                )


_FAILURES: Final[Mapping[FaultKind, LookFailure]] = {
    "connect": "refused",
    "timeout_connect": "timeout",
}


class _UnhealthyError(Exception):
    """/health says that it is ill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    status: int
    content_type: str
    body: bytes


async def _whole(answer: Answer, most_bytes: int) -> _Page | None:
    """Read an answer to its end; None: it is longer than may be. Closed in any case."""
    body = await answer.whole(most_bytes)
    if body is None:
        return None
    return _Page(status=answer.status, content_type=answer.content_type, body=body)


def _served(place: _Place, told: pages.Metrics | None) -> str | None:
    """A model to probe with: the metrics name the base model, /v1/models the adapters, too."""
    if told is not None and told.numbers.models:
        return told.numbers.models[0]
    models = place.known.models if place.known else None
    return models[0].id if models else place.model
