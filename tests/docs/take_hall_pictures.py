"""Take the manual's pictures of a hall again, by hand: `python tests/docs/take_hall_pictures.py`, two minutes.

A television in the middle of a contest of 14 hosts, the presenter's reveal, and its end, each on a large and a small television and on
a phone, dark and light, in a real Chromium. It rewrites docs/pictures/hall-*.png.
"""

import io
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from contract.harness.browser import chromium
from PIL import Image
from playwright.sync_api import Browser
from support import blasted
from support.browser import tab_of
from support.page_server import page_over

from toolkit.board.reveal import Terms
from toolkit.records import Event
from toolkit.store import Store

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SIZES = ((1920, 1080, "dark"), (1280, 720, "light"), (390, 844, "dark"))
COLOURS = 96
"""Of a page of few colours nothing is lost, and its file is a third as large."""
LOGO = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 240 80"><rect width="240" height="80" rx="14" fill="#7a2fd0"/>
<text x="120" y="54" font-size="42" font-family="sans-serif" font-weight="700" fill="#fff" text-anchor="middle">GPU DAY</text></svg>"""


def pictures(
    browser: Browser, url: str, name: str, awaited: str, catch_up: Callable[[], None] = lambda: None
) -> None:
    """One state of the page in each size."""
    for width, height, scheme in SIZES:
        with tab_of(browser, width=width, height=height, scheme=scheme) as tab:  # type: ignore[arg-type]
            tab.page.goto(url)
            tab.page.locator("#board").wait_for()
            catch_up()
            tab.page.wait_for_timeout(2500)
            tab.page.locator(awaited).wait_for()
            tab.page.wait_for_timeout(1000)  # a page of the table comes in softly
            shot = Image.open(io.BytesIO(tab.page.screenshot())).convert("RGB")
        file = PICTURES / f"hall-{name}-{width}-{scheme}.png"
        shot.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
        print(f"{file.name}: {file.stat().st_size:,} bytes")


def main() -> None:
    """A contest of an hour, 20 minutes before its end; then frozen, over, and revealed."""
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder, began = Path(name), int(time.time()) - 900
        database, logo = folder / "contest.db", folder / "logo.svg"
        logo.write_text(LOGO)
        run = blasted.blasted(database, hosts=14, seconds=900, started_at=float(began), ended=False)

        def note(kind: str, text: str = "") -> None:
            with Store.open(database) as store:
                store.add_event(Event(run=run.id, at=time.time(), kind=kind, text=text))  # type: ignore[arg-type]

        with page_over(database, folder, "--title=GPU Day 2026", f"--logo={logo}") as server:
            kiosk = f"{server.url}/?kiosk=1"
            seconds = itertools.count(900)

            def catch_up() -> None:
                while began + (second := next(seconds)) < time.time() - 1:
                    blasted.feed(database, run, second)

            pictures(browser, kiosk, "live", ".turning:has-text('page 1')", catch_up)
            note("freeze")
            with Store.open(database) as store:
                store.end_run(run.id, ended_at=time.time(), client_ok=True)
            note("reveal", Terms(every_s=None).written())
            for _ in range(9):
                note("uncover")
            pictures(browser, kiosk, "reveal", "tr.covered >> nth=0")
            for _ in range(5):
                note("uncover")
            pictures(browser, kiosk, "winner", ".kiosk:has(.podium) .turning:has-text('page 1')")


if __name__ == "__main__":
    main()
