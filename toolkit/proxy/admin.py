"""The listener for whoever runs the proxy: metrics, health, state; purge, explain, drain.

    GET  /metrics /health /ready /ping /state
    POST /purge    {"all": true} | {"team": "red", "model": "qwen"} (one or both) | {"request": {...as for explain}}
    POST /explain  {"path": "/v1/chat/completions", "body": {...} or its text, "team": "red", "values": false}
    POST /drain /undrain   {"upstream": "a"}, or nothing: the proxy itself

Whoever starts an upstream itself says so with them: `/drain {"upstream": "a", "why": "restart", "back_in_s": 40}` has requests wait
for it, `"why": "spare"` says that nobody is there; `/undrain {"upstream": "a", "start_s": 40}` that it is started again should it end.

It needs no key: it listens on the loopback unless settings say otherwise. A request that a page in a browser sends is refused, as is
one by a host name that is not its own, which such a page may have bent to this machine's address.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from ipaddress import ip_address
from socket import gethostname
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import orjson
from pydantic import BaseModel, Field, ValidationError

from toolkit.errors import ToolkitError
from toolkit.hosts import is_loopback
from toolkit.proxy.auth import owner
from toolkit.proxy.client import Request, Responder
from toolkit.proxy.config import WILD
from toolkit.proxy.errors import JSON, error_body
from toolkit.proxy.explain import SeenRequest
from toolkit.proxy.framing import Framed, Head
from toolkit.proxy.handler import Context
from toolkit.proxy.routes import ANSWERS
from toolkit.proxy.telemetry.access_log import json_line
from toolkit.proxy.telemetry.metrics import CONTENT_TYPE, CacheGauge, Gauges, page
from toolkit.proxy.upstream.routing import Drained

if TYPE_CHECKING:
    from toolkit.proxy.app import Proxy

T = TypeVar("T")
Wait = Annotated[float, Field(ge=0, le=3650 * 86400)]
"""Seconds, as in settings."""


class Question(BaseModel, extra="forbid", strict=True):
    """One request that is asked about; it is not sent anywhere."""

    path: str = "/v1/chat/completions"
    body: str | dict[str, Any]
    team: str = ""
    values: bool = False
    """Show the values that differ, not only where."""


class Purge(BaseModel, extra="forbid", strict=True):
    """Which stored answers are to go: all; those of a team, of a model, of both; or one request's."""

    all: bool = False
    team: str | None = None
    model: str | None = None
    request: Question | None = None


class Drain(BaseModel, extra="forbid", strict=True):
    """Where no more requests are sent; None: to the proxy itself."""

    upstream: str | None = None
    why: Drained = "order"
    back_in_s: Wait | None = None


class Undrain(BaseModel, extra="forbid", strict=True):
    """Where requests are sent again."""

    upstream: str | None = None
    start_s: Wait | None = None


METRICS: Final = (b"content-type", CONTENT_TYPE)
PAGES = ("/metrics", "/health", "/ready", "/ping", "/state")
ACTIONS: Final[Mapping[str, tuple[type[BaseModel], str]]] = {
    # path: what its body holds, and an example
    "/purge": (
        Purge,
        '{"all": true}, {"team": "red"}, {"model": "qwen"} or {"request": {"body": {...}}}',
    ),
    "/explain": (Question, '{"path": "/v1/chat/completions", "body": {...}, "team": "red"}'),
    "/drain": (Drain, '{"upstream": "a"}, or no body for the proxy itself'),
    "/undrain": (Undrain, '{"upstream": "a"}, or no body for the proxy itself'),
}


