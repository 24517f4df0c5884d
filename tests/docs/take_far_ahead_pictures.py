"""Take the manual's pictures of a cache far ahead again, by hand: `python tests/docs/take_far_ahead_pictures.py`, a minute.

Twenty hosts, one of them 80 times ahead, three with errors and three that are down: the whole page on a large and a small screen and
on a phone, dark and light, in a real Chromium. It rewrites docs/pictures/far-ahead-*.png.
"""

import io
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from contract.harness.browser import chromium
from PIL import Image
from support.browser import tab_of
from support.far_ahead import blast_far_ahead
from support.page_server import page_over

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
COLOURS = 96
"""Of a page of few colours nothing is lost, and its file is a third as large."""


def main() -> None:
    """Each size in both themes, as high as the page."""
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        blast = blast_far_ahead(Path(name) / "blast.db", 12)
        with page_over(blast.file, Path(name)) as server:
            for width in (1920, 1280, 390):
                for scheme in ("dark", "light"):
                    with tab_of(browser, width=width, height=1080, scheme=scheme) as tab:  # type: ignore[arg-type]
                        tab.page.goto(server.url)
                        tab.page.locator('[data-chart="tradeoff"] .plot').first.wait_for()
                        tab.page.locator(".method").wait_for()
                        height = tab.page.evaluate(
                            "document.querySelector('[data-testid=stMain]').scrollHeight"
                        )
                        tab.page.set_viewport_size({"width": width, "height": height})
                        tab.page.wait_for_timeout(2000)
                        shot = Image.open(io.BytesIO(tab.page.screenshot())).convert("RGB")
                    file = PICTURES / f"far-ahead-{width}-{scheme}.png"
                    shot.quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)
                    print(f"{file.name}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
