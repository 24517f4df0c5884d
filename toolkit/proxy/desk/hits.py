"""What a request asks, and the stored answer that it gets where there is one: alike in every worker of a proxy.

It reads the clocks; the rules are policy's, the keys request_key's, the sending replaying's. What becomes of a request without a
stored answer is decided by who builds on it: `answering` asks upstream, `relaying` asks the worker that does.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial

from toolkit.proxy import headers as header_rules
from toolkit.proxy import media
from toolkit.proxy.answers.ready import Ready
from toolkit.proxy.answers.views import Shown, shown, view
from toolkit.proxy.calls.replaying import send_stored
from toolkit.proxy.case import Case
from toolkit.proxy.desk.kit import Kit
from toolkit.proxy.desk.outcome import note_kept, note_sent
from toolkit.proxy.error_json import CONTENT_TYPE, error_body
from toolkit.proxy.exchange import Kept, View
from toolkit.proxy.http.sending import Sent
from toolkit.proxy.keyring import owner
from toolkit.proxy.policy import policy
from toolkit.proxy.stored.layers import Found
from toolkit.records import Asked
from toolkit.request_body import asked
from toolkit.request_key import Refused, canonical, request_key

NOT_JSON = "The body has to be `application/json`"


class Hits(ABC):
    """The stored answers of one process."""

    def __init__(self, kit: Kit) -> None:
        self._settings, self._layers = kit.settings, kit.layers
        self._kit, self._clock, self._wall = kit, kit.clock, kit.wall

    # --- for who builds on it ----------------------------------------------------------------------

    @abstractmethod
    def wants_look(self) -> bool:
        """Whether the hit that comes now is one of those that are asked again: then it goes the long way."""

    @abstractmethod
    def pass_on(self, case: Case) -> None:
        """Send a request upstream and its answer back, and store nothing."""

    @abstractmethod
    def go_on(self, case: Case, found: Found | None) -> None:
        """Answer a request that is understood; `found`: what is stored under its key in this process or the file."""

    def was_hit(self, case: Case, kept: Kept) -> None:
        """A stored answer is on its way; nothing more has to be done."""
        del case, kept

    # --- reading -----------------------------------------------------------------------------------

    def answer(self, case: Case) -> None:
        """Answer a request for what a model says."""
        request = case.request
        if not header_rules.is_json(request.headers):
            self.refuse(case, 415, NOT_JSON)
            return
        problem = self.understand(case)
        if problem is not None:
            self.refuse(case, 400, f"The body can't be taken: {problem}")
            return
        forbidden = media.refused(case.fields, self._settings.media_hosts, case.endpoint)
        if forbidden is not None:
            self.refuse(case, 400, forbidden)
            return
        self.go_on(case, self._layers.find(case.key) if case.key and case.ruling.read else None)

    def take_passed(self, case: Case) -> None:
        """Send on what is never stored; what it asks a server to do is looked at all the same.

        A body is JSON, and said to be: many a server reads it as such whatever it is called. The one other kind is a form, on the
        paths that settings name: a server takes sounds in one.
        """
        request, status, problem = case.request, 400, None
        if header_rules.is_json(request.headers):
            read = canonical(request.body) if request.body else None
            if isinstance(read, Refused):
                problem = f"The body can't be taken: {read.reason}"
            elif read is not None:
                problem = media.refused(read.fields, self._settings.media_hosts, case.endpoint)
        elif request.path in self._settings.paths and header_rules.is_form(request.headers):
            # nothing that is JSON begins so
            is_form = request.body.startswith(b"--")
            problem = media.refused_form(request.body) if is_form else "The body is no form"
        elif request.body:
            status, problem = 415, NOT_JSON
        if problem is None:
            self.pass_on(case)
        else:
            self.refuse(case, status, problem)

    def understand(self, case: Case) -> str | None:
        """Read what it asks, for whom, whether that may be shared, and how it is to look; or say why it can't be read."""
        request, served = case.request, case.served
        read = canonical(request.body, inert=self._settings.cache.inert)
        if isinstance(read, Refused):
            return read.reason
        fields = read.fields
        case.read, case.fields, case.form = read, fields, read.form
        model = fields.get("model")
        case.model = served.model = model if isinstance(model, str) else None
        seen_as = view(fields, case.endpoint)
        case.view = seen_as or View(stream=bool(fields.get("stream")), crosses="never")
        case.wishes = header_rules.wishes(request.headers)
        case.tenant = "" if case.team is None else owner(case.team)
        case.ruling = policy(
            self._settings.cache, case.team, fields, case.endpoint, case.wishes, query=request.query
        )
        served.stream, served.bypass = case.view.stream, case.ruling.reason
        case.generation = self._kit.generation(case.model)
        case.name = _name(case)
        if seen_as is None:
            served.bypass = served.bypass or "view"
        elif case.ruling.read or case.ruling.write:
            case.key = case.name
        return None

    def told(self, case: Case) -> Asked | None:
        """What it asks, for those who are told of it; None: it was not understood.

        Read when it is first wanted: as a rule at the end, for no client is to wait for it.
        """
        if case.asked is None and case.name:
            request, served = case.request, case.served
            # let go by a worker that handed it on, it is read anew
            told = case.asked = asked(
                request.body,
                path=request.path,
                keep_text=self._settings.tell.log_prompts,
                read=case.read,
            )
            served.exact_key, served.request_key = told.exact_key, told.request_key
            served.prompt_key = told.prompt_key
        return case.asked

    # --- a stored answer ---------------------------------------------------------------------------

    def hit(self, case: Case, found: Found, *, shared: bool = False) -> bool:
        """Answer with what is stored, if it is fresh enough and can be shown as it is asked for.

        `shared`: it waited for the answer, as another proxy was asking for it: coalesced, and no hit.
        """
        now, kept = self._wall(), found.kept
        left_s = found.ends_at - now
        if not case.ruling.takes(age_s=max(0.0, now - kept.stored_at), left_s=left_s):
            return False
        mine = shown(kept, case.view)
        if mine is None:
            return False
        served = case.served
        served.cache, served.layer, served.new = "hit", found.layer, False
        ttl_s = None if left_s == float("inf") else left_s
        if shared:
            served.cache, served.layer = "coalesced", None
            status = header_rules.cache_status(
                fwd="miss", fwd_status=200, ttl_s=ttl_s, stored=True, collapsed=True
            )
        else:
            status = header_rules.cache_status(hit=True, ttl_s=ttl_s)
        note_kept(served, kept)
        send_stored(
            case.reply,
            mine,
            headers=[
                (b"cache-status", status),
                (b"age", header_rules.age(kept.stored_at, now)),
                (b"x-request-id", served.request_id.encode()),
            ],
            mode=self._settings.cache.replay,
            ended=partial(self._hit_ended, case, found, mine),
            clock=self._clock,
        )
        self.was_hit(case, kept)
        return True

    def _hit_ended(self, case: Case, found: Found, mine: Shown, sent: Sent) -> None:
        note_sent(case.served, sent, case.taken_s)
        self.end(case)
        if not sent.left:
            self._remember(case, found, mine)

    def _remember(self, case: Case, found: Found, mine: Shown) -> None:
        """Next time the very bytes of this request are enough, if nothing in them makes each time different."""
        request, raw = case.request, case.request.raw
        if raw is None or not request.keeps_alive or request.header(b"x-request-id") is not None:
            return
        if case.generation != self._kit.generation(case.model):
            # a slow client took it while another generation began; by its bytes it would be found for ever
            return
        is_paced = bool(mine.ends) and self._settings.cache.replay != "instant"
        if is_paced or case.wishes is not header_rules.NO_WISHES or case.key is None:
            return
        ready = Ready(
            key=case.key,
            stored=found.stored,
            body=mine.body,
            content_type=mine.content_type.encode("latin-1"),
            stored_at=found.kept.stored_at,
            ends_at=found.ends_at,
            served=replace(case.served, cache="hit", layer="memory"),
            asked=case.asked,
            tally=self._kit.counters.tally(
                case.served.team, case.model, case.endpoint, stream=case.view.stream
            ),
        )
        self._layers.remember(raw, ready)

    # --- the end -----------------------------------------------------------------------------------

    def refuse(self, case: Case, status: int, message: str) -> None:
        """Answer with an error of ours."""
        request_id = (b"x-request-id", case.served.request_id.encode())
        case.reply.whole(status, [CONTENT_TYPE, request_id], error_body(status, message))
        case.served.status = status
        self.end(case)

    def end(self, case: Case) -> None:
        """It is over: tell."""
        self._kit.tell(case.served, self.told(case))


def _name(case: Case) -> bytes:
    """What its answer is stored by; where one view can't be made of the other, each view has its own."""
    endpoint = case.endpoint
    if case.view.crosses == "never":
        endpoint += " stream" if case.view.stream else " whole"
    key = request_key(case.form, endpoint=endpoint, tenant=case.tenant, model=case.generation)
    return bytes.fromhex(key)
