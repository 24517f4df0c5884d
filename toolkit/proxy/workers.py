"""Several workers on one port: the parent, which starts and ends them; front workers, which answer hits; the primary's side of both.

A front worker has the clients' port, a memory of its own and the shared file, and passes on what is no hit. So joining, slots, routing
and retries are the primary's alone, and so is counting and logging what it was passed; a front worker counts its own hits and
refusals, and what the primary could not take.

    parent  --(a socket pair each: what the worker is, then a word at a time)--> primary, front workers
    clients --> front worker --(HTTP over the primary's private socket, team and arrival in headers)--> primary --> upstreams
    primary --(POST /sync /forget /drain /undrain over the worker's private socket)--> front worker

The parent serves no request and knows none. When it dies, however, the pairs end, and the workers with them. Signals are the
parent's alone: a service manager or a terminal sends them to all processes at once, and the order of the end would be chance.

Each worker has a socket of its own: with SO_REUSEPORT the kernel deals connections out by their addresses. One socket for all
spread them badly: of 64 that came at once three workers under uvloop took 15, 24 and 25, but of 96 in eights 3, 5 and 88, two workers
2 and 94 (with SO_REUSEPORT 41 and 55).
"""

import asyncio
import errno
import json
import os
import pickle
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from toolkit.errors import ToolkitError
from toolkit.proxy.auth import TeamKey
from toolkit.proxy.cache.sqlite import SqliteCache
from toolkit.proxy.client import Request, Responder
from toolkit.proxy.config import Settings, UpstreamSetting, admin_port
from toolkit.proxy.errors import JSON, Fault, error_body
from toolkit.proxy.handler import Context, Handler
from toolkit.proxy.headers import OWN, TRACES, Headers, nominated
from toolkit.proxy.telemetry.metrics import Counters
from toolkit.proxy.upstream.connection import Exchange, Upstream, UpstreamConnection

if TYPE_CHECKING:
    from toolkit.proxy.app import Proxy

BACKLOG: Final = 1024
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
"""Before a worker that died is started again; doubles each time."""
STEADY_S: Final = 60.0
"""One that lived for so long begins with the first pause again."""
SHUT_S: Final = 1.0
"""A worker that is away for longer has its listener closed: nobody is to wait behind it."""
GRACE_S: Final = 8.0
"""After the time that the settings give, for what is to be written: the log takes 2 s at most, the store 5."""
LONGEST_PATH: Final = 88
"""Bytes; a unix socket's path ends at 107, and its own name takes some."""
LONGEST_LINE: Final = 64 * 2**20
TEAM, ARRIVED, PEER = b"x-toolkit-team", b"x-toolkit-arrived", b"x-toolkit-peer"
"""Whose key was checked, when its first byte was read (the monotonic clock is one for all processes of a machine), from where.
The primary believes them on its private socket only, and no client's header of these names is passed on."""
PASSED: Final = frozenset({b"content-type", b"cache-control", OWN}) | TRACES
"""The client's headers that the primary reads; a key is none of them."""
WHOLE_BYTES: Final = 64 * 1024
"""A larger body is passed on as it comes; a smaller one in one piece, so that none of it was sent if the primary dies."""
PRIMARY_SOCKET: Final = "primary.sock"
"""In the private folder, as those of the front workers, by number."""
WORKER_SOCKET: Final = "worker-{}.sock"
GONE = "The worker that asks upstream is being started again"
"""Which takes about a second."""
LIMIT_S: Final = 1.0
"""One worker's time to answer the primary."""
MOST_BYTES: Final = 64 * 2**20
"""Most that one tells of itself."""
ORDERS: Final = {"/forget": "forget it", "/drain": "drain", "/undrain": "take requests again"}


def listeners(
    host: str, port: int, count: int, *, joins: bool = False
) -> list[list[socket.socket]]:
    """`count` times a socket for each address of a host, all of one port. Raises ToolkitError.

    A port that somebody listens on is refused, though two proxies could share it; unless it is one's own, which another `joins`.
    """
    opened: list[list[socket.socket]] = [[] for _ in range(count)]
    shares = joins or count > 1
    try:
        addresses = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, (name, _, *rest) in dict.fromkeys(addresses):
            try:
                if port and shares and not joins:
                    socket.create_server((name, port, *rest), family=family).close()
                for mine in opened:
                    where = name, port, *rest
                    mine.append(
                        socket.create_server(
                            where, family=family, backlog=BACKLOG, reuse_port=shares
                        )
                    )
                    port = mine[-1].getsockname()[1]
            except OSError as error:
                # the machine may have an address only by name, e.g., `localhost` by IPv6
                is_absent = error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
                if not is_absent or not opened[0]:
                    raise
    except OSError as error:
        for each in chain.from_iterable(opened):
            each.close()
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else error.strerror or str(error)
        raise ToolkitError(
            f"cannot listen on {host}:{port}: {why}", "Choose another with --port or --admin-port"
        ) from error
    return opened


