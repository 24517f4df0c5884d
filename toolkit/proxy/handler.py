"""One request from its bytes to its record: a hot hit, a page of the proxy's own, a refusal, a cached answer, or a call upstream.

`Handler.take` is the beginning, `finish` the end: there the request's one record (`Served`) goes to telemetry. A miss goes `take`,
`understand` (key and cache decision), `forward` (join or lead a Call of call.py). policy.py decides what may be cached,
protocol/request_key.py makes the keys. It reads the clocks.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from math import inf
from typing import Final, Protocol

import orjson

from toolkit.protocol.request import asked
from toolkit.protocol.request_key import Canonical, Refused, canonical, request_key
from toolkit.proxy import headers as header_rules
from toolkit.proxy import media
from toolkit.proxy.auth import Keyring, owner
from toolkit.proxy.cache.entry import JOINED_BYTES, HotEntry
from toolkit.proxy.cache.redis import Lease
from toolkit.proxy.cache.tiers import NOTES_SHARE, Found, Tiers
from toolkit.proxy.call import Call, Calls
from toolkit.proxy.client import Request, date_line
from toolkit.proxy.config import Settings, TeamSetting
from toolkit.proxy.errors import JSON, Rejection, error_body
from toolkit.proxy.explain import MissHistory, SeenRequest
from toolkit.proxy.framing import Head
from toolkit.proxy.headers import Headers
from toolkit.proxy.policy import CacheDecision, policy
from toolkit.proxy.responses.transcode import (
    ResponseFormat,
    can_join,
    convert,
    paced,
    response_format,
)
from toolkit.proxy.routes import Route, route
from toolkit.proxy.telemetry import Telemetry
from toolkit.proxy.telemetry.access_log import request_line
from toolkit.proxy.telemetry.metrics import Served
from toolkit.records import Asked, SeenCache

NOT_JSON: Final = "The body has to be `application/json`"
SEEN: Final = 131_072
"""So many requests are remembered to tell a new one from a repeat, where the memory has room for them."""
SEEN_BYTES: Final = 120
"""What one takes at most: an int of 32 bytes and, where a set has just grown, 5 places of 16 (CPython 3.11)."""
CHARS_A_TOKEN: Final = 4
"""An estimate for limits, before anything was sent; the tokenizer is not asked. English has 3.5 to 4.5."""
PREFIX_BLOCKS: Final = 16
"""With `routing.affinity` an upstream is chosen by the hash of at most so many first blocks of 16 tokens."""

WITH_USAGE: Final = frozenset({"chat/completions", "completions"})
"""Endpoints whose streams hold the usage only with `stream_options.include_usage`."""
SALTED: Final = frozenset({"chat/completions", "completions", "messages", "responses"})
"""Endpoints that take `cache_salt` (vLLM 0.32)."""
USAGE: Final = b'"stream_options":{"include_usage":true}'

AS_A_WHOLE: Final = ResponseFormat()
NOBODY: Final = TeamSetting(name="")
"""The team of requests without a known key, and of all requests where no team has a key."""
NO_CACHE: Final = CacheDecision(read=False, write=False, ttl_s=0.0)


@dataclass(slots=True, kw_only=True, eq=False)
class Known:
    """What a request's head says, worked out once for equal heads."""

    route: Route
    team: TeamSetting
    """The team of its key."""
    tenant: str
    """Answers are shared only within one tenant; part of the key."""
    has_key: bool
    """It has a team's key, or none is needed."""
    is_json: bool
    cache_control: header_rules.CacheControl
    request_id: str | None
    """The client's own."""
    is_memorable: bool
    """A hot entry may be made of it: no header asks for special treatment or differs each time."""
    forwarded: Headers
    """Those of its headers that go upstream."""
    heads: dict[str, bytes]
    """By upstream: the head of the request to it, without its Content-Length."""