class Admin(Responder):
    """Answers the admin's listener, and shows the proxy's own pages on the clients' (handler.Pages)."""

    def __init__(self, proxy: "Proxy", host: str = "127.0.0.1") -> None:
        """`host`: the address that it listens on."""
        self._proxy, self._host = proxy, host
        self._teams = {team.name: team for team in proxy.settings.teams}
        self._under_way: set[asyncio.Task[None]] = set()

    # --- the admin's listener ------------------------------------------------------------------------

    def take(self, request: Request) -> None:
        """Answer, perhaps later."""
        self._begin(self._answer(request))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _answer(self, request: Request) -> None:
        head, path = request.head, request.head.path
        allowed = "POST" if path in ACTIONS else "GET, HEAD"
        status, said, problem = 200, {}, ("", "")
        if not _is_own(head.header(b"host"), self._host):
            where = "Ask by the address that it listens on, e.g., 127.0.0.1"
            status, problem = 421, ("this is not the host that was asked for", where)
        elif path not in PAGES and path not in ACTIONS:
            every = f"There are {' '.join((*PAGES, *ACTIONS))}"
            status, problem = 404, (f"there is no `{path}`", every)
        elif head.method not in allowed.split(", "):
            status, problem = 405, (f"`{path}` is for {allowed.replace(', ', ' and ')}", "")
        elif path in ACTIONS and head.header(b"origin") is not None:
            status, problem = 403, ("a page in a browser may not do this", "Use, e.g., curl")
        else:
            try:
                if path == "/metrics":
                    request.respond(200, [METRICS], await self._metrics())
                    return
                if path in ACTIONS:
                    said = await self._do(request)
                else:
                    status, said = await self._page(path)
            except ToolkitError as error:
                status, problem = 400, (error.message, error.hint)
            except Exception as error:  # noqa: BLE001 (the admin must hear of it, and the listener go on)
                what = f"{type(error).__name__}: {error}"
                status, problem = 500, (what, "This is a bug of the proxy")
        message, hint = problem
        if message:
            said = {"error": {"message": message, "hint": hint or None}}
        headers = [JSON, (b"allow", allowed.encode())] if status == 405 else [JSON]
        request.respond(status, headers, json_line(said))

    async def _page(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a page."""
        proxy, why_not = self._proxy, self._why_not_ready()
        if path == "/ping":
            return 200, {"status": "ok"}
        if path != "/state":
            return 503 if why_not else 200, {"ready": why_not is None, "why": why_not}
        await proxy.front_workers.sync()
        held = asdict(self.gauges())
        del held["page_ages_s"]
        for one in held["upstreams"]:
            one["models"] = None if one["models"] is None else sorted(one["models"])
        state = {"ready": why_not is None, "draining": proxy.is_draining}
        return 200, state | {"lately": proxy.last_minute.indicators(), **held}

    async def _do(self, request: Request) -> dict[str, Any]:
        """Do what is asked, and return what to say of it."""
        proxy, path = self._proxy, request.head.path
        model, example = ACTIONS[path]
        try:
            asked = model.model_validate(orjson.loads(request.body.strip() or b"{}"))
        except orjson.JSONDecodeError as error:
            # its words name the place, and repeat nothing of what was sent
            raise ToolkitError(f"the body is not JSON: {error}", f"E.g., {example}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            raise ToolkitError(f"`{where}`: {first['msg']}", f"E.g., {example}") from None
        if isinstance(asked, Question):
            return self._explain(asked, request.head)
        if isinstance(asked, Purge):
            return {"purged": await self._purge(asked, request.head)}
        assert isinstance(asked, Drain | Undrain)
        if asked.upstream is None:
            proxy.is_draining = isinstance(asked, Drain)
            if proxy.is_draining:
                proxy.front.drain()
            else:
                proxy.front.reopen()
                proxy.say("The proxy takes requests again")
            await proxy.front_workers.order(path, {})
        else:
            _named("upstream", asked.upstream, proxy.upstreams)
            if isinstance(asked, Undrain):
                proxy.routing.undrain(asked.upstream, asked.start_s)
            else:
                back_s = None if asked.back_in_s is None else proxy.clock() + asked.back_in_s
                proxy.routing.drain(asked.upstream, asked.why, back_s)
        return {"upstream": asked.upstream, "draining": isinstance(asked, Drain)}

    # --- what it shows and does ----------------------------------------------------------------------

    async def _metrics(self, engines: str | None = None) -> bytes:
        """The page for Prometheus; behind the engines' own page, what clients may see of it."""
        proxy = self._proxy
        await proxy.front_workers.sync()
        counters, gauges, lately = proxy.counted(), self.gauges(), proxy.last_minute.indicators()
        # 2,100 lines take 30 ms, which hits that come meanwhile must not wait for
        return await asyncio.to_thread(page, counters, gauges, lately, engines)

    def _why_not_ready(self) -> str | None:
        """One sentence; None: an upstream can be asked."""
        if self._proxy.is_draining:
            return "the proxy is draining"
        ready = self._proxy.routing.is_ready(None, self._proxy.clock())
        return None if ready else "no upstream can be asked"

    async def _purge(self, what: Purge, head: Head) -> int:
        given = what.model_fields_set
        ways = (what.all, not given.isdisjoint({"team", "model"}), "request" in given)
        named = what.all or what.team is not None or what.model is not None
        # half understood would be too much purged, or too little
        if sum(ways) != 1 or not (named or what.request):
            hint = f"E.g., {ACTIONS['/purge'][1]}"
            raise ToolkitError("name what to purge, and in one way", hint)
        proxy, key, tenant = self._proxy, None, None
        if what.request is not None:
            key = self._context(what.request, head).name
        if what.team is not None:
            tenant = owner(_named("team", what.team, self._teams))
        try:
            return await proxy.cache.purge(tenant=tenant, model=what.model, key=key)
        finally:
            # behind the file, or they would have it back from there; and also where Redis refuses
            await proxy.front_workers.forget(key)

    def _explain(self, question: Question, head: Head) -> dict[str, Any]:
        """Why a request is a hit or a miss."""
        proxy, context = self._proxy, self._context(question, head)
        decision = context.decision
        said = proxy.handler.misses.explain(
            context.known.tenant,
            context.name,
            SeenRequest(
                context.endpoint,
                context.form,
                context.model,
                context.fingerprint or "",
                proxy.wall(),
            ),
            is_stored=decision.read and proxy.cache.find(context.name) is not None,
            bypass=decision.reason,
            values=question.values,
        )
        read = proxy.handler.asked(context)
        request_key = None if read is None else read.request_key
        return said | {"request_key": request_key, "model": context.fingerprint}

    # --- on the clients' port ------------------------------------------------------------------------

    def show(self, name: str, request: Request) -> None:
        """Answer with one of the proxy's own pages."""
        match name:
            case "ping":
                request.respond(200, (), b"")
            case "health" | "ready":
                request.respond(200 if self._why_not_ready() is None else 503, (), b"")
            case "version":
                # the engine's own page; with several the first that told
                seen = self._proxy.prober.version_page()
                request.respond(200, (JSON,), seen or b'{"version":"unknown"}')
            case _:
                self._begin(self._show_metrics(request))

    async def _show_metrics(self, request: Request) -> None:
        """The engines' own numbers as of this moment, and what everybody may know of ours."""
        try:
            data = await self._metrics(await self._proxy.prober.metrics_page())
        except Exception as error:  # noqa: BLE001 (nobody else would tell the client, which waits)
            self._proxy.telemetry.event("fault", {"error": f"{type(error).__name__}: {error}"})
            request.respond(500, [JSON], error_body(500, "The proxy failed at this page"))
        else:
            request.respond(200, [METRICS], data)

    # --- what it looks at ----------------------------------------------------------------------------

    def gauges(self) -> Gauges:
        """What holds right now, in all workers."""
        proxy, cache, setting = self._proxy, self._proxy.cache, self._proxy.settings.cache
        workers, counted = proxy.front_workers.held(proxy.held())
        held: dict[str, Any] = dict(counted)
        memory = {name: held.pop(name) for name in cache.memory_gauge()}
        layers = [CacheGauge(layer="memory", **memory)]
        if cache.sqlite is not None:
            layers.append(
                CacheGauge(
                    layer="disk",
                    size_bytes=cache.sqlite.file_bytes(),
                    limit_bytes=setting.file_bytes,
                    refused=cache.sqlite.lost,
                )
            )
        if cache.redis is not None:
            layers.append(CacheGauge(layer="redis", refused=cache.redis.lost))
        waiting = proxy.calls.held()
        return Gauges(
            version=version("llm-serving-toolkit"),
            started_at=proxy.started_at,
            workers=workers,
            flights=len(proxy.calls),
            slots=proxy.admission.in_use,
            slot_limit=proxy.settings.admission.concurrency,
            queued={team: n + waiting[team] for team, n in proxy.admission.queued().items()},
            layers=tuple(layers),
            redis_open=None if cache.redis is None else cache.redis.is_left_alone,
            upstreams=proxy.routing.states(proxy.clock()),
            page_ages_s={name: proxy.prober.metrics_age_s(name) for name in proxy.upstreams},
            epochs=dict(proxy.fingerprints.incarnations),
            **held,
        )

    def _context(self, question: Question, head: Head) -> Context:
        """A request as if it had come, up to its key; `head`: of the POST that asks about it."""
        handler, path, body = self._proxy.handler, question.path, question.body
        if path not in ANSWERS:
            raise ToolkitError(
                f"`{path}` is no path whose answers are stored",
                "Name one such as /v1/chat/completions",
            )
        try:
            written = body.encode() if isinstance(body, str) else orjson.dumps(body)
        except orjson.JSONEncodeError:
            # it reads 1,024 levels and writes 254
            raise ToolkitError("`body` is nested too deep", "Give it as a text") from None
        team = _named("team", question.team, self._teams).name if self._teams else None
        head = replace(head, path=path, query="", headers=(), known=None)
        context = Context(
            request=Request(Framed(head=head, body=written), None),
            known=handler.known_of(head, team, is_checked=True),
            request_id="",
            taken_s=0.0,
            arrived_s=0.0,
            body_bytes=0,
        )
        context.endpoint, context.team = ANSWERS[path], context.known.team
        problem = handler.understand(context)
        if problem is not None:
            raise ToolkitError(f"the body can't be read: {problem}", "Give a request's body")
        return context


def _is_own(asked: bytes | None, host: str) -> bool:
    """Whether a Host header names this listener: the loopback, its own address, or any where it listens on all of them.

    An address can't be bent as a name can (DNS rebinding). None: no browser asks without.
    """
    if asked is None:
        return True
    name = asked.decode("latin-1").lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if is_loopback(name) or name == host.lower():
        return True
    if host and host not in WILD:
        return False
    try:
        ip_address(name)
    except ValueError:
        return name == gethostname().lower()
    return True


def _named(kind: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        hint = f"There are: {', '.join(known) or 'none'}"
        raise ToolkitError(f"there is no {kind} `{name}`", hint)
    return known[name]
