"""A worker that asks nobody but the owner: it answers hits, and hands everything else on over the owner's private socket.

So flights, admission, routing, epochs and retries are the owner's alone. A request that was handed on is counted and logged there,
too; this worker counts its own hits and refusals, and what the owner could not take. The answer goes back as it comes.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from toolkit.proxy.case import Case
from toolkit.proxy.desk.hits import Hits
from toolkit.proxy.desk.kit import Kit
from toolkit.proxy.desk.verifying import Drawn
from toolkit.proxy.error_json import CONTENT_TYPE, error_body
from toolkit.proxy.exchange import Headers, Job, Reply
from toolkit.proxy.processes import relay_header
from toolkit.proxy.processes.relay_header import Relayed
from toolkit.proxy.stored.layers import Found
from toolkit.proxy.upstreams.upstream import Answer, Upstream, UpstreamError

WHOLE_BYTES: Final = 64 * 1024
"""A larger body is passed on as it comes; a smaller one in one piece, so that none of it was sent if the owner dies."""
AGAIN_S: Final = b"1"
"""Retry-After while the owner is started again, which takes about so long."""
GONE = "The worker that asks upstream is being started again"
LENGTH = b"content-length"


class Relaying(Hits):
    """The answers of a worker that is not the owner."""

    def __init__(self, kit: Kit, owner: Upstream) -> None:
        super().__init__(kit)
        self._owner = owner
        self._drawn = Drawn(kit.settings.cache.verify_share)
        self._under_way: set[asyncio.Task[None]] = set()

    # --- what it decides ---------------------------------------------------------------------------

    def wants_look(self) -> bool:
        """Whether the hit that comes now is one of those that are asked again: the owner does."""
        return self._drawn.is_chosen()

    def pass_on(self, case: Case) -> None:
        """The owner sends it upstream."""
        self._hand_on(case, None)

    def go_on(self, case: Case, found: Found | None) -> None:
        """Answer with what is stored, unless it is to be asked again."""
        looks = found is not None and self._drawn.takes_next()
        if found is not None and not looks and self.hit(case, found):
            return
        self._hand_on(case, found, looks=looks)

    def show(self, name: str, reply: Reply) -> None:
        """Answer with one of the proxy's own pages (desk.Pages)."""
        if name == "ping":
            reply.whole(200, (), b"")
            return
        request = reply.request
        told = Relayed(team=None, arrived_s=request.arrived_s, request_id="page", headers=())
        self._begin(reply, self._carry(reply, _job(reply, told), partial(_refuse_page, reply)))

    # --- on the way to the owner -------------------------------------------------------------------

    def _hand_on(self, case: Case, found: Found | None, *, looks: bool = False) -> None:
        request = case.request
        told = Relayed(
            team=None if case.team is None else case.team.name,
            arrived_s=request.arrived_s,
            request_id=case.served.request_id,
            headers=request.headers,
            peer=request.peer,
            looks=looks,
        )
        failed = partial(self._go_without, case, found if looks else None)
        self._begin(case.reply, self._carry(case.reply, _job(case.reply, told), failed))
        # read, a body takes up to 50 times its bytes; the owner reads it anew
        case.read, case.fields, case.form = None, {}, b""

    def _begin(self, reply: Reply, carrying: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(carrying)
        self._under_way.add(task)
        task.add_done_callback(partial(self._end, reply))

        def leave() -> None:
            # it closes the way to the owner, so that the owner sees its client leave
            task.cancel()

        reply.on_gone = leave

    def _end(self, reply: Reply, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # a fault of ours: the client is not to wait for ever
            self._kit.event("relay_failed", {"error": f"{type(error).__name__}: {error}"})
            reply.whole(500, [CONTENT_TYPE], error_body(500, "The proxy failed at this request"))
            reply.abort()

    async def _carry(self, reply: Reply, job: Job, failed: Callable[[], None]) -> None:
        """Ask the owner and pass its answer on; `failed` is called where there is none, and nothing was sent."""
        try:
            answer = await self._owner.ask(job)
        except UpstreamError:
            failed()
            return
        try:
            await self._pass_back(reply, answer, failed)
        finally:
            answer.close()

    async def _pass_back(self, reply: Reply, answer: Answer, failed: Callable[[], None]) -> None:
        length, headers = _length(answer.headers)
        is_small = reply.request.method == "HEAD" or (length is not None and length <= WHOLE_BYTES)
        try:
            data = await (answer.whole(WHOLE_BYTES) if is_small else answer.read())
        except UpstreamError:
            failed()
            return
        assert data is not None, "an answer longer than it said"
        if is_small:
            reply.whole(answer.status, headers, data)
            return
        reply.begin(answer.status, headers, length=length)
        try:
            while data:
                reply.write(data)
                if reply.is_paused:
                    await _writable(reply)
                data = await answer.read()
        except UpstreamError:
            # the owner cut it, and counted that; or it died, and was not able to
            self._kit.event("relay_cut", {"path": reply.request.path})
            reply.abort()
        else:
            reply.end()

    def _go_without(self, case: Case, found: Found | None) -> None:
        """The owner can't be asked: a hit is one still."""
        if found is not None and self.hit(case, found):
            return
        _refuse(case.reply, (b"x-request-id", case.served.request_id.encode()))
        case.served.status, case.served.error_kind = 503, "owner"
        if case.ruling.read and case.key is not None:
            case.served.cache = "miss"
        self.end(case)


def _job(reply: Reply, told: Relayed) -> Job:
    request = reply.request
    return Job(
        method=request.method,
        path=request.path,
        query=request.query,
        body=request.body,
        headers=[relay_header.header(told)],
    )


def _length(headers: Headers) -> tuple[int | None, Headers]:
    """How long the body is, where it is said, and the other headers."""
    told = next((int(value) for name, value in headers if name == LENGTH), None)
    return told, [each for each in headers if each[0] != LENGTH]


async def _writable(reply: Reply) -> None:
    """Return once the client reads again."""
    future = asyncio.get_running_loop().create_future()

    def tell() -> None:
        if not future.done():
            future.set_result(None)

    reply.on_writable = tell
    await future
    reply.on_writable = None


def _refuse(reply: Reply, *more: tuple[bytes, bytes]) -> None:
    reply.whole(503, [CONTENT_TYPE, (b"retry-after", AGAIN_S), *more], error_body(503, GONE))


def _refuse_page(reply: Reply) -> None:
    _refuse(reply)
