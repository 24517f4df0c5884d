"""Which server answers behind an upstream's name, and when answers stored of it may no longer be shown.

An identity is what an upstream's pages tell: version, models with their roots and lengths, chosen settings, start time.
What a page did not tell is unknown and never counts as a change: a look that was cut short must not empty the cache, and
while a server is down its last identity stays. It reads pages that others fetched; nothing here asks, stores or forgets answers.

Epochs are numbers per model that others keep; `Epochs.see` says which of them are to be raised. `*` (ANY) is the epoch of requests
whose model no upstream is known to serve; it is raised with every other.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from toolkit.dialects import EngineNumbers

START_SLACK_S = 1.0
"""A start time moves by clock corrections; a restart takes longer than this."""
MOST_MODELS = 4096
"""Of one upstream; 2,000 adapters behind one server were seen."""
ANY = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One name an upstream answers to."""

    id: str
    root: str | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who answers; None where its pages did not tell."""

    version: str | None = None
    models: tuple[Model, ...] | None = None
    """Sorted by name."""
    settings: str | None = None
    """Hash of the engine and the settings that its metrics name."""
    started_at: float | None = None
    """Seconds since 1970 by its own clock."""
    tokens_total: float | None = None
    """Prompt and output tokens since its start: a fall is a restart, where no start time tells."""


def identity(
    version: str | None, models_page: bytes | None, numbers: EngineNumbers | None
) -> Identity:
    """Read what the pages told: /version's word, the body of /v1/models, and the numbers of /metrics."""
    models = None if models_page is None else _models(models_page)
    if models is None and numbers is not None and numbers.models:
        models = tuple(Model(id=name) for name in sorted(numbers.models)[:MOST_MODELS])
    return Identity(
        version=version or None,
        models=models,
        settings=_settings(numbers),
        started_at=numbers.started_at if numbers else None,
        tokens_total=_tokens(numbers),
    )


def as_text(known: Identity) -> str:
    """To be kept over the proxy's own restart."""
    return json.dumps(asdict(known), separators=(",", ":"))


def from_text(text: str) -> Identity | None:
    """What `as_text` wrote; None where it is nothing of the kind."""
    try:
        told = json.loads(text)
        models = told["models"]
        return Identity(
            version=told["version"],
            models=None if models is None else tuple(Model(**each) for each in models),
            settings=told["settings"],
            started_at=told["started_at"],
            tokens_total=told["tokens_total"],
        )
    except (ValueError, TypeError, KeyError):
        return None


class Epochs:
    """The last identity of each upstream, and what of it makes stored answers unreachable.

    `restart`: any restart and any change. `change`: another version, settings or model only.
    """

    def __init__(
        self,
        kind: Literal["restart", "change"] = "restart",
        known: Mapping[str, Identity] | None = None,
    ) -> None:
        self._kind = kind
        self._known = dict(known or {})

    def see(self, name: str, seen: Identity) -> frozenset[str]:
        """The models whose epoch is to be raised, now that an upstream shows this identity; `*` among them."""
        before = self._known.get(name)
        self._known[name] = seen if before is None else _merged(before, seen)
        if before is None:
            return frozenset()
        models = self._stale(before, seen)
        return models | {ANY} if models else models

    def identity(self, name: str) -> Identity | None:
        """The last known, to be stored."""
        return self._known.get(name)

    def _stale(self, before: Identity, seen: Identity) -> frozenset[str]:
        whole = _differ(before.version, seen.version) or _differ(before.settings, seen.settings)
        if whole or (self._kind == "restart" and has_restarted(before, seen)):
            return self._served(before, seen) | {ANY}
        return frozenset(_changed_models(before.models or (), seen.models or ()))

    def _served(self, *identities: Identity) -> frozenset[str]:
        """Their models; every upstream's where they name none, for they may serve any."""
        named = _ids(identities)
        return named or _ids(self._known.values())


def has_restarted(before: Identity, seen: Identity) -> bool:
    """Whether another process answers, by its start time or, where that is not told, by a counter that fell."""
    if before.started_at is not None and seen.started_at is not None:
        return abs(seen.started_at - before.started_at) > START_SLACK_S
    if before.tokens_total is None or seen.tokens_total is None:
        return False
    return seen.tokens_total < before.tokens_total


def _merged(before: Identity, seen: Identity) -> Identity:
    """What was told last of each part. A model that is served no more is remembered: it may come back as another."""
    models = before.models
    if seen.models is not None:
        cards = {each.id: each for each in before.models or ()}
        for each in seen.models:
            cards[each.id] = _merged_model(cards.get(each.id), each)
        served = {each.id for each in seen.models}
        kept = sorted(cards.values(), key=lambda each: (each.id not in served, each.id))
        models = tuple(sorted(kept[:MOST_MODELS], key=lambda each: each.id))
    return Identity(
        version=seen.version if seen.version is not None else before.version,
        models=models,
        settings=seen.settings if seen.settings is not None else before.settings,
        started_at=seen.started_at if seen.started_at is not None else before.started_at,
        tokens_total=seen.tokens_total if seen.tokens_total is not None else before.tokens_total,
    )


def _merged_model(before: Model | None, seen: Model) -> Model:
    if before is None:
        return seen
    return replace(
        seen,
        root=seen.root if seen.root is not None else before.root,
        max_model_len=seen.max_model_len
        if seen.max_model_len is not None
        else before.max_model_len,
    )


def _changed_models(before: Iterable[Model], seen: Iterable[Model]) -> list[str]:
    old = {each.id: each for each in before}
    return [
        each.id
        for each in seen
        if (was := old.get(each.id)) is not None
        and (_differ(was.root, each.root) or _differ(was.max_model_len, each.max_model_len))
    ]


def _differ(old: object, new: object) -> bool:
    return old is not None and new is not None and old != new


def _ids(identities: Iterable[Identity]) -> frozenset[str]:
    return frozenset(model.id for each in identities for model in each.models or ())


def _settings(numbers: EngineNumbers | None) -> str | None:
    if numbers is None or not numbers.settings:
        return None
    chosen = [numbers.engine, sorted(numbers.settings)]
    return hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:16]


def _tokens(numbers: EngineNumbers | None) -> float | None:
    if numbers is None:
        return None
    told = [numbers.prompt_tokens_total, numbers.generation_tokens_total]
    if None in told:
        return None
    return sum(each for each in told if each is not None)


def _models(page: bytes) -> tuple[Model, ...] | None:
    """The cards of /v1/models; None where the page is something else."""
    try:
        told = json.loads(page)
    except (ValueError, RecursionError):
        return None
    data = told.get("data") if isinstance(told, dict) else None
    if not isinstance(data, list):
        return None
    cards = (_model(item) for item in data[:MOST_MODELS])
    return tuple(sorted((card for card in cards if card), key=lambda card: card.id))


def _model(item: Any) -> Model | None:
    if not isinstance(item, dict) or not isinstance(item.get("id"), str):
        return None
    root, length = item.get("root"), item.get("max_model_len")
    return Model(
        id=item["id"],
        root=root if isinstance(root, str) else None,
        max_model_len=length if type(length) is int else None,
    )
