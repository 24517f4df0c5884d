"""Stored answers in a Redis that proxies on several machines share. It touches that Redis's socket, and the clock.

Whatever goes wrong there is a miss, within a limit of time: after a few failures it is left alone for a while. Its
address may hold a password, and is in no message.
"""

import asyncio
import math
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from toolkit.errors import ToolkitError

PREFIX = "toolkit:1"
"""Of every key there: whose it is, and the layout of the values."""
TIMEOUT_S = 0.05
FAILURES = 5
"""So many in a row, and it is left alone."""
AWAY_S, LONGEST_AWAY_S = 1.0, 30.0
"""For so long; doubles each time."""
CONNECTIONS = 32
"""Look-ups at a time; more are misses, and no failures."""
PUTS, PUTS_BYTES = 32, 16 * 2**20
"""Under way at a time; more are not stored there."""
LARGEST_BYTES = 2 * 2**20
"""Of one answer: 2 MiB take 17 ms on a wire of 1 Gbit/s."""
PUT_TIMEOUT_S = 0.5
"""Nobody waits for one."""
LONGEST_TTL_S = 30 * 86400.0
"""Of an answer without end: nothing is left for ever in somebody's Redis."""
PURGED_AT_ONCE = 500
PURGE_TIMEOUT_S = 5.0
"""Of each step of a purge."""

_HEAD = struct.Struct(">16sd")
"""The key again and when the answer ends: an answer that came over a mixed-up connection would bear another key."""


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
        self._gets = self._puts_bytes = 0
        self._puts: set[asyncio.Task[None]] = set()
        self._failed_in_a_row = 0
        self._failed_at = -math.inf
        self._away_s = AWAY_S
        self._away_until = -math.inf
        self._is_trying = False
        """After it was left alone: one look-up tries, the others are spared until that one is back."""

    async def get(self, key: bytes, now: float) -> tuple[bytes, float] | None:
        """The packed answer and when it ends (inf: never). None within the limit of time, whatever happens."""
        if self._gets >= CONNECTIONS or not self._may_try():
            self._counts.spared += 1
            return None
        self._gets += 1
        try:
            value = await self._tried(self._client.get(_name(key)), self._timeout_s)
        finally:
            self._gets -= 1
        found = _read(key, value, now)
        if found is None:
            self._counts.misses += 1
        else:
            self._counts.hits += 1
        return found

    def put(self, key: bytes, packed: bytes, *, ends_at: float | None, now: float) -> bool:
        """Have an answer stored, soon; False: it is not. Never waits."""
        is_full = len(self._puts) >= PUTS or self._puts_bytes + len(packed) > PUTS_BYTES
        if is_full or len(packed) > LARGEST_BYTES or not self._is_well():
            self._counts.lost += 1
            return False
        ends = math.inf if ends_at is None else ends_at
        ttl_ms = int(min(ends - now, LONGEST_TTL_S) * 1000)
        if ttl_ms <= 0:
            return False
        value = _HEAD.pack(key, ends) + packed
        task = asyncio.create_task(self._put(_name(key), value, ttl_ms))
        self._puts.add(task)
        self._puts_bytes += len(value)
        return True

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
        """Wait until what was put is stored, or is not."""
        if self._puts:
            await asyncio.wait(self._puts)

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

    async def _put(self, name: str, value: bytes, ttl_ms: int) -> None:
        try:
            if await self._tried(self._client.set(name, value, px=ttl_ms), PUT_TIMEOUT_S):
                self._counts.stored += 1
            else:
                self._counts.lost += 1
        finally:
            self._puts_bytes -= len(value)
            task = asyncio.current_task()
            if task is not None:
                self._puts.discard(task)

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
            max_connections=CONNECTIONS + PUTS + 1,
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


_KINDS = {
    # the most special first, by the names of their classes: the package may be missing
    "MaxConnectionsError": "too many look-ups at once",
    "AuthenticationError": "it wants another password",
    "AuthorizationError": "it wants another password",
    "NoPermissionError": "its user may not read and write here",
    "BusyLoadingError": "it is still reading its data",
    "ReadOnlyError": "it may not be written",
    "OutOfMemoryError": "it has no memory left",
    "InvalidResponse": "what answers there is no Redis",
    "ResponseError": "it refuses the command",
    "TimeoutError": "it does not answer in time",
    "ConnectionError": "there is no connection to it",
    "OSError": "there is no connection to it",
}
