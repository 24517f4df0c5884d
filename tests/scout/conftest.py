"""What the tests of scout share."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
from support.raw_server import Misbehave, RawServer, one_look

from toolkit.scout.pages import Scrape

ScrapeOf = Callable[..., tuple[Scrape, RawServer]]


@pytest.fixture
def scrape_of() -> ScrapeOf:
    """Serve pages, scrape them once, and return the scrape and the server with what it was asked."""

    def scrape(
        pages: Mapping[str, bytes | Misbehave], key: str | None = None
    ) -> tuple[Scrape, RawServer]:
        async def run() -> tuple[Scrape, RawServer]:
            async with RawServer(pages) as server:
                return await one_look(server.url, 5.0, key), server

        return asyncio.run(run())

    return scrape
