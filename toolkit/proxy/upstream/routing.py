"""Chooses the upstream for a call: the least loaded of the healthy ones that serve the model. It holds no socket and no clock.

Load. Our own requests in flight are counted exactly. Other clients' come from the upstream's /metrics: what ran and waited
there at the last scrape, less ours at that moment. That ages: each `HALF_SCRAPES` missed scrapes halve it, so a page that stays
away neither draws all requests to one upstream nor keeps them from it for good.

Health. An upstream that is "left" gets no requests, or one as a trial. It is left at once after one refused connection, a refused
scrape, or a /health of 5xx; also after `IN_A_ROW` failures (5xx, no first byte in time, an answer cut off) without an answer
between them, and when it is stuck (`StallDetector`).
A scrape that merely took too long is no failure: a busy server's pages are late. An upstream that was left is tried again
after `back_s`, then after twice that, up to a minute: with one request at a time, or with a probe where it was stuck. Where pages
are scraped, a scrape that succeeds brings back an unreachable upstream, and counters that move a stuck one.

When all are left, the fallback is asked; without one, the least bad of those left, always: a refused connection costs
nothing, and a wrong verdict would be an outage of our own making. Full upstreams are not failed ones: then nobody is chosen, and
`is_ready` says that it is worth waiting.

`toolkit serve`, which starts engines itself, tells how long a start takes (`undrain`), and when one that it took out will be
back (`drain`); then requests wait for it (`back_in`). An address that is kept free for a successor (`spare`) is not counted at all.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import Final, Literal

from toolkit.proxy.config import RoutingSetting, UpstreamSetting

Outcome = Literal["ok", "left", "error", "refused", "timeout", "cut"]
"""How a request ended. ok: an answer below 500. left: the client went away, which says nothing. error: 5xx. refused: no
connection. timeout: no first byte in time. cut: the answer broke off."""
ScrapeFailure = Literal["refused", "unhealthy", "timeout", "other"]
"""Why a scrape failed. unhealthy: /health answered 5xx, so the engine is dead or loading. other: e.g., a page of 404."""
Reason = Literal["failing", "unreachable", "stuck"]
Drained = Literal["order", "restart", "spare"]
"""Why an upstream gets no requests. order: an admin drained it. restart: it is being started again. spare: nothing runs there, it is
kept free for a successor."""

IN_A_ROW = 3
LONGEST_BACK_S = 60.0
HALF_SCRAPES = 3.0
FULLER = 1.25
"""With affinity an upstream may hold so many times the mean of all, and `SPARE` more (bounded loads: Mirrokni, Thorup,
Zadimoghaddam 2018); what goes beyond is asked of the prefix's next choice."""
SPARE = 2.0
BADNESS: dict[Reason | None, int] = {None: 0, "failing": 1, "unreachable": 2, "stuck": 3}
"""When all were left, the lowest is asked: a stuck one would hold a client until its deadline."""
OTHER: Final = "\0"
"""Stands for all models that no upstream names."""

Signs = tuple[float | None, ...]
"""What an engine counts while it works, None where it does not tell: prompt tokens, output tokens, engine steps (e.g.,
`vllm:iteration_tokens_total_count`), the share of KV blocks in use."""


