"""Stored answers in a Redis that proxies on several machines share. It touches that Redis's socket, and the clock.

Whatever goes wrong there is a miss, within a limit of time: after a few failures it is left alone for a while. Its
address may hold a password, and is in no message. Who of the proxies asks upstream they settle there, too: by leases.
"""

import asyncio
import math
import secrets
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from toolkit.errors import ToolkitError
from toolkit.proxy.stored import leases
from toolkit.proxy.stored.leases import Look, Renewed

PREFIX = "toolkit:1"
"""Of every answer's key there: whose it is, and the layout of the values."""
LEASES = "toolkit:lease:1"
"""Of leases: no purge takes or counts them."""
TIMEOUT_S = 0.03
"""One that is away costs a request no more than 50 ms, whatever the loop and its timer add."""
FAILURES = 5
"""So many in a row, and it is left alone."""
AWAY_S, LONGEST_AWAY_S = 1.0, 5.0
"""For so long; doubles each time. Each time one look-up tries and takes its limit, the others wait for nothing."""
CONNECTIONS = 32
"""Look-ups at a time; more wait for their turn within the same limit. Past it they are misses, and no failures."""
PUTS = 32
"""At a time, ends of leases included; more take turns."""
WAITING_PUTS, PUTS_BYTES = 1024, 16 * 2**20
"""Most that are under way or wait for their turn; more are not stored there."""
LARGEST_BYTES = 2 * 2**20
"""Of one answer: 2 MiB take 17 ms on a wire of 1 Gbit/s."""
PUT_TIMEOUT_S = 2.0
"""Nobody here waits for one. Who waits elsewhere asks for himself if it fails, and sees sooner if Redis is away."""
LONGEST_TTL_S = 30 * 86400.0
"""Of an answer without end: nothing is left for ever in somebody's Redis."""
PURGED_AT_ONCE = 500
PURGE_TIMEOUT_S = 5.0
"""Of each step of a purge."""
LEASE_MS = int(leases.LEASE_S * 1000)

_HEAD = struct.Struct(">16sd")
"""The key again and when the answer ends: an answer that came over a mixed-up connection would bear another key."""


_SPARED: Final = object()
"""What comes of a look-up that was not made."""


@dataclass(slots=True, kw_only=True)
class RedisCounts:
    """What this process did with the Redis."""

    hits: int = 0
    misses: int = 0
    stored: int = 0
    lost: int = 0
    """Not stored: too large, too many under way, or left alone."""
    failures: int = 0
    spared: int = 0
    """Look-ups that were not made, because it is left alone or too many were under way."""
    breaks: int = 0
    """How often it was left alone."""


