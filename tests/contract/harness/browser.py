"""Debian's Chromium through Playwright, and the page as `streamlit run` serves it."""

import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from contract.harness.programs import free_port, installed, program, until
from playwright.sync_api import Browser, Page, expect, sync_playwright

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
# a name that the page should never ask for is not looked up either
FLAGS.append("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
PATIENCE_MS = 60_000

expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start it with a profile of its own, without a screen."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no Chromium; apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(browser: Browser, *, width: int = 1600, height: int = 1200) -> Iterator[Page]:
    """A new visitor's: no cookies, no cache."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark", accept_downloads=True
    )
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        yield page
    finally:
        context.close()


@contextmanager
def leaderboard(database: Path, folder: Path) -> Iterator[str]:
    """`streamlit run dashboards/leaderboard.py` over a database; its URL once it answers."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    page = str(installed("dashboards/leaderboard.py"))
    words = [sys.executable, "-m", "streamlit", "run", page, "--server.port", str(port)]

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    with program(words, cwd=folder, env={"TOOLKIT_DB": str(database)}):
        until(answers)
        yield url
