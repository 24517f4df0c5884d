"""How one request gets its answer: found where answers are stored, or by a call upstream that it leads or joins.

It reads the clocks; the rules are policy's, the keys request_key's, the sending delivery's and replaying's. What became of a
request is told to `tell`, once.
"""

import asyncio
import random
from dataclasses import replace
from functools import partial

from toolkit.proxy import headers as header_rules
from toolkit.proxy.answers.views import can_join
from toolkit.proxy.calls.call import Call
from toolkit.proxy.calls.calls import Calls
from toolkit.proxy.calls.delivery import Live
from toolkit.proxy.calls.estimates import Estimates
from toolkit.proxy.calls.far import Far, Search
from toolkit.proxy.case import Case
from toolkit.proxy.desk.hits import Hits
from toolkit.proxy.desk.kit import Kit
from toolkit.proxy.desk.outcome import note_call, note_sent
from toolkit.proxy.desk.verifying import Verifying
from toolkit.proxy.error_json import CONTENT_TYPE
from toolkit.proxy.exchange import Headers, Job, Kept
from toolkit.proxy.http.sending import Sent
from toolkit.proxy.splices import SALTED, salt, spliced, wants_usage
from toolkit.proxy.stored.layers import NOTES_SHARE, Found
from toolkit.records import Asked
from toolkit.request_key import KEY_BYTES

SEEN = 131_072
"""So many requests are remembered to tell a new one from a repeat, where the memory has room for them."""
SEEN_BYTES = 120
"""What one takes at most: an int of 32 bytes and, where a set has just grown, 5 places of 16 (CPython 3.11)."""


