"""Which upstream is asked: the least loaded of those that are well and serve the model. It knows no socket and no clock.

Load. Our own requests under way are counted here, to the one. Others' come from the upstream's /metrics: what ran and
waited there at the last look, less ours at that moment. That ages: after `HALF_LOOKS` looks without a new one it counts half, so a
page that stays away neither draws all requests to one upstream nor keeps them from it for good.

Health. One refused connection, a look that was refused, or a /health of 5xx: the upstream is left at once. So it is after `IN_A_ROW`
failures (5xx, no first byte in time, an answer cut off) without an answer between them, and when it is stuck (stuck.py).
A look that merely took too long is no failure: a busy server's pages are late. An upstream that was left is tried again
after `back_s`, then after twice that, up to a minute: with one request at a time, or with a probe where it was stuck. Where pages
are looked at, a look that comes brings back one that could not be reached, and tokens that move one that was stuck.

When all are left, the fallback is asked; without one, the least bad of those left, always: a refused connection costs
nothing, and a wrong verdict would be an outage of our own making. Full upstreams are not failed ones: then nobody is chosen, and
`is_ready` says that it is worth waiting.

Whoever starts upstreams itself (`toolkit serve`) says so: how long a start takes (`undrain`), and when one that it keeps out will
be back (`drain`). Then requests wait for it (`back_in`). A place that is kept free for a successor counts for nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from typing import Literal

from toolkit.proxy.settings import RoutingSetting, UpstreamSetting
from toolkit.proxy.upstreams.stuck import Pulse

Outcome = Literal["ok", "left", "error", "refused", "timeout", "cut"]
"""How a request ended. ok: an answer below 500. left: the client went away, which says nothing. error: 5xx. refused: no
connection. timeout: no first byte in time. cut: the answer broke off."""
LookFailure = Literal["refused", "unhealthy", "timeout", "other"]
"""Why a look failed. unhealthy: /health answered 5xx, so the engine is dead or loading. other: e.g., a page of 404."""
Reason = Literal["failing", "unreachable", "stuck"]
Drained = Literal["order", "restart", "spare"]
"""Why an upstream is sent nothing. order: somebody wants it so, for as long as he likes. restart: it is being started again. spare:
nobody is there, it is the place of a successor."""

IN_A_ROW = 3
LONGEST_BACK_S = 60.0
HALF_LOOKS = 3.0
FULLER = 1.25
"""With affinity an upstream may hold so many times the mean of all, and `SPARE` more (bounded loads: Mirrokni, Thorup,
Zadimoghaddam 2018); what goes beyond is asked of the prefix's next choice."""
SPARE = 2.0
BADNESS: dict[Reason | None, int] = {None: 0, "failing": 1, "unreachable": 2, "stuck": 3}
"""Whom to ask when all were left: what is stuck would hold a client until its deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What an upstream said about itself; None where it said nothing."""

    running: float | None = None
    waiting: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    steps_total: float | None = None
    """Engine steps, e.g., `vllm:iteration_tokens_total_count`."""
    kv_cache_usage: float | None = None
    models: frozenset[str] | None = None
    """Names it answers to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamState:
    """What is known of one upstream now."""

    name: str
    state: Literal["up", "trying", "left"]
    reason: Reason | None
    """Why it was left."""
    draining: bool
    in_flight: int
    running: float | None
    """Requests it runs, ours among them, by its own page at the last look; None: it did not tell. So is `waiting`."""
    waiting: float | None
    others: float
    """Requests of others there, as far as its last look still counts."""
    limit: int | None
    fallback: bool
    failures: int
    """In a row."""
    back_in_s: float | None
    """Until it is tried again."""
    looked_s_ago: float | None
    models: frozenset[str] | None


@dataclass(slots=True, kw_only=True, eq=False)
class _Upstream:
    setting: UpstreamSetting
    pulse: Pulse
    salt: bytes
    in_flight: int = 0
    turn: int = 0
    drained: Drained | None = None
    back_s: float | None = None
    """When a drained one will be back, as far as that is known."""
    start_s: float | None = None
    """How long its start takes, where somebody starts it again should it end; None: nobody is known to."""
    reason: Reason | None = None
    """Why it was left; None: it is well."""
    until_s: float = 0.0
    """When one that was left may be tried."""
    next_back_s: float = 0.0
    trying: int = 0
    """Requests sent there since it was left."""
    failures: int = 0
    running: float | None = None
    waiting: float | None = None
    others: float = 0.0
    looked_s: float | None = None
    models: frozenset[str] | None = None
    is_watched: bool = False
    """Its pages are looked at: then no request need find out whether it is back."""

    @property
    def is_full(self) -> bool:
        limit = self.setting.concurrency
        return limit is not None and self.in_flight >= limit

    def serves(self, model: str | None) -> bool:
        """Not known to serve other models only; one that is asked for a model of its own serves any."""
        known = self.models is not None and model is not None and self.setting.model is None
        return not known or model in (self.models or ())

    @property
    def is_absent(self) -> bool:
        """Nobody is there who could serve anything: a free place, or one that is kept out and was never seen."""
        return self.drained == "spare" or (self.drained == "order" and self.models is None)

    def back_in(self, now: float) -> float | None:
        """Seconds until it can be asked again, where somebody starts it; None: nobody does, or it is well."""
        if self.drained == "restart":
            return max(0.0, (self.back_s or now) - now)
        return self.start_s if self.drained is None and self.reason == "unreachable" else None

    def names(self, model: str | None) -> bool:
        """Known to serve it."""
        return self.models is not None and model in self.models

    def may_be_tried(self, now: float) -> bool:
        """Left, and its time is over: one request at a time, unless a look or a probe is to tell."""
        asks_itself = self.is_watched and self.reason != "failing"
        return self.reason is not None and now >= self.until_s and not (self.trying or asks_itself)


class Routing:
    """The upstreams of one proxy. All times are seconds of the caller's one clock."""

    def __init__(self, upstreams: Iterable[UpstreamSetting], setting: RoutingSetting) -> None:
        self.setting = setting
        self._all = {each.name: _made(each, setting) for each in upstreams}
        self._turns = count(1)
        self._given_up: list[str] = []

    def choose(
        self,
        model: str | None,
        prefix: int | None,
        now: float,
        avoid: frozenset[str] = frozenset(),
    ) -> str | None:
        """The upstream to ask, or None if none can be asked now; `avoid` names those that a request was at already."""
        known = self._known(model, avoid)
        for primary in (True, False):
            those = [each for each in known if each.setting.fallback is not primary]
            well = [each for each in those if each.reason is None or each.may_be_tried(now)]
            if well:
                return self._one_of([each for each in well if not each.is_full], prefix, now)
        left = [each for each in known if not each.is_full]
        if not left:
            return None
        return min(
            left, key=lambda each: (BADNESS[each.reason], each.in_flight, each.turn)
        ).setting.name

    def is_ready(self, model: str | None, now: float) -> bool:
        """Whether an upstream is well or may be tried, full or not."""
        return any(
            each.reason is None or each.may_be_tried(now)
            for each in self._known(model, frozenset())
        )

    def back_in(self, model: str | None, now: float) -> float | None:
        """Seconds until an upstream that is being started again can be asked; None: another can be now, or nobody starts one."""
        those = [each for each in self._all.values() if not each.is_absent and each.serves(model)]
        if any(
            each.drained is None and (each.reason is None or each.may_be_tried(now))
            for each in those
        ):
            return None
        return min((s for each in those if (s := each.back_in(now)) is not None), default=None)

    def is_started_again(self, name: str) -> bool:
        """Whether somebody starts this upstream again should it end."""
        return self._all[name].start_s is not None

    def served_instead(self, model: str | None) -> tuple[str, ...]:
        """All models that are served, where it is known that this one is not; empty: somebody may serve it."""
        those = [
            each
            for each in self._all.values()
            if not each.is_absent and (each.models is not None or not each.setting.fallback)
        ]
        if model is None or any(each.serves(model) for each in those):
            return ()
        return tuple(sorted({name for each in those for name in each.models or ()}))

    # what happened

    def started(self, name: str, now: float) -> None:
        """A request is sent there."""
        upstream = self._all[name]
        upstream.in_flight += 1
        upstream.turn = next(self._turns)
        upstream.pulse.began(now)
        if upstream.reason is not None:
            upstream.trying += 1

    def got_bytes(self, name: str, now: float) -> None:
        """A part of an answer (2xx) came from there."""
        self._all[name].pulse.alive_s = now

    def ended(self, name: str, outcome: Outcome, now: float) -> None:
        """A request there is over."""
        upstream = self._all[name]
        upstream.in_flight = max(0, upstream.in_flight - 1)
        upstream.pulse.ended()
        was_tried = upstream.trying > 0
        upstream.trying = max(0, upstream.trying - 1)
        if outcome == "left":
            return
        if outcome == "ok":
            upstream.failures = 0
            if was_tried:
                _bring_back(upstream)
            return
        upstream.failures += 1
        if outcome == "refused":
            self._leave(upstream, "unreachable", now)
        elif upstream.failures >= IN_A_ROW or was_tried:
            self._leave(upstream, upstream.reason or "failing", now)

    def looked(self, name: str, look: Look, now: float) -> None:
        """Its pages came."""
        upstream = self._all[name]
        upstream.is_watched, upstream.looked_s = True, now
        upstream.running, upstream.waiting = look.running, look.waiting
        there = (look.running or 0.0) + (look.waiting or 0.0)
        upstream.others = max(0.0, there - upstream.in_flight)
        upstream.models = look.models if look.models is not None else upstream.models
        signs = (
            look.prompt_tokens_total,
            look.generation_tokens_total,
            look.steps_total,
            look.kv_cache_usage,
        )
        moved = upstream.pulse.looked(signs, busy=there > 0, now=now)
        if upstream.reason == "unreachable" or (upstream.reason == "stuck" and moved):
            _bring_back(upstream)

    def failed_look(self, name: str, reason: LookFailure, now: float) -> None:
        """Its pages did not come."""
        upstream = self._all[name]
        upstream.is_watched, upstream.running, upstream.waiting = True, None, None
        if reason == "timeout":
            upstream.pulse.missed_look(now)
        elif reason in ("refused", "unhealthy"):
            self._leave(upstream, "unreachable", now)

    def wants_probe(self, now: float) -> tuple[str, ...]:
        """Who is to be asked for one token now; tell `probed` how it went. Each is named once until then."""
        names = []
        for name, upstream in self._all.items():
            if not upstream.setting.is_watched or upstream.reason in ("unreachable", "failing"):
                continue
            pulse = upstream.pulse
            overdue = pulse.probe_began_s is None or now - pulse.probe_began_s >= 2 * pulse.probe_s
            again = upstream.reason == "stuck" and now >= upstream.until_s and overdue
            if again or (upstream.reason is None and pulse.wants_probe(now)):
                pulse.probe_began_s = now
                names.append(name)
        return tuple(names)

    def probed(self, name: str, ok: bool | None, now: float) -> None:
        """Whether the token came in time; None: it could not be asked for, e.g., no model is known there."""
        upstream = self._all[name]
        stuck = upstream.pulse.probed(ok, now)
        if ok and upstream.reason in (None, "stuck"):
            _bring_back(upstream)
        elif stuck and upstream.reason is None:
            self._given_up.append(name)
            self._leave(upstream, "stuck", now)
        elif upstream.reason == "stuck":
            self._leave(upstream, "stuck", now)

    def given_up(self) -> tuple[str, ...]:
        """Upstreams found stuck since the last question: their calls without a byte are to be asked elsewhere, if there is one."""
        names, self._given_up = tuple(self._given_up), []
        return names

    def drain(self, name: str, why: Drained = "order", back_s: float | None = None) -> None:
        """Send nothing more there; what is under way ends. `back_s`: when it will be back, by the caller's clock."""
        upstream = self._all[name]
        upstream.drained, upstream.back_s = why, back_s

    def undrain(self, name: str, start_s: float | None = None) -> None:
        """Send there again. `start_s`: so long a start takes, and whoever says so starts it again should it end."""
        upstream = self._all[name]
        upstream.drained, upstream.start_s = None, start_s

    def states(self, now: float) -> tuple[UpstreamState, ...]:
        """All upstreams, as they were named."""
        return tuple(self._state(each, now) for each in self._all.values())

    # how it decides

    def _known(self, model: str | None, avoid: frozenset[str]) -> list[_Upstream]:
        """Those that may be asked for a model; where all are known to serve others only, all: the answer says so itself."""
        open_ = [
            each for name, each in self._all.items() if each.drained is None and name not in avoid
        ]
        if any(
            each.serves(model) if not each.setting.fallback else each.names(model)
            for each in self._all.values()
            if not each.is_absent
        ):
            return [each for each in open_ if each.serves(model)]
        return open_

    def _one_of(self, upstreams: Sequence[_Upstream], prefix: int | None, now: float) -> str | None:
        if not upstreams:
            return None
        loads = {each.setting.name: each.in_flight + self._others(each, now) for each in upstreams}
        if self.setting.affinity and prefix is not None:
            most = FULLER * (sum(loads.values()) + 1) / len(loads) + SPARE
            near = [each for each in upstreams if loads[each.setting.name] < most]
            return max(near, key=lambda each: _rank(prefix, each.salt)).setting.name
        chosen = min(upstreams, key=lambda each: (loads[each.setting.name], each.turn))
        return chosen.setting.name

    def _others(self, upstream: _Upstream, now: float) -> float:
        if upstream.looked_s is None or not upstream.others:
            return 0.0
        looks = max(0.0, now - upstream.looked_s) / self.setting.look_s - 1.0
        return float(upstream.others * 0.5 ** (max(0.0, looks) / HALF_LOOKS))

    def _leave(self, upstream: _Upstream, reason: Reason, now: float) -> None:
        """Leave it, or leave it for longer where it was tried in vain; other failures meanwhile say nothing new."""
        if upstream.reason is not None and now < upstream.until_s:
            # a process that is gone comes back as another: its looks will tell
            upstream.reason = reason if reason == "unreachable" else upstream.reason
            return
        back_s = upstream.next_back_s or self.setting.back_s
        upstream.reason = reason
        upstream.until_s = now + back_s
        upstream.next_back_s = min(LONGEST_BACK_S, 2 * back_s)

    def _state(self, upstream: _Upstream, now: float) -> UpstreamState:
        trying = upstream.reason is not None and (upstream.trying or now >= upstream.until_s)
        waits = upstream.reason is not None and not trying
        return UpstreamState(
            name=upstream.setting.name,
            state="up" if upstream.reason is None else "trying" if trying else "left",
            reason=upstream.reason,
            draining=upstream.drained is not None,
            in_flight=upstream.in_flight,
            running=upstream.running,
            waiting=upstream.waiting,
            others=self._others(upstream, now),
            limit=upstream.setting.concurrency,
            fallback=upstream.setting.fallback,
            failures=upstream.failures,
            back_in_s=upstream.until_s - now if waits else None,
            looked_s_ago=None if upstream.looked_s is None else now - upstream.looked_s,
            models=upstream.models,
        )


def _made(setting: UpstreamSetting, routing: RoutingSetting) -> _Upstream:
    pulse = Pulse(stuck_s=routing.stuck_s, probe_s=routing.probe_s)
    return _Upstream(setting=setting, pulse=pulse, salt=setting.name.encode())


def _bring_back(upstream: _Upstream) -> None:
    upstream.reason = None
    upstream.next_back_s = 0.0
    upstream.trying = upstream.failures = 0


def _rank(prefix: int, salt: bytes) -> bytes:
    """Rendezvous hashing: the same in every process, and an upstream that goes moves only its own prefixes."""
    seed = (prefix % 2**64).to_bytes(8, "big")
    return blake2b(salt, key=seed, digest_size=8).digest()
