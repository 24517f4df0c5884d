"""A team's limit on calls at a time, held together by the proxies on one Redis: two of them let no more through than one.

It touches Redis, and the clock. A limit of n slots is up to 64 blocks there, each a key that one proxy holds:

    toolkit:slots:1:TEAM:7      the token of the proxy that has block 7, for LEASE_S; renewed each second
    toolkit:slots:1:TEAM:more   a proxy could use more than it has; the others let go of what they do not use
    toolkit:slots:1:TEAM:short  one has less than its share; who has more begins nothing until that is mended

A block is taken with SET NX, so it is never two proxies'. Idle proxies hold equal shares, so that a first request waits for nothing;
one with much to do has what the others leave. To move a block takes two ticks. Who hears nothing of Redis for LEASE_S uses its share
of the limit among the proxies that it saw last. Only then, and where a process stands still for longer than LEASE_S, may more calls
be under way than the limit says.
"""

import secrets
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from math import ceil, inf
from typing import Any, NamedTuple

from toolkit.proxy.admission import Admission
from toolkit.proxy.cache.redis import RedisCache
from toolkit.proxy.config import TeamSetting

PREFIX = "toolkit:slots:1"
MOST_BLOCKS = 64
"""Of one limit; what is read ten times a second stays small."""
LEASE_S = 3.0
"""A proxy that is heard of no more for so long has lost its slots."""
RENEW_S = 1.0
REMEMBERED_S = 60.0
"""An idle proxy that lent all it had to others is not seen for a while, and counts where Redis is lost then."""
FOUND_BACK_S = 10.0
"""After so long every proxy has found back to a Redis that was away (redis.AWAY_S and a look)."""
WISH_MS = 300
"""`more` and `short` hold for so long; they are said anew each tick."""


class Plan(NamedTuple):
    """What one proxy does about one limit until it looks again, in numbers of blocks."""

    keep: list[int]
    use: int
    """New calls may begin in so many of those that it keeps."""
    take: list[int]
    give: list[int]
    is_short: bool
    wants_more: bool


def plan(
    holders: Sequence[bytes | None],
    me: bytes,
    *,
    proxies: int,
    busy: int,
    waiting: int,
    others_short: bool = False,
    others_want: bool = False,
) -> Plan:
    """Work out which blocks to use, to take and to give back.

    `holders`: for each block the proxy that has it; None: nobody. `busy`: blocks in use here; `waiting`: so many more could be used
    at once. `others_short`, `others_want`: another proxy has less than its share, or could use more than it has.
    """
    mine = [number for number, holder in enumerate(holders) if holder == me]
    free = [number for number, holder in enumerate(holders) if holder is None]
    share = len(holders) // proxies
    wanted = busy + waiting
    if others_short:
        wanted = share
    elif not others_want:
        wanted = max(share, wanted)
    kept = max(wanted, busy)
    take = free[: max(0, wanted - len(mine))]
    due = max(1, share) if waiting else share
    if not waiting and others_want:
        # an idle one does without where its share is in use
        due = 0
    return Plan(
        keep=mine[:kept],
        use=wanted,
        take=take,
        give=mine[kept:],
        is_short=len(mine) + len(take) < due,
        wants_more=busy + waiting > share,
    )


