"""What one process says of itself, and does when it is told to: the admin's Control, and the pages on the clients' port.

It reads the clocks and what the parts know; it opens nothing.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from toolkit.errors import ToolkitError
from toolkit.proxy.calls.admission import Admission
from toolkit.proxy.calls.calls import Calls
from toolkit.proxy.case import Case
from toolkit.proxy.desk.answering import Answering
from toolkit.proxy.desk.kit import Kit
from toolkit.proxy.error_json import CONTENT_TYPE as JSON
from toolkit.proxy.error_json import error_body
from toolkit.proxy.exchange import Headers, Reply, Request, Served
from toolkit.proxy.keyring import owner
from toolkit.proxy.processes.admin import Purge, Question
from toolkit.proxy.processes.crew import Crew
from toolkit.proxy.routes import Route, route
from toolkit.proxy.told import metrics
from toolkit.proxy.told.counters import Counters
from toolkit.proxy.told.explain import explain
from toolkit.proxy.told.metrics import Gauges, LayerGauge, UpstreamGauge
from toolkit.proxy.told.recent import Recent
from toolkit.proxy.upstreams.routing import Drained, Routing, UpstreamState
from toolkit.proxy.upstreams.scrape import Scrape
from toolkit.proxy.upstreams.watch import Watch

if TYPE_CHECKING:
    from toolkit.proxy.http.front import Front
    from toolkit.proxy.told.request_log import RequestLog
    from toolkit.proxy.told.store_feed import StoreFeed


class Inside:
    """The parts that are looked at, each there or not."""

    def __init__(
        self,
        kit: Kit,
        answering: Answering,
        *,
        calls: Calls,
        admission: Admission,
        routing: Routing,
        watch: Watch,
        scrape: Scrape,
        crew: Crew,
    ) -> None:
        self.kit, self.answering, self.calls = kit, answering, calls
        self.admission, self.routing = admission, routing
        self.watch, self.scrape, self.crew = watch, scrape, crew
        self.front: Front | None = None
        self.log: RequestLog | None = None
        self.feed: StoreFeed | None = None
        self.started_at = kit.wall()
        self.recent = Recent()
        self.is_draining = False

    def counted(self) -> Counters:
        """What all workers counted; a copy, which may be read in a thread while these count on."""
        return self.crew.counted(self.kit.counters)


class Control:
    """Does what the admin asks for (admin.Control), and shows the proxy's own pages (desk.Pages)."""

    def __init__(
        self, inside: Inside, *, drain: Callable[[], None], undrain: Callable[[], None]
    ) -> None:
        self._inside, self._drain, self._undrain = inside, drain, undrain
        self._under_way: set[asyncio.Task[None]] = set()

    # --- for the admin -----------------------------------------------------------------------------

    async def metrics(self) -> bytes:
        """The whole page."""
        inside, lately = self._inside, self._inside.recent.indicators()
        await inside.crew.look()
        counters, gauges = inside.counted(), self.gauges()
        # 2,100 lines take 30 ms, which hits that come meanwhile must not wait for
        return await asyncio.to_thread(metrics.page, counters, gauges, lately)

    async def why_not_ready(self) -> str | None:
        """One sentence; None: an upstream can be asked."""
        return self._why_not_ready()

    def _why_not_ready(self) -> str | None:
        inside = self._inside
        if inside.is_draining:
            return "the proxy is draining"
        ready = inside.routing.is_ready(None, inside.kit.clock())
        return None if ready else "no upstream can be asked"

    async def state(self) -> Mapping[str, Any]:
        """What holds now, as JSON."""
        inside = self._inside
        await inside.crew.look()
        now = inside.kit.clock()
        return {
            "ready": self._why_not_ready() is None,
            "draining": inside.is_draining,
            "lately": asdict(inside.recent.indicators()),
            **asdict(self.gauges()),
            # in place of the gauges', which say less
            "upstreams": [_as_json(one) for one in inside.routing.states(now)],
        }

    async def purge(self, what: Purge) -> int:
        """Let stored answers go."""
        key = None if what.question is None else self._case(what.question).name
        tenant = None if what.team is None else self._tenant(what.team)
        try:
            return await self._inside.kit.layers.purge(tenant=tenant, model=what.model, key=key)
        finally:
            # behind the file, or they would have it back from there; and also where Redis refuses
            await self._inside.crew.forget(key)

    async def explain(self, question: Question) -> Mapping[str, Any]:
        """Why a request is a hit or a miss."""
        kit, case = self._inside.kit, self._case(question)
        held = kit.layers.find(case.name) if case.ruling.read else None
        told = explain(
            kit.memory,
            case.name,
            case.form,
            tenant=case.tenant,
            endpoint=case.endpoint,
            model=case.generation,
            now=kit.wall(),
            is_held=held is not None,
            bypass=case.ruling.reason,
            values=question.values,
        )
        return asdict(told) | {"request_key": case.served.request_key, "model": case.generation}

    async def drain(
        self, upstream: str | None, why: Drained = "order", back_in_s: float | None = None
    ) -> None:
        """Send no more to an upstream; None: close the proxy's doors."""
        if upstream is None:
            self._inside.is_draining = True
            self._drain()
            await self._inside.crew.drain()
        else:
            back_s = None if back_in_s is None else self._inside.kit.clock() + back_in_s
            self._inside.routing.drain(self._known(upstream), why, back_s)

    async def undrain(self, upstream: str | None, start_s: float | None = None) -> None:
        """Take it back."""
        if upstream is None:
            self._inside.is_draining = False
            self._undrain()
            await self._inside.crew.undrain()
        else:
            self._inside.routing.undrain(self._known(upstream), start_s)

    # --- on the clients' port ----------------------------------------------------------------------

    def show(self, name: str, reply: Reply) -> None:
        """Answer with one of the proxy's own pages."""
        match name:
            case "ping":
                reply.whole(200, (), b"")
            case "health" | "ready":
                reply.whole(200 if self._why_not_ready() is None else 503, (), b"")
            case "version":
                reply.whole(200, (JSON,), self._version())
            case _:
                task = asyncio.get_running_loop().create_task(self._show_metrics(reply))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)

    def _version(self) -> bytes:
        """The engine's own page; with several the first that told."""
        names = [each.name for each in self._inside.kit.settings.upstreams]
        seen = next(filter(None, map(self._inside.watch.version, names)), None)
        return b'{"version":"unknown"}' if seen is None else seen.body

    async def _show_metrics(self, reply: Reply) -> None:
        """What the engines say at this moment, and what everybody may know of us."""
        try:
            page = await self._public(await self._inside.scrape.page())
        except Exception as error:  # noqa: BLE001 (nobody else would tell the client, which waits)
            self._inside.kit.event("fault", {"error": f"{type(error).__name__}: {error}"})
            reply.whole(500, [JSON], error_body(500, "The proxy failed at this page"))
        else:
            reply.whole(200, [(b"content-type", metrics.CONTENT_TYPE)], page)

    async def _public(self, engines: str) -> bytes:
        await self._inside.crew.look()
        counters, gauges = self._inside.counted(), self.gauges()
        lately = self._inside.recent.indicators()

        def page() -> bytes:
            return metrics.merged(engines, metrics.public(counters, gauges, lately)).encode()

        return await asyncio.to_thread(page)

    # --- what it looks at --------------------------------------------------------------------------

    def gauges(self) -> Gauges:
        """What holds right now, in all workers."""
        return self._inside.crew.gauges(self._own_gauges())

    def _own_gauges(self) -> Gauges:
        inside, kit = self._inside, self._inside.kit
        admission, front = inside.admission, inside.front
        return Gauges(
            version=version("llm-serving-toolkit"),
            started_at=inside.started_at,
            connections=front.connections if front else 0,
            busy=front.busy if front else 0,
            flights=len(inside.calls),
            slots=admission.in_use,
            slot_limit=kit.settings.admission.concurrency,
            queued={
                use.team: use.waiting + held[use.team]
                for held in (inside.calls.held(),)
                for use in admission.teams()
            },
            layers=tuple(self._layers()),
            redis_open=None if kit.layers.redis is None else kit.layers.redis.is_left_alone,
            upstreams=tuple(
                UpstreamGauge(
                    name=one.name,
                    state=one.state,
                    draining=one.draining,
                    in_flight=one.in_flight,
                    running=one.running,
                    waiting=one.waiting,
                    metrics_age_s=inside.scrape.age_s(one.name),
                )
                for one in inside.routing.states(kit.clock())
            ),
            epochs=dict(kit.generations.numbers),
            log_lines_dropped=inside.log.dropped if inside.log else 0,
            rows_dropped=inside.feed.dropped if inside.feed else 0,
        )

    def _layers(self) -> list[LayerGauge]:
        layers, setting = self._inside.kit.layers, self._inside.kit.settings.cache
        found = [layers.memory_gauge()]
        if layers.shared is not None:
            shared = layers.shared.counts()
            found.append(
                LayerGauge(
                    layer="disk",
                    size_bytes=shared.file_bytes,
                    limit_bytes=setting.file_bytes,
                    refused=shared.lost,
                )
            )
        if layers.redis is not None:
            found.append(LayerGauge(layer="redis", refused=layers.redis.counts().lost))
        return found

    # --- questions ---------------------------------------------------------------------------------

    def _case(self, question: Question) -> Case:
        """A request as if it had come, up to its key."""
        inside = self._inside
        found = route("POST", question.path, inside.kit.settings)
        if not isinstance(found, Route) or found.kind != "answer":
            raise ToolkitError(
                f"`{question.path}` is no path whose answers are stored",
                "Name one such as /v1/chat/completions",
            )
        request = Request(method="POST", path=question.path, body=question.body)
        case = Case(request=request, reply=_Nobody(request), served=Served(ts=0.0), taken_s=0.0)
        case.endpoint = found.endpoint
        if inside.kit.settings.teams:
            self._tenant(question.team)
            teams = {team.name: team for team in inside.kit.settings.teams}
            case.team = teams[question.team]
        problem = inside.answering.understand(case)
        if problem is not None:
            raise ToolkitError(f"the body can't be read: {problem}", "Give a request's body")
        return case

    def _tenant(self, team: str) -> str:
        teams = {each.name: each for each in self._inside.kit.settings.teams}
        if team not in teams:
            raise ToolkitError(
                f"there is no team `{team}`", f"There are: {', '.join(teams) or 'none'}"
            )
        return owner(teams[team])

    def _known(self, upstream: str) -> str:
        names = [each.name for each in self._inside.kit.settings.upstreams]
        if upstream not in names:
            raise ToolkitError(
                f"there is no upstream `{upstream}`", f"There are: {', '.join(names)}"
            )
        return upstream


class _Nobody:
    """Where the answer to a request goes that is only talked about: nowhere."""

    is_gone = True
    is_paused = False
    on_writable: Callable[[], None] | None = None
    on_gone: Callable[[], None] | None = None

    def __init__(self, request: Request) -> None:
        self.request = request

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Nothing."""

    def begin(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        """Nothing."""

    def write(self, data: bytes) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def abort(self) -> None:
        """Nothing."""


def _as_json(one: UpstreamState) -> dict[str, Any]:
    told = asdict(one)
    told["models"] = None if one.models is None else sorted(one.models)
    return told
