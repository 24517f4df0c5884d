"""Warms one server up by asking it, and measures what being cold would have cost. It touches the network and the clock.

In this order: each concurrency once, cold; structured and long prompts, if asked; the highest concurrency until two rounds agree; all of
it once more, which is the probe; the clients' own requests last, so that caches hold these and not ours.
It raises nothing that is the server's fault: that is told in `Warmed.error`.
"""

import asyncio
import secrets
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.bench.asks import Ask
from toolkit.bench.client import HostClient, PageError
from toolkit.bench.models import choice
from toolkit.bench.shots import Course
from toolkit.profiles import Profile
from toolkit.records import Host, Shot
from toolkit.serving.stack import WarmSetting
from toolkit.serving.warm.warm_asks import WarmAsker, prompt_chars
from toolkit.serving.warm.warm_log import LogTail
from toolkit.serving.warm.warm_rounds import (
    Kind,
    Phase,
    Round,
    Warmed,
    agree,
    compilations,
    levels_of,
    round_of,
    warmed,
)
from toolkit.wording import milliseconds

PROBED = 4
"""Requests of a probe at least: a level of one request is asked so often, one after the other."""
STRUCTURED = 8
"""Requests: both grammars in both views, twice."""
MOST_READY_CONNECTIONS = 512

WORDS: Mapping[Kind, str] = {
    "plain": "",
    "structured": ", structured output",
    "long": ", long prompts",
    "seed": ", the clients' own requests",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom to warm up, and with what."""

    host: Host
    key: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | bool = True
    model: str | None = None
    """None: what it serves."""
    max_num_seqs: int | None = None
    profile: Profile | None = None
    """Whose prompts; None: plain ones."""
    exact: Sequence[Mapping[str, Any]] = ()
    """Bodies of clients' own requests for the caches, in place of the profile's."""
    log: Path | None = None
    """Where vLLM's log is written."""


async def warm(
    url: str,
    *,
    setting: WarmSetting,
    name: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    **target: Any,
) -> Warmed:
    """Warm the server at `url` up; `target` are further fields of Target."""
    warming = Warming(Target(host=Host(name=name or url, url=url), **target), setting, say)
    await warming.run()
    return warming.told()


async def seed(url: str, **target: Any) -> Round | None:
    """Ask what clients will ask, once, e.g., through a proxy whose cache is to hold it. None: nobody knows what that is."""
    setting = WarmSetting(concurrency=(8,))
    warming = Warming(Target(host=Host(name=url, url=url), **target), setting)
    await warming.run(only_seeds=True)
    return warming.rounds[0] if warming.rounds else None


class Warming:
    """One warm-up. `told` may be asked at any moment, e.g., after somebody stopped it."""

    def __init__(
        self, target: Target, setting: WarmSetting, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.host = target.host
        self.rounds: list[Round] = []
        self._target, self._setting, self._say = target, setting, say
        self._model: str | None = None
        self._max_model_len: int | None = None
        self._error: str | None = "it was stopped before anything was known"
        self._agreed = False
        self._chars = self._tokens = 0
        self._began_s = time.monotonic()
        self._ended_s: float | None = None
        self._log = _tail(target.log)
        self._compiled: list[str] = []
        self._late: list[str] | None = None

    def told(self) -> Warmed:
        """What came of it so far."""
        return warmed(
            name=self.host.name,
            url=self.host.url,
            model=self._model,
            error=self._error,
            rounds=self.rounds,
            agreed=self._agreed,
            compiled=self._compiled if self._log else None,
            late=self._late,
            took_s=(self._ended_s or time.monotonic()) - self._began_s,
        )

    async def run(self, *, only_seeds: bool = False) -> None:
        """Do it all."""
        target, self._began_s = self._target, time.monotonic()
        try:
            async with HostClient(
                target.host, tls=target.tls, key=target.key, timeout_s=self._setting.limit_s
            ) as self._client:
                self._error = await self._choose_model()
                if self._error is None:
                    self._asker = self._new_asker()
                    self._error = await (self._seed() if only_seeds else self._warm())
        except asyncio.CancelledError:
            self._error = "it was stopped"
            raise
        finally:
            self._ended_s = time.monotonic()

    def _new_asker(self) -> WarmAsker:
        return WarmAsker(
            self._target.profile,
            model=self._model or "",
            nonce=secrets.token_hex(8),
            max_tokens=self._setting.max_tokens,
            stream=self._setting.stream,
        )

    async def _choose_model(self) -> str | None:
        """Learn what is served, and whether anybody answers; what stands against it."""
        missing = None
        try:
            served = await self._client.models()
        except PageError as error:
            if not error.answered:
                return str(error)
            served, missing = (), str(error)
        chosen = choice(served, listed=self.host.model, wanted=self._target.model)
        if chosen.model is None:
            return missing or chosen.error
        self._model = chosen.model
        self._max_model_len = next(
            (each.max_model_len for each in served if each.id == chosen.model), None
        )
        return None

    # --- the order of rounds ------------------------------------------------------------------------

    async def _warm(self) -> str | None:
        """All rounds; why it is not known to be warm in the end."""
        levels = levels_of(self._setting.concurrency, self._target.max_num_seqs)
        for number, level in enumerate(levels):
            done = await self._round("cold", "plain", level)
            if done is None or not done.ok:
                if not number:
                    return done.error if done else self._why_not()
                levels = levels[:number]
                break
        for kind in self._extras():
            await self._round("cold", kind, levels[-1])
        await self._settle(levels[-1])
        if self.rounds[-1].ok:
            await self._probe(levels)
            await self._seed()
        return self._why_not()

    def _extras(self) -> list[Kind]:
        wanted: tuple[tuple[Kind, bool], ...] = (
            ("structured", self._setting.structured),
            ("long", self._setting.long_prompts),
        )
        return [kind for kind, is_wanted in wanted if is_wanted]

    async def _settle(self, level: int) -> None:
        """The highest level until two rounds in a row agree."""
        before = next(
            each
            for each in reversed(self.rounds)
            if (each.kind, each.concurrency) == ("plain", level)
        )
        for _ in range(self._setting.rounds):
            after = await self._round("settle", "plain", level)
            if after is None or not after.ok:
                return
            self._agreed = agree(before, after, self._setting.tolerance)
            if self._agreed:
                return
            before = after

    async def _probe(self, levels: Sequence[int]) -> None:
        """Each load once more: what is compiled from now on, warm-up did not reach."""
        self._late = [] if self._log else None
        for level in levels:
            await self._round("probe", "plain", level)
        for kind in self._extras():
            await self._round("probe", kind, levels[-1])

    async def _seed(self) -> str | None:
        asks = self._asker.seeds(self._target.exact)
        if asks and not self._is_late():
            level = max(levels_of(self._setting.concurrency, self._target.max_num_seqs))
            await self._ask("seed", "seed", min(level, len(asks)), asks)
        return None

    def _why_not(self) -> str | None:
        if self._is_late():
            return f"not done within {self._setting.limit_s:g} s"
        last = self.rounds[-1]
        if not self._agreed and not last.ok:
            return f"it stopped answering: {last.error}"
        if not self._agreed:
            return f"{self._setting.rounds} rounds, and no two in a row agree"
        return None

    def _is_late(self) -> bool:
        return time.monotonic() - self._began_s >= self._setting.limit_s

    # --- one round ----------------------------------------------------------------------------------

    async def _round(self, phase: Phase, kind: Kind, level: int) -> Round | None:
        """One round of a kind, `level` at once where the kind has as many; None when the time is over."""
        if self._is_late():
            return None
        if kind == "plain":
            asks = self._plain(phase, level)
        elif kind == "structured":
            asks = self._asker.structured(STRUCTURED)
        else:
            ratio = self._chars / self._tokens if self._tokens else None
            asks = self._asker.long(self._max_model_len, ratio)
        return await self._ask(phase, kind, min(level, len(asks)), asks)

    def _plain(self, phase: Phase, level: int) -> list[Ask]:
        """One wave; a probe of a low level has several, all of streams: a median of two would be chance."""
        if phase != "probe" or level >= PROBED:
            return self._asker.plain(level)
        return self._asker.plain(-(-PROBED // level) * level, streams=True)

    async def _ask(self, phase: Phase, kind: Kind, level: int, asks: Sequence[Ask]) -> Round:
        """Send some requests, `level` at once in waves."""
        await self._client.open_connections(min(level, MOST_READY_CONNECTIONS))
        course = Course(
            run="", name=self.host.name, url=self.host.url, concurrency=level, wall_offset_s=0.0
        )
        began_s, shots = time.monotonic(), list[Shot]()
        for start in range(0, len(asks), level):
            wave = asks[start : start + level]
            # planned at the beginning of all: so the time limit of a request is the limit of the whole
            sent = [self._client.send(course, ask, self._began_s) for ask in wave]
            shots += await asyncio.gather(*sent)
        self._learn(asks, shots)
        done = round_of(
            shots, phase=phase, kind=kind, concurrency=level, took_s=time.monotonic() - began_s
        )
        self.rounds.append(done)
        self._read_log()
        self._say(_said(done))
        return done

    def _learn(self, asks: Sequence[Ask], shots: Sequence[Shot]) -> None:
        """How many characters make a token here."""
        for ask, shot in zip(asks, shots, strict=True):
            if shot.ok and shot.prompt_tokens:
                self._chars += prompt_chars(ask)
                self._tokens += shot.prompt_tokens

    def _read_log(self) -> None:
        if self._log is None:
            return
        found = compilations(self._log.new_lines())
        if self._late is None:
            self._compiled += found
        else:
            self._late += found


def _tail(path: Path | None) -> LogTail | None:
    try:
        return LogTail(path) if path else None
    except OSError:
        return None


def _said(done: Round) -> str:
    """A round in a line, for whoever waits."""
    figure = done.ttft_ms if done.ttft_ms is not None else done.e2e_ms
    what = "TTFT" if done.ttft_ms is not None else "E2E"
    bad = done.requests - done.ok
    failed = f"; {bad} of {done.requests} failed: {done.error}" if bad else ""
    took = f"{what} {milliseconds(figure)}" if figure is not None else "no answer"
    return f"{done.concurrency} at once{WORDS[done.kind]} ({done.phase}): {took}{failed}"
