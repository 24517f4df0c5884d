"""`toolkit proxy` under many clients for a while: is an answer ever wrong or lost, does anything grow, does what it counts add up?

30 s by default, 10 minutes with TOOLKIT_LONG=full. Two upstreams whose answers are functions of what is asked, in a process of their
own; they cut answers, fail and are busy by the dice, and each dies as a whole and comes back. One client in ten leaves at a
random moment, some read slowly. The proxy is killed at a fifth of the time and started again over its file. It prints what it measured.
"""

import asyncio
import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.judging import verdict
from support.proxied import Answer, Client, raw
from support.proxy_verb import Verb, proxying
from support.truthful import MODEL, Fields, Ways, change, telling_the_truth, told

SECONDS = {"short": 30.0, "full": 600.0}[os.environ.get("TOOLKIT_LONG", "short")]
CLIENTS = 48
KILL_AT = 0.2
DEATHS_AT = ((0.35, 0), (0.5, 1), (0.75, 0))
"""Shares of the time, and which upstream; not near the kill, or what was stored would rightly be gone."""
DOWN_S = 2.0
WARM_UP = 0.4
"""Share of the second proxy's time after which its memory may not grow."""
TTL_S = 20.0
STALE_S = 8.0
"""So long after an upstream's new life began, an answer of the old one is wrong: it is looked at each second."""
FOUND_AFTER_S = 2.0
"""What was stored so long before a kill is in the file (it is written each half second)."""
MOST_GROWTH_MIB = 8.0
"""From the first quarter after the warm-up to the last one, the highest of each. Measured: 3.7 in 45 s, 3.6 in 10 minutes (a very long
answer more at one time is 1 to 2); with a cycle of references that kept answers it was 9 in 45 s, and 41 in 5 minutes."""
SHARES = {"cut": 0.02, "busy": 0.01, "error": 0.01, "stream_error": 0.01}

pytestmark = pytest.mark.timeout(SECONDS + 180)


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

    async def head(self) -> Answer:
        self.head_id = None
        answer = await super().head()
        self.head_id = answer.headers["x-request-id"]
        return answer

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


# --- the proxy, its death and its growth --------------------------------------------------------------


def settings(folder: Path, urls: list[str]) -> Path:
    upstreams = "".join(
        f'[[upstream]]\nname = "u{number}"\nurl = "{url}"\n' for number, url in enumerate(urls)
    )
    teams = "".join(
        f'[[team]]\nname = "{team}"\nkey_env = "{team.upper()}_KEY"\n'
        + (f'pool = "{pool}"\n' if pool else "")
        for team, pool in TEAMS.items()
    )
    path = folder / "proxy.toml"
    path.write_text(
        f"{upstreams}{teams}"
        f'[cache]\nttl = "{TTL_S:g}s"\nmemory = "1MiB"\nfile = "cache.db"\n'
        '[admission]\nconcurrency = 8\nqueue = 8\nwait = "10s"\n'
        '[tell]\nlog = "log.jsonl"\n'
    )
    return path


