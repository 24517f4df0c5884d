"""`toolkit proxy` under many clients for a while: is an answer ever wrong or lost, does anything grow, does what it counts add up?

30 s by default, 10 minutes with TOOLKIT_LONG=full. Two upstreams whose answers are functions of what is asked, in a process of their
own; they cut answers, fail and are busy by the dice, and each dies as a whole and comes back. One client in ten leaves at a
random moment, some read slowly. The proxy is killed at a fifth of the time and started again over its file. It prints what it measured.
"""

import asyncio
import contextlib
import json
import os
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
from support.proxied import Client, raw
from support.proxy_verb import Verb, proxying
from support.soaking import PATIENCE_S, TEAMS, Soak, Visitor, cache_of, prompt, visit
from support.truthful import Fields, Ways, change, telling_the_truth, told

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
