"""The listener for whoever runs the proxy: metrics, health, state; purge, explain, drain. It decides nothing: Control does.

    GET  /metrics /health /ready /ping /state
    POST /purge    {"all": true} | {"team": "red", "model": "qwen"} (one or both) | {"request": {...as for explain}}
    POST /explain  {"path": "/v1/chat/completions", "body": {...} or its text, "team": "red", "values": false}
    POST /drain /undrain   {"upstream": "a"}, or nothing: the proxy itself

Whoever starts an upstream itself says so with them: `/drain {"upstream": "a", "why": "restart", "back_in_s": 40}` has requests wait
for it, `"why": "spare"` says that nobody is there; `/undrain {"upstream": "a", "start_s": 40}` that it is started again should it end.

It asks for no key: it listens on the loopback unless told otherwise. What a page in a browser sends to it is refused, as such a page
is somebody else's; and so is what is asked by a name that is not its own, which such a page may have bent to this machine's address.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from socket import gethostname
from typing import Any, Protocol, get_args

import orjson

from toolkit.errors import ToolkitError
from toolkit.hosts import is_loopback
from toolkit.proxy.error_json import CONTENT_TYPE as JSON
from toolkit.proxy.exchange import Headers, Reply, Request
from toolkit.proxy.setting_values import WILD
from toolkit.proxy.told.log_lines import dumped
from toolkit.proxy.told.metrics import CONTENT_TYPE
from toolkit.proxy.upstreams.routing import Drained

PATH = "/v1/chat/completions"
PAGES = ("/metrics", "/health", "/ready", "/ping", "/state")
DEEDS = ("/purge", "/explain", "/drain", "/undrain")
EXAMPLES = {
    "/purge": '{"all": true}, {"team": "red"}, {"model": "qwen"} or {"request": {"body": {...}}}',
    "/explain": '{"path": "/v1/chat/completions", "body": {...}, "team": "red"}',
    "/drain": '{"upstream": "a"}, or no body for the proxy itself',
    "/undrain": '{"upstream": "a"}, or no body for the proxy itself',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request that somebody asks about; it is not sent anywhere."""

    path: str
    body: bytes
    team: str = ""
    values: bool = False
    """Show the values that differ, not only where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """Which stored answers are to go: all; those of a team, of a model, of both; or one request's."""

    everything: bool = False
    team: str | None = None
    model: str | None = None
    question: Question | None = None


class Control(Protocol):
    """Who can do what the admin asks for. A ToolkitError is told as what is wrong with the question."""

    async def metrics(self) -> bytes:
        """The whole page."""

    async def why_not_ready(self) -> str | None:
        """One sentence; None: an upstream can be asked."""

    async def state(self) -> Mapping[str, Any]:
        """Upstreams, epochs, cache, queues, workers as JSON can hold them."""

    async def purge(self, what: Purge) -> int:
        """Let stored answers go, and say how many there were."""

    async def explain(self, question: Question) -> Mapping[str, Any]:
        """Why a request is a hit or a miss."""

    async def drain(
        self, upstream: str | None, why: Drained = "order", back_in_s: float | None = None
    ) -> None:
        """Send no more to an upstream; None: take no more requests, and say so in /ready."""

    async def undrain(self, upstream: str | None, start_s: float | None = None) -> None:
        """Take it back."""


class _Wrong(Exception):  # noqa: N818 (an answer, and no fault of ours)
    """What is asked can't be done as it stands."""

    def __init__(self, status: int, message: str, hint: str = "", allow: str = "") -> None:
        super().__init__(message)
        self.status, self.hint, self.allow = status, hint, allow


class AdminDesk:
    """A desk for a front of its own."""

    def __init__(self, control: Control, host: str = "127.0.0.1") -> None:
        """`host`: where the front listens."""
        self._control, self._host = control, host
        self._under_way: set[asyncio.Task[None]] = set()

    def recall(self, data: bytes) -> None:  # noqa: ARG002 (a desk's)
        """Nothing is known by its bytes."""
        return

    def refused(self, status: int, reason: str, peer: str) -> None:
        """What the front refused here is the admin's own slip, and told to the admin alone."""

    def admits(self, request: Request) -> bool:  # noqa: ARG002 (a desk's)
        """Every body."""
        return True

    def take(self, request: Request, reply: Reply) -> None:
        """Answer when Control has."""
        task = asyncio.get_running_loop().create_task(self._answer(request, reply))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _answer(self, request: Request, reply: Reply) -> None:
        try:
            await self._serve(request, reply)
        except _Wrong as wrong:
            allow = [(b"allow", wrong.allow.encode())] if wrong.allow else []
            _tell_error(reply, wrong.status, str(wrong), wrong.hint, allow)
        except ToolkitError as error:
            _tell_error(reply, 400, error.message, error.hint)
        except Exception as error:  # noqa: BLE001 (the admin must hear of it, and the listener go on)
            _tell_error(
                reply, 500, f"{type(error).__name__}: {error}", "This is a bug of the proxy"
            )

    async def _serve(self, request: Request, reply: Reply) -> None:
        if not _is_own(request.header(b"host"), self._host):
            hint = "Ask by the address that it listens on, e.g., 127.0.0.1"
            raise _Wrong(421, "this is not the host that was asked for", hint)
        _refuse_strange(request)
        match request.path:
            case "/metrics":
                reply.whole(200, [(b"content-type", CONTENT_TYPE)], await self._control.metrics())
            case "/ping":
                _tell(reply, {"status": "ok"})
            case "/health" | "/ready":
                why_not = await self._control.why_not_ready()
                told = {"ready": why_not is None, "why": why_not}
                _tell(reply, told, status=200 if why_not is None else 503)
            case "/state":
                _tell(reply, await self._control.state())
            case "/purge":
                _tell(reply, {"purged": await self._control.purge(_purge(_fields(request)))})
            case "/explain":
                _tell(reply, await self._control.explain(_question(_fields(request), "/explain")))
            case "/drain":
                fields = _fields(request) if request.body.strip() else {}
                _refuse_unknown(fields, {"upstream", "why", "back_in_s"}, "/drain")
                upstream, why = _text(fields, "upstream", "/drain"), fields.get("why", "order")
                if why not in get_args(Drained):
                    raise _Wrong(400, f"`why` is one of {', '.join(get_args(Drained))}")
                await self._control.drain(upstream, why, _seconds(fields, "back_in_s", "/drain"))
                _tell(reply, {"upstream": upstream, "draining": True})
            case _:
                fields = _fields(request) if request.body.strip() else {}
                _refuse_unknown(fields, {"upstream", "start_s"}, "/undrain")
                upstream = _text(fields, "upstream", "/undrain")
                await self._control.undrain(upstream, _seconds(fields, "start_s", "/undrain"))
                _tell(reply, {"upstream": upstream, "draining": False})


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


