"""Take the page's states again, by hand: `python tests/docs/take_page_pictures.py [STATE ...]`, some minutes. It rewrites docs/pictures/page/.

Each state as a real Chromium shows it: 1920x1080, 1280x900 and 390x844, light and dark. What was measured before a blast is real, of simulated
servers; the blast is tests/support/blasted.py's, the same each time. A hall's states are take_hall_pictures.py's.
"""

import io
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from contract.harness.browser import chromium
from PIL import Image
from support.blasted import STARTED_AT, blasted
from support.browser import tab_of
from support.page_server import page_over

from toolkit.records import Event
from toolkit.store import Store

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures" / "page"
SIZES = {1920: 1080, 1280: 900, 390: 844}
SECONDS = 600
LATEST_S = 120
"""All pictures of a state are taken by then."""
FLEET = "alice=fp8 bob=awq carol=gptq-int4 dave=cached erin=first-token grace=flaky heidi=cold"
MEASURE = (
    "toolkit scout {hosts} --timeout 1s > scout.txt; toolkit bench {hosts} --num-prompts 32;"
    f" toolkit capture {shlex.quote(str(ROOT / 'data' / 'sample.pcap'))}; toolkit scout {{hosts}} --timeout 1s"
)


def nothing(database: Path) -> None:
    """An empty database."""
    Store.open(database).close()


def before(database: Path) -> None:
    """What scout, bench and capture leave."""
    tool = Path(sys.prefix) / "bin" / "toolkit"
    words = [tool, "sim", "fleet", *FLEET.split(), "--time-scale", "0.3", "--", "sh", "-c", MEASURE]
    environment = {"PATH": f"{tool.parent}:/usr/bin:/bin", "TOOLKIT_DB": str(database)}
    subprocess.run(words, check=True, cwd=database.parent, env=environment, stdout=subprocess.PIPE)


def blast(database: Path) -> None:
    """A blast that has been on for ten minutes; nobody goes on with it, so its last second is that of the last picture."""
    began = time.time() - SECONDS + LATEST_S
    blasted(database, hosts=19, seconds=SECONDS, started_at=began, ended=False)


def rehearsal(database: Path) -> None:
    """One that is over and not valid for ranking, as the load came from the hosts' own machine."""
    run = blasted(database, hosts=19, seconds=SECONDS)
    text = "not valid for ranking: `memory` (10.0.0.1) is on this machine"
    with Store.open(database) as store:
        store.add_event(Event(run=run.id, at=run.started_at, kind="mark", text=text))


def over(database: Path) -> None:
    """A blast of ten minutes that is over."""
    blasted(database, hosts=19, seconds=SECONDS)


@contextmanager
def address_of(state: str, database: Path) -> Iterator[str]:
    """Of the page over a database, or of the file that it is published as."""
    if state == "archive":
        tool, folder = Path(sys.prefix) / "bin" / "toolkit", database.parent / "page"
        subprocess.run([tool, "board", "--publish", folder, "--db", database], check=True)
        yield (folder / "index.html").as_uri()
    else:
        with page_over(database, database.parent) as server:
            yield f"{server.url}/{STATES[state][1]}"


STATES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    # state -> what is in the database, the link, what is waited for
    "nothing": (nothing, "", "#feeding"),
    "before": (before, "", "table.settings"),
    "blast": (blast, "", "[data-chart=tradeoff] svg"),
    "hosts": (blast, "?view=hosts", "table.settings"),
    "host": (blast, "?host=restarter", ".panel [data-chart=heat] svg"),
    # the second in which support/blasted.py's restarter is back
    "story": (rehearsal, f"?host=restarter&event={STARTED_AT + 340:.0f}", ".panel .story"),
    "compare": (blast, "?cmp=memory,plain-05,plain-06", "table.differences"),
    "archive": (over, "", "#replay"),
}


def main(*states: str) -> None:
    """Take those that are named, else all."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for state in states or STATES:
            fill, _, awaited = STATES[state]
            folder = Path(tempfile.mkdtemp())
            fill(folder / "toolkit.db")
            with address_of(state, folder / "toolkit.db") as address:
                for width, height in SIZES.items():
                    for scheme in ("light", "dark"):
                        with tab_of(browser, width=width, height=height, scheme=scheme) as tab:
                            tab.page.goto(address)
                            tab.page.locator(awaited).first.wait_for()
                            if state == "archive":  # in the middle of its replay
                                tab.page.locator("#moment").fill("75")
                            tab.page.wait_for_timeout(2000)
                            taken = Image.open(io.BytesIO(tab.page.screenshot()))
                        file = PICTURES / f"{state}-{width}-{scheme}.png"
                        # some 100 colours are enough for a page, in a third of the bytes
                        taken.convert("RGB").quantize(96, dither=Image.Dither.NONE).save(
                            file, optimize=True
                        )
                        print(f"{file.name}: {file.stat().st_size:,} bytes", flush=True)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
