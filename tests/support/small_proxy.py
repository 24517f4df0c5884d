"""A proxy's cache path without sockets, in real asyncio, whose loop jumps to the next timer instead of waiting for it.

It takes the cache of the real one and nothing of the forecast, which it is there to check.
"""

import asyncio
import selectors
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.proxy.cache.memory import MemoryCache


@dataclass(frozen=True, slots=True)
class Request:
    at_s: float
    key: bytes
    latency_s: float
    """Of the engine's answer, should it be asked."""
    fails: bool = False


@dataclass(slots=True)
class Served:
    """Counters as a proxy exports them."""

    hits: int = 0
    coalesced: int = 0
    misses: int = 0


class JumpingSelector(selectors.DefaultSelector):
    """Where nothing is ready, time passes at once."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.now_s += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


class SmallProxy:
    def __init__(self, *, size: int | None, ttl_s: float | None) -> None:
        self.cache: MemoryCache[bytes, str] = MemoryCache(size, ttl_s=ttl_s)
        self.under_way: dict[bytes, asyncio.Future[str | None]] = {}
        self.served = Served()

    async def answer(self, request: Request) -> str | None:
        """From memory, with an equal request under way, or by the engine; None if that fails."""
        loop = asyncio.get_running_loop()
        found = self.cache.get(request.key, loop.time())
        if found is not None:
            self.served.hits += 1
            return found
        if request.key in self.under_way:
            self.served.coalesced += 1
            return await self.under_way[request.key]
        self.served.misses += 1
        call = self.under_way[request.key] = loop.create_future()
        if request.latency_s:
            await asyncio.sleep(request.latency_s)
        answer = None if request.fails else f"answer to {request.key.hex()}"
        if answer is not None:
            self.cache.put(request.key, answer, loop.time())
        del self.under_way[request.key]
        call.set_result(answer)
        return answer


def serve(requests: Sequence[Request], *, size: int | None, ttl_s: float | None) -> Served:
    """Send every request when it is due and let each be answered; what the proxy counted."""

    async def everything() -> Served:
        loop, proxy = asyncio.get_running_loop(), SmallProxy(size=size, ttl_s=ttl_s)
        tasks: list[asyncio.Task[str | None]] = []
        all_sent = loop.create_future()

        def send(request: Request) -> None:
            tasks.append(loop.create_task(proxy.answer(request)))
            if len(tasks) == len(requests):
                all_sent.set_result(None)

        for request in requests:
            loop.call_at(request.at_s, send, request)
        await all_sent
        answers = await asyncio.gather(*tasks)
        for request, answer in zip(requests, answers, strict=True):
            assert answer in {None, f"answer to {request.key.hex()}"}
        return proxy.served

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(everything())