@dataclass
class Growth:
    """One process, watched each half second."""

    resident: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)

    async def watch(self, pid: int) -> None:
        process = psutil.Process(pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            while True:
                self.at_s.append(time.monotonic())
                memory = process.memory_info()
                # without the pages of the database, which are the kernel's to take back
                self.resident.append(memory.rss - memory.shared)
                self.files.append(process.num_fds())
                await asyncio.sleep(0.5)


async def page(port: int, path: str) -> bytes:
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    answer = await client.send(raw(b"", path=path, method="GET"))
    client.close()
    assert answer.status == 200, (path, answer)
    return answer.body


@contextlib.asynccontextmanager
async def alive(soak: Soak, config: Path) -> AsyncIterator[Verb]:
    """A life of the proxy."""
    keys = {f"{team.upper()}_KEY": f"sk-{team}" for team in TEAMS}
    running = proxying("--config", config, cwd=soak.folder, **keys)
    proxy = await asyncio.to_thread(running.__enter__)
    try:
        soak.port = proxy.port
        soak.up.set()
        yield proxy
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


async def ask_until_whole(soak: Soak, fields: Fields, team: str) -> tuple[str, bytes]:
    """How the cache was, and the body."""
    while True:
        client = Visitor(*await asyncio.open_connection("127.0.0.1", soak.port))
        answer = await client.ask(fields, key=f"sk-{team}")
        client.close()
        soak.has_seen(soak.life, answer)
        if verdict(fields, answer).kind == "whole":
            return cache_of(answer), answer.body
        await asyncio.sleep(0.05)


KEPT = [prompt(f"to be kept {number}") | {"max_tokens": 8} for number in range(20)]


async def until(soak: Soak, share: float) -> None:
    await asyncio.sleep(max(0.0, soak.began_s + share * SECONDS - time.monotonic()))


async def first_life(soak: Soak, config: Path) -> list[bytes]:
    """Until it is killed; what was answered before."""
    async with alive(soak, config) as proxy:
        await until(soak, KILL_AT - FOUND_AFTER_S / SECONDS)
        texts = [(await ask_until_whole(soak, fields, "red"))[1] for fields in KEPT]
        await asyncio.sleep(FOUND_AFTER_S)
        soak.up.clear()
        soak.killed_s = time.monotonic()
        proxy.process.kill()
        await asyncio.to_thread(proxy.process.wait)
        assert not [line for line in proxy.said if "Traceback" in line]
    soak.life = 1
    return texts


async def second_life(soak: Soak, config: Path, urls: list[str], texts: list[bytes]) -> list[Any]:
    """To the end: state, counters and growth."""
    async with alive(soak, config) as proxy:
        growth = Growth()
        watching = asyncio.ensure_future(growth.watch(proxy.process.pid))
        again = [await ask_until_whole(soak, fields, "blue") for fields in KEPT]
        if time.monotonic() - soak.killed_s < TTL_S - FOUND_AFTER_S - STALE_S:
            assert Counter(cache for cache, _ in again) == {"hit": len(KEPT)}, (
                "after a kill they are back"
            )
            assert [text for _, text in again] == texts
        for share, number in DEATHS_AT:
            await until(soak, share)
            await change(urls[number], down_s=DOWN_S)
        await until(soak, 1.0)
        watching.cancel()
        soak.is_over = True
        await visitors_end()
        state = await calm(proxy.admin)
        counters = (await page(proxy.admin, "/metrics")).decode()
        assert await asyncio.to_thread(proxy.end) == 0
        said = list(proxy.said)
    assert not [line for line in said if "Traceback" in line or "Error" in line], said
    return [state, counters, growth]


async def visitors_end() -> None:
    others = [task for task in asyncio.all_tasks() if task.get_name().startswith("visitor")]
    await asyncio.wait(others, timeout=PATIENCE_S)
    await asyncio.gather(*others)


async def calm(admin: int) -> Fields:
    """Its state once it has noticed that all left."""
    give_up = time.monotonic() + 20
    while True:
        state = json.loads(await page(admin, "/state"))
        busy = [state[name] for name in ("connections", "busy", "flights", "slots")]
        busy += [*state["queued"].values(), *(each["in_flight"] for each in state["upstreams"])]
        if not any(busy) or time.monotonic() > give_up:
            return state
        await asyncio.sleep(0.1)


# --- the test ---------------------------------------------------------------------------------------------


def test_for_a_while_no_answer_is_wrong_or_lost_and_nothing_grows(tmp_path: Path) -> None:
    ways = [Ways(name=name, seed=number, **SHARES) for number, name in enumerate("ab")]
    with telling_the_truth(*ways) as urls:
        soak, found, servers = asyncio.run(soaked(tmp_path, urls))
    state, counters, growth = found
    report(soak, growth, counters, servers)
    assert not soak.wrong, soak.wrong[:5]
    assert_all_kinds_came(soak)
    assert_pools_are_apart(soak)
    assert_none_is_stale(soak, servers)
    busy = [state[name] for name in ("connections", "busy", "flights", "slots")]
    assert not any((*busy, *state["queued"].values())), state
    assert [server["running"] for server in servers] == [0, 0], "nobody works for nobody"
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    requests = [line for line in lines if "request_id" in line]
    assert_log_adds_up(soak, requests)
    second = {head.split("-")[0] for head in soak.heads[1]}
    assert len(second) == 1
    assert_counters_add_up(
        counters, [line for line in requests if line["request_id"].split("-")[0] in second]
    )
    assert_flat(growth)


async def soaked(folder: Path, urls: list[str]) -> tuple[Soak, list[Any], list[Fields]]:
    soak = Soak(folder)
    config = settings(folder, urls)
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(visit(soak, number), name=f"visitor {number}")
        texts = await first_life(soak, config)
        found = await second_life(soak, config, urls, texts)
    return soak, found, [await told(url) for url in urls]


def assert_all_kinds_came(soak: Soak) -> None:
    """A soak without one of them would show nothing of it."""
    for kind in ("whole", "error", "cut", "rejected", "left", "killed"):
        assert soak.kinds[kind] > 0, soak.kinds
    for cache in ("hit", "miss", "coalesced", "bypass"):
        assert soak.caches[cache] > 0, soak.caches
    asked = sum(soak.kinds.values())
    assert 0.05 < soak.kinds["left"] / asked < 0.15
    assert soak.kinds["whole"] / asked > 0.7


def assert_pools_are_apart(soak: Soak) -> None:
    """Two teams share one word, the third has its own: nobody got what was answered to others."""
    assert soak.words.keys() == {"shared", "green"}
    shared, green = soak.words["shared"], soak.words["green"]
    assert (len(shared), len(green), shared & green) == (1, 1, set())


def assert_none_is_stale(soak: Soak, servers: list[Fields]) -> None:
    lives = {name: server["lives"] for name, server in zip("ab", servers, strict=True)}
    assert sorted(map(len, lives.values())) == [2, 3]
    late = [
        (server, life, asked_s - lives[server][life][0])
        for asked_s, server, life in soak.makers
        if life < len(lives[server]) and asked_s > lives[server][life][0] + STALE_S
    ]
    assert not late, late[:5]


def assert_log_adds_up(soak: Soak, requests: list[Fields]) -> None:
    """Whoever saw an answer finds it in the log, once and as it was; what else is there are those who left."""
    logged = {line["request_id"]: line for line in requests}
    assert len(logged) == len(requests)
    sure = {
        head: seen
        for heads, until_s in zip(soak.heads, (soak.killed_s - FOUND_AFTER_S, None), strict=True)
        for head, seen in heads.items()
        if until_s is None or seen.at_s < until_s
    }
    missing = [seen for head, seen in sure.items() if head not in logged]
    assert not missing, (len(missing), missing[:5])
    differ = [
        (seen, logged[head])
        for head, seen in sure.items()
        if seen.status is not None
        and (seen.status, seen.cache) != (logged[head]["status"], logged[head]["cache"] or "bypass")
    ]
    assert not differ, differ[:5]
    known = soak.heads[0].keys() | soak.heads[1].keys()
    others = [line for head, line in logged.items() if head not in known]
    assert len(others) <= sum(soak.left_unseen) + soak.kinds["killed"]
    assert [line for line in others if not line.get("left") and line["status"] is None] == []


def assert_counters_add_up(page: str, requests: list[Fields]) -> None:
    """Of the second proxy, request for request."""
    caches = Counter(line["cache"] or "bypass" for line in requests)
    rejected = Counter(line["rejected"] for line in requests if "rejected" in line)
    errors = Counter(line["error_kind"] for line in requests if "error_kind" in line)
    assert counted(page, "requests_total", "cache") == caches
    assert counted(page, "rejections_total", "reason") == rejected
    assert counted(page, "errors_total", "kind") == errors
    assert sum(counted(page, "clients_left_total", "team").values()) == sum(
        line.get("left", False) for line in requests
    )


def counted(page: str, name: str, label: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == f"toolkit_proxy_{name}":
                found[sample.labels[label]] += int(sample.value)
    return found


def growth_of(growth: Growth) -> tuple[float, float]:
    """Resident MiB after the warm-up, in its first quarter and in its last: the highest of each."""
    warm = growth.resident[int(len(growth.resident) * WARM_UP) :]
    quarter = max(1, len(warm) // 4)
    return max(warm[:quarter]) / 2**20, max(warm[-quarter:]) / 2**20


def assert_flat(growth: Growth) -> None:
    before, after = growth_of(growth)
    assert after < before + MOST_GROWTH_MIB


def report(soak: Soak, growth: Growth, page: str, servers: list[Fields]) -> None:
    before, after = growth_of(growth)
    print(
        f"{SECONDS:g} s: {dict(soak.kinds)} {dict(soak.caches)}; resident {before:.1f} -> {after:.1f} MiB"
        f" (start {growth.resident[0] / 2**20:.1f}); open files {median(growth.files):g},"
        f" {growth.files[-1]} at the end;"
        f" rejected {dict(counted(page, 'rejections_total', 'reason'))};"
        f" calls upstream {sum(counted(page, 'upstream_requests_total', 'upstream').values())};"
        f" upstreams {[(each['asked'], each['ended']) for each in servers]}"
    )
    step = max(1, len(growth.resident) // 20)
    print("resident MiB:", *(f"{each / 2**20:.1f}" for each in growth.resident[::step]))