@dataclass(slots=True, kw_only=True, eq=False)
class StallDetector:
    """Whether a server that says it is well still makes tokens. All times are seconds of the caller's one clock.

    /health stays 200 while decoding hangs, so it is no sign of life. Signs are bytes of ours from it, and any change of what its
    engine counts: prompt and output tokens, steps, the share of KV blocks in use. Where work is under way and no sign came for
    `stuck_s`, it is suspect: it is asked for one token. A probe that is answered clears it; one that is not, while no other
    sign came either, says that it is stuck.

    Seen on vLLM 0.32 (CPU, 256 tokens a step): through a prefill of 34 s prompt tokens, output tokens and steps stood still and a
    probe sent after 4 s waited 29 s, so that only the KV blocks told it from a hang; they moved at least each 3.2 s. With its
    engine's processes stopped all four stood still, also when requests came and left, while /metrics and /health answered 200.

    With scrapes and questions each second: 1 s until the last sign is seen, 4 s of silence, 1 s to the next question, 3 s for
    the probe. So a stuck server is known after 9 s at the latest.
    """

    stuck_s: float
    probe_s: float
    alive_s: float = 0.0
    """When it last gave a sign, or got its first work."""
    in_flight: int = 0
    """Requests of ours that are under way there."""
    theirs: bool = False
    """It says that requests run or wait, whosever they are; or it does not answer at all."""
    probe_began_s: float | None = None
    signs: Signs = ()

    @property
    def has_work(self) -> bool:
        """Whether it has anything to make tokens for."""
        return self.in_flight > 0 or self.theirs

    def scraped(self, signs: Signs, *, busy: bool, now: float) -> bool:
        """Take what its /metrics said; return whether its engine has moved since the last time."""
        moved = any(
            old is not None and new is not None and old != new
            for old, new in zip(self.signs, signs, strict=False)
        )
        if moved or not self.has_work:
            self.alive_s = now
        self.signs, self.theirs = signs, busy
        return moved

    def missed_scrape(self, now: float) -> None:
        """It took the connection and did not answer in time: it is busy or hangs, but not idle."""
        if not self.has_work:
            self.alive_s = now
        self.theirs = True

    def is_probed(self, now: float) -> bool:
        """Whether a probe is under way; one without an outcome counts as lost after twice its time."""
        return self.probe_began_s is not None and now - self.probe_began_s < 2 * self.probe_s

    def wants_probe(self, now: float) -> bool:
        """Whether to ask it for a token now."""
        return self.has_work and now - self.alive_s >= self.stuck_s and not self.is_probed(now)

    def probed(self, ok: bool | None, now: float) -> bool:
        """Take a probe's outcome (None: it could not be asked) and return whether the server is stuck."""
        began_s, self.probe_began_s = self.probe_began_s, None
        quiet = began_s is not None and self.alive_s <= began_s
        stuck = ok is False and quiet
        if not stuck:
            self.alive_s = now
        return stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What an upstream said about itself; None where it said nothing."""

    running: float | None = None
    waiting: float | None = None
    signs: Signs = ()
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
    """Requests it runs, ours among them, by its own page at the last scrape; None: it did not tell. So is `waiting`."""
    waiting: float | None
    others: float
    """Requests of others there, as far as its last scrape still counts."""
    limit: int | None
    fallback: bool
    failures: int
    """In a row."""
    back_in_s: float | None
    """Until it is tried again."""
    looked_s_ago: float | None
    models: frozenset[str] | None


@dataclass(slots=True, kw_only=True, eq=False)
class _Upstream(StallDetector):
    setting: UpstreamSetting
    limit: float
    """Most requests at a time; infinite where there is none."""
    turn: int = 0
    """When it was asked last, in turns."""
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
    """How long it is left the next time; 0: as long as the first time."""
    trying: int = 0
    """Requests sent there since it was left."""
    failures: int = 0
    """In a row."""
    load: EngineLoad = EngineLoad()
    others: float = 0.0
    """Requests of others there at its last scrape."""
    scraped_s: float | None = None
    models: frozenset[str] | None = None
    is_watched: bool = False
    """Its pages are scraped: then no request need find out whether it is back."""

    def serves(self, model: str | None) -> bool:
        """Whether it may serve the model: it names it, its models are unknown, or its setting replaces the model's name."""
        is_any = model is None or self.models is None or self.setting.model is not None
        return is_any or model in (self.models or ())

    def may_be_tried(self, now: float) -> bool:
        """For one that was left: whether its time out is over and it may get one request, as no scrape or probe tests it instead."""
        waits_for_scrape = self.is_watched and self.reason != "failing"
        return now >= self.until_s and not (self.trying or waits_for_scrape)

    def bring_back(self) -> None:
        """It is well again."""
        self.reason, self.next_back_s = None, 0.0
        self.trying = self.failures = 0


