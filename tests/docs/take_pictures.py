"""Take README's pictures of the report and the workload page again, in a real Chromium, from a simulated run: minutes, by hand.

python tests/docs/take_pictures.py          rewrites dashboards/report.png and dashboards/workload.png
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Browser
from support.browser import chromium

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "dashboards"
TOOLKIT = Path(sys.executable).parent / "toolkit"
FLEET = "sim fleet fp8 gptq-int4 cached flaky --".split()
BLAST = "blast --non-neutral --duration 90s --users 16 --canaries 5 --db".split()


def toolkit(*words: str | Path) -> str:
    """What it prints; an end in error ends this, too."""
    path = f"{TOOLKIT.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [TOOLKIT, *words],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PATH": path},
    )
    return done.stdout


def picture(browser: Browser, page: Path, name: str, height: int) -> None:
    """The top of a page as a reader's window shows it."""
    tab = browser.new_page(viewport={"width": 1100, "height": height}, color_scheme="light")
    tab.goto(page.as_uri())
    tab.screenshot(path=PICTURES / name)
    print(f"{name}: {(PICTURES / name).stat().st_size:,} bytes")


def main() -> None:
    """Blast a simulated cast and read the sample capture, then open both pages."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "pictures.db")
        toolkit(*FLEET, "toolkit", *BLAST, database)
        run = json.loads(
            toolkit("runs", "--verb", "blast", "--json", "--db", database).split("\n")[0]
        )["id"]
        toolkit("capture", ROOT / "data" / "sample.pcap", "--db", database)
        report, workload = Path(folder, "report.html"), Path(folder, "workload.html")
        toolkit("report", run, "--html", report, "--db", database)
        toolkit("workload", "--html", workload, "--max-model-len", "8192", "--db", database)
        with chromium() as browser:
            picture(browser, report, "report.png", 900)
            picture(browser, workload, "workload.png", 900)


if __name__ == "__main__":
    main()
