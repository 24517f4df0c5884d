"""What a visitor reads on the leaderboard page, and how long a test waits for it."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from contract.harness.browser import PATIENCE_MS
from playwright.sync_api import Locator
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from support.browser import Tab

Told = TypeVar("Told")

# Taken at every frame that the browser draws: is each row still the node that it was, is anything dimmed, is anything
# missing? A Streamlit element that waits for its new content is marked stale, and fades after a while.
_WATCH = """() => {
    const rows = [...document.querySelectorAll('#standings tr[data-host]')];
    const held = [document.querySelector('#board'), ...document.querySelectorAll('figure.chart svg'), ...rows];
    const seen = window.seen = {frames: 0, gone: 0, dimmed: 0, short: 0};
    const look = () => {
        seen.frames += 1;
        seen.gone += held.filter(node => !node.isConnected).length;
        seen.dimmed += [...document.querySelectorAll('[data-stale]')]
            .filter(node => getComputedStyle(node).opacity < 1).length;
        seen.short += document.querySelectorAll('#standings tr[data-host]').length < rows.length;
        requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
    return held.length;
}"""


def until(tab: Tab, read: Callable[[], Told], wanted: Callable[[Told], bool]) -> Told:
    """Read again and again until it is as wanted; what was read then."""
    give_up = time.monotonic() + PATIENCE_MS / 1000
    while not wanted(told := read()):
        assert time.monotonic() < give_up, f"still {told!r}"
        tab.page.wait_for_timeout(50)
    return told


def comes(tab: Tab, read: Callable[[], Told], expected: Told) -> None:
    """Wait until it reads as expected."""
    give_up = time.monotonic() + PATIENCE_MS / 1000
    while (told := read()) != expected and time.monotonic() < give_up:
        tab.page.wait_for_timeout(50)
    assert told == expected


def board(tab: Tab) -> Locator:
    return tab.page.locator("#board")


def ranking(tab: Tab) -> list[tuple[str, str]]:
    """(rank, host) from the top; read in one go, as rows may move."""
    rows = tab.page.locator("#standings tr[data-host]")
    return [
        tuple(pair)
        for pair in rows.evaluate_all("all => all.map(r => [r.dataset.rank, r.dataset.host])")
    ]


def hosts(tab: Tab) -> list[str]:
    return [name for _, name in ranking(tab)]


def figure(tab: Tab, host: str, column: str) -> str:
    """One cell, white space evened."""
    cell = tab.page.locator(f'#board tr[data-host="{host}"] .c-{column}')
    return " ".join(cell.inner_text().split())


def row(tab: Tab, host: str) -> Locator:
    return tab.page.locator(f'#board tr[data-host="{host}"]')


def fact(tab: Tab, name: str) -> str:
    """One entry of the strip at the top."""
    return " ".join(tab.page.locator(f".strip .{name} .value").inner_text().split())


def control(tab: Tab, key: str) -> Locator:
    """A Streamlit widget by its key."""
    return tab.page.locator(f".st-key-{key}")


def choose(tab: Tab, key: str, option: str) -> None:
    """Pick an entry of a select box; an open list closes when the page is laid out anew, so more than one try may be needed."""
    entry = tab.page.get_by_role("option", name=option, exact=True)
    give_up = time.monotonic() + PATIENCE_MS / 1000
    while True:
        control(tab, key).get_by_role("combobox").click()
        try:
            return entry.click(timeout=5000)
        except PlaywrightTimeout:
            if time.monotonic() > give_up:
                raise


def choose_until(tab: Tab, key: str, option: str, is_taken: Callable[[], bool]) -> None:
    """Pick an entry of a box for several, and again if it was lost: the page was being laid out anew, as a user sees, too."""
    give_up = time.monotonic() + 2 * PATIENCE_MS / 1000
    while not is_taken():
        assert time.monotonic() < give_up, f"{option} is never taken"
        with suppress(PlaywrightTimeout):  # one that is taken after all is offered no more
            choose(tab, key, option)
        tab.page.keyboard.press("Escape")
        for _ in range(100):
            if is_taken():
                break
            tab.page.wait_for_timeout(50)


def switch(tab: Tab, key: str) -> None:
    """Flip a toggle."""
    control(tab, key).get_by_role("switch").dispatch_event("click")


def move(tab: Tab, share: float) -> None:
    """Click on the replay's slider, this share of its length from the left."""
    track = control(tab, "t").locator('[role="group"] > div').first
    box = track.bounding_box()
    assert box is not None
    track.click(position={"x": box["width"] * share, "y": box["height"] / 2})


def chart(tab: Tab, name: str) -> Locator:
    return tab.page.locator(f'figure.chart[data-chart="{name}"]')


def query(tab: Tab) -> str:
    """What the link says behind its question mark."""
    return tab.page.url.partition("?")[2]


def watch_frames(tab: Tab) -> int:
    """Look at the table, its rows and the charts at every frame from now on; so many nodes."""
    return int(tab.page.evaluate(_WATCH))


def frames_seen(tab: Tab) -> dict[str, int]:
    """How many `frames` that were, and in how many a node was `gone` or `dimmed`, or the table too `short`."""
    return dict(tab.page.evaluate("window.seen"))
