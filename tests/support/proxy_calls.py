"""Running a test of the proxy, and the gates that its upstreams wait at."""

import asyncio
from collections.abc import Coroutine
from typing import Any


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def gates(count: int) -> list[asyncio.Event]:
    return [asyncio.Event() for _ in range(count)]
