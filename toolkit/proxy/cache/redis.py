"""Stored answers in a Redis that proxies on several machines share, and leases: which proxy asks upstream for an answer that none has.

It does network I/O and reads the clock. Any failure is a miss, within a time limit; after a few failures Redis is left alone for a
while. Its address may hold a password, so no message repeats it.

    toolkit:1:KEY              an answer: its key again, when it ends, the packed response
    toolkit:lease:1:KEY        the token of the proxy that asks upstream for all, renewed each second; `-` for a second once its call has
                               ended: a proxy that then finds no answer asks upstream itself
    toolkit:lease:1:KEY:wanted another proxy waits: the call goes on even when its own clients have left
    toolkit:model:1            the models' fingerprints

A lease is taken with SET NX, followed by MGET of answer and lease in the same round trip; a proxy that doesn't get it polls with MGET.
No scripts, so that the proxies' Redis user needs few rights. A process that is stopped between reading and writing may end another's
lease, and a lease whose reply was lost holds for LEASE_S: that costs a call or a wait, never a wrong answer.
"""

import asyncio
import contextlib
import math
import secrets
import struct
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from toolkit.errors import ToolkitError

PREFIX = "toolkit:1"
"""Of every answer's key there: whose it is, and the layout of the values."""
LEASES = "toolkit:lease:1"
"""Of leases: no purge takes or counts them."""
FINGERPRINTS = "toolkit:model:1"
HEAD = struct.Struct(">16sd")
"""Before a packed answer its key again and when it ends: one that came over a mixed-up connection would bear another key."""

TIMEOUT_S = 0.03
"""One that is away costs a request no more than 50 ms, whatever the loop and its timer add."""
FAILURES = 5
"""So many in a row, and it is left alone."""
AWAY_S = (1.0, 2.0, 4.0, 5.0)
"""For so long, longer each time. Each time one look-up tries and takes its limit, the others wait for nothing."""
CONNECTIONS = 32
"""Look-ups at a time; more wait for their turn within the same limit."""
WAITING_COMMANDS, WAITING_BYTES = 1024, 16 * 2**20
"""Most that are under way or wait to be sent; more answers are not stored there."""
BATCH_COMMANDS = 256
"""Sent at once."""
LARGEST_BYTES = 2 * 2**20
"""Of one answer: 2 MiB take 17 ms on a wire of 1 Gbit/s."""
PUT_TIMEOUT_S = 2.0
"""No request here waits for a batch; a proxy that waits for an answer in it asks upstream itself if it fails."""
LONGEST_TTL_S = 30 * 86400.0
"""Of an answer without end: nothing is left for ever in somebody's Redis."""
PURGED_AT_ONCE = 500
PURGE_TIMEOUT_S = 5.0
"""Of each step of a purge."""

LEASE_S = 3.0
"""A lease that is not renewed for so long has lost its holder: another proxy takes over."""
RENEW_S = 1.0
"""How often leases are renewed, and waiting proxies say that they still wait."""
ENDED = b"-"
"""In place of a token."""
ENDED_S = 1.0
"""How long it stays: waiting proxies look a hundred times a second."""
POLL_S = 0.01
"""How often a proxy looks for all that it waits for, in one round trip: an answer comes at most so much later."""
POLL_SHARE = 0.1
"""The largest part of the time that may be spent polling, however many wait."""