class SharedLimits:
    """One process's part of all teams' limits. `sync` wants to be called ten times a second."""

    def __init__(self, redis: RedisCache, admission: Admission) -> None:
        self._redis, self._admission = redis, admission
        self._token = secrets.token_hex(8).encode()
        self._limits: dict[str, int] = {}
        self._keys: dict[str, list[str]] = {}
        """Of each team's blocks."""
        self._held: list[str] = []
        """Keys of all blocks that are this process's."""
        self._seen: dict[bytes, float] = {}
        """The other proxies, and when each was seen last."""
        self._heard_s = self._renewed_s = self._even_until_s = -inf

    def take_settings(self, teams: Iterable[TeamSetting]) -> None:
        """Hold to the limits of these teams from now on."""
        self._limits = {each.name: each.concurrency for each in teams if each.concurrency}
        self._keys = {
            team: [f"{PREFIX}:{team}:{number}" for number in range(min(limit, MOST_BLOCKS))]
            for team, limit in self._limits.items()
        }
        held, self._held = self._held, []
        for team, keys in self._keys.items():
            mine = [number for number, key in enumerate(keys) if key in held]
            self._held += [keys[number] for number in mine]
            self._limit(team, mine)

    async def sync(self) -> None:
        """Look at all blocks, take and give back, and tell admission how many slots of each team are this process's now."""
        if not self._limits:
            return
        redis, me, now = self._redis, self._token, time.monotonic()
        wishes = [f"{PREFIX}:{team}:{wish}" for team in self._limits for wish in ("more", "short")]
        keys = list(chain.from_iterable(self._keys.values()))
        looked = await redis.batch([("MGET", *wishes, *keys)])
        if not looked:
            if now - self._heard_s >= LEASE_S:
                for team, limit in self._limits.items():
                    self._admission.limit_team(team, max(1, limit // (1 + len(self._seen))))
            return
        values = looked[0]
        holder_of = dict(zip(keys, values[len(wishes) :], strict=True))
        if any(holder_of[key] != me for key in self._held):
            # Redis was away, or forgot all: the others' calls go on, and they may not have found back to it
            self._seen = dict.fromkeys(self._seen, now)
            self._even_until_s = now + FOUND_BACK_S
        self._heard_s = now
        for token in values:
            if token not in (None, me):
                self._seen[token] = now
        self._seen = {token: at for token, at in self._seen.items() if now - at < REMEMBERED_S}
        proxies = 1 + sum(now - at < LEASE_S for at in self._seen.values())

        said, self._held = iter(values[: len(wishes)]), []
        lease = me, "PX", int(LEASE_S * 1000)
        taking: list[tuple[str, int]] = []
        uses: dict[str, list[int]] = {}
        commands: list[tuple[Any, ...]] = []
        for team, blocks in self._keys.items():
            more, short = next(said), next(said)
            in_use, waiting = self._admission.team_use(team)
            found = plan(
                [holder_of[key] for key in blocks],
                me,
                proxies=proxies,
                busy=ceil(in_use * len(blocks) / self._limits[team]),
                waiting=ceil(waiting * len(blocks) / self._limits[team]),
                others_short=short not in (None, me) or now < self._even_until_s,
                others_want=more not in (None, me),
            )
            # before what is given back is anybody else's
            uses[team] = found.keep[: found.use]
            self._limit(team, uses[team])
            self._held += [blocks[number] for number in found.keep]
            taking += [(team, block) for block in found.take]
            commands += [("DEL", blocks[number]) for number in found.give]
            for is_so, wish in ((found.wants_more, "more"), (found.is_short, "short")):
                if is_so:
                    commands.append(("SET", f"{PREFIX}:{team}:{wish}", me, "PX", WISH_MS))
        if now - self._renewed_s >= RENEW_S:
            self._renewed_s = now
            commands += [("PEXPIRE", key, lease[-1]) for key in self._held]
        asked = [("SET", self._keys[team][block], *lease, "NX") for team, block in taking]
        if not (asked or commands):
            return
        results = await redis.batch([*asked, *commands])
        for (team, block), result in zip(taking, results, strict=False):
            if result and not isinstance(result, Exception):
                uses[team].append(block)
                self._held.append(self._keys[team][block])
                self._limit(team, uses[team])

    def _limit(self, team: str, blocks: list[int]) -> None:
        limit, count = self._limits[team], len(self._keys[team])
        slots = sum(limit * (each + 1) // count - limit * each // count for each in blocks)
        self._admission.limit_team(team, slots)

    async def close(self) -> None:
        """Give all blocks back."""
        if self._held:
            await self._redis.batch([("DEL", *self._held)])