class Routing:
    """The upstreams of one proxy. All times are seconds of the caller's one clock."""

    def __init__(self, upstreams: Iterable[UpstreamSetting], setting: RoutingSetting) -> None:
        self._all: dict[str, _Upstream] = {}
        self._turn = 0
        self._given_up: list[str] = []
        self.take_settings(upstreams, setting)

    def take_settings(self, upstreams: Iterable[UpstreamSetting], setting: RoutingSetting) -> None:
        """Use these limits, times and upstreams from now on; those that stay keep their state."""
        before, self.setting, self._all = self._all, setting, {}
        for each in upstreams:
            one = self._all[each.name] = before.get(each.name) or _Upstream(
                setting=each, limit=inf, stuck_s=0.0, probe_s=0.0
            )
            one.setting, one.limit = each, each.concurrency or inf
            one.stuck_s, one.probe_s = setting.stuck_s, setting.probe_s
        self._find_models()

    def _find_models(self) -> None:
        """Work out which upstreams may be asked for which model: when that changes, and not at each request."""
        # all but those where nothing can answer: a spare address, or one drained by order that was never seen
        self._present = [
            each
            for each in self._all.values()
            if each.drained != "spare" and (each.drained != "order" or each.models is not None)
        ]
        open_ = [each for each in self._all.values() if each.drained is None]
        self._known: dict[str | None, list[_Upstream]] = {}
        for model in (
            None,
            OTHER,
            *(name for each in self._all.values() for name in each.models or ()),
        ):
            is_served = any(
                each.serves(model) and (not each.setting.fallback or model in (each.models or ()))
                for each in self._present
            )
            # where all are known to serve other models only, all may be asked: the engine's 404 says so
            self._known[model] = [each for each in open_ if each.serves(model) or not is_served]

    def choose(
        self,
        model: str | None,
        prefix: int | None,
        now: float,
        avoid: frozenset[str] = frozenset(),
    ) -> str | None:
        """Return the upstream to ask, or None if none can take a request now; `avoid`: those that this request has tried."""
        known = self._known.get(model, self._known[OTHER])
        if avoid:
            known = [each for each in known if each.setting.name not in avoid]
        for is_fallback in (False, True):
            well = [
                each
                for each in known
                if each.setting.fallback is is_fallback
                and (each.reason is None or each.may_be_tried(now))
            ]
            if well:
                break
        free = [each for each in well or known if each.in_flight < each.limit]
        if len(free) <= 1:
            return free[0].setting.name if free else None

        loads = {each.setting.name: each.in_flight + self._others(each, now) for each in free}
        if well and self.setting.affinity and prefix is not None:
            # rendezvous hashing: the same in every process, and an upstream that goes moves only its own prefixes
            seed = (prefix % 2**64).to_bytes(8, "big")
            most = FULLER * (sum(loads.values()) + 1) / len(loads) + SPARE
            return max(
                (name for name, load in loads.items() if load < most),
                key=lambda name: blake2b(name.encode(), key=seed, digest_size=8).digest(),
            )
        return min(
            free,
            key=lambda each: (
                0 if well else BADNESS[each.reason],
                loads[each.setting.name],
                each.turn,
            ),
        ).setting.name

    def is_ready(self, model: str | None, now: float) -> bool:
        """Whether any upstream for the model is healthy or may be tried, full or not."""
        known = self._known.get(model, self._known[OTHER])
        return any(each.reason is None or each.may_be_tried(now) for each in known)

    def back_in(self, model: str | None, now: float) -> float | None:
        """Seconds until an upstream that is being started again can be asked; None: another can be now, or nobody starts one."""
        for each in self._known.get(model, self._known[OTHER]):
            if each.reason is None or each.may_be_tried(now):
                return None
        times = []
        for each in self._present:
            if not each.serves(model):
                continue
            if each.drained == "restart":
                times.append(max(0.0, (each.back_s or now) - now))
            elif each.drained is None and each.reason == "unreachable" and each.start_s is not None:
                times.append(each.start_s)
        return min(times, default=None)

    def is_started_again(self, name: str) -> bool:
        """Whether this upstream is started again by its supervisor when it ends."""
        return self._all[name].start_s is not None

    def served_instead(self, model: str | None) -> tuple[str, ...]:
        """If it is known that no upstream serves this model: the models that are served. Else empty."""
        those = [
            each for each in self._present if each.models is not None or not each.setting.fallback
        ]
        if any(each.serves(model) for each in those):
            return ()
        return tuple(sorted({name for each in those for name in each.models or ()}))

    # what happened

    def started(self, name: str, now: float) -> None:
        """A request is sent there."""
        upstream = self._all[name]
        if not upstream.in_flight and not upstream.theirs:
            upstream.alive_s = now
        upstream.in_flight += 1
        self._turn = upstream.turn = self._turn + 1
        if upstream.reason is not None:
            upstream.trying += 1

    def got_bytes(self, name: str, now: float) -> None:
        """A part of an answer (2xx) came from there."""
        self._all[name].alive_s = now

    def ended(self, name: str, outcome: Outcome, now: float) -> None:
        """A request there is over."""
        upstream = self._all[name]
        upstream.in_flight -= 1
        was_tried = upstream.trying > 0
        if was_tried:
            upstream.trying -= 1
        if outcome == "ok":
            upstream.failures = 0
            if was_tried:
                upstream.bring_back()
        elif outcome != "left":
            upstream.failures += 1
            if outcome == "refused":
                self._leave(upstream, "unreachable", now)
            elif upstream.failures >= IN_A_ROW or was_tried:
                self._leave(upstream, upstream.reason or "failing", now)

    def scraped(self, name: str, load: EngineLoad, now: float) -> None:
        """A scrape succeeded."""
        upstream = self._all[name]
        upstream.is_watched, upstream.scraped_s = True, now
        upstream.load = load
        there = (load.running or 0.0) + (load.waiting or 0.0)
        upstream.others = max(0.0, there - upstream.in_flight)
        if load.models is not None and load.models != upstream.models:
            upstream.models = load.models
            self._find_models()
        moved = upstream.scraped(load.signs, busy=there > 0, now=now)
        if upstream.reason == "unreachable" or (upstream.reason == "stuck" and moved):
            upstream.bring_back()

    def scrape_failed(self, name: str, reason: ScrapeFailure, now: float) -> None:
        """A scrape failed."""
        upstream = self._all[name]
        upstream.is_watched, upstream.load = True, EngineLoad()
        if reason == "timeout":
            upstream.missed_scrape(now)
        elif reason in ("refused", "unhealthy"):
            self._leave(upstream, "unreachable", now)

    def wants_probe(self, now: float) -> tuple[str, ...]:
        """Who is to be asked for one token now; report to `probed` how it went. Each is named once until then."""
        names = []
        for name, each in self._all.items():
            if each.reason == "stuck":
                is_wanted = now >= each.until_s and not each.is_probed(now)
            else:
                is_wanted = each.reason is None and each.wants_probe(now)
            if is_wanted and each.setting.is_watched:
                each.probe_began_s = now
                names.append(name)
        return tuple(names)

    def probed(self, name: str, ok: bool | None, now: float) -> None:
        """Whether the token came in time; None: it could not be asked for, e.g., no model is known there."""
        upstream = self._all[name]
        stuck = upstream.probed(ok, now)
        if ok and upstream.reason in (None, "stuck"):
            upstream.bring_back()
        elif upstream.reason == "stuck":
            self._leave(upstream, "stuck", now)
        elif stuck and upstream.reason is None:
            self._given_up.append(name)
            self._leave(upstream, "stuck", now)

    def given_up(self) -> tuple[str, ...]:
        """Upstreams found stuck since the last question: their calls without a byte are to be asked elsewhere, if there is one."""
        names, self._given_up = tuple(self._given_up), []
        return names

    def drain(self, name: str, why: Drained = "order", back_s: float | None = None) -> None:
        """Send nothing more there; what is under way ends. `back_s`: when it will be back, by the caller's clock."""
        upstream = self._all[name]
        upstream.drained, upstream.back_s = why, back_s
        self._find_models()

    def undrain(self, name: str, start_s: float | None = None) -> None:
        """Send there again. `start_s`: so long a start takes, and whoever says so starts it again should it end."""
        upstream = self._all[name]
        upstream.drained, upstream.start_s = None, start_s
        self._find_models()

    def states(self, now: float) -> tuple[UpstreamState, ...]:
        """Return the state of every upstream, in the order of the settings."""
        states = []
        for each in self._all.values():
            state: Literal["up", "trying", "left"] = "up"
            if each.reason is not None:
                state = "trying" if each.trying or now >= each.until_s else "left"
            states.append(
                UpstreamState(
                    name=each.setting.name,
                    state=state,
                    reason=each.reason,
                    draining=each.drained is not None,
                    in_flight=each.in_flight,
                    running=each.load.running,
                    waiting=each.load.waiting,
                    others=self._others(each, now),
                    limit=each.setting.concurrency,
                    fallback=each.setting.fallback,
                    failures=each.failures,
                    back_in_s=each.until_s - now if state == "left" else None,
                    looked_s_ago=None if each.scraped_s is None else now - each.scraped_s,
                    models=each.models,
                )
            )
        return tuple(states)

    def _others(self, upstream: _Upstream, now: float) -> float:
        """Requests of others there, as far as its last scrape still counts."""
        if not upstream.others or upstream.scraped_s is None:
            return 0.0
        missed = max(0.0, (now - upstream.scraped_s) / self.setting.look_s - 1.0)
        return float(upstream.others * 0.5 ** (missed / HALF_SCRAPES))

    def _leave(self, upstream: _Upstream, reason: Reason, now: float) -> None:
        """Stop using it, or for longer where a trial failed; further failures meanwhile change nothing."""
        if upstream.reason is not None and now < upstream.until_s:
            # a process that is gone comes back as another: its scrapes will tell
            upstream.reason = reason if reason == "unreachable" else upstream.reason
            return
        back_s = upstream.next_back_s or self.setting.back_s
        upstream.reason = reason
        upstream.until_s = now + back_s
        upstream.next_back_s = min(LONGEST_BACK_S, 2 * back_s)