NOTHING: Final = object()
"""The result of a command that failed or was not sent."""
FULL = "it has no memory left"
PROBLEMS = {
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


@dataclass(slots=True, eq=False)
class Lease:
    """This process asks upstream for an answer in the place of all proxies. It is renewed once `unwanted` is set, until it ends."""

    cache: "RedisCache"
    key: bytes
    renewed_s: float
    unwanted: Callable[[], None] | None = None
    """Called each time that no other proxy is seen to wait, Redis can't say, or the lease is lost. It decides whether clients of this
    process still want the call."""

    def check(self) -> None:
        """The last client here left: `unwanted` is called soon, unless another proxy waits."""
        self.cache.begin(self.cache.renew([self]))

    def end(self, *, is_stored: bool) -> None:
        """The call is over, or can't be stored any more: then all other proxies ask upstream themselves. Stored: they find it."""
        if not is_stored:
            self.cache.end_lease(self)

    def release(self) -> None:
        """The call was given up: a waiting proxy takes over."""
        self.cache.end_lease(self, takes_over=True)


@dataclass(slots=True, eq=False)
class Search:
    """One search for an answer, shared by all requests here that want it at the same time."""

    task: asyncio.Task[None] = field(init=False)
    seekers: int = 0
    answer: tuple[bytes, float] | None = None
    waited: bool = False
    lease: Lease | None = None


class RedisCache:
    """One process's use of the Redis, in one event loop. Nothing is contacted before the first look-up."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S, *, wait_s: float = 0.0) -> None:
        """`wait_s`: for another proxy's call. Raises ToolkitError on an address that is none, and where the package `redis` is missing."""
        self.problem: str | None = None
        """Why it did not answer last; None: all is well."""
        self.lost = 0
        """Answers not stored: too large, too many under way, or it is left alone."""
        self.wait_s = wait_s
        self._timeout_s = timeout_s
        self._client = _client(url, timeout_s)
        self._token = secrets.token_hex(8).encode()
        """By what others know a lease of this process's."""
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._queue: deque[tuple[int, tuple[Any, ...]]] = deque()
        """Commands that nobody waits for, and the bytes of the answers in them."""
        self._queued_bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._is_writing = asyncio.Lock()
        """Fingerprints, one after the other: each is read, added to and written."""
        self._searches: dict[bytes, Search] = {}
        self._polled: dict[bytes, asyncio.Future[Any]] = {}
        """What the answer's place and the lease hold at the next poll."""
        self._leases: dict[bytes, Lease] = {}
        self.is_ending = False
        """The process is about to end: it waits for no other proxy any more."""
        self._polling: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed_in_a_row = 0
        self._failed_at = self._away_until = -math.inf

    @property
    def is_left_alone(self) -> bool:
        """It failed too often, and is only tried now and then."""
        return self._failed_in_a_row >= FAILURES

    # --- answers ------------------------------------------------------------------------------------

    async def get(self, key: bytes) -> tuple[bytes, float] | None:
        """The packed answer and when it ends (inf: never). None within the limit of time, whatever happens."""
        return _read(key, await self._looked(("GET", _name(key))))

    def put(self, key: bytes, packed: bytes, *, ends_at: float) -> bool:
        """Queue an answer to be stored, and end its lease; False if it can't be stored. Never waits."""
        ttl_ms = int(min(ends_at - time.time(), LONGEST_TTL_S) * 1000)
        value = HEAD.pack(key, ends_at) + packed
        is_full = (
            len(self._queue) >= WAITING_COMMANDS or self._queued_bytes + len(value) > WAITING_BYTES
        )
        takes = not (is_full or len(packed) > LARGEST_BYTES or self.is_left_alone or ttl_ms <= 0)
        if takes:
            self._send("SET", _name(key), value, "PX", ttl_ms, answer_bytes=len(value))
        elif ttl_ms > 0:
            self.lost += 1
        if key in self._leases:
            self.end_lease(self._leases[key])  # behind the answer: nobody finds neither
        return takes

    async def purge(self, key: bytes | None = None) -> int:
        """Delete one answer, or all proxies' answers and nothing else; return how many.

        Raises ToolkitError where not all could be deleted.
        """
        await self.settle()
        cursor, count = 0, 0
        names = [] if key is None else [_name(key)]
        while True:
            if key is None:
                scan = ("SCAN", cursor, "MATCH", f"{PREFIX}:*", "COUNT", PURGED_AT_ONCE)
                cursor, names = await self._purged(*scan)
            if names:
                count += await self._purged("UNLINK", *names)
            if not cursor:
                return count

    async def settle(self) -> None:
        """Wait until all queued commands were sent, or failed."""
        while self._sending is not None:
            await asyncio.wait([self._sending])

    async def close(self) -> None:
        """Finish what is under way, and close the connections."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.settle()
        with contextlib.suppress(Exception):  # it is closed all the same
            async with asyncio.timeout(self._timeout_s):
                await self._client.aclose()

    # --- the models' fingerprints -----------------------------------------------------------------------

    async def fingerprints(self) -> dict[str, str] | None:
        """What the proxies know of the models; None if Redis is left alone or fails."""
        value = await self._looked(("GET", FINGERPRINTS))
        if value is NOTHING:
            return None
        try:
            found = orjson.loads(value or b"{}")
        except orjson.JSONDecodeError:
            found = {}
        known = found if isinstance(found, dict) else {}
        return {name: text for name, text in known.items() if isinstance(text, str)}

    def keep_fingerprints(self, known: Mapping[str, str]) -> None:
        """Write them beside the others' soon. Of two proxies that write at the same moment one may be lost."""
        self.begin(self._write_fingerprints(dict(known)))

    async def _write_fingerprints(self, known: dict[str, str]) -> None:
        async with self._is_writing:
            found = await self.fingerprints()
            if found is not None:
                await self._looked(("SET", FINGERPRINTS, orjson.dumps(found | known)))

    # --- one call for all proxies -------------------------------------------------------------------------

    async def search(self, key: bytes) -> tuple[tuple[bytes, float] | None, bool, Lease | None]:
        """Look for an answer, and wait while another proxy asks upstream for it; the answer as of `get`, whether it waited, and a lease.

        With a lease this process is to ask upstream for all proxies. Of several searches for one key at a time, one gets it.
        """
        search = self._searches.get(key)
        if search is None:
            search = self._searches[key] = Search()
            search.task = self.begin(self._search(key, search))
        search.seekers += 1
        try:
            await asyncio.shield(search.task)
            lease, search.lease = search.lease, None
            return search.answer, search.waited, lease
        finally:
            search.seekers -= 1
            if not search.seekers and search.lease is not None:
                search.lease.release()

    async def _search(self, key: bytes, search: Search) -> None:
        began_s, holder = time.monotonic(), None
        ends_s = began_s + self.wait_s
        try:
            # when all requests have left it ends at the next poll, unless another one has come
            while search.seekers:
                may_take = holder is None
                if may_take:
                    began_s = time.monotonic()
                    # take the lease if nobody has it, then look: whoever had it before stored the answer first
                    name, milliseconds = _lease_name(key), int(LEASE_S * 1000)
                    values = await self._looked(
                        ("SET", name, self._token, "NX", "PX", milliseconds),
                        ("MGET", _name(key), name),
                    )
                else:
                    if not search.waited:
                        search.waited = True
                        self._send_wanted([key])
                    future = self._polled[key] = asyncio.get_running_loop().create_future()
                    if self._polling is None:
                        self._polling = self.begin(self._poll())
                    values = await future
                if not isinstance(values, list) or len(values) != 2:
                    return
                search.answer, holder = _read(key, values[0]), values[1]
                if holder == self._token and key not in self._leases:
                    if search.answer is None:
                        search.lease = self._leases[key] = Lease(self, key, began_s)
                        if self._renewing is None:
                            self._renewing = self.begin(self._renew_all())
                    else:
                        self._send("DEL", _lease_name(key))
                if search.answer is not None or holder in (ENDED, self._token):
                    return
                if holder is None and may_take:
                    return  # it takes nothing, e.g., as it is full
                if holder is not None and (self.is_ending or time.monotonic() >= ends_s):
                    return
        finally:
            del self._searches[key]
            if search.lease is not None and not search.seekers:
                search.lease.release()

    async def _poll(self) -> None:
        """Poll for all keys that searches wait for, until there are none."""
        took_s, said_s = 0.0, time.monotonic()
        try:
            while self._polled:
                await asyncio.sleep(max(POLL_S, took_s / POLL_SHARE))
                polled, self._polled = self._polled, {}
                began_s = time.monotonic()
                if began_s - said_s >= RENEW_S:
                    said_s = began_s
                    self._send_wanted(polled)
                names = [name for key in polled for name in (_name(key), _lease_name(key))]
                values = await self._looked(("MGET", *names))
                for place, future in enumerate(polled.values()):
                    if not future.done():
                        is_known = isinstance(values, list)
                        future.set_result(values[2 * place :][:2] if is_known else NOTHING)
                # the searches run, and wait anew or end
                await asyncio.sleep(0)
                took_s = time.monotonic() - began_s
        finally:
            self._polling = None

    def _send_wanted(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._send("SET", f"{_lease_name(key)}:wanted", b"1", "PX", int(LEASE_S * 1000))

    async def _renew_all(self) -> None:
        try:
            while self._leases:
                await asyncio.sleep(RENEW_S)
                await self.renew([each for each in self._leases.values() if each.unwanted])
        finally:
            self._renewing = None

    async def renew(self, leases: Sequence[Lease]) -> None:
        """Renew leases, and call `unwanted` of those that no other proxy waits for."""
        if not leases:
            return
        names = [_lease_name(lease.key) for lease in leases]
        began_s = time.monotonic()
        both = [each for name in names for each in (name, f"{name}:wanted")]
        values = await self._looked(("MGET", *both))
        for place, (name, lease) in enumerate(zip(names, leases, strict=True)):
            is_wanted = False
            if isinstance(values, list) and self._leases.get(lease.key) is lease:
                if values[2 * place] == self._token:
                    lease.renewed_s, is_wanted = began_s, values[2 * place + 1] is not None
                    self._send("PEXPIRE", name, int(LEASE_S * 1000))
                else:
                    # this process stood still, or Redis forgot: a call for the clients here, whose answer is stored
                    del self._leases[lease.key]
            if lease.unwanted is not None and not is_wanted:
                lease.unwanted()

    def end_lease(self, lease: Lease, *, takes_over: bool = False) -> None:
        """Have all waiting proxies ask upstream themselves, or one of them take over; unless the lease is another proxy's by now."""
        if self._leases.get(lease.key) is not lease:
            return
        del self._leases[lease.key]
        if time.monotonic() - lease.renewed_s >= LEASE_S:
            return
        if takes_over:
            self._send("DEL", _lease_name(lease.key))
        else:
            self._send("SET", _lease_name(lease.key), ENDED, "PX", int(ENDED_S * 1000))

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something in the background."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- commands -----------------------------------------------------------------------------------------

    def _send(self, *words: Any, answer_bytes: int = 0) -> None:
        """Queue a command, in order; nothing waits for its result."""
        self._queue.append((answer_bytes, words))
        self._queued_bytes += answer_bytes
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._queue:
                most = min(BATCH_COMMANDS, len(self._queue))
                batch = [self._queue.popleft() for _ in range(most)]
                results: list[Any] = []
                if not self.is_left_alone:
                    results = await self._within(PUT_TIMEOUT_S, [words for _, words in batch])
                self._queued_bytes -= sum(answer_bytes for answer_bytes, _ in batch)
                if not results:
                    self.lost += sum(1 for answer_bytes, _ in batch if answer_bytes)
                for (answer_bytes, words), result in zip(batch, results, strict=False):
                    if not isinstance(result, Exception):
                        continue
                    self._failed(result, time.monotonic())
                    if answer_bytes:
                        self.lost += 1
                    elif words[2:3] == (ENDED,):
                        # in one that is full nothing can be set; those that wait learn nothing then, and take over
                        self._send("DEL", words[1])
        finally:
            self._sending = None

    async def batch(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands in one round trip; their results, none where the last one fails or Redis is left alone."""
        if self.is_left_alone:
            now_s = time.monotonic()
            if now_s < self._away_until:
                return []
            self._away_until = now_s + self._timeout_s  # this one tries, the others are spared
        return await self._within(self._timeout_s, commands, raises=True)

    async def _looked(self, *commands: tuple[Any, ...]) -> Any:
        """Send commands; the result of the last, NOTHING for a failure or where Redis is left alone."""
        results = await self.batch(commands)
        return results[-1] if results else NOTHING

    async def _purged(self, *words: Any) -> Any:
        results = await self._within(PURGE_TIMEOUT_S, [words], raises=True)
        if not results:
            message = f"The Redis could not be purged: {self.problem}"
            raise ToolkitError(message, "Purge again once it answers")
        return results[0]

    async def _within(
        self, limit_s: float, commands: Sequence[tuple[Any, ...]], *, raises: bool = False
    ) -> list[Any]:
        """Send commands in one round trip; their results, or none on any failure. The limit includes the wait for a connection.

        `raises`: an error of the last command is such a failure.
        """
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(limit_s), self._turns:
                pipeline = self._client.pipeline(transaction=False)
                for words in commands:
                    # the package's own words for them cost 60 us more of 600
                    pipeline.execute_command(*words)
                results: list[Any] = await pipeline.execute(raise_on_error=False)
            error = results[-1] if raises else None
        except Exception as failure:  # noqa: BLE001 (the package raises what it likes on what it can't read)
            results, error = [], failure
        if isinstance(error, Exception):
            self._failed(error, began_s)
            return []
        self.problem = None
        self._failed_in_a_row = 0
        return results

    def _failed(self, error: Exception, began_s: float) -> None:
        self.problem = _problem(error)
        if self.problem == FULL:
            return  # it said so at once, and what it has it gives still
        if began_s < self._failed_at:
            return  # under way together with one that failed: if this process stood still for a moment, all of them did
        self._failed_at = time.monotonic()
        self._failed_in_a_row += 1
        if self.is_left_alone:
            times = self._failed_in_a_row - FAILURES
            self._away_until = self._failed_at + AWAY_S[min(times, len(AWAY_S) - 1)]


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
            # The whole limit is kept here: with one of each step's own the package sends within `wait_for`, which on Python
            # 3.11 may lose a cancellation; a look-up past its limit then waited until the package's, too.
            socket_timeout=None,
            socket_connect_timeout=timeout_s,
            # beside look-ups: a batch that is sent, and a purge
            max_connections=CONNECTIONS + 4,
            # once, at once: a connection that Redis has closed since, e.g., as it was started again
            retry=Retry(NoBackoff(), 1),
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


def _lease_name(key: bytes) -> str:
    return f"{LEASES}:{key.hex()}"


def _read(key: bytes, value: Any) -> tuple[bytes, float] | None:
    if not isinstance(value, bytes) or len(value) < HEAD.size:
        return None
    own_key, ends_at = HEAD.unpack_from(value)
    # not `ends_at <= now`: NaN is not good
    is_good = own_key == key and ends_at > time.time()
    return (value[HEAD.size :], ends_at) if is_good else None


def _problem(error: Exception) -> str:
    """What is wrong, without the package's own words: they may repeat the address."""
    kinds = {each.__name__ for each in type(error).__mro__}
    return next((words for kind, words in PROBLEMS.items() if kind in kinds), "it answers no Redis")
