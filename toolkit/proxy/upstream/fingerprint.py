"""Which model answers: one word a model, part of every key, so that an answer is found as long as the same engine would give it.

A model's word is made of what all upstreams that serve it told last (version, settings, root, length) and of its incarnation: a number
that restarts raise, and changes; where the setting `epoch` says so, changes alone. What could not be read is no change: while a server is
down, its last facts hold. Facts and incarnations lie in the cache file and in Redis, so that a proxy that starts knows them at once.
It reads pages that others fetched, and touches file and Redis through the caches that it is given.

An incarnation is the second since 1970 in which the engine began, by its own clock, as far as its page tells, else that of the proxy's
clock when the restart was seen. So two proxies that see one restart raise it to the same number, and neither has to ask the other.
"""

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from hashlib import blake2b, sha256
from typing import TypeVar
from urllib.parse import urlsplit

from toolkit.metrics.dialects import EngineNumbers
from toolkit.proxy.cache.redis import RedisCache
from toolkit.proxy.cache.sqlite import SqliteCache
from toolkit.proxy.config import Settings, UpstreamSetting
from toolkit.proxy.upstream.connection import Page

T = TypeVar("T", "Facts", "Model")

START_SLACK_S = 1.0
"""A start time moves by clock corrections; a restart takes longer than this."""
MOST_MODELS = 4096
"""Of one upstream; 2,000 adapters behind one server were seen."""
COUNTERS_S = 30.0
"""So often facts are kept of which only the token counters moved."""
MOST_WORDS = 1024
"""Clients may name any model."""
LONGEST_VERSION = 200
ANY = "*"
"""Stands for each model that no upstream is known to serve; raised with every other."""
_MODEL, _UPSTREAM = "model ", "upstream "
"""Beginnings of names in file and Redis: of an incarnation, and of an upstream's facts by its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One name an upstream answers to."""

    id: str
    root: str | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an upstream's pages tell of who answers; None where they did not tell."""

    version: str | None = None
    models: tuple[Model, ...] | None = None
    """Sorted by name."""
    settings: str | None = None
    """Hash of the engine and the settings that its metrics name."""
    started_at: float | None = None
    """Seconds since 1970 by its own clock."""
    tokens_total: float | None = None
    """Prompt and output tokens since its start: a fall is a restart, where no start time tells."""

    def serves(self, model: str | None) -> bool:
        """Whether it is known to."""
        return any(each.id == model for each in self.models or ())


def read_facts(
    version_page: Page | None, models_page: Page | None, numbers: EngineNumbers | None
) -> Facts:
    """Read what the pages told: /version, /v1/models, and the numbers of /metrics. What can't be understood tells nothing."""
    version = _read(version_page, "version")
    if not isinstance(version, str) or not version:
        version = None
    models, cards = None, _read(models_page, "data")
    if isinstance(cards, list):
        found = []
        for card in cards[:MOST_MODELS]:
            if isinstance(card, dict) and isinstance(card.get("id"), str):
                root, length = card.get("root"), card.get("max_model_len")
                root = root if isinstance(root, str) else None
                length = length if type(length) is int else None
                found.append(Model(id=card["id"], root=root, max_model_len=length))
        models = tuple(sorted(found, key=lambda each: each.id))
    settings = started_at = total = None
    if numbers is not None:
        started_at = numbers.started_at
        if models is None and numbers.models:
            models = tuple(Model(id=name) for name in sorted(numbers.models)[:MOST_MODELS])
        if numbers.settings:
            chosen = json.dumps([numbers.engine, sorted(numbers.settings)])
            settings = sha256(chosen.encode()).hexdigest()[:16]
        prompt, output = numbers.prompt_tokens_total, numbers.generation_tokens_total
        total = None if prompt is None or output is None else prompt + output
    return Facts(
        version=version and version[:LONGEST_VERSION],
        models=models,
        settings=settings,
        started_at=started_at,
        tokens_total=total,
    )


