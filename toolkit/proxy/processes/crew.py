"""The other workers, as the owner sees them: what they counted and hold, and what they are told. It touches their private sockets.

A worker that died holds nothing, and is asked again the next time; what it had counted stays counted. One that does not answer in
time may hold anything: who wanted something forgotten has to know.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import orjson

from toolkit.errors import ToolkitError
from toolkit.proxy.exchange import Job
from toolkit.proxy.processes.doors import Place
from toolkit.proxy.settings import UpstreamSetting
from toolkit.proxy.stored.shared_cache import SharedCache
from toolkit.proxy.told.counters import Counters
from toolkit.proxy.told.metrics import Gauges, LayerGauge, together
from toolkit.proxy.upstreams.upstream import Upstream, UpstreamError

LIMIT_S: Final = 1.0
"""One worker's time to answer."""
TOLD_BYTES: Final = 64 * 2**20
"""Most that one tells of itself."""
OWNER = "owner.sock"


def socket_of(folder: Path, number: int) -> Path:
    """Where a worker listens to the owner."""
    return folder / f"worker-{number}.sock"


def way_to(name: str, path: Path) -> Upstream:
    """Requests to another worker of this proxy; all headers of its answers come back, as it chose them."""
    return Upstream(UpstreamSetting(name=name, url=f"unix:{path}"))


class Crew:
    """All workers but the owner; none of them, if it is alone."""

    def __init__(
        self, place: Place | None, count: int, *, epochs: Callable[[], dict[str, int]]
    ) -> None:
        """`count`: of all workers. `epochs`: the numbers that hold."""
        self._ways = (
            [way_to(str(number), socket_of(place.folder, number)) for number in range(1, count)]
            if place is not None
            else []
        )
        self._epochs = epochs
        self._opened = AsyncExitStack()
        self._counted: dict[str, tuple[str, dict[str, Any]]] = {}
        """By worker, the name of its process and what that counted."""
        self._held: dict[str, Gauges] = {}
        self._looks = 0
        self._taken: dict[str, int] = {}
        """By worker, the last look that it answered: an earlier one that comes later is old."""
        self._before = Counters()
        """What workers counted that are no more."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_several(self) -> bool:
        """There are other workers."""
        return bool(self._ways)

    async def open(self) -> None:
        """Make the ways to them."""
        for way in self._ways:
            await self._opened.enter_async_context(way)

    async def close(self) -> None:
        """Close them."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._opened.aclose()

    # --- what they tell ----------------------------------------------------------------------------

    async def look(self) -> None:
        """Ask all of them what they counted and hold, and have them take the epochs that hold."""
        if not self._ways:
            return
        self._looks += 1
        number = self._looks
        for way, told in await self._ask_all("/look", {"epochs": self._epochs()}):
            if number < self._taken.get(way.name, 0):
                continue
            self._taken[way.name] = number
            if isinstance(told, dict):
                self._take(way.name, told)
            elif told is None:
                self._held.pop(way.name, None)

    def look_soon(self) -> None:
        """The same, without waiting: epochs were raised, and must be so everywhere."""
        if self._ways:
            self._begin(self.look())

    def forget_soon(self, key: bytes, shared: SharedCache | None) -> None:
        """Have them ask the file for what is stored under a key now, without waiting; in memory they may hold what it replaced."""
        if self._ways and shared is not None:
            self._begin(self._forget_written(key, shared))

    async def _forget_written(self, key: bytes, shared: SharedCache) -> None:
        # until it is written, they would bring the old one back from there
        await asyncio.to_thread(shared.flush)
        with suppress(ToolkitError):
            await self.forget(key)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def counted(self, own: Counters) -> Counters:
        """What all workers counted, as of the last look; a copy, which may be read in another thread."""
        whole = Counters().merge(own.as_dict())
        if self._ways:
            whole.merge(self._before.as_dict())
        for _, counters in self._counted.values():
            whole.merge(counters)
        return whole

    def gauges(self, own: Gauges) -> Gauges:
        """What all workers hold, as of the last look."""
        return together([own, *self._held.values()])

    def _take(self, worker: str, told: dict[str, Any]) -> None:
        name, before = self._counted.get(worker, (told["name"], {}))
        if name != told["name"]:
            self._before.merge(before)
        self._counted[worker] = told["name"], told["counters"]
        gauges = told["gauges"]
        layers = tuple(LayerGauge(**each) for each in gauges.pop("layers"))
        self._held[worker] = Gauges(**gauges, layers=layers)

    # --- what they are told ------------------------------------------------------------------------

    async def forget(self, key: bytes | None) -> None:
        """Have them let go what they hold in memory. Raises ToolkitError where one may hold it still."""
        await self._order("/forget", {} if key is None else {"key": key.hex()}, "forget it")

    async def drain(self) -> None:
        """Have them close their clients' connections, one after the other."""
        await self._order("/drain", {}, "drain")

    async def undrain(self) -> None:
        """Have them keep connections again."""
        await self._order("/undrain", {}, "take requests again")

    async def _order(self, path: str, body: Mapping[str, Any], what: str) -> None:
        silent = [way.name for way, told in await self._ask_all(path, body) if told is TimeoutError]
        if silent:
            raise ToolkitError(
                f"worker `{silent[0]}` does not answer, and so did not {what}", "Try again"
            )

    async def _ask_all(self, path: str, body: Mapping[str, Any]) -> Sequence[tuple[Upstream, Any]]:
        data = orjson.dumps(body)
        told = await asyncio.gather(*(_ask(way, path, data) for way in self._ways))
        return list(zip(self._ways, told, strict=True))


async def _ask(way: Upstream, path: str, body: bytes) -> Any:
    """What it answered; None: nobody is there; TimeoutError: somebody is, and says nothing."""
    try:
        async with asyncio.timeout(LIMIT_S):
            answer = await way.ask(Job(path=path, body=body))
            told = await answer.whole(TOLD_BYTES)
    except TimeoutError:
        return TimeoutError
    except UpstreamError:
        return None
    return orjson.loads(told) if answer.status == 200 and told is not None else TimeoutError
