"""One Chromium for all tests here, tabs that must stay quiet and at home, and the page over databases of eight hosts.

The hosts are support/feeder.py's. `finished` is a blast of 300 s that is over:

    host    requests/s     p95    TTFT p95   errors   tokens/s
    hN      N              N/10 s  N x 10 ms  0       N x (9 - N) x 10
    but h3  3                                 25 %    one error a second beside three answers
    and h8  8 x 240/300 = 6.4                 0       80 x 240/300 = 64; it came after 60 s

`cast` is a blast of 600 s of support/blasted.py's hosts, tricks and accidents included.

`far_ahead` is support/far_ahead.py's blast with twelve plain hosts, twenty in all.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from contract.harness.browser import chromium
from playwright.sync_api import Browser
from support import blasted, feeder
from support.browser import OpenTab, Tab, tab_of
from support.far_ahead import blast_far_ahead
from support.feeder import RUN, Blast, blast_on
from support.page_server import PageServer, page_over

from toolkit.store import Store

STARTED_S = 1_790_000_000
LENGTH_S = 300


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def open_tab(browser: Browser) -> Iterator[OpenTab]:
    """Open tabs, at an address if one is given; at the end none may have asked a stranger or complained."""
    with ExitStack() as tabs:
        opened: list[Tab] = []

        def open_one(url: str | None = None, **settings: Any) -> Tab:
            tab = tabs.enter_context(tab_of(browser, **settings))
            opened.append(tab)
            if url is not None:
                tab.page.goto(url)
            return tab

        yield open_one
        for tab in opened:
            assert tab.strangers() == set()
            assert tab.complaints == []


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """The page over a blast that is over; nothing writes to it."""
    folder = tmp_path_factory.mktemp("finished")
    database = folder / "blast.db"
    feeder.begin(database, RUN, started_s=STARTED_S, seconds=LENGTH_S)
    with Store.open(database) as store:
        store.end_run(RUN, ended_at=STARTED_S + LENGTH_S, client_ok=True)
    with page_over(database, folder) as server:
        yield server


@pytest.fixture(scope="session")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """The page over a blast in which hosts cheat, fall and die."""
    folder = tmp_path_factory.mktemp("cast")
    database = folder / "blast.db"
    blasted.blasted(database, hosts=12, seconds=600)
    with page_over(database, folder) as server:
        yield server


@pytest.fixture(scope="session")
def far_ahead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """The page over a blast in which a cache is far ahead of hosts that are nearly alike."""
    folder = tmp_path_factory.mktemp("far-ahead")
    blast = blast_far_ahead(folder / "blast.db", 12)
    with page_over(blast.file, folder) as server:
        yield server


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PageServer, Blast]]:
    """The page over a blast that is on."""
    folder = tmp_path_factory.mktemp("live")
    with blast_on(folder / "blast.db") as blast, page_over(blast.database, folder) as server:
        yield server, blast
