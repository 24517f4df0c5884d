"""Record README's demo in motion again, by hand: `python tests/docs/record_demo.py`, two minutes. It rewrites docs/pictures/demo.gif.

A real `toolkit demo`, and meanwhile the leaderboard over its database in a real Chromium, a picture a second.
"""

import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from contract.harness.browser import chromium, leaderboard, tab
from PIL import Image

RECORDING = Path(__file__).parents[2] / "docs" / "pictures" / "demo.gif"
WIDTH, HEIGHT = 1000, 780
STEP_S = 1.0
SPEED = 5
LAST_S = 4.0
COLOURS = 64


def main() -> None:
    """Play, look, write."""
    toolkit = Path(sys.prefix) / "bin" / "toolkit"
    pictures = []
    with tempfile.TemporaryDirectory() as folder:
        demo = subprocess.Popen(
            [toolkit, "demo", "--no-page", "--keep"], env=os.environ | {"TMPDIR": folder}
        )
        with chromium() as browser, tab(browser, width=WIDTH, height=HEIGHT) as page:
            # the demo's own folder appears with it, the database with its first look
            while not (found := list(Path(folder).glob("toolkit-demo-*/data/toolkit.db"))):
                time.sleep(STEP_S)
            with leaderboard(found[0], Path(folder)) as url:
                page.goto(f"{url}/?window=30s")
                page.get_by_text("erin").first.wait_for()
                due = time.monotonic()
                while demo.poll() is None:
                    pictures.append(page.screenshot())
                    due += STEP_S
                    time.sleep(max(0.0, due - time.monotonic()))
        if demo.returncode:
            sys.exit(f"Error: `toolkit demo` ended with {demo.returncode}")

    frames = [Image.open(io.BytesIO(picture)).convert("RGB") for picture in pictures]
    # one palette for all, so that what stands still stays the same and costs nothing
    palette = frames[-1].quantize(COLOURS)
    drawn = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    shown_ms = [int(1000 * STEP_S / SPEED)] * (len(drawn) - 1) + [int(1000 * LAST_S)]
    drawn[0].save(
        RECORDING, save_all=True, append_images=drawn[1:], duration=shown_ms, loop=0, optimize=True
    )
    print(f"{RECORDING.name}: {len(drawn)} pictures, {RECORDING.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