@dataclass(slots=True, kw_only=True, eq=False)
class Context:
    """One request and what was decided about it; a field that no step has set yet keeps its default."""

    request: Request
    known: Known
    request_id: str
    taken_s: float
    """Monotonic clock, when it was whole."""
    arrived_s: float
    """When its first byte was read, by the same clock; later, where it waited for another proxy in vain."""
    body_bytes: int
    team: TeamSetting = NOBODY
    endpoint: str = ""
    read: Canonical | None = None
    """Its parsed body; None: not parsed, or dropped again to save memory."""
    form: bytes = b""
    """The body in the canonical form that keys are made of; emptied once it is remembered for `explain`."""
    asked: Asked | None = None
    model: str | None = None
    fingerprint: str | None = None
    """Identity of the model that answers (upstream/fingerprint.py), part of the key."""
    decision: CacheDecision = NO_CACHE
    bypass: str | None = None
    """Why the cache was not used: a reason of policy.Bypass, or `view` for a form of answer that we don't know; None: it was."""
    format: ResponseFormat = AS_A_WHOLE
    name: bytes = b""
    """The key of its answer; empty: the body was not understood."""
    key: bytes | None = None
    """The same where policy allows it to be read or stored, else None."""
    is_new: bool | None = None
    """No equal request was seen before."""
    cache: SeenCache | None = None
    found: Found | None = None
    """The stored answer that it got."""
    body: bytes = b""
    """As it goes upstream."""
    usage_is_ours: bool = False
    prompt_tokens: int | None = None
    """An estimate, for limits; as the next two, only where settings ask for it."""
    output_tokens: int | None = None
    prefix: int | None = None
    call: Call | None = None
    was_shared: bool = False
    """It joined a call under way."""
    is_alone: bool = False
    """The call that it joined could not be converted into its format: it has a call of its own now."""
    position: int = 0
    """Index of the first part of the call's answer that was not written to this client."""
    sees_raw: bool | None = None
    """It gets the upstream's bytes without conversion; None: not known yet."""
    error_kind: str | None = None
    """Why there was no answer, where there is no call that holds the reason."""
    rejection: Rejection | None = None
    retry_after_s: int | None = None


class Pages(Protocol):
    """The proxy's own pages on the clients' port: this process's, or asked of the primary."""

    def show(self, name: str, request: Request) -> None:
        """Answer with `health`, `ping`, `ready`, `metrics` or `version`, now or later."""


