"""What a process does again and again while it serves. A fault in it is told, and the next time comes all the same. It keeps time."""

import asyncio
from collections.abc import Awaitable, Callable

from toolkit.proxy.desk.kit import Event


async def ticking(every_s: float, work: Callable[[], Awaitable[None] | None], event: Event) -> None:
    """Work each `every_s` until cancelled: without its ticks a process would keep no deadline and let no slow client go."""
    while True:
        await asyncio.sleep(every_s)
        try:
            rest = work()
            if rest is not None:
                await rest
        except Exception as error:  # noqa: BLE001 (told, not hidden)
            event("fault", {"error": f"{type(error).__name__}: {error}"})