# --- the parent ----------------------------------------------------------------------------------------


class Workers:
    """All of them, as one proxy: `start` it, `stop` it; in between it serves."""

    def __init__(
        self,
        settings: Settings,
        *,
        variables: Mapping[str, str],
        keys: Sequence[TeamKey],
        command: Sequence[str],
        environ: Mapping[str, str],
        say: Callable[[str], None],
        make_primary: "Callable[..., Proxy] | None" = None,
    ) -> None:
        """`command` starts a worker; the descriptor of its end of the pair and its name follow as arguments.

        `make_primary`, of their settings, the run that all share, and where it stands: then it runs in this process.
        """
        self.primary: Proxy | None = None
        self._make_primary = make_primary
        self.counters = Counters()
        """What all of them counted; whole after `stop`."""
        self.ports = (0, 0)
        """Where clients and the admin are listened to."""
        self._settings = shared_out(settings)
        self._variables, self._keys = dict(variables), list(keys)
        self._command, self._environ, self._say = command, environ, say
        self._run_id = secrets.token_hex(6)
        self._listeners: list[list[socket.socket]] = []
        self._admin: list[socket.socket] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._opened = [asyncio.Event() for _ in range(settings.workers)]
        self._tasks: list[asyncio.Task[None]] = []
        self._is_ready = False
        self._ends = asyncio.Event()
        self._leaves = ExitStack()
        """What would be left behind."""

    async def start(self) -> None:
        """Return once all listen. Raises the ToolkitError that keeps one from it."""
        settings = self._settings
        # for the workers' sockets: this user's alone
        self._folder = Path(tempfile.mkdtemp(prefix="toolkit-proxy-"))
        if len(bytes(self._folder)) > LONGEST_PATH:
            self._folder.rmdir()
            self._folder = Path(tempfile.mkdtemp(prefix="toolkit-proxy-", dir="/tmp"))
        self._leaves.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._listeners = listeners(settings.host, settings.port, settings.workers)
        (self._admin,) = listeners(settings.admin_host, admin_port(settings), 1)
        first, second = self._listeners[0][0], self._admin[0]
        self.ports = first.getsockname()[1], second.getsockname()[1]
        front_workers = range(settings.workers)
        if self._make_primary is not None:
            self.primary = self._make_primary(
                settings,
                self._run_id,
                folder=self._folder,
                clients=self._listeners[0],
                admin=self._admin,
            )
            await self.primary.start()
            self._opened[0].set()
            front_workers = front_workers[1:]
        self._tasks += [asyncio.create_task(self._keep(each)) for each in front_workers]

        async def all_open() -> None:
            for each in self._opened:
                await each.wait()

        opening = asyncio.create_task(all_open())
        try:
            await asyncio.wait([opening, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            for each in self._tasks:
                if each.done():
                    each.result()
        finally:
            opening.cancel()
        self._is_ready = True

    async def stop(self) -> None:
        """Let what is under way be answered, then end all; where one failed before all had opened, at once."""
        is_whole = bool(self._tasks) and not any(each.done() for each in self._tasks)
        ends_s = time.monotonic() + self._settings.drain_s
        self._ends.set()
        self._opened[0].set()  # whoever waits for that goes on, to the end
        if self.primary is not None:
            self.primary.shut()
        for each in (*self._admin, *(one for mine in self._listeners for one in mine)):
            each.close()
        # first those that pass on, then the primary, on which they wait
        others = self._tasks if self.primary is not None else self._tasks[1:]
        if is_whole:
            self._send("shut", *self._writers)
            await asyncio.wait(others, timeout=self._settings.drain_s)
        left_s = max(0.0, ends_s - time.monotonic())
        if self.primary is not None:
            await self.primary.stop(left_s if is_whole else 0.0)
            self.counters.merge(self.primary.telemetry.counters.as_dict())
        elif is_whole:
            self._send(f"end {left_s:.3f}", 0)
            await asyncio.wait(self._tasks[:1], timeout=left_s + GRACE_S)
        if is_whole:
            # what they waited for is answered now, with an error where it took too long
            await asyncio.wait(others, timeout=GRACE_S)
        self.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def kill(self) -> None:
        """End at once, and leave nothing behind."""
        for process in self._processes.values():
            process.kill()
        self._leaves.close()

    def reopen_logs(self) -> None:
        """Have each worker go on in a new file."""
        self._send("reopen", *self._writers)
        if self.primary is not None:
            self.primary.reopen_logs()

    async def reload(
        self, settings: Settings, variables: Mapping[str, str], keys: list[TeamKey]
    ) -> None:
        """Have all of them take over other settings (app.Proxy.reload). Raises ToolkitError, and then nothing has changed."""
        assert self.primary is not None, "of the processes of `toolkit proxy` none hears of it"
        settings = shared_out(settings)
        await self.primary.reload(settings, variables, keys)
        self._settings, self._variables, self._keys = settings, dict(variables), keys
        packet = b64encode(pickle.dumps((settings, self._variables, keys))).decode()
        self._send(f"reload {packet}", *self._writers)

    def _send(self, word: str, *numbers: int) -> None:
        for number in numbers:
            writer = self._writers.get(number)
            if writer is not None and not writer.is_closing():
                writer.write(word.encode() + b"\n")

    # --- one of them -------------------------------------------------------------------------------

    async def _keep(self, number: int) -> None:
        """Have a worker run until the end. Raises ToolkitError where one fails before all have opened."""
        if number:
            # nobody is let in before the primary has looked at the upstreams: what is stored may be of before their restart
            await self._opened[0].wait()
        pause_s = FIRST_PAUSE_S
        while not self._ends.is_set():
            began_s = time.monotonic()
            why = await self._live(number)
            if self._ends.is_set():
                return
            if not self._is_ready:
                raise ToolkitError(why, "What it said stands above")
            if time.monotonic() - began_s >= STEADY_S:
                pause_s = FIRST_PAUSE_S
            self._say(f"{why}; it is started again in {pause_s:g} s")
            is_long = pause_s >= SHUT_S
            if is_long:
                for each in self._listeners[number]:
                    each.close()
            while not self._ends.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._ends.wait()
                if not is_long or self._ends.is_set():
                    break
                host, port = self._settings.host, self.ports[0]
                try:
                    (self._listeners[number],) = listeners(host, port, 1, joins=True)
                except ToolkitError as error:
                    self._say(error.message)
                else:
                    break
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _live(self, number: int) -> str:
        """One process from its start to its end; how it ended. Raises the ToolkitError of one that fails before all have opened."""
        name = f"Worker {number}" if number else "Worker 0, which asks upstream"
        clients = [each.fileno() for each in self._listeners[number]]
        admin = [] if number else [each.fileno() for each in self._admin]
        packet = pickle.dumps(
            {
                "settings": self._settings,
                "variables": self._variables,
                "keys": self._keys,
                "number": number,
                "folder": self._folder,
                "clients": clients,
                "admin": admin,
                "run_id": self._run_id,
            }
        )
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = subprocess.Popen(  # noqa: ASYNC220, S603 (nobody is served here; our own command)
                    [*self._command, str(theirs.fileno()), f"worker-{number}"],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), *clients, *admin],
                    env=dict(self._environ),
                    # a terminal's Ctrl-C is the parent's alone
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                return f"{name} could not be started: {error.strerror or error}"
        self._processes[number] = process
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        self._writers[number] = writer
        writer.write(len(packet).to_bytes(8) + packet)

        failure: ToolkitError | None = None
        with suppress(OSError, ValueError, TypeError, LookupError):  # e.g., what is no word of ours
            while line := await reader.readline():
                for word, said in json.loads(line).items():
                    if word == "open":
                        self._opened[number].set()
                    elif word == "counters":
                        self.counters.merge(said)
                    elif self._is_ready:  # an error
                        self._say(f"{name}: {said[0]}. {said[1]}")
                    else:
                        failure = ToolkitError(*said)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        # it has closed its end of the pair, and so hears nothing any more
        try:
            code = await asyncio.to_thread(process.wait, GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        del self._processes[number]
        if failure is not None:
            raise failure
        how = f"ended with status {code}"
        if code < 0:
            how = f"was ended by signal {-code}"
            with suppress(ValueError):
                how = f"was ended by {signal.Signals(-code).name}"
        return f"{name} (process {process.pid}) {how}"


def shared_out(settings: Settings) -> Settings:
    """The settings of each of several workers: what is meant for all of them together is parted."""
    workers, limits = settings.workers, settings.front
    cache = replace(settings.cache, memory_bytes=settings.cache.memory_bytes // workers)
    held = max(limits.body_bytes, limits.held_bytes // workers)
    return replace(settings, cache=cache, front=replace(limits, held_bytes=held))


# --- in a front worker ---------------------------------------------------------------------------------


class FrontWorker(Responder):
    """What a front worker does instead of asking upstream: has the primary answer, and takes its orders on the private socket."""

    def __init__(self, proxy: "Proxy") -> None:
        self._proxy = proxy

    # --- what the primary answers ----------------------------------------------------------------------

    def pass_on(self, context: Context) -> None:
        """Have the primary answer a client's request, and count it."""
        request = context.request
        stays = nominated(request.head.headers)
        headers = [
            each
            for each in request.head.headers
            if each[0] in PASSED and not (each[0] in TRACES and each[0] in stays)
        ]
        headers += [
            (b"x-request-id", context.request_id.encode()),
            (ARRIVED, repr(request.arrived_s).encode()),
            (PEER, request.peer.encode()),
        ]
        if context.team.name:
            headers.append((TEAM, context.team.name.encode()))

        Relay(request, self._proxy, headers, context)

    def show(self, name: str, request: Request) -> None:
        """Answer with one of the proxy's own pages (handler.Pages)."""
        if name == "ping":
            request.respond(200, (), b"")
        else:
            Relay(request, self._proxy)

    # --- what the primary orders -----------------------------------------------------------------------

    def take(self, request: Request) -> None:
        """Do as the primary says.

        POST /sync {"incarnations": {"tiny": 3}}     -> what this worker counted and holds
        POST /forget {"key": "0f3c..."} or {}  -> what it held in memory is asked of the file again
        POST /drain, /undrain
        """
        proxy = self._proxy
        asked: dict[str, Any] = orjson.loads(request.body or b"{}")
        answer: Mapping[str, Any] = {}
        match request.head.path:
            case "/sync":
                proxy.fingerprints.raise_to(asked["incarnations"])
                answer = {
                    "process": proxy.name,
                    "at_s": time.monotonic(),
                    "counters": proxy.telemetry.counters.as_dict(),
                    "held": proxy.held(),
                }
            case "/forget":
                key = asked.get("key")
                proxy.cache.forget(None if key is None else bytes.fromhex(key))
            case "/drain":
                proxy.front.drain()
            case "/undrain":
                proxy.front.reopen()
            case _:
                request.respond(404, (), b"")
                return
        request.respond(200, (JSON,), orjson.dumps(answer))


class Relay(Exchange):
    """One request that the primary answers: its answer goes back as it comes, at the client's speed."""

    def __init__(
        self,
        request: Request,
        proxy: "Proxy",
        headers: Headers = (),
        context: Context | None = None,
    ) -> None:
        """Send it on; `context`: of a client's request, which is counted here if the primary can't."""
        self.connection = self.connecting = None
        self._request, self._proxy, self._context = request, proxy, context
        (primary,) = proxy.upstreams.values()
        self._headers: Headers | None = None
        self._length: int | None = None
        self._held: list[bytes] | None = None
        """Of a body that is passed on in one piece."""
        self._counts = request.on_done
        """The handler's; what the primary answers it counts itself."""
        # a client that leaves closes the way to the primary, so that the primary sees it leave
        request.on_done = lambda: primary.cancel(self)
        head = request.head
        data = primary.head(head.method, head.path, head.query, headers)
        primary.ask(self, data, request.body)

    def received(self, connection: UpstreamConnection, data: bytes, is_whole: bool) -> None:
        """Pass it on."""
        request = self._request
        if self._headers is None:
            self._headers = [each for each in connection.headers if each[0] != b"content-length"]
            lengths = [int(v) for name, v in connection.headers if name == b"content-length"]
            self._length = lengths[0] if lengths else None
            is_small = self._length is not None and self._length <= WHOLE_BYTES
            if is_small or request.head.method == "HEAD":
                self._held = []
        if self._held is not None:
            self._held.append(data)
            if is_whole:
                request.respond(connection.status, self._headers, b"".join(self._held))
            return
        if request.status is None:
            request.begin(connection.status, self._headers, length=self._length)
        request.write(data, is_last=is_whole)
        if not is_whole and request.is_paused:
            connection.pause()
            request.on_writable = connection.resume

    def broke(self, fault: Fault) -> None:
        """The primary cut it, and counted that; or it died, and was not able to."""
        del fault
        request, context, headers = self._request, self._context, [JSON, (b"retry-after", b"1")]
        if request.status is not None:
            self._proxy.telemetry.event("relay_cut", {"path": request.head.path})
            request.cut()
            return
        request.on_done = self._counts
        if context is not None:
            context.error_kind = "primary"
            if context.decision.read and context.key is not None:
                context.cache = "miss"
            headers.append((b"x-request-id", context.request_id.encode()))
        request.respond(503, headers, error_body(503, GONE))


# --- in the primary ------------------------------------------------------------------------------------


class FromWorkers(Responder):
    """Answers what front workers pass on over the primary's private socket."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def take(self, request: Request) -> None:
        """Answer a client of another worker."""
        head, handler = request.head, self._handler
        team, arrived = head.header(TEAM), head.header(ARRIVED)
        if arrived is not None:
            request.arrived_s = float(arrived)
            request.peer = (head.header(PEER) or b"").decode()
        elif head.method == "POST":
            request.respond(400, [JSON], error_body(400, "Only workers ask here"))
            return
        if head.known is None:
            name = None if team is None else team.decode()
            is_checked = team is not None or not handler.settings.teams
            head.known = handler.known_of(head, name, is_checked=is_checked)
        handler.take(request)


class FrontWorkers:
    """All workers but the primary; none of them, if it is alone.

    A worker that died holds nothing, and is asked again the next time; what it had counted stays counted. One that does not answer
    in time may hold anything: who wanted something forgotten has to know.
    """

    def __init__(
        self, folder: Path | None, count: int, *, incarnations: Callable[[], dict[str, int]]
    ) -> None:
        """`folder`: of the private sockets; `count`: of all workers. `incarnations`: those that hold, by model."""
        self._workers = [
            Upstream(UpstreamSetting(name=str(n), url=f"unix:{folder}/{WORKER_SOCKET.format(n)}"))
            for n in range(1, count)
        ]
        self._incarnations = incarnations
        self._counted: dict[str, Mapping[str, Any]] = {}
        """By worker, the last that it answered to /sync."""
        self._held: dict[str, dict[str, int]] = {}
        self._before = Counters()
        """What workers counted that are no more."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        """There are other workers."""
        return bool(self._workers)

    async def close(self) -> None:
        """Close the ways to them."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._workers:
            await worker.close()

    # --- what they counted and hold ------------------------------------------------------------------

    async def sync(self) -> None:
        """Ask all of them what they counted and hold, and have them take the incarnations that hold."""
        answers = await self._ask_all("/sync", {"incarnations": self._incarnations()})
        for name, answer in answers.items():
            if isinstance(answer, dict):
                last = self._counted.get(name, answer)
                if answer["at_s"] < last["at_s"]:
                    continue
                if answer["process"] != last["process"]:
                    self._before.merge(last["counters"])
                self._counted[name] = answer
                self._held[name] = answer["held"]
            elif answer is None:
                self._held.pop(name, None)

    def counted(self, own: Counters) -> Counters:
        """What all workers counted, as of the last sync; a copy, which may be read in another thread."""
        whole = Counters().merge(own.as_dict())
        if self._workers:
            whole.merge(self._before.as_dict())
        for answer in self._counted.values():
            whole.merge(answer["counters"])
        return whole

    def held(self, own: Mapping[str, int]) -> tuple[int, Counter[str]]:
        """How many workers there are, and what they hold together, as of the last sync."""
        whole = Counter(own)
        for each in self._held.values():
            whole.update(each)
        return 1 + len(self._held), whole

    # --- what they are told --------------------------------------------------------------------------

    def soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something of this without waiting for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def forget_written(self, key: bytes, file: SqliteCache) -> None:
        """Have them ask the file for what is stored under a key now; in memory they may hold what it replaced."""
        # until it is written, they would bring the old one back from there
        await asyncio.to_thread(file.flush)
        with suppress(ToolkitError):
            await self.forget(key)

    async def forget(self, key: bytes | None) -> None:
        """Have them let go what they hold in memory, or of it one answer. Raises ToolkitError where one may hold it still."""
        await self.order("/forget", {} if key is None else {"key": key.hex()})

    async def order(self, path: str, body: Mapping[str, Any]) -> None:
        """Have all of them do one of ORDERS. Raises ToolkitError for one that does not answer."""
        for name, answer in (await self._ask_all(path, body)).items():
            if answer is TimeoutError:
                raise ToolkitError(
                    f"worker `{name}` does not answer, and so did not {ORDERS[path]}", "Try again"
                )

    async def _ask_all(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """By name what each answered; None: nobody is there; TimeoutError: somebody is, and says nothing."""
        data = orjson.dumps(body)

        async def ask(worker: Upstream) -> Any:
            try:
                async with asyncio.timeout(LIMIT_S):
                    page = await worker.fetch(path, body=data, most_bytes=MOST_BYTES)
            except TimeoutError:
                return TimeoutError
            except Fault:
                return None
            return orjson.loads(page.body) if page.status == 200 else TimeoutError

        answers = await asyncio.gather(*map(ask, self._workers))
        return dict(zip([each.name for each in self._workers], answers, strict=True))
