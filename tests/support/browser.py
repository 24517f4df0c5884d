"""Tabs of the contract's Chromium that note every request and every word on the console."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from contract.harness.browser import PATIENCE_MS
from playwright.sync_api import Browser, Page, WebSocket


@dataclass
class Tab:
    """A page of the browser, what it asked for and what it complained of."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    frames: int = 0
    """Messages from the server."""

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("websocket", self._meet)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "console",
            lambda said: (
                self.complaints.append(f"{said.type}: {said.text}")
                if said.type in {"error", "warning"}
                else None
            ),
        )

    def _meet(self, socket: WebSocket) -> None:
        self.requests.append(socket.url)
        socket.on("framereceived", self._count)

    def _count(self, _: object) -> None:
        self.frames += 1

    def strangers(self) -> set[str]:
        """Hosts other than this machine that were asked for anything; `data:` and `blob:` ask nobody."""
        places = [urlsplit(url) for url in self.requests]
        return {
            str(place.hostname)
            for place in places
            if place.scheme not in {"data", "blob"} and place.hostname != "127.0.0.1"
        }


OpenTab = Callable[..., Tab]
"""`open_tab(url, width=..., height=..., scheme=...)`: the fixture of tests/browser."""


@contextmanager
def tab_of(
    browser: Browser,
    *,
    width: int = 1600,
    height: int = 1200,
    scheme: Literal["dark", "light"] = "dark",
) -> Iterator[Tab]:
    """Open a tab like a new visitor's: no cookies, no cache."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
    )
    try:
        yield Tab(context.new_page())
    finally:
        context.close()


@contextmanager
def files_opened(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Open files; at the end nothing but these may have been asked for, and nobody may have complained."""
    with ExitStack() as tabs:
        all_of_them: list[tuple[Tab, str]] = []

        def open_it(file: Path, **settings: Any) -> Tab:
            tab = tabs.enter_context(tab_of(browser, **settings))
            all_of_them.append((tab, file.as_uri()))
            tab.page.goto(file.as_uri())
            return tab

        yield open_it
        for tab, url in all_of_them:
            assert tab.requests == [url]
            assert tab.complaints == []


def overflow(page: Page) -> list[str]:
    """What stands out to the right of the window, if it can be scrolled to."""
    if not page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        return []
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth)"
        ".map(e => e.tagName + ' ' + e.textContent.slice(0, 40))"
    )
    return found