class Answering(Hits):
    """The answers of the process that asks upstream."""

    def __init__(self, kit: Kit, calls: Calls) -> None:
        super().__init__(kit)
        self.calls = calls
        self._estimates = Estimates()
        self._verifying = Verifying(kit.settings.cache.verify_share, calls, kit.counters, kit.event)
        self._seen: set[int] = set()
        self._seen_before: set[int] = set()
        all_teams, teams = kit.settings.admission, kit.settings.teams
        limits = [all_teams.max_prompt_tokens, *(team.max_prompt_tokens for team in teams)]
        limits += [all_teams.max_output_tokens, *(team.max_output_tokens for team in teams)]
        self._weighs = kit.settings.routing.affinity or limits.count(None) < len(limits)
        """Whether its length or its beginning says where a request may go, and so is wanted before it is sent."""
        self._most_seen = min(SEEN, kit.settings.cache.memory_bytes // NOTES_SHARE // SEEN_BYTES)
        self._alone = 0
        self._tasks: set[asyncio.Task[None]] = set()
        redis, wait_s = kit.layers.redis, kit.settings.cache.redis_wait_s
        self._far: Far | None = None
        if redis is not None and wait_s:
            self._far = Far(redis, kit.layers, calls, wait_s=wait_s, clock=kit.clock, wall=kit.wall)

    def wants_look(self) -> bool:
        """Whether the hit that comes now is one of those that are asked again."""
        return self._verifying.drawn.is_chosen()

    def choose_next(self) -> None:
        """Have the next hit asked again: another worker drew it."""
        self._verifying.drawn.choose()

    # --- reading -----------------------------------------------------------------------------------

    def pass_on(self, case: Case) -> None:
        """Send a request upstream and its answer back, and store nothing."""
        case.body = case.request.body
        self._ask(case)

    def go_on(self, case: Case, found: Found | None) -> None:
        """Answer with what is stored, here or in Redis, or have it asked upstream."""
        case.served.new = self._is_new(case.name)
        if found is not None and self.hit(case, found):
            return
        fields, team_salt = case.fields, None
        if self._settings.teams and case.endpoint in SALTED:
            team_salt = salt(self._kit.secret, case.tenant, fields.get("cache_salt"))
        if self._settings.cache.asks_usage:
            case.usage_is_ours = wants_usage(fields, case.endpoint, case.view)
        case.body = spliced(case.request.body, fields, usage=case.usage_is_ours, salt=team_salt)
        # behind the turn in which it is sent
        asyncio.get_running_loop().call_soon(self._let_go, case)
        if case.ruling.read and case.key is not None and self._layers.redis is not None:
            self._go_far(case, case.key)
        else:
            self._miss(case)

    def _let_go(self, case: Case) -> None:
        """Keep the body that goes upstream and nothing else of what it asks: read, it takes up to 50 times its bytes."""
        self.told(case)
        case.read, case.fields, case.request.body = None, {}, b""
        if case.key is None:
            case.form = b""

    def was_hit(self, case: Case, kept: Kept) -> None:
        """Ask it again, if it was drawn."""
        if self._verifying.takes_next():
            self._verifying.ask_again(self._job(case), kept)

    def _is_new(self, key: bytes) -> bool:
        mark = int.from_bytes(key[:8])
        if mark in self._seen or mark in self._seen_before:
            return False
        if len(self._seen) >= self._most_seen // 2:
            self._seen, self._seen_before = set(), self._seen
        self._seen.add(mark)
        return True

    def _go_far(self, case: Case, key: bytes) -> None:
        if self.calls.under_way(key) is not None and self._may_join(case, key):
            self._miss(case)
            return
        task = asyncio.get_running_loop().create_task(self._from_far(case, key))

        def leave() -> None:
            task.cancel()

        case.reply.on_gone = leave
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _from_far(self, case: Case, key: bytes) -> None:
        began_s = self._clock()
        try:
            search = await self._searched(case, key)
        except asyncio.CancelledError:
            self._end_left(case)
            raise
        except Exception as error:  # noqa: BLE001 (nobody else would tell the client, which waits)
            self._fail(case, error)
            return
        case.reply.on_gone = None
        try:
            if case.reply.is_gone:
                self._end_left(case)
            elif search.found is None or not self.hit(case, search.found, shared=search.waited):
                case.waited_s = self._clock() - began_s if search.waited else 0.0
                self._miss(case, search)
        except Exception as error:  # noqa: BLE001 (as above)
            self._fail(case, error)
        finally:
            if self._far is not None:
                self._far.done(key, search)

    async def _searched(self, case: Case, key: bytes) -> Search:
        """What Redis has. Where the answer may be stored, one proxy asks for it in the place of all, and the others wait."""
        if self._far is not None and case.ruling.write and not case.ruling.only_if_cached:
            return await self._far.find(key, tenant=case.tenant, model=case.model)
        search = Search()
        search.found = await self._layers.find_far(key, tenant=case.tenant, model=case.model)
        return search

    def _end_left(self, case: Case) -> None:
        case.served.left = True
        self.end(case)

    def _fail(self, case: Case, error: Exception) -> None:
        self._kit.event("fault", {"error": f"{type(error).__name__}: {error}"})
        self.refuse(case, 500, "The proxy failed at this request")
        # where something was sent already, nothing but its end can tell
        case.reply.abort()

    async def hurry(self) -> None:
        """Have nobody wait for other proxies any more: who does becomes a call."""
        if self._far is not None:
            self._far.hurry()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Once no call is under way any more."""
        if self._far is not None:
            await self._far.close()

    def holds(self, key: bytes) -> bool:
        """Whether an answer is stored there already, e.g., where a client wanted a new one; `key` is its flight's."""
        return self._layers.find(key[:KEY_BYTES]) is not None

    def keep(self, key: bytes, job: Job, kept: Kept) -> None:
        """Store what a call brought; `key` is its flight's."""
        key = key[:KEY_BYTES]
        now = self._wall()
        ends_at = None if job.ttl_s is None else now + job.ttl_s
        kept = replace(kept, stored_at=now)
        self._layers.keep(key, kept, ttl_s=job.ttl_s, tenant=job.tenant, model=job.model)
        self._kit.memory.stored(key, ends_at=ends_at)

    # --- a call upstream ---------------------------------------------------------------------------

    def _miss(self, case: Case, search: Search | None = None) -> None:
        if case.ruling.only_if_cached:
            case.served.cache = "miss" if case.ruling.read else None
            self.refuse(case, 504, "There is no stored answer, and only one was wanted")
            return
        self._ask(case, search)
        if case.key is not None:
            # behind the turn in which the call is sent
            asyncio.get_running_loop().call_soon(self._note, case, case.key)

    def _note(self, case: Case, key: bytes) -> None:
        self._kit.memory.note(
            key,
            case.form,
            tenant=case.tenant,
            endpoint=case.endpoint,
            model=case.generation,
            now=self._wall(),
        )
        case.form = b""

    def _ask(self, case: Case, search: Search | None = None) -> None:
        """Lead a call or join one; `_ended` comes when this client has its answer, or none.

        `search`: it may be that this process has to ask in the place of all proxies.
        """
        live = Live(
            case.reply,
            case.view,
            headers=partial(self._headers, case),
            # none of these is called before the call is known: Calls.ask tells nobody from inside
            ended=lambda sent: self._ended(case, call, sent),
            left=lambda: self._leave(call, live),
            again=lambda: self._ask_alone(case),
            clock=self._clock,
            jitter=random.random,
        )
        call, leads = self.calls.ask(self._flight_key(case), self._job(case), live)
        case.was_shared = not leads
        if case.ruling.read and case.key is not None:
            case.served.cache = "miss" if leads else "coalesced"
        if leads and search is not None and case.key is not None and self._far is not None:
            self._far.lead(case.key, search, call)
        live.join(call)

    def _leave(self, call: Call, live: Live) -> None:
        self.calls.leave(call, live)
        if self._far is not None:
            self._far.left(call)

    def _ask_alone(self, case: Case) -> None:
        """What it joined can't be shown as it wants to see it: it makes a call of its own."""
        case.is_alone = True
        self._ask(case)

    def _flight_key(self, case: Case) -> bytes | None:
        """By what others may join; None: nobody may. One that must not join has a key that nobody else has."""
        ruling = case.ruling
        if case.key is None:
            return None
        if ruling.read and not case.is_alone and self._may_join(case, case.key):
            return case.key
        if not ruling.write:
            return None
        self._alone += 1
        return case.key + self._alone.to_bytes(8)

    def _may_join(self, case: Case, key: bytes) -> bool:
        """Whether what is under way, if anything is, will serve this request, too."""
        call = self.calls.under_way(key)
        if call is None:
            return True
        led = call.led_by_view
        has_usage = led.usage or call.job.usage_is_ours
        return can_join(led, case.view, case.endpoint, has_usage=has_usage)

    def _job(self, case: Case) -> Job:
        request, team = case.request, case.team
        told = self.told(case) if self._weighs else None
        return Job(
            method=request.method,
            path=request.path,
            query=request.query,
            body=case.body or request.body,
            headers=[
                each for each in header_rules.forward(request.headers) if each[0] != b"x-request-id"
            ],
            endpoint=case.endpoint,
            model=case.model,
            team=case.served.team,
            view=case.view,
            usage_is_ours=case.usage_is_ours,
            priority=0 if team is None else team.priority,
            arrived_s=request.arrived_s + case.waited_s,
            prompt_tokens=self._prompt_tokens(case.model, told),
            output_tokens=None if told is None else told.max_tokens,
            prefix=self._prefix(told),
            is_cacheable=case.ruling.write,
            ttl_s=case.ruling.ttl_s,
            tenant=case.tenant,
        )

    def _prompt_tokens(self, model: str | None, told: Asked | None) -> int | None:
        if told is None or told.prompt_tokens is not None or told.prompt_chars is None:
            return None if told is None else told.prompt_tokens
        return self._estimates.tokens(model, told.prompt_chars)

    def _prefix(self, told: Asked | None) -> int | None:
        """The prompt's first 16 blocks of 16 tokens, where upstreams are chosen by them."""
        if not self._settings.routing.affinity or told is None:
            return None
        blocks = told.prompt_blocks[: 16 * 8]
        return int.from_bytes(blocks[-8:]) if blocks else None

    # --- the end -----------------------------------------------------------------------------------

    def _headers(self, case: Case, call: Call | None) -> Headers:
        """What goes before an answer of a call's, or before an error of ours."""
        found = [(b"x-request-id", case.served.request_id.encode())]
        if call is not None:
            found += [each for each in call.headers if each[0] != CONTENT_TYPE[0]]
        if case.served.endpoint and case.name:
            found.append((b"cache-status", self._cache_status(case, call)))
        return found

    def _cache_status(self, case: Case, call: Call | None) -> bytes:
        ruling, status = case.ruling, None if call is None else call.status
        if ruling.reason not in (None, "wish"):
            return header_rules.cache_status(fwd="bypass", fwd_status=status, detail=ruling.reason)
        if case.key is None or not ruling.read:
            return header_rules.cache_status(fwd="request", fwd_status=status)
        return header_rules.cache_status(
            fwd="miss",
            fwd_status=status,
            stored=call is not None and call.stored,
            collapsed=case.was_shared,
        )

    def _ended(self, case: Case, call: Call, sent: Sent) -> None:
        note_sent(case.served, sent, case.taken_s)
        note_call(case.served, call, was_shared=case.was_shared)
        why_not = None if call.recorded is None else call.recorded.why_not
        if why_not is not None and case.key is not None and not case.was_shared:
            self._kit.memory.not_stored(case.key, why_not)
        told, tokens = self.told(case), case.served.prompt_tokens
        if told is not None and told.prompt_chars and tokens and not case.was_shared:
            self._estimates.learn(case.model, told.prompt_chars, tokens)
        self.end(case)