def _read(page: Page | None, name: str) -> object:
    """A field of a page; None where the page is something else."""
    if page is None or page.status != 200:
        return None
    try:
        return json.loads(page.body)[name]
    except (ValueError, RecursionError, TypeError, KeyError):
        return None


class Fingerprints:
    """The model fingerprints of one process, fed by its prober. No method but `refresh` waits for anything."""

    def __init__(
        self,
        settings: Settings,
        *,
        file: SqliteCache | None = None,
        redis: RedisCache | None = None,
        changed: Callable[[], object],
        event: Callable[[str, dict[str, object]], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`changed` is called whenever a word may have changed: what is found by other means than keys must be dropped."""
        self._upstreams = {each.name: each for each in settings.upstreams}
        self._restarts_count = settings.cache.epoch == "restart"
        self._file, self._redis = file, redis
        self._changed, self._event, self._wall = changed, event, wall
        self.incarnations: dict[str, int] = {}
        """Of the models whose number was ever raised, in seconds since 1970."""
        self.facts: dict[str, Facts] = {}
        """The last of each upstream, by its name."""
        self._kept: dict[str, tuple[Facts | None, float]] = {}
        """What was written last of an upstream that this process read itself (others know of it no better), and when."""
        self._rows: dict[str, str] = {}
        """What file and Redis should have from here."""
        self.of = lru_cache(MOST_WORDS)(self._word)
        """A model's word, e.g. `tiny@0f3c...`: equal in all processes and on all machines where equal engines answer."""
        self._digest = lru_cache(MOST_WORDS)(partial(_digest, self._upstreams, self.facts))
        # An earlier version's file holds answers under words of its own, which are good until anything changes. In Redis,
        # which other machines read, they would mean nothing.
        self._earlier_epochs: dict[str, int] | None = None
        self._earlier_facts: dict[str, Facts] = {}
        is_alone = settings.cache.redis_env is None
        earlier = file.earlier_epochs() if file is not None and is_alone else None
        if earlier is not None:
            self._earlier_epochs, rows = earlier
            for name, setting in self._upstreams.items():
                found = _from_text(rows.get(setting.url, ""))
                if found is not None:
                    self.facts[name] = self._earlier_facts[name] = found
        self.read_file()

    # --- for keys ----------------------------------------------------------------------------------

    def _word(self, model: str | None) -> str:
        is_served = any(each.serves(model) for each in self.facts.values())
        served = model if is_served else None
        incarnation = self.incarnations.get(model or "" if is_served else ANY, 0)
        digest = self._digest(served)
        earlier = None if incarnation else self._earlier_epochs
        if earlier is not None and digest == _digest(self._upstreams, self._earlier_facts, served):
            # as an earlier version put it: the model's own number, or that of all models
            return f"{model or ''}@{earlier.get(model or '', f'*{earlier.get(ANY, 0)}')}"
        word = blake2b(f"{digest} {incarnation}".encode(), digest_size=16)
        return f"{model or ''}@{word.hexdigest()}"

    def take_upstreams(self, upstreams: Iterable[UpstreamSetting]) -> None:
        """Others from now on; of those that stay it is known what was known."""
        self._upstreams.clear()
        self._upstreams.update({each.name: each for each in upstreams})
        for name in set(self.facts) - set(self._upstreams):
            del self.facts[name]
        self._invalidate()

    def _invalidate(self) -> None:
        self.of.cache_clear()
        self._digest.cache_clear()
        self._changed()

    # --- what the prober reads ---------------------------------------------------------------------

    def saw(self, upstream: str, seen: Facts) -> None:
        """Take what an upstream's pages said, perhaps only some of them."""
        before = self.facts.get(upstream)
        known = self.facts[upstream] = seen if before is None else _merged(before, seen)
        kept, kept_at = self._kept.setdefault(upstream, (None, 0.0))
        stale, why = (set[str](), "") if before is None else self._stale(before, seen)
        if stale:
            has_begun = before is not None and before.started_at != known.started_at
            self._raise(upstream, stale, why, known.started_at if has_begun else None)
        elif before is None or known != replace(
            before, started_at=known.started_at, tokens_total=known.tokens_total
        ):
            # something that is part of a word
            self._invalidate()
        is_new = kept is None or known != replace(kept, tokens_total=known.tokens_total)
        # counters alone tell a restart only where no start time does
        counts = known.started_at is None and kept != known and self._wall() - kept_at >= COUNTERS_S
        if is_new or counts or stale:
            self._kept[upstream] = known, self._wall()
            text = json.dumps(asdict(known), separators=(",", ":"))
            self._keep({_row(self._upstreams[upstream]): text})

    def came_back(self, upstream: str) -> None:
        """An upstream answers that had refused connections: a restart, unless its page tells when it started."""
        known = self.facts.get(upstream)
        if self._restarts_count and known is not None and known.started_at is None:
            self._raise(upstream, self._models_of(known), "came back", None)

    def _stale(self, before: Facts, seen: Facts) -> tuple[set[str], str]:
        """Return the models whose stored answers are no longer valid, and why."""
        for why in ("version", "settings"):
            if _differ(getattr(before, why), getattr(seen, why)):
                return self._models_of(before, seen), why
        # another process answers, by its start time or, where that is not told, by a counter that fell
        if before.started_at is not None and seen.started_at is not None:
            has_restarted = abs(seen.started_at - before.started_at) > START_SLACK_S
        else:
            now = seen.tokens_total
            has_restarted = now is not None and now < (before.tokens_total or 0.0)
        if self._restarts_count and has_restarted:
            return self._models_of(before, seen), "restart"
        old = {each.id: each for each in before.models or ()}
        others = {
            each.id
            for each in seen.models or ()
            if (was := old.get(each.id)) is not None
            and (_differ(was.root, each.root) or _differ(was.max_model_len, each.max_model_len))
        }
        return (others | {ANY} if others else others), "models"

    def _models_of(self, *facts: Facts) -> set[str]:
        """Their models; every upstream's where they name none, for they may serve any."""
        named = {model.id for each in facts for model in each.models or ()}
        return (named or {m.id for f in self.facts.values() for m in f.models or ()}) | {ANY}

    def _raise(
        self, upstream: str, models: Iterable[str], why: str, started_at: float | None
    ) -> None:
        at = int(self._wall() if started_at is None else started_at)
        self.read_file()
        # equal: another process has seen the same
        numbers = {model: self.incarnations.get(model, 0) for model in models}
        raised = {model: max(at, known + 1) for model, known in numbers.items() if known != at}
        if raised:
            self._event("epoch", {"upstream": upstream, "models": sorted(raised), "why": why})
        self._keep({_MODEL + model: str(number) for model, number in raised.items()})
        if self._file is not None:
            # not with the next batch: a worker that starts meanwhile would serve what is no more
            threading.Thread(target=self._file.flush, daemon=True).start()
        self.incarnations |= raised
        self._invalidate()

    # --- what others know --------------------------------------------------------------------------

    def raise_to(self, incarnations: Mapping[str, int]) -> None:
        """Take over incarnations that are higher, e.g., those of the primary worker."""
        higher = {m: n for m, n in incarnations.items() if n > self.incarnations.get(m, 0)}
        if higher:
            self.incarnations |= higher
            self._rows |= {_MODEL + model: str(number) for model, number in higher.items()}
            self._invalidate()

    def raise_all(self) -> None:
        """Make every stored answer unreachable: engines with other flags answer from now on, which no page tells."""
        now = int(self._wall())
        for model in self._models_of() | set(self.incarnations):
            self.incarnations[model] = max(now, self.incarnations.get(model, 0) + 1)
        self._keep({_MODEL + model: str(number) for model, number in self.incarnations.items()})
        self._invalidate()

    def read_file(self) -> None:
        """Take over what other processes wrote to the cache file."""
        if self._file is not None:
            self._take(self._file.fingerprints(), self._kept, self._file)

    async def refresh(self) -> None:
        """Take over what other processes and machines wrote. It waits for Redis, within its limit of time."""
        self.read_file()
        if self._redis is not None:
            rows = await self._redis.fingerprints()
            if rows is not None:
                self._take(rows, self.facts, self._redis)

    def _take(
        self, rows: Mapping[str, str], known: Container[str], store: SqliteCache | RedisCache
    ) -> None:
        """`known`: upstreams of which the rows tell nothing new."""
        learned = {
            name: facts
            for name, setting in self._upstreams.items()
            if name not in known and (facts := _from_text(rows.get(_row(setting), "")))
        }
        if learned != {name: self.facts.get(name) for name in learned}:
            self.facts |= learned
            self._invalidate()
        numbers = {n: _number(v) for n, v in rows.items() if n.startswith(_MODEL)}
        self.raise_to({n.removeprefix(_MODEL): number for n, number in numbers.items()})
        # what it lost or did not take, and what another overwrote with less
        lost = {
            name: value
            for name, value in self._rows.items()
            if name not in rows or numbers.get(name, math.inf) < _number(value)
        }
        if lost:
            store.keep_fingerprints(lost)

    def _keep(self, rows: dict[str, str]) -> None:
        self._rows |= rows
        if self._file is not None:
            self._file.keep_fingerprints(rows)
        if self._redis is not None:
            self._redis.keep_fingerprints(rows)


def _digest(
    upstreams: Mapping[str, UpstreamSetting], facts: Mapping[str, Facts], model: str | None
) -> str:
    """All that distinguishes those who answer a model, or a model that nobody is known to serve (None).

    Any number of equal servers is as one; another model beside it changes nothing. Of whom nothing can be known, the address counts.
    """
    known: set[str] = set()
    for each in facts.values():
        if model is None or each.serves(model):
            models = [
                [one.id, one.root, one.max_model_len]
                for one in each.models or ()
                if model is None or one.id == model
            ]
            known.add(json.dumps([each.version, each.settings, *models]))
    unknown = {
        each.url
        for name, each in upstreams.items()
        if name not in facts and not each.fallback and (model is None or not each.is_watched)
    }
    return json.dumps([sorted(known), sorted(unknown)])


# --- facts ---------------------------------------------------------------------------------------------


def _differ(old: object, new: object) -> bool:
    return old is not None and new is not None and old != new


def _over(old: T, new: T) -> T:
    """What was told last of each part."""
    told = {each.name: getattr(new, each.name) for each in fields(new)}
    return replace(old, **{name: value for name, value in told.items() if value is not None})


def _merged(before: Facts, seen: Facts) -> Facts:
    """What was told last of each part. A model that is served no more is remembered: it may come back as another."""
    models = before.models
    if seen.models is not None:
        cards = {each.id: each for each in before.models or ()}
        served = {each.id for each in seen.models}
        for each in seen.models:
            cards[each.id] = _over(cards.get(each.id, each), each)
        kept = sorted(cards.values(), key=lambda each: (each.id not in served, each.id))
        models = tuple(sorted(kept[:MOST_MODELS], key=lambda each: each.id))
    return replace(_over(before, seen), models=models)


# --- in file and Redis ---------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _from_text(text: str) -> Facts | None:
    """Facts from a row that `saw` wrote; None where it holds anything else. Remembered: a worker reads the same ten times a second."""
    try:
        told = json.loads(text)
        models = told["models"]
        told["models"] = None if models is None else tuple(Model(**each) for each in models)
        return Facts(**told)
    except (ValueError, TypeError, KeyError):
        return None


def _number(text: str) -> int:
    """Read an incarnation; anything else is 0."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def _row(setting: UpstreamSetting) -> str:
    """By address: two proxies may call an upstream by two names. An address on this machine is another server on the next."""
    host = urlsplit(setting.url).hostname or "localhost"
    is_here = host == "localhost" or host.startswith(("127.", "::1"))
    return f"{_UPSTREAM}{socket.gethostname() + ' ' if is_here else ''}{setting.url}"
