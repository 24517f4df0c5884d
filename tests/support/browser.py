"""Debian's Chromium through Playwright, and tabs that note every request and every word on the console."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, WebSocket, expect, sync_playwright

INSTALL = "apt-get install chromium"
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
# a name that the page should never ask for is not looked up either
FLAGS.append("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
PATIENCE_MS = 45_000
"""How long a condition may take to come true; most take less than a tick of 2 s, on a busy machine three times that."""

expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start it with a profile of its own, without a screen."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        missing = f"no Chromium; {INSTALL}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        # outside CI nobody is made to install a browser; the reason shown is the command that does
        pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


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
