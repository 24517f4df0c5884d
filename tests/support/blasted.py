"""A blast in a database, written by the store's own code and repeated exactly by its seed: for boards, pages, browsers.

    run = blasted(tmp_path / "toolkit.db", hosts=8, seconds=1200)        ended 1,200 s after started_at
    run = blasted(path, seconds=900, started_at=time.time() - 900, ended=False)
    feed(path, run, 900)                                                  the next second, e.g., for a live page

Who stands in it, in the order of the hosts file (with fewer `hosts` the last are left out):

    memory      answers 80 % from memory in 3 ms and says so nowhere; its twins come back word for word
    one-token   sends one token of what was asked for, quickly
    restarter   refuses connections in downtime(seconds), and was another process with other settings afterwards
    told-cache  answers half from memory in 3 ms, with a `Cache-Status` header
    dead        was planned and refuses every connection
    plain-05 ...  honest servers, each 2 % slower than the one before

`rps` is what `plain-05` answers; memory does six times that, one-token four times, told-cache twice, restarter as much,
and 1.3 times as much after its restart. Half of the answers are streams. One request in a thousand fails.

Beside the ranked tallies: canary tallies (1 % of the requests); canary shots, a unique one and its twin per host every
5 s; a sighting of each host every 30 s, with counters that agree with the tallies, and a start time; a second of the
load generator for every second, three of them limited (LIMITED); events: start, a phase at a third, a mark on
restarter at the end of its downtime, stop.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from support import shots

from toolkit.records import (
    ErrorCount,
    Event,
    Host,
    LoaderSecond,
    RequestRecord,
    Run,
    Sighting,
    Tally,
    TallyKind,
)
from toolkit.stats import ALPHA, BELOW_MS, BUCKETS
from toolkit.store import Store

STARTED_AT = 1_750_000_000.0
WORKER = "w1"
LIMITED = (100, 101, 102)
"""Seconds from the start in which the load generator was the limit."""
CANARY_SHARE = 0.01
PAIR_S = 5
LOOK_S = 30
TOKENS = 120
"""Of an honest answer, on average."""
ERROR_SHARE = 0.001
DOWN_ERRORS = 0.53
"""Refused requests while restarter is down / requests otherwise: 5 minutes of 0.53 r make 21 % of 10 minutes of r."""
_LOG_GAMMA = math.log((1 + ALPHA) / (1 - ALPHA))


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """How one server behaves."""

    name: str
    pace: float = 1.0
    """Its requests a second / those of `plain-05`."""
    hit_share: float = 0.0
    tells_cache: bool = False
    tokens: int = TOKENS
    first_ms: float = 150.0
    e2e_ms: float = 2500.0
    restarts: bool = False
    is_dead: bool = False


CAST = (
    Role(name="memory", pace=6.0, hit_share=0.8),
    Role(name="one-token", pace=4.0, tokens=1, first_ms=60.0, e2e_ms=60.0),
    Role(name="restarter", restarts=True),
    Role(name="told-cache", pace=2.0, hit_share=0.5, tells_cache=True),
    Role(name="dead", is_dead=True),
)


def roles(hosts: int) -> list[Role]:
    """Who takes part, in the order of the hosts file."""
    plain = (
        Role(name=f"plain-{n:02}", pace=0.98 ** (n - 5), e2e_ms=2500.0 / 0.98 ** (n - 5))
        for n in range(len(CAST), hosts)
    )
    return [*CAST, *plain][:hosts]


def host(number: int, role: Role) -> Host:
    return Host(name=role.name, url=f"http://10.0.0.{number + 1}:8000", team=f"team-{number}")


def downtime(seconds: int) -> tuple[int, int]:
    """First second of restarter's downtime and the first after it, from the start: 5 minutes, or a sixth of a short run."""
    start = seconds * 2 // 5
    return start, start + min(300, seconds // 6)


def blasted(
    path: Path,
    *,
    hosts: int = 20,
    seconds: int = 1800,
    seed: int = 0,
    started_at: float = STARTED_AT,
    rps: float = 20.0,
    ended: bool = True,
) -> Run:
    """Write a run into a new or an old file; it has an end when it `ended`."""
    settings = {"users": 8 * hosts, "duration_s": float(seconds), "profile": "contest"}
    settings |= {"users_per_host": 8, "load_generator": ["loader-1"], "non_neutral": None}
    settings["fixture"] = {"hosts": hosts, "seconds": seconds, "seed": seed, "rps": rps}
    number = int(started_at * 1000) * 1000 + seed
    run = Run(
        id=f"{number % 16**12:012x}",
        verb="blast",
        started_at=started_at,
        settings=json.dumps(settings),
    )
    cast = [(host(n, role), role) for n, role in enumerate(roles(hosts))]
    told = [_Host(run, each, role, seconds, rps, [seed, n]) for n, (each, role) in enumerate(cast)]
    with Store.open(path) as store:
        store.add_run(run)
        store.plan_hosts(run.id, [each for each, _ in cast])
        for start in range(0, seconds, 60):
            chunk = range(start, min(start + 60, seconds))
            store.add_second(
                [tally for second in chunk for each in told for tally in each.tallies(second)],
                [_loader_second(run, second, hosts) for second in chunk],
                [
                    shot
                    for second in chunk[::PAIR_S]
                    for each in told
                    for shot in each.canaries(second)
                ],
            )
            looks = range(start, min(start + 60, seconds), LOOK_S)
            store.add_sightings([each.sighting(second) for second in looks for each in told])
        for event in _events(run, seconds, cast, ended=ended):
            store.add_event(event)
        if ended:
            store.end_run(run.id, ended_at=started_at + seconds, client_ok=True)
    return replace(run, ended_at=started_at + seconds, client_ok=True) if ended else run


def feed(path: Path | Store, run: Run, second: int) -> None:
    """Append one second, counted from the start; a Store that is open already is faster than a path."""
    if not isinstance(path, Store):
        with Store.open(path) as store:
            return feed(store, run, second)
    made = json.loads(run.settings)["fixture"]
    told = [
        _Host(run, host(n, role), role, made["seconds"], made["rps"], [made["seed"], n, second])
        for n, role in enumerate(roles(made["hosts"]))
    ]
    for each in told:
        each.only(second)
    path.add_second(
        [tally for each in told for tally in each.tallies(second)],
        [_loader_second(run, second, made["hosts"])],
        [shot for each in told if second % PAIR_S == 0 for shot in each.canaries(second)],
    )
    return None


def _loader_second(run: Run, second: int, hosts: int) -> LoaderSecond:
    limited = second in LIMITED
    return LoaderSecond(
        run=run.id,
        at_s=math.floor(run.started_at) + second,
        worker=WORKER,
        users=8 * hosts,
        cpu_share=0.97 if limited else 0.4,
        lag_ms=250.0 if limited else 3.0,
        limited=limited,
    )


def _events(
    run: Run, seconds: int, cast: Sequence[tuple[Host, Role]], *, ended: bool
) -> Iterator[Event]:
    at = run.started_at
    yield Event(run=run.id, at=at, kind="start", text=f"{len(cast)} hosts")
    yield Event(run=run.id, at=at + seconds // 3, kind="phase", text="full load")
    for each, role in cast:
        if role.restarts:
            back = at + downtime(seconds)[1]
            text = "swapped to GPTQ"
            yield Event(name=each.name, url=each.url, at=back, kind="mark", text=text)
    if ended:
        yield Event(run=run.id, at=at + seconds, kind="stop")


@dataclass(slots=True)
class _Counted:
    """One kind of requests of one host, by second."""

    ok: np.ndarray
    errors: np.ndarray
    error_kind: str
    streamed: np.ndarray
    hits: np.ndarray
    tokens: np.ndarray
    e2e: list[bytes]
    ttft: list[bytes]


class _Host:
    """Everything that happened to one host."""

    def __init__(
        self, run: Run, who: Host, role: Role, seconds: int, rps: float, seed: list[int]
    ) -> None:
        self._run, self._host, self._role, self._seconds, self._rps = run, who, role, seconds, rps
        self._down = range(*downtime(seconds)) if role.restarts else range(0)
        self._chance = np.random.default_rng(seed)
        self._first = 0
        self._kinds: dict[TallyKind, _Counted] = {}
        self._totals = np.zeros(0)

    def only(self, second: int) -> None:
        """Make just this second."""
        self._first, self._seconds = second, second + 1

    def _made(self) -> dict[TallyKind, _Counted]:
        if not self._kinds:
            self._kinds = {
                "ranked": self._counted(1 - CANARY_SHARE, self._role.hit_share),
                # half of the canaries are twins: only these can be remembered
                "canary": self._counted(CANARY_SHARE, self._role.hit_share and 0.5),
            }
        return self._kinds

    def _counted(self, share: float, hit_share: float) -> _Counted:
        role, chance = self._role, self._chance
        at = np.arange(self._first, self._seconds)
        down = np.isin(at, self._down) if len(self._down) else np.zeros(len(at), bool)
        faster = np.where(at >= self._down.stop, 1.3, 1.0) if len(self._down) else 1.0
        pace = self._rps * share * role.pace * faster
        ok = chance.poisson(np.where(down | role.is_dead, 0.0, pace))
        failing = np.where(down, DOWN_ERRORS, 1.0 if role.is_dead else ERROR_SHARE)
        errors = chance.poisson(failing * pace)
        of = np.repeat(np.arange(len(at)), ok)
        hit = chance.random(len(of)) < hit_share
        e2e = np.where(
            hit,
            chance.lognormal(math.log(3.0), 0.2, len(of)),
            chance.lognormal(math.log(role.e2e_ms), 0.25, len(of)),
        )
        stream = chance.random(len(of)) < 0.5
        ttft = e2e * np.where(hit, 0.7, role.first_ms / role.e2e_ms)
        return _Counted(
            ok=ok,
            errors=errors,
            error_kind="connect" if role.is_dead or role.restarts else "http_500",
            streamed=_sums(of[stream], len(at)),
            hits=_sums(of[hit], len(at)),
            tokens=ok * role.tokens,
            e2e=_sketches(e2e, of, len(at)),
            ttft=_sketches(ttft[stream], of[stream], len(at)),
        )

    def tallies(self, second: int) -> Iterator[Tally]:
        """What ended in a second, by kind; nothing where nothing ended."""
        role, at = self._role, second - self._first
        for kind, made in self._made().items():
            ok, errors, hits = int(made.ok[at]), int(made.errors[at]), int(made.hits[at])
            if not ok and not errors:
                continue
            judged = ok if role.hit_share and not role.tells_cache and kind == "ranked" else 0
            yield Tally(
                run=self._run.id,
                name=self._host.name,
                url=self._host.url,
                at_s=math.floor(self._run.started_at) + second,
                worker=WORKER,
                kind=kind,
                ok=ok,
                errors=errors,
                error_kinds=(ErrorCount(kind=made.error_kind, count=errors),) if errors else (),
                streamed=int(made.streamed[at]),
                prompt_tokens=30 * ok,
                output_tokens=int(made.tokens[at]),
                cache_told=ok if role.tells_cache else 0,
                cache_hits=hits if role.tells_cache else 0,
                cache_judged=judged,
                cache_inferred=min(hits, judged),
                e2e=made.e2e[at],
                ttft=made.ttft[at],
            )

    def canaries(self, second: int) -> list[RequestRecord]:
        """A unique request and its twin that left in a second; equal slots are the same template at every host."""
        role, number = self._role, 2 * (second // PAIR_S)
        at = self._run.started_at + second
        own = {"run": self._run.id, "name": self._host.name, "url": self._host.url}
        sent = {"planned_at": at, "sent_at": at, "concurrency": None}
        plain = {"prompt": f"p{number // 2 % 2}", "stream": number % 4 < 2, **sent, **own}
        if role.is_dead or second in self._down:
            return [shots.failed(number, "connect", status_code=None, **plain)]
        unique = shots.shot(
            number,
            tokens=role.tokens if role.tokens == 1 else 100 + number // 2 % 40,
            first_ms=role.first_ms,
            token_ms=(role.e2e_ms - role.first_ms) / TOKENS,
            text_hash=f"{role.name}-{number}",
            answer_id=f"{role.name}-id-{number}",
            cache_status="miss" if role.tells_cache else None,
            **plain,
        )
        later = {**sent, "sent_at": at + 3, "planned_at": at + 3}
        again = {"answer_id": f"{role.name}-id-{number + 1}", **later}
        if role.hit_share:
            status = "hit" if role.tells_cache else None
            return [unique, shots.replayed(unique, number + 1, cache_status=status, **again)]
        text = f"{role.name}-{number + 1}"
        return [unique, shots.twin(unique, number + 1, text_hash=text, **again)]

    def sighting(self, second: int) -> Sighting:
        """What scout sees: counters up to this second, from anew after the restart."""
        role, at = self._role, self._run.started_at + second
        who = {"name": self._host.name, "url": self._host.url, "at": at}
        if role.is_dead or second in self._down:
            return Sighting(**who, status="down", error="connection refused")
        again = len(self._down) > 0 and second >= self._down.stop
        since = self._down.stop if again else 0
        made = self._made()
        answered = sum(int(made[kind].ok[since:second].sum()) for kind in made)
        computed = answered - sum(int(made[kind].hits[since:second].sum()) for kind in made)
        return Sighting(
            **who,
            status="ok",
            latency_ms=2.0,
            engine="vllm",
            dialect="v1",
            version="0.32.0",
            model="tiny",
            models=("tiny",),
            max_model_len=4096,
            running=8.0,
            waiting=0.0,
            kv_cache_usage=0.3,
            preemptions_total=0.0,
            requests_total=float(computed),
            prompt_tokens_total=30.0 * computed,
            generation_tokens_total=float(TOKENS if role.tokens > 1 else role.tokens) * computed,
            config_hash="gptq" if again else "fp16",
            started_at=self._run.started_at + since if again else self._run.started_at - 3600,
        )


def _sums(of: np.ndarray, seconds: int) -> np.ndarray:
    return np.bincount(of, minlength=seconds)


def _sketches(values_ms: np.ndarray, of: np.ndarray, seconds: int) -> list[bytes]:
    """Each second's sketch, as toolkit.stats writes it; `of` is each value's second, rising."""
    bucket = np.floor(np.log(values_ms / BELOW_MS) / _LOG_GAMMA).astype(np.int64) + 1
    bucket = np.clip(np.where(values_ms <= BELOW_MS, 0, bucket), 0, BUCKETS - 1)
    key, count = np.unique(of * BUCKETS + bucket, return_counts=True)
    assert not len(count) or count.max() <= 65_535
    pairs = np.stack([key % BUCKETS, count], axis=1).astype("<u2")
    ends = np.searchsorted(key, np.arange(seconds + 1) * BUCKETS)
    return [pairs[a:b].tobytes() for a, b in pairwise(ends)]
