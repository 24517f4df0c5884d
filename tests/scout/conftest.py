"""What the tests of scout share."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
from support.raw_server import Misbehave, RawServer, one_look

from toolkit.scout.answers import Scrape

LookAt = Callable[..., tuple[Scrape, RawServer]]


@pytest.fixture
def look_at() -> LookAt:
    """Serve pages, look once, and return the look and the server with what it was asked."""

    def look(
        pages: Mapping[str, bytes | Misbehave], timeout_s: float = 5.0, key: str | None = None
    ) -> tuple[Scrape, RawServer]:
        async def run() -> tuple[Scrape, RawServer]:
            async with RawServer(pages) as server:
                return await one_look(server.url, timeout_s, key), server

        return asyncio.run(run())

    return look
