"""What a client's request meets first: known by its very bytes, one of the proxy's own pages, refused, or to be answered.

It reads the clocks and answers through Reply; how an answer is found or made is `answering`'s. Every request that came here is
told to `tell` once, when all is over.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from toolkit.proxy import headers as header_rules
from toolkit.proxy.answers.ready import JOINED_BYTES
from toolkit.proxy.case import Case
from toolkit.proxy.desk.hits import Hits
from toolkit.proxy.desk.kit import Kit
from toolkit.proxy.error_json import CONTENT_TYPE, error_body
from toolkit.proxy.exchange import Headers, Reply, Request, Served
from toolkit.proxy.http.answer_heads import date_line
from toolkit.proxy.keyring import Keyring
from toolkit.proxy.routes import NoRoute, Route, route
from toolkit.records import Asked

Line = Callable[[bytes], None]
Rows = Callable[[Served, Asked | None], None]


class Pages(Protocol):
    """The proxy's own pages on the clients' port."""

    def show(self, name: str, reply: Reply) -> None:
        """Answer with `health`, `ping`, `ready`, `metrics` or `version`, now or later."""


class Desk:
    """One process's desk."""

    def __init__(
        self,
        kit: Kit,
        answering: Hits,
        pages: Pages,
        *,
        keyring: Keyring | None,
        log: Line | None,
        rows: Rows | None,
    ) -> None:
        """`keyring` None: everybody may ask. `log` and `rows` take the hits of very bytes, as kit.tell takes all else."""
        self._kit, self._answering, self._pages = kit, answering, pages
        self._keyring, self._log, self._rows = keyring, log, rows
        self._teams = {team.name: team for team in kit.settings.teams}
        self._name, self._clock, self._wall = kit.name, kit.clock, kit.wall
        self._requests = 0
        self._date_second, self._date = -1, b""
        self._memo, self._memory = kit.layers.memo, kit.layers.memory

    # --- known by its bytes ------------------------------------------------------------------------

    def recall(self, data: bytes) -> bytes | list[bytes] | None:
        """The answer to a request of these very bytes, if it was answered before and is still what is stored."""
        began = self._clock()
        ready = self._memo.get(data, began)
        if ready is None:
            return None
        if self._memory.get(ready.key, began) is not ready.stored or self._answering.wants_look():
            self._memo.remove(data)
            return None
        wall = self._wall()
        second = int(wall)
        if second != self._date_second:
            self._date_second, self._date = second, date_line(second)
        self._requests += 1
        request_id = b"%b%x" % (self._name, self._requests)
        head = ready.head(second, self._date)
        body = ready.body
        took_s = self._clock() - began
        ready.tally.hit(took_s, ready.size, ready.prompt_tokens, ready.output_tokens)
        if self._log is not None:
            self._log(ready.line.fill(wall, request_id, took_s * 1000))
        if self._rows is not None:
            served = _copy(ready.served, wall, request_id.decode(), took_s * 1000)
            self._rows(served, ready.asked)
        if len(body) <= JOINED_BYTES:
            return b"%b%b\r\n\r\n%b" % (head, request_id, body)
        return [b"%b%b\r\n\r\n" % (head, request_id), body]

    # --- all others --------------------------------------------------------------------------------

    def admits(self, request: Request) -> bool:
        """Whether a body is to be waited for, as far as its head tells: not without a key where one is needed."""
        if self._keyring is None:
            return True
        found = route(request.method, request.path, self._kit.settings)
        is_asking = not isinstance(found, NoRoute) and found.kind != "own"
        return is_asking and self._keyring.team(request.header(b"authorization")) is not None

    def take(self, request: Request, reply: Reply) -> None:
        """Answer a client."""
        case = self._case(request, reply)
        found = self._route(case)
        if found is None:
            return
        if self._keyring is None:
            self._pass_in(case, found)
            return
        team = self._keyring.team(request.header(b"authorization"))
        if team is None:
            known = "A key of a team is needed: `Authorization: Bearer KEY`"
            self._refuse(case, 401, known, ((b"www-authenticate", b"Bearer"),))
        else:
            self.take_for(case, team, found)

    def take_relayed(self, request: Request, reply: Reply, team: str | None) -> None:
        """Answer a client of another worker, which has checked the key; None: nobody has one."""
        case = self._case(request, reply)
        found = self._route(case)
        if found is None:
            return
        if team is not None:
            self.take_for(case, team, found)
        elif self._keyring is None:
            self._pass_in(case, found)
        else:
            self._refuse(case, 401, "Its key was not checked")

    def take_for(self, case: Case, team: str, found: Route) -> None:
        """Answer a team whose key was checked."""
        case.team = self._teams[team]
        case.served.team = team
        self._pass_in(case, found)

    def refused(self, status: int, reason: str, peer: str) -> None:
        """Count what the front refused itself: bytes that are no request are no client's error rate either."""
        self._kit.counters.refuse(reason)
        self._kit.event("refused", {"status": status, "reason": reason, "peer": peer})

    def _route(self, case: Case) -> Route | None:
        """Where it goes; None: nowhere, or it was one of the proxy's own pages, and is answered."""
        request = case.request
        found = route(request.method, request.path, self._kit.settings)
        if isinstance(found, NoRoute):
            allow: Headers = () if found.allow is None else ((b"allow", found.allow.encode()),)
            self._refuse(case, found.status, found.message, allow)
            return None
        if found.kind == "own":
            self._show_page(case, found.endpoint)
            return None
        return found

    def _pass_in(self, case: Case, found: Route) -> None:
        case.endpoint = case.served.endpoint = found.endpoint
        if found.kind == "pass":
            self._answering.take_passed(case)
        else:
            self._answering.answer(case)

    def _case(self, request: Request, reply: Reply) -> Case:
        now = self._clock()
        self._requests += 1
        own = header_rules.request_id(request.headers)
        served = Served(
            ts=self._wall() - (now - request.arrived_s),
            request_id=own or f"{self._name.decode()}{self._requests:x}",
            method=request.method,
            path=request.path,
            body_bytes=len(request.body),
        )
        return Case(request=request, reply=reply, served=served, taken_s=now)

    def _show_page(self, case: Case, name: str) -> None:
        # probes and scrapes are no clients' requests: neither counted nor logged
        self._pages.show(name, case.reply)

    def _refuse(self, case: Case, status: int, message: str, more: Headers = ()) -> None:
        request_id = (b"x-request-id", case.served.request_id.encode())
        case.reply.whole(status, [CONTENT_TYPE, request_id, *more], error_body(status, message))
        case.served.status = status
        self._kit.tell(case.served, None)


def _copy(served: Served, ts: float, request_id: str, took_ms: float) -> Served:
    ttft_ms = None if served.ttft_ms is None else took_ms
    return replace(served, ts=ts, request_id=request_id, ttft_ms=ttft_ms, latency_ms=took_ms)
