"""Clients of a proxy that goes through a lot: what they ask, how they read, when they leave, and what they saw."""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from support.judging import verdict
from support.proxied import Answer, Client, raw
from support.truthful import MODEL, Fields

PROMPTS, RARE, NEWS, NEWS_S = 250, 600, 100, 0.4
"""Prompts that are known, that are asked so seldom that they are no longer stored, and that all ask at one time, for so long each.
All of them are few, so that what the proxy remembers of requests fills up in the warm-up."""
PATIENCE_S = 60.0
TEAMS = {"red": "shared", "blue": "shared", "green": None}
"""Team -> pool."""


# --- what is asked --------------------------------------------------------------------------------------


def prompt(name: str) -> Fields:
    """A request by its name: short ones, some with tools or two choices, few very long."""
    dice = random.Random(name)
    fields: Fields = {"model": MODEL, "messages": [{"role": "user", "content": f"Tell {name}"}]}
    fields["max_tokens"] = 3000 if dice.random() < 0.01 else dice.randrange(4, 40)
    if dice.random() < 0.3:
        fields["seed"] = dice.randrange(100)
    if dice.random() < 0.1:
        fields["n"] = 2
    elif dice.random() < 0.1:
        fields["tools"] = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    return fields


def drawn(dice: random.Random) -> Fields:
    """What all ask just now, something rare, or something known by Zipf; seen whole or as a stream."""
    kind = dice.random()
    if kind < 0.15:
        fields = prompt(f"news {int(time.monotonic() / NEWS_S) % NEWS}")
    elif kind < 0.3:
        fields = prompt(f"rare {dice.randrange(RARE)}")
    else:
        fields = prompt(f"old {min(PROMPTS, int(dice.paretovariate(0.9)))}")
    if dice.random() < 0.5:
        fields["stream"] = True
        if dice.random() < 0.5:
            fields["stream_options"] = {"include_usage": True}
    return fields


def spelled(fields: Fields, dice: random.Random) -> bytes:
    """The same request in one of three spellings."""
    way = dice.random()
    if way < 0.8:
        return json.dumps(fields).encode()
    if way < 0.9:
        return json.dumps(fields, indent=1, sort_keys=True).encode()
    return json.dumps({"stream": False, **dict(reversed(fields.items()))}).encode()


# --- who asks -------------------------------------------------------------------------------------------


@dataclass
class Visitor(Client):
    """A client that notes the head as soon as it came, and may read slowly."""

    life: int = 0
    pause_s: float = 0.0
    head_id: str | None = None

    async def answer(self) -> Answer:
        self.head_id = None
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in headers.items()}
        self.head_id = headers["x-request-id"]
        answer = Answer(int(head[0].split(" ")[1]), headers, b"")
        try:
            if "content-length" in headers:
                answer.body = await self._read(int(headers["content-length"]))
            else:
                await self._chunks(answer)
        except asyncio.IncompleteReadError as error:
            answer.body += error.partial
            answer.is_whole = False
        except ConnectionError:
            answer.is_whole = False
        return answer

    async def _chunks(self, answer: Answer) -> None:
        parts = []
        try:
            while size := int((await self.reader.readuntil(b"\r\n")).strip(), 16):
                parts.append((await self._read(size + 2))[:-2])
            await self.reader.readexactly(2)
        finally:
            answer.body = b"".join(parts)

    async def _read(self, size: int) -> bytes:
        parts = []
        while size:
            if self.pause_s:
                await asyncio.sleep(self.pause_s)
            part = await self.reader.readexactly(min(size, 2048 if self.pause_s else size))
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


@dataclass
class Seen:
    """One request whose client has a head of its answer."""

    at_s: float
    status: int | None = None
    cache: str | None = None
    """Both None: the client left, and knows only that there was an answer."""


