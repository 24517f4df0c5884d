"""Raises models' epochs when an upstream restarts or changes, and has that known by every process. It touches the file.

The epochs that hold in this process are `Generations`; the file's, and the identities by which a restart is known after
the proxy's own, are SharedCache's. Who is asked about an upstream, and when, is watch.py's.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from toolkit.proxy.settings import Settings
from toolkit.proxy.upstreams.generations import Generations
from toolkit.proxy.upstreams.identity import ANY, Epochs, Identity, as_text, from_text
from toolkit.proxy.upstreams.upstream_pages import fingerprint

COUNTERS_S = 30.0
"""So often an identity is stored of which only the token counters moved."""
MOST_PRINTS = 1024


class Book(Protocol):
    """Where epochs and identities are kept: SharedCache, or nothing."""

    def epochs(self) -> dict[str, int]:
        """All of them."""

    def bump(self, model: str) -> int:
        """Raise one; waits for the file."""

    def identity(self, name: str) -> str | None:
        """What was kept of an upstream."""

    def set_identity(self, name: str, identity: str) -> None:
        """Keep it; waits for the file."""


class EpochKeeper:
    """One process's; `saw` is told each look at an upstream, in the loop."""

    def __init__(
        self,
        settings: Settings,
        book: Book | None,
        generations: Generations,
        *,
        changed: Callable[[Sequence[str]], object],
        event: Callable[[str, dict[str, object]], None],
    ) -> None:
        """`changed` is called whenever numbers were raised: what was remembered by other means than keys must go."""
        # by address: two proxies on one file may call an upstream by two names
        self._urls = {each.name: each.url for each in settings.upstreams}
        self._kind = settings.cache.epoch
        self._book, self._generations = book, generations
        self._changed, self._event = changed, event
        self._kept: dict[str, tuple[Identity, float]] = {}
        """By name: what the book has, and since when."""
        self._prints: dict[str | None, str] = {}
        self._epochs = Epochs(self._kind, self._known())
        self.refresh()

    def refresh(self) -> None:
        """Take over what other processes raised."""
        raised = [] if self._book is None else self._generations.raise_to(self._book.epochs())
        if raised:
            self._prints.clear()
            self._changed(raised)

    async def saw(self, name: str, seen: Identity, now: float) -> None:
        """Take one look's identity; what it makes unreachable is so before the file is waited for."""
        before = self._epochs.identity(name)
        stale = self._epochs.see(name, seen)
        known = self._epochs.identity(name)
        if known is None:
            return
        if before is None or _still(before) != _still(known):
            self._prints.clear()
        if stale and self._was_told(name, known):
            self.refresh()
        elif stale:
            await self._raise(name, stale, _why(before, known))
        await self._keep(name, known, now)

    async def came_back(self, name: str) -> None:
        """It had refused connections, so that another process answers now: a restart, where no start time tells better."""
        known = self._epochs.identity(name)
        if self._kind == "restart" and known is not None and known.started_at is None:
            models = {model.id for model in known.models or ()} or set(self._generations.numbers)
            await self._raise(name, models | {ANY}, "came back")

    def fingerprint(self, model: str | None) -> str:
        """Who answers a model, e.g., `tiny@0f3c...`: what proxies on several machines agree in, as their numbers are their own.

        Of all upstreams where the model is not known to be served by some. Asked for at each request, made anew at each change.
        """
        told = self._prints.get(model)
        if told is None:
            if len(self._prints) >= MOST_PRINTS:
                self._prints.clear()  # clients may name any model
            told = self._prints[model] = f"{model or ''}@{self._digest(model)}"
        return told

    def _digest(self, model: str | None) -> str:
        everybody = {name: self._epochs.identity(name) for name in self._urls}
        known = [each for each in everybody.values() if each is not None]
        serving = [each for each in known if _serves(each, model)] or known
        more = [self._urls[name] for name, each in everybody.items() if each is None]
        restarts_count = self._kind == "restart"
        if restarts_count and any(each.started_at is None for each in serving):
            more.append(self._generations.of(model))  # restarts are known here alone
        mine = [_about(each, model) for each in serving]
        return fingerprint(mine, more, restarts_count=restarts_count)

    def _known(self) -> dict[str, Identity]:
        known = {}
        for name, url in self._urls.items():
            text = None if self._book is None else self._book.identity(url)
            kept = None if text is None else from_text(text)
            if kept is not None:
                known[name] = kept
                self._kept[name] = (kept, float("-inf"))
        return known

    def _was_told(self, name: str, known: Identity) -> bool:
        """Whether another process saw the same before, and raised the epochs for it; where in doubt, no."""
        text = None if self._book is None else self._book.identity(self._urls[name])
        kept = None if text is None else from_text(text)
        # counters in the file are half a minute old, and say nothing of who saw them fall
        if kept is None or known.started_at is None:
            return False
        return not Epochs(self._kind, {name: kept}).see(name, known)

    async def _raise(self, name: str, models: Iterable[str], why: str) -> None:
        """Raise epochs here, and then in the file, which may take its time."""
        stale = sorted(models)
        self._generations.bump(stale)
        self._prints.clear()
        self._event("epoch", {"upstream": name, "models": stale, "why": why})
        self._changed(stale)
        if self._book is not None:
            await _written(_bump, self._book, stale)
            self.refresh()

    async def _keep(self, name: str, known: Identity, now: float) -> None:
        """Write an identity that is new; counters alone now and then, and only where nothing else tells a restart."""
        if self._book is None:
            return
        kept, at_s = self._kept.get(name, (None, float("-inf")))
        is_new = kept is None or _still(kept) != _still(known)
        counts = known.started_at is None and kept != known and now - at_s >= COUNTERS_S
        if is_new or counts:
            self._kept[name] = (known, now)
            await _written(self._book.set_identity, self._urls[name], as_text(known))


async def _written(write: Callable[..., None], *what: object) -> None:
    """Write, in a thread, to the end: who is cancelled meanwhile waits for it, as the file is closed next.

    An epoch that is raised here and not in the file is raised to the same number again after a restart of the proxy, and
    what was stored under it since is then another engine's.
    """
    writing = asyncio.create_task(asyncio.to_thread(write, *what))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.gather(writing, return_exceptions=True)
        raise


def _bump(book: Book, models: Iterable[str]) -> None:
    for model in models:
        book.bump(model)


def _still(known: Identity) -> Identity:
    return replace(known, tokens_total=None)


def _serves(known: Identity, model: str | None) -> bool:
    return model is not None and any(each.id == model for each in known.models or ())


def _about(known: Identity, model: str | None) -> Identity:
    """What of an identity concerns a model: another one that is added beside it changes nothing of its answers."""
    if not _serves(known, model):
        return known
    return replace(known, models=tuple(each for each in known.models or () if each.id == model))


def _why(before: Identity | None, known: Identity) -> str:
    if before is None:
        return "new"
    for field in ("version", "models", "settings"):
        if getattr(before, field) != getattr(known, field):
            return field
    return "restart"