class RedisCache:
    """One process's use of the Redis, in one event loop. Nothing is contacted before the first look-up."""

    def __init__(
        self,
        url: str,
        timeout_s: float = TIMEOUT_S,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ToolkitError on an address that is none, and where the package `redis` is missing."""
        self.problem: str | None = None
        """Why it was not answered last; None: all is well."""
        self._timeout_s, self._clock = timeout_s, clock
        self._client = _client(url, timeout_s)
        self._counts = RedisCounts()
        self.token = secrets.token_hex(8).encode()
        """By what others know a lease of this process's."""
        self.leased: set[bytes] = set()
        """Keys of the answers that this process asks for in the place of all proxies."""
        self._turns, self._put_turns = asyncio.Semaphore(CONNECTIONS), asyncio.Semaphore(PUTS)
        self._puts_bytes = 0
        self._puts: set[asyncio.Task[None]] = set()
        self._words: set[asyncio.Task[None]] = set()
        self._failed_in_a_row = 0
        self._failed_at = -math.inf
        self._away_s = AWAY_S
        self._away_until = -math.inf
        self._is_trying = False
        """After it was left alone: one look-up tries, the others are spared until that one is back."""

    @property
    def is_left_alone(self) -> bool:
        """It failed too often, and is only tried now and then."""
        return not self._is_well()

    async def get(self, key: bytes, now: float) -> tuple[bytes, float] | None:
        """The packed answer and when it ends (inf: never). None within the limit of time, whatever happens."""
        value = await self._looked(lambda: self._client.get(_name(key)))
        return None if value is _SPARED else self._counted(_read(key, value, now))

    async def look(self, key: bytes, now: float) -> Look:
        """The same, and where there is no answer, who asks for it: this process from now on, if nobody does."""
        if key in self.leased:
            return Look(await self.get(key, now))
        told = await self._looked(
            lambda: self._client.eval(
                *(leases.LOOK, 3, _name(key), *_lease_names(key), self.token, LEASE_MS)
            )
        )
        if told is _SPARED:
            return Look()
        value, lease = leases.looked(told)
        found = self._counted(_read(key, value, now))
        if found is not None or lease is None:
            return Look(found)
        if lease == self.token:
            self.leased.add(key)
        return Look(None, lease)

    def put(self, key: bytes, packed: bytes, *, ends_at: float | None, now: float) -> bool:
        """Have an answer stored, soon, and its lease ended; False: it is not. Never waits."""
        is_full = len(self._puts) >= WAITING_PUTS or self._puts_bytes + len(packed) > PUTS_BYTES
        if is_full or len(packed) > LARGEST_BYTES or not self._is_well():
            self._counts.lost += 1
            return False
        ends = math.inf if ends_at is None else ends_at
        ttl_ms = int(min(ends - now, LONGEST_TTL_S) * 1000)
        if ttl_ms <= 0:
            return False
        value = _HEAD.pack(key, ends) + packed
        is_leased = key in self.leased
        self.leased.discard(key)
        task = asyncio.create_task(self._put(key, value, ttl_ms, is_leased=is_leased))
        self._puts.add(task)
        self._puts_bytes += len(value)
        return True

    # --- leases ---------------------------------------------------------------------------------------------

    def give_up(self, key: bytes) -> None:
        """Have all know soon that a lease of ours brings no answer: each is to ask for itself."""
        self._end_lease(key, leases.GIVE_UP, int(leases.GIVEN_UP_S * 1000))

    def let_go(self, key: bytes) -> None:
        """Have another proxy take over soon, where one waits: nothing is known of the answer."""
        self._end_lease(key, leases.LET_GO)

    def _end_lease(self, key: bytes, script: str, *more: object) -> None:
        if key not in self.leased:
            return
        self.leased.discard(key)
        if self._is_well():
            self._say(self._client.eval(script, 1, _lease_names(key)[0], self.token, *more))

    async def renew(self, keys: Sequence[bytes]) -> list[Renewed] | None:
        """Say that this process lives and still asks; what became of each lease. None: Redis does not tell."""
        if not self._is_well():
            return None
        names = [name for key in keys for name in _lease_names(key)]
        command = self._client.eval(leases.RENEW, len(names), *names, self.token, LEASE_MS)
        return leases.renewed(await self._tried(command, self._timeout_s), len(keys))

    async def holders(self, keys: Sequence[bytes]) -> list[bytes | None] | None:
        """Who has the leases now. None: Redis does not tell."""
        if not self._is_well():
            return None
        command = self._client.mget([_lease_names(key)[0] for key in keys])
        told = await self._tried(command, self._timeout_s)
        return told if isinstance(told, list) and len(told) == len(keys) else None

    def want(self, keys: Sequence[bytes]) -> None:
        """Have the holders know that somebody here waits."""
        line = self._client.pipeline(transaction=False)
        for key in keys:
            line.set(_lease_names(key)[1], b"1", px=LEASE_MS)
        self._say(line.execute())

    def _say(self, command: Awaitable[Any]) -> None:
        """Have something done there soon; nobody waits for it."""
        task = asyncio.create_task(self._said(command))
        self._words.add(task)
        task.add_done_callback(self._words.discard)

    async def _said(self, command: Awaitable[Any]) -> None:
        async with self._put_turns:
            await self._tried(command, PUT_TIMEOUT_S)

    # --- the whole ------------------------------------------------------------------------------------------

    async def forget(self, key: bytes) -> int:
        """Delete one answer; how many it were. Raises ToolkitError where it may be there still."""
        await self.settle()
        return int(await self._surely(self._client.unlink(_name(key))))

    async def purge(self) -> int:
        """Delete the answers of all proxies, and nothing else; how many it were.

        Raises ToolkitError where not all could be deleted.
        """
        await self.settle()
        cursor, count = 0, 0
        while True:
            step = self._client.scan(cursor, match=f"{PREFIX}:*", count=PURGED_AT_ONCE)
            cursor, names = await self._surely(step)
            if names:
                count += await self._surely(self._client.unlink(*names))
            if not cursor:
                return count

    async def settle(self) -> None:
        """Wait until what was put is stored, or is not, and what was said is known."""
        while under_way := self._puts | self._words:
            await asyncio.wait(under_way)

    def counts(self) -> RedisCounts:
        """All counters."""
        return replace(self._counts)

    async def close(self) -> None:
        """Let the puts under way come to their end, and close the connections."""
        await self.settle()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._client.aclose()
        except Exception as error:  # noqa: BLE001 (it is closed all the same)
            self.problem = _words(error)

    # --- one command --------------------------------------------------------------------------------------

    async def _put(self, key: bytes, value: bytes, ttl_ms: int, *, is_leased: bool) -> None:
        try:
            async with self._put_turns:
                is_stored = self._is_well() and await self._stored(key, value, ttl_ms)
            if is_stored:
                self._counts.stored += 1
                return
            self._counts.lost += 1
            if is_leased:
                self.leased.add(key)
                self.give_up(key)
        finally:
            self._puts_bytes -= len(value)
            task = asyncio.current_task()
            if task is not None:
                self._puts.discard(task)

    async def _stored(self, key: bytes, value: bytes, ttl_ms: int) -> bool:
        # also where no lease is known: a look that came too late may have taken one all the same
        names = (_name(key), *_lease_names(key))
        command = self._client.eval(leases.STORE, 3, *names, value, ttl_ms, self.token)
        return bool(await self._tried(command, PUT_TIMEOUT_S))

    async def _looked(self, command: Callable[[], Awaitable[Any]]) -> Any:
        """What comes of a look-up, its wait for its turn included; None for a failure, _SPARED where none was made."""
        if not self._may_try():
            self._counts.spared += 1
            return _SPARED
        ends_s = asyncio.get_running_loop().time() + self._timeout_s
        try:
            # half of the limit: one that gets its turn later fails for want of time, and not for Redis' fault
            async with asyncio.timeout_at(ends_s - self._timeout_s / 2):
                await self._turns.acquire()
        except TimeoutError:
            self._is_trying = False
            self._counts.spared += 1
            return _SPARED
        except asyncio.CancelledError:
            self._is_trying = False
            raise
        try:
            return await self._tried(command(), ends_s - asyncio.get_running_loop().time())
        finally:
            self._turns.release()

    def _counted(self, found: tuple[bytes, float] | None) -> tuple[bytes, float] | None:
        if found is None:
            self._counts.misses += 1
        else:
            self._counts.hits += 1
        return found

    async def _tried(self, command: Awaitable[Any], limit_s: float) -> Any:
        """What comes of a command; None for anything that is wrong, or too late."""
        began = self._clock()
        try:
            async with asyncio.timeout(limit_s):
                told = await command
        except asyncio.CancelledError:
            self._is_trying = False
            raise
        except Exception as error:  # noqa: BLE001 (the package raises what it likes on what it can't read)
            self._failed(error, began)
            return None
        self._succeeded()
        return told

    async def _surely(self, command: Awaitable[Any]) -> Any:
        began = self._clock()
        try:
            async with asyncio.timeout(PURGE_TIMEOUT_S):
                return await command
        except Exception as error:  # noqa: BLE001 (as above)
            self._failed(error, began)
            message = f"The Redis could not be purged: {_words(error)}"
            raise ToolkitError(message, "Purge again once it answers") from None

    # --- leaving it alone -----------------------------------------------------------------------------------

    def _is_well(self) -> bool:
        return self._failed_in_a_row < FAILURES

    def _may_try(self) -> bool:
        if self._is_well():
            return True
        if self._is_trying or self._clock() < self._away_until:
            return False
        self._is_trying = True
        return True

    def _succeeded(self) -> None:
        self.problem = None
        self._failed_in_a_row = 0
        self._away_s = AWAY_S
        self._is_trying = False

    def _failed(self, error: Exception, began: float) -> None:
        self._counts.failures += 1
        self.problem = _words(error)
        was_trying, self._is_trying = self._is_trying, False
        if self.problem == FULL:
            return  # it told so at once, and what it has it gives still
        if began < self._failed_at:
            return  # under way together with one that failed: if this process stood still for a moment, all of them did
        self._failed_at = self._clock()
        self._failed_in_a_row += 1
        if self._failed_in_a_row == FAILURES or was_trying:
            self._counts.breaks += 1
            self._away_until = self._clock() + self._away_s
            self._away_s = min(2 * self._away_s, LONGEST_AWAY_S)


def _client(url: str, timeout_s: float) -> Any:
    try:
        # late: nobody else pays for it, and it may be missing
        from redis.asyncio import Redis  # noqa: PLC0415
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415
    except ImportError as error:
        hint = "Install it: `pip install 'llm-serving-toolkit[redis]'`"
        raise ToolkitError("A shared Redis needs the Python package `redis`", hint) from error
    try:
        return Redis.from_url(
            url,
            # Each command's own limit is kept here. With one of its own the package sends within `wait_for`, which on
            # Python 3.11 may lose a cancellation: a look-up past its limit then waited until the package's, too.
            socket_timeout=None,
            socket_connect_timeout=timeout_s,
            # beside look-ups and puts: a purge, renewals, and the watch of leases
            max_connections=CONNECTIONS + PUTS + 4,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
    except (ValueError, TypeError):
        # without its cause, which repeats the address
        raise ToolkitError(
            "The address of the shared Redis is none",
            "It looks like `redis://:PASSWORD@HOST:6379/0` or `unix:///run/redis.sock`",
        ) from None


def _name(key: bytes) -> str:
    return f"{PREFIX}:{key.hex()}"


def _lease_names(key: bytes) -> tuple[str, str]:
    """Where an answer's lease lies, and that somebody waits for it."""
    name = f"{LEASES}:{key.hex()}"
    return name, f"{name}:wanted"


def _read(key: bytes, value: Any, now: float) -> tuple[bytes, float] | None:
    if not isinstance(value, bytes) or len(value) < _HEAD.size:
        return None
    own_key, ends_at = _HEAD.unpack_from(value)
    # not `ends_at <= now`: NaN is not good
    return (value[_HEAD.size :], ends_at) if own_key == key and ends_at > now else None


def _words(error: Exception) -> str:
    """What is wrong, without the package's own words: they may repeat the address."""
    kinds = {each.__name__ for each in type(error).__mro__}
    return next((words for kind, words in _KINDS.items() if kind in kinds), "it answers no Redis")


FULL = "it has no memory left"
_KINDS = {
    # the most special first, by the names of their classes: the package may be missing
    "MaxConnectionsError": "too many look-ups at once",
    "AuthenticationError": "it wants another password",
    "AuthorizationError": "it wants another password",
    "NoPermissionError": "its user may not read and write here",
    "BusyLoadingError": "it is still reading its data",
    "ReadOnlyError": "it may not be written",
    "OutOfMemoryError": FULL,
    "InvalidResponse": "what answers there is no Redis",
    "ResponseError": "it refuses the command",
    "TimeoutError": "it does not answer in time",
    "ConnectionError": "there is no connection to it",
    "OSError": "there is no connection to it",
}