class Handler:
    """One process's answers: of one that asks upstream, or of a front worker, which passes on what is no hit."""

    def __init__(
        self,
        settings: Settings,
        *,
        cache: Tiers,
        telemetry: Telemetry,
        keyring: Keyring | None,
        fingerprint: Callable[[str | None], str],
        clock: Callable[[], float],
        wall: Callable[[], float],
        secret: bytes,
        name: bytes,
    ) -> None:
        """`keyring` None: everybody may ask. `name` begins each request's id; `secret` makes salts."""
        self.cache, self.telemetry = cache, telemetry
        self._fingerprint = fingerprint
        self._clock, self._wall, self._secret, self._name = clock, wall, secret, name
        self.calls: Calls | None = None
        self.pass_on: Callable[[Context], None] | None = None
        """Set in a front worker: hands a request to the primary. None: this process asks upstreams itself."""
        self.pages: Pages | None = None
        self.replaced: Callable[[bytes], None] | None = None
        """Called with a key whose answer was replaced: other workers may hold the old one in memory."""
        self.misses = MissHistory(settings.cache.memory_bytes // NOTES_SHARE)
        """Requests that were no hits, for explanations."""
        self._requests = 0
        self._date_second, self._date = -1, b""
        self._hot, self._entries = cache.hot, cache.memory
        self._log = None if telemetry.log is None else telemetry.log.put
        self._rows = None if telemetry.feed is None else telemetry.feed.put
        self._seen: set[int] = set()
        self._seen_before: set[int] = set()
        self._most_seen = min(SEEN, settings.cache.memory_bytes // NOTES_SHARE // SEEN_BYTES)
        self._tasks: set[asyncio.Task[None]] = set()
        self.take_settings(settings, keyring)

    def take_settings(self, settings: Settings, keyring: Keyring | None) -> None:
        """Use these settings from now on."""
        self.settings, self._keyring = settings, keyring
        self._teams = {team.name: team for team in settings.teams}
        admission = settings.admission
        limits = [admission.max_prompt_tokens, admission.max_output_tokens]
        for team in settings.teams:
            limits += [team.max_prompt_tokens, team.max_output_tokens]
        self._weighs = settings.routing.affinity or any(each is not None for each in limits)
        """Whether limits or affinity need a prompt's length or prefix before the request is sent."""

    # --- known by its bytes --------------------------------------------------------------------------

    def recall(self, data: bytes) -> bytes | list[bytes] | None:
        """The whole answer to a request of exactly these bytes, if a hot entry holds it and the stored answer is still the same."""
        began = self._clock()
        hot = self._hot.get(data, began)
        if hot is None:
            return None
        if self._entries.get(hot.key, began) is not hot.stored:
            self._hot.remove(data)
            return None
        wall = self._wall()
        second = int(wall)
        if second != self._date_second:
            self._date_second, self._date = second, date_line(second)
        self._requests += 1
        request_id = b"%b%x" % (self._name, self._requests)
        head = hot.head(second, self._date)
        body = hot.body
        took_s = self._clock() - began
        hot.tally.hit(took_s, len(body), hot.prompt_tokens, hot.output_tokens)
        if self._log is not None:
            self._log(hot.line.fill(wall, request_id, took_s * 1000))
        if self._rows is not None:
            took_ms = took_s * 1000
            ttft_ms = None if hot.served.ttft_ms is None else took_ms
            number = request_id.decode()
            served = replace(
                hot.served, ts=wall, request_id=number, ttft_ms=ttft_ms, latency_ms=took_ms
            )
            self._rows((served, hot.asked))
        if len(body) <= JOINED_BYTES:
            return b"%b%b\r\n\r\n%b" % (head, request_id, body)
        return [b"%b%b\r\n\r\n" % (head, request_id), body]

    def _remember(self, context: Context, served: Served, content_type: str, body: bytes) -> None:
        """Make a hot entry, so that `recall` finds the answer by the raw bytes, unless something in them differs each time."""
        raw, found, stream = context.request.raw, context.found, context.format.stream
        if raw is None or not context.known.is_memorable or context.key is None or found is None:
            return
        if stream and self.settings.cache.replay != "instant":
            return
        if context.fingerprint != self._fingerprint(context.model):
            # another model began to answer while a slow client read: a hot entry would go on giving the old one's answer
            return
        tally = self.telemetry.counters.tally(
            served.team, context.model, served.endpoint, stream=stream
        )
        hot = HotEntry(
            key=context.key,
            stored=found.stored,
            body=body,
            content_type=content_type.encode("latin-1"),
            stored_at=found.response.stored_at,
            ends_at=found.ends_at,
            served=replace(served, cache="hit", layer="memory"),
            asked=context.asked,
            tally=tally,
        )
        self.cache.remember(raw, hot)

    # --- its head ------------------------------------------------------------------------------------

    def know(self, head: Head) -> Known:
        """What a head says, worked out once and kept in `head.known`."""
        known: Known | None = head.known
        if known is None:
            key = head.header(b"authorization")
            name = None if self._keyring is None else self._keyring.team(key)
            known = head.known = self.known_of(head, name, is_checked=self._keyring is None)
        return known

    def known_of(self, head: Head, team: str | None, *, is_checked: bool) -> Known:
        """The same of a head whose key was checked elsewhere."""
        request_id = header_rules.request_id(head.headers)
        cache_control = header_rules.cache_control(head.headers)
        setting = NOBODY if team is None else self._teams[team]
        return Known(
            route=route(head.method, head.path, self.settings),
            team=setting,
            tenant="" if team is None else owner(setting),
            has_key=is_checked or team is not None,
            is_json=header_rules.is_json(head.headers),
            cache_control=cache_control,
            request_id=request_id,
            is_memorable=cache_control is header_rules.NO_CACHE_CONTROL
            and head.header(b"x-request-id") is None,
            forwarded=header_rules.forward(head.headers),
            heads={},
        )

    def admits(self, head: Head) -> bool:
        """Whether to wait for the body, judged by the head: not without a key where one is needed."""
        if self._keyring is None:
            return True
        known = self.know(head)
        return known.route.kind in ("answer", "pass") and known.has_key

    def refused(self, status: int, reason: str, peer: str) -> None:
        """Count what was refused before it was a request; it is not in the error rate."""
        self.telemetry.counters.add("refused_requests", reason)
        self.telemetry.event("refused", {"status": status, "reason": reason, "peer": peer})

    # --- a request, from here to `finish` -----------------------------------------------------------

    def take(self, request: Request) -> None:
        """Handle a request from here to `finish`."""
        head, body = request.head, request.body
        known: Known = head.known or self.know(head)
        self._requests += 1
        context = Context(
            request=request,
            known=known,
            request_id=known.request_id or f"{self._name.decode()}{self._requests:x}",
            taken_s=self._clock(),
            arrived_s=request.arrived_s,
            body_bytes=len(body),
        )
        request.on_done = partial(self._done, context)
        wanted = known.route
        if wanted.kind == "none":
            allow: Headers = () if wanted.allow is None else ((b"allow", wanted.allow.encode()),)
            self.refuse(context, wanted.status, wanted.message, allow)
            return
        if wanted.kind == "own":
            # probes and scrapes are no clients' requests: neither counted nor logged
            request.on_done = None
            assert self.pages is not None
            self.pages.show(wanted.endpoint, request)
            return
        if not known.has_key:
            needed = "A key of a team is needed: `Authorization: Bearer KEY`"
            self.refuse(context, 401, needed, ((b"www-authenticate", b"Bearer"),))
            return
        context.team, context.endpoint = known.team, wanted.endpoint
        status, problem = 400, None
        if wanted.kind == "pass":
            status, problem = self._problem_of_passed(context)
        elif not known.is_json:
            status, problem = 415, NOT_JSON
        else:
            problem = self.understand(context)
            if problem is not None:
                problem = f"The body can't be taken: {problem}"
            elif context.read is not None:
                fields, hosts = context.read.fields, self.settings.media_hosts
                problem = media.refused(fields, hosts, context.endpoint)
        if problem is not None:
            self.refuse(context, status, problem)
            return
        key, decision = context.key, context.decision
        if key is not None and decision.read:
            stored = self.cache.find(key)
            if stored is not None and self.answer_from_cache(context, stored):
                return
        if self.pass_on is not None:
            self.pass_on(context)
            # a parsed body takes up to 50 times its bytes; the primary parses it anew
            context.read, context.form = None, b""
            return
        context.body = body
        if wanted.kind == "pass":
            self.forward(context)
            return
        context.is_new = self._is_new(context.name)
        self._splice(context)
        # in the loop's next turn, after the request was sent
        asyncio.get_running_loop().call_soon(self._let_go, context)
        if decision.read and key is not None and self.cache.redis is not None:
            self._search(context, key)
        else:
            self.forward(context)

    def _problem_of_passed(self, context: Context) -> tuple[int, str | None]:
        """Status and reason why a request for a path that is never cached may not be passed on; the reason is None if it may.

        Its body must be JSON with the JSON content type, since many servers parse it as JSON whatever its type says. The one
        exception is a form (e.g., with audio), on the paths that settings name.
        """
        request, hosts = context.request, self.settings.media_hosts
        if context.known.is_json:
            read = canonical(request.body) if request.body else None
            if isinstance(read, Refused):
                return 400, f"The body can't be taken: {read.reason}"
            if read is not None:
                return 400, media.refused(read.fields, hosts, context.endpoint)
        elif request.head.path in self.settings.paths and header_rules.is_form(
            request.head.headers
        ):
            # nothing that is JSON begins so
            is_form = request.body.startswith(b"--")
            return 400, media.refused_form(request.body) if is_form else "The body is no form"
        elif request.body:
            return 415, NOT_JSON
        return 400, None

    def understand(self, context: Context) -> str | None:
        """Read the body, work out model, format, cache decision and key; return why it can't be read, or None."""
        settings, endpoint, known = self.settings, context.endpoint, context.known
        read = canonical(context.request.body, inert=settings.cache.inert)
        if isinstance(read, Refused):
            return read.reason
        fields = read.fields
        context.read, context.form = read, read.form
        model = fields.get("model")
        context.model = model if isinstance(model, str) else None
        known_format = response_format(fields, endpoint)
        seen_as = known_format or ResponseFormat(stream=bool(fields.get("stream")), crosses="never")
        context.format = seen_as
        decision = context.decision = policy(
            settings.cache,
            context.team,
            fields,
            endpoint,
            known.cache_control,
            query=context.request.head.query,
        )
        context.bypass = decision.reason or ("view" if known_format is None else None)
        context.fingerprint = self._fingerprint(context.model)
        if seen_as.crosses == "never":
            # where one format can't be made of the other, each has its own answer
            endpoint += " stream" if seen_as.stream else " whole"
        key = request_key(
            read.form, endpoint=endpoint, tenant=known.tenant, model=context.fingerprint
        )
        context.name = bytes.fromhex(key)
        if known_format is not None and (decision.read or decision.write):
            context.key = context.name
        return None

    def _splice(self, context: Context) -> None:
        """Add our fields to the body that goes upstream; the rest stays as the client wrote it, byte for byte.

        Two fields, each right behind the first brace, and only where the client's body has no such field: the usage of a stream, so
        that it can be shown as a whole body, too, and the salt of the engine's prefix cache, so that no team can tell by the time to
        the first token what another one asked.
        """
        settings, endpoint, body = self.settings, context.endpoint, context.body
        assert context.read is not None
        fields = context.read.fields
        added = []
        if settings.cache.asks_usage and context.format.stream and endpoint in WITH_USAGE:
            context.usage_is_ours = "stream_options" not in fields
            if context.usage_is_ours:
                added.append(USAGE)
        if settings.teams and endpoint in SALTED:
            own = fields.get("cache_salt")
            # a client's own salt splits its tenant's further, and never equals another tenant's
            said = orjson.dumps([context.known.tenant, own if isinstance(own, str) else None])
            key = self._secret[:64]
            salt = blake2b(said, key=key, digest_size=16, person=b"prefix salt").hexdigest()
            if "cache_salt" in fields:
                # what stands inside a field, e.g., a tool's schema, is in `fields` as it was written
                body = orjson.dumps({**fields, "cache_salt": salt})
            else:
                added.append(b'"cache_salt":"%b"' % salt.encode())
        if added:
            place = body.index(b"{") + 1
            end = b"," if fields else b""
            body = b"%b%b%b%b" % (body[:place], b",".join(added), end, body[place:])
        context.body = body
        if not self._weighs:
            return
        # how long it is and how it begins, for limits and routing
        said_of = self.asked(context)
        if said_of is not None:
            context.prompt_tokens, context.output_tokens = (
                said_of.prompt_tokens,
                said_of.max_tokens,
            )
            if said_of.prompt_tokens is None and said_of.prompt_chars is not None:
                context.prompt_tokens = max(1, round(said_of.prompt_chars / CHARS_A_TOKEN))
            if settings.routing.affinity and said_of.prompt_blocks:
                blocks = said_of.prompt_blocks[: PREFIX_BLOCKS * 8]
                context.prefix = int.from_bytes(blocks[-8:])

    # --- a stored answer -----------------------------------------------------------------------------

    def answer_from_cache(self, context: Context, found: Found, *, shared: bool = False) -> bool:
        """Answer with what is stored, if it is fresh enough and converts into the wanted format; else return False.

        `shared`: another proxy was getting this answer and this request waited for it: it counts as coalesced, not as a hit.
        """
        now, stored, request = self._wall(), found.response, context.request
        left_s = found.ends_at - now
        if not context.decision.takes(age_s=max(0.0, now - stored.stored_at), left_s=left_s):
            return False
        shown = convert(stored, context.format)
        if shown is None:
            return False
        content_type, body = shown
        context.found, context.is_new = found, False
        context.cache = "coalesced" if shared else "hit"
        ttl_s = None if left_s == float("inf") else left_s
        if shared:
            status = header_rules.cache_status(
                fwd="miss", fwd_status=200, ttl_s=ttl_s, stored=True, collapsed=True
            )
        else:
            status = header_rules.cache_status(ttl_s=ttl_s)
        headers = [
            (b"cache-status", status),
            (b"age", header_rules.age(stored.stored_at, now)),
            (b"x-request-id", context.request_id.encode()),
        ]
        if content_type:
            headers.append((b"content-type", content_type.encode("latin-1", "replace")))

        def done() -> None:
            served = self.finish(context)
            if not request.left:
                self._remember(context, served, content_type, body)

        request.on_done = done
        rate, stream = self.settings.cache.replay, context.format.stream
        if stream and isinstance(rate, int | float):
            request.begin(200, headers)
            request.send(body, paced(body, rate), has_tokens=True)
        else:
            request.respond(200, headers, body, has_tokens=stream)
        return True

    # --- a call upstream -----------------------------------------------------------------------------

    def forward(self, context: Context, lease: Lease | None = None) -> None:
        """Join an equal call under way, or lead one. `lease`: from Redis, the right to make this call for all proxies."""
        calls, decision, key = self.calls, context.decision, context.key
        assert calls is not None
        shares = key is not None and decision.read
        context.cache = "miss" if shares else None
        if decision.only_if_cached:
            self.refuse(context, 504, "There is no stored answer, and only one was wanted")
            return
        context.was_shared = False
        call = None
        if key is not None and shares and not context.is_alone:
            call = calls.to_join(key)
            if call is not None and self._can_join(context, call):
                context.was_shared, context.cache, context.form = True, "coalesced", b""
                call.join(context)
                if lease is not None:
                    lease.release()
                call.fill(context)
                return
            # an equal call that can't be joined keeps the key; the new one has none
            call = calls.lead(context, key if call is None else None)
        else:
            call = calls.lead(context, None)
        if lease is not None:
            call.lease = lease
            lease.unwanted = call.unwanted
        calls.admit(call)
        if key is not None:
            version = context.fingerprint or ""
            seen = SeenRequest(context.endpoint, context.form, context.model, version, self._wall())
            self.misses.note(context.known.tenant, key, seen)
        context.form = b""

    def _can_join(self, context: Context, call: Call) -> bool:
        return can_join(
            call.leader.format, context.format, context.endpoint, has_usage=call.has_usage
        )

    def forward_alone(self, context: Context) -> None:
        """The answer of the call that it joined can't be converted into its format: make a call of its own."""
        context.is_alone = True
        self.forward(context)

    def _search(self, context: Context, key: bytes) -> None:
        """Look into Redis, in a task, and wait there if another proxy makes the same call; then `forward` if there is no answer."""
        assert self.calls is not None
        call = self.calls.to_join(key)
        if call is not None and self._can_join(context, call):
            self.forward(context)
            return
        task = asyncio.get_running_loop().create_task(self._searched(context, key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def done() -> None:
            # the client left
            task.cancel()
            self._done(context)

        context.request.on_done = done

    async def _searched(self, context: Context, key: bytes) -> None:
        began_s, decision = self._clock(), context.decision
        lease = None
        try:
            may_lead = decision.write and not decision.only_if_cached
            found, waited, lease = await self.cache.find_shared(
                key, tenant=context.known.tenant, model=context.model, may_lead=may_lead
            )
            context.request.on_done = partial(self._done, context)
            if found is None or not self.answer_from_cache(context, found, shared=waited):
                if waited:
                    # its wait for a slot begins after the wait in vain
                    context.arrived_s += self._clock() - began_s
                taken, lease = lease, None
                self.forward(context, taken)
        except Exception as error:  # noqa: BLE001 (the client waits, and nothing else would answer it)
            self.telemetry.event("fault", {"error": f"{type(error).__name__}: {error}"})
            self.refuse(context, 500, "The proxy failed at this request")
            # if an answer has begun, only a cut connection shows the failure
            context.request.cut()
        finally:
            if lease is not None:
                lease.release()

    async def hurry(self) -> None:
        """End all waits for other proxies: those requests become calls of this one."""
        if self.cache.redis is not None:
            self.cache.redis.is_ending = True
        if self._tasks:
            await asyncio.wait(self._tasks)

    def headers(
        self, context: Context, call: Call | None, content_type: str = ""
    ) -> list[tuple[bytes, bytes]]:
        """Headers of a call's answer, or of an error of ours."""
        lines = [(b"x-request-id", context.request_id.encode())]
        if content_type:
            # it came in a header: whatever bytes it had, it has
            lines.append((b"content-type", content_type.encode("latin-1", "replace")))
        if call is not None:
            lines += [each for each in call.headers if each[0] != b"content-type"]
        if not context.name:
            return lines
        decision, status = context.decision, None if call is None else call.status
        if decision.reason not in (None, "wish"):
            told = header_rules.cache_status(
                fwd="bypass", fwd_status=status, detail=decision.reason
            )
        elif context.key is None or not decision.read:
            told = header_rules.cache_status(fwd="request", fwd_status=status)
        else:
            told = header_rules.cache_status(
                fwd="miss",
                fwd_status=status,
                stored=call is not None and call.stored,
                collapsed=context.was_shared,
            )
        lines.append((b"cache-status", told))
        return lines

    def store(self, call: Call) -> None:
        """Store a call's answer, unless another model than asked for made it, or an unwatched fallback, whose model may change unseen."""
        context, recorder, upstream = call.keep_for, call.recorder, call.upstream
        if context is None or context.key is None or recorder is None or recorder.cached is None:
            return
        if upstream is None or upstream.setting.model is not None:
            return
        if upstream.setting.fallback and not upstream.setting.is_watched:
            return
        key, ttl_s, now = context.key, context.decision.ttl_s, self._wall()
        is_another = self.replaced is not None and self.cache.find(key) is not None
        response = recorder.cached
        response.stored_at = now
        self.cache.store(
            key, response, ttl_s=ttl_s, tenant=context.known.tenant, model=context.model
        )
        call.stored = True
        ends_at = now + (inf if ttl_s is None else ttl_s)
        self.misses.became(context.known.tenant, key, ends_at)
        if is_another and self.replaced is not None:
            self.cache.pack()
            self.replaced(key)

    # --- the end -------------------------------------------------------------------------------------

    def refuse(self, context: Context, status: int, message: str, more: Headers = ()) -> None:
        """Answer with an error of ours."""
        headers = [JSON, (b"x-request-id", context.request_id.encode()), *more]
        context.request.respond(status, headers, error_body(status, message))

    def _done(self, context: Context) -> None:
        """Its answer was written, or the client left: `finish` now, or in `Call.judge` if the call's answer is not judged yet."""
        call = context.call
        if call is not None:
            call.leave(context)
            if call.is_over and not call.is_judged:
                call.finished_early.append(context)
                return
        self.finish(context)

    def finish(self, context: Context) -> Served:
        """Make the request's one record, and give it to telemetry to count, log and store."""
        request, call, found = context.request, context.call, context.found
        asked = self.asked(context)
        served = Served(
            ts=self._wall() - (self._clock() - request.arrived_s),
            request_id=context.request_id,
            team=context.team.name,
            method=request.head.method,
            path=request.head.path,
            endpoint=context.endpoint,
            model=context.model,
            stream=context.format.stream if context.name else None,
            status=request.status,
            cache=context.cache,
            bypass=context.bypass,
            new=context.is_new,
            error_kind=context.error_kind,
            left=request.left,
            body_bytes=context.body_bytes,
        )
        if request.first_token_s is not None:
            served.ttft_ms = (request.first_token_s - context.taken_s) * 1000
        if request.status is not None:
            served.latency_ms = (request.ended_s - context.taken_s) * 1000
        if asked is not None:
            served.exact_key, served.request_key = asked.exact_key, asked.request_key
            served.prompt_key = asked.prompt_key
        if context.rejection is not None:
            served.rejected = context.rejection.reason
            served.retry_after_s = context.retry_after_s
        if found is not None:
            stored = found.response
            served.layer = found.layer if context.cache == "hit" else None
            served.prompt_tokens, served.output_tokens = stored.prompt_tokens, stored.output_tokens
            served.finish_reason = stored.finish_reason
        if call is not None:
            recorder, upstream = call.recorder, call.upstream
            if upstream is not None:
                served.upstream = upstream.name
                served.fallback = upstream.setting.fallback or None
            if call.fault is not None and not served.left:
                served.error_kind = call.fault.kind
            answer = None if recorder is None else recorder.answer
            counted = answer if answer is not None or recorder is None else recorder.cached
            if counted is not None:
                served.prompt_tokens = counted.prompt_tokens
                served.output_tokens = counted.output_tokens
                served.finish_reason = counted.finish_reason
            if answer is not None and served.error_kind is None and served.status == 200:
                served.error_kind = answer.error_kind
            if not context.was_shared:
                # what it cost, a slot and an upstream's work, stands in the leader's record alone
                served.queue_ms, served.stored = call.queue_ms, call.stored
                served.retries = call.retries or None
                if answer is not None:
                    tpot_s, served.cached_tokens = answer.tpot_s, answer.cached_tokens
                    served.tpot_ms = None if tpot_s is None else tpot_s * 1000
                why_not = None if recorder is None else recorder.why_not
                if why_not is not None and context.key is not None:
                    self.misses.became(context.known.tenant, context.key, why_not)
        self.telemetry.counters.take(served)
        if self._log is not None:
            self._log(request_line(served, prompt=None if asked is None else asked.prompt_text))
        if self._rows is not None:
            self._rows((served, asked))
        context.read = context.call = None
        return served

    def asked(self, context: Context) -> Asked | None:
        """The request as log and store describe it; None: it was not understood.

        Worked out on first use, as a rule after the request was sent, so that no client waits for it.
        """
        if context.asked is None and context.name:
            request = context.request
            context.asked = asked(
                request.body,
                path=request.head.path,
                keep_text=self.settings.tell.log_prompts,
                blocks=self._rows is not None or self.settings.routing.affinity,
                read=context.read,
            )
        return context.asked

    def _let_go(self, context: Context) -> None:
        """Drop the parsed body: in memory it takes up to 50 times its bytes."""
        self.asked(context)
        context.read, context.request.body = None, b""

    def _is_new(self, key: bytes) -> bool:
        """No equal request was seen before, as far as that is remembered."""
        mark = int.from_bytes(key[:8])
        if mark in self._seen or mark in self._seen_before:
            return False
        if len(self._seen) >= self._most_seen // 2:
            self._seen, self._seen_before = set(), self._seen
        self._seen.add(mark)
        return True