def _refuse_strange(request: Request) -> None:
    """What is no question of an admin's, by its path, method or sender."""
    known = (*PAGES, *DEEDS)
    if request.path not in known:
        raise _Wrong(404, f"there is no `{request.path}`", f"There are {' '.join(known)}")
    allowed = ("GET", "HEAD") if request.path in PAGES else ("POST",)
    if request.method not in allowed:
        either = f"`{request.path}` is for {' and '.join(allowed)}"
        raise _Wrong(405, either, allow=", ".join(allowed))
    if request.path in DEEDS and request.header(b"origin") is not None:
        raise _Wrong(403, "a page in a browser may not do this", "Use, e.g., curl")


def _fields(request: Request) -> dict[str, Any]:
    try:
        fields = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        # its words name the place, and repeat nothing of what was sent
        raise _Wrong(400, f"the body is not JSON: {error}", _example(request.path)) from None
    if not isinstance(fields, dict):
        raise _Wrong(400, "the body is no JSON object", _example(request.path))
    return fields


def _purge(fields: dict[str, Any]) -> Purge:
    """Half understood would be too much purged, or too little: anything unknown is refused."""
    _refuse_unknown(fields, {"all", "team", "model", "request"}, "/purge")
    if not _flag(fields, "all", "/purge"):
        fields = {name: value for name, value in fields.items() if name != "all"}
    ways = [set(fields) & {"all"}, set(fields) & {"team", "model"}, set(fields) & {"request"}]
    if sum(map(bool, ways)) != 1:
        raise _Wrong(400, "name what to purge, and in one way", _example("/purge"))
    if "request" not in fields:
        team, model = _text(fields, "team", "/purge"), _text(fields, "model", "/purge")
        if "all" not in fields and team is None and model is None:
            raise _Wrong(400, "name what to purge, and in one way", _example("/purge"))
        return Purge(everything="all" in fields, team=team, model=model)
    if not isinstance(fields["request"], dict):
        raise _Wrong(400, "`request` is no JSON object", _example("/purge"))
    return Purge(question=_question(fields["request"], "/purge"))


def _question(fields: dict[str, Any], path: str) -> Question:
    _refuse_unknown(fields, {"path", "body", "team", "values"}, path)
    body = fields.get("body")
    if not isinstance(body, str | dict):
        raise _Wrong(400, "`body` is neither an object nor a text", _example(path))
    try:
        written = body.encode() if isinstance(body, str) else orjson.dumps(body)
    except orjson.JSONEncodeError:
        # it reads 1,024 levels and writes 254
        raise _Wrong(400, "`body` is nested too deep; give it as a text", _example(path)) from None
    return Question(
        path=_text(fields, "path", path) or PATH,
        body=written,
        team=_text(fields, "team", path) or "",
        values=_flag(fields, "values", path),
    )


def _text(fields: dict[str, Any], name: str, path: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise _Wrong(400, f"`{name}` is no text", _example(path))
    return value


def _seconds(fields: dict[str, Any], name: str, path: str) -> float | None:
    value = fields.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise _Wrong(400, f"`{name}` is no number of seconds", _example(path))
    return value


def _flag(fields: dict[str, Any], name: str, path: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise _Wrong(400, f"`{name}` is neither true nor false", _example(path))
    return value


def _refuse_unknown(fields: dict[str, Any], known: set[str], path: str) -> None:
    if unknown := sorted(set(fields) - known):
        raise _Wrong(400, f"there is no `{unknown[0]}`", _example(path))


def _example(path: str) -> str:
    return f"E.g., {EXAMPLES[path]}"


def _tell(reply: Reply, told: Mapping[str, Any], *, status: int = 200, more: Headers = ()) -> None:
    reply.whole(status, [JSON, *more], dumped(told))


def _tell_error(reply: Reply, status: int, message: str, hint: str, more: Headers = ()) -> None:
    _tell(reply, {"error": {"message": message, "hint": hint or None}}, status=status, more=more)