@dataclass
class Soak:
    """What all clients saw. Two of a kind are those of the proxy's two lives."""

    folder: Path
    began_s: float = field(default_factory=time.monotonic)
    port: int = 0
    life: int = 0
    killed_s: float = 0.0
    is_over: bool = False
    up: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while the proxy is dead."""
    kinds: Counter[str] = field(default_factory=Counter)
    caches: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    heads: list[dict[str, Seen]] = field(default_factory=lambda: [{}, {}])
    """By request id."""
    left_unseen: list[int] = field(default_factory=lambda: [0, 0])
    """Requests that were written, and whose client left without a head."""
    words: dict[str, set[str]] = field(default_factory=dict)
    """The salts' words by pool."""
    makers: list[tuple[float, str, int]] = field(default_factory=list)
    """When it was asked, and whose answer it was."""

    def took(self, team: str, fields: Fields, answer: Answer, asked_s: float) -> None:
        found = verdict(fields, answer)
        self.kinds[found.kind] += 1
        self.caches[cache_of(answer)] += 1
        if found.kind == "wrong":
            self.wrong.append(f"{fields}: {found.why[:600]} {answer.headers}")
        if found.kind == "whole":
            self.words.setdefault(TEAMS[team] or team, set()).add(found.word)
            self.makers.append((asked_s, found.server, found.life))

    def has_seen(self, life: int, answer: Answer) -> None:
        seen = Seen(time.monotonic(), answer.status, cache_of(answer))
        self.heads[life][answer.headers["x-request-id"]] = seen

    def lives_on(self, life: int) -> bool:
        """The proxy's life is not over."""
        return self.up.is_set() and self.life == life


def cache_of(answer: Answer) -> str:
    told = answer.headers.get("cache-status", "")
    for word, cache in (("; hit", "hit"), ("; collapsed", "coalesced"), ("fwd=miss", "miss")):
        if word in told:
            return cache
    return "bypass"


async def visit(soak: Soak, number: int) -> None:
    """One client, until it is over."""
    dice = random.Random(number)
    team = list(TEAMS)[number % len(TEAMS)]
    visitor: Visitor | None = None
    while not soak.is_over:
        await soak.up.wait()
        life = soak.life
        try:
            if visitor is not None and visitor.life != life:
                visitor.close()
                visitor = None
            if visitor is None:
                ends = await asyncio.open_connection("127.0.0.1", soak.port, limit=8192)
                visitor = Visitor(*ends, life=life, pause_s=0.002 if number % 12 == 0 else 0.0)
            is_kept = await ask(soak, visitor, team, dice)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError) as error:
            is_kept = False
            kind = "lost" if soak.lives_on(life) else "killed"
            soak.kinds[kind] += 1
            if kind == "lost":
                soak.wrong.append(f"lost: {error!r}")
        if not is_kept and visitor is not None:
            visitor.close()
            visitor = None
        await asyncio.sleep(dice.expovariate(1 / 0.06))
    if visitor is not None:
        visitor.close()


async def ask(soak: Soak, visitor: Visitor, team: str, dice: random.Random) -> bool:
    """Ask once and stay, or leave; False: the connection is of no use any more."""
    fields = drawn(dice)
    wishes = ["cache-control: no-cache"] if dice.random() < 0.02 else []
    data = raw(spelled(fields, dice), key=f"sk-{team}", headers=wishes)
    leaves_s = None if dice.random() < 0.9 else dice.choice((0.0, dice.random() * 0.2))
    asked_s = time.monotonic()
    asking = asyncio.ensure_future(visitor.send(data))
    if leaves_s is not None:
        done, _ = await asyncio.wait((asking,), timeout=leaves_s)
        if not done:
            await leave(soak, visitor, asking)
            return False
    async with asyncio.timeout(PATIENCE_S):
        answer = await asking
    if not answer.is_whole and not soak.lives_on(visitor.life):
        soak.kinds["killed"] += 1
        return False
    soak.has_seen(visitor.life, answer)
    soak.took(team, fields, answer, asked_s)
    return answer.is_whole and answer.headers.get("connection") != "close"


async def leave(soak: Soak, visitor: Visitor, asking: asyncio.Future[Answer]) -> None:
    visitor.close()
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
        await asking
    soak.kinds["left"] += 1
    if visitor.head_id is None:
        soak.left_unseen[visitor.life] += 1
    else:
        soak.heads[visitor.life][visitor.head_id] = Seen(time.monotonic())
