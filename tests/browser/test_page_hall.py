"""The page in a hall: whose event it is, a clock that runs on while the board is frozen, and a television that turns its pages."""

import time
from pathlib import Path

from playwright.sync_api import expect
from support import feeder
from support.board_page import comes, fact, hosts, until
from support.browser import OpenTab
from support.feeder import Blast
from support.page_server import PageServer, page_over

from toolkit.records import Event
from toolkit.store import Store

LIVE_JS = Path(__file__).parents[2] / "dashboards/leaderboard_page/live.js"
LOGO = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 300 100" width="300" height="100"
  onload="document.title = 'run'"><script>document.title = "run"; parent.document.title = "run"</script>
  <rect width="300" height="100" rx="20" fill="#0068b3"/><image href="http://198.51.100.1/spy.png"/></svg>"""


def test_the_title_and_the_logo_are_the_organizers_and_no_script_of_a_logo_runs(
    tmp_path: Path, open_tab: OpenTab
) -> None:
    database, logo = tmp_path / "blast.db", tmp_path / "logo.svg"
    feeder.begin(database, feeder.RUN, started_s=1_790_000_000, seconds=30)
    logo.write_text(LOGO)
    title = "GPU Day <b>2026</b>"
    with page_over(database, tmp_path, f"--title={title}", f"--logo={logo}") as server:
        for query in ("", "?kiosk=1"):
            tab = open_tab(f"{server.url}/{query}", width=1920, height=1080)
            expect(tab.page.locator("h1.title")).to_contain_text(title)
            picture = tab.page.locator("img.logo")
            expect(picture).to_be_visible()
            tab.page.wait_for_function("document.querySelector('img.logo').naturalWidth === 300")
            # beside the title, over no figure
            box, below = picture.bounding_box(), tab.page.locator(".kpis").bounding_box()
            assert box
            assert below
            assert box["y"] + box["height"] <= below["y"]
            assert tab.page.title() == title


def test_the_events_clock_runs_by_the_second_while_the_board_is_frozen(
    live: tuple[PageServer, Blast], open_tab: OpenTab
) -> None:
    server, blast = live
    with Store.open(blast.database) as store:
        store.add_event(Event(run=feeder.RUN, at=time.time() - 5, kind="freeze"))
    tab = open_tab(server.url)
    expect(tab.page.locator(".strip .frozen")).to_be_visible()
    window = fact(tab, "window")
    # every word that the clock shows, from the browser itself
    tab.page.evaluate(
        """() => {
            const clock = document.querySelector('.strip .clock .runs');
            window.told = [clock.textContent];
            new MutationObserver(() => {
                if (clock.textContent && clock.textContent !== window.told.at(-1)) window.told.push(clock.textContent);
            }).observe(clock, {characterData: true, childList: true, subtree: true});
        }"""
    )
    until(tab, lambda: tab.page.evaluate("window.told"), lambda told: len(told) > 8)
    assert fact(tab, "window") == window


def test_a_late_message_does_not_set_the_events_clock_back(open_tab: OpenTab) -> None:
    tab = open_tab("about:blank")
    patching = LIVE_JS.read_text().replace("export default function", "return function")
    # each message: the browser's own second in which it came, its run, and how long that had been on when it was written
    messages = [
        *((0, "a", 100), (5, "a", 100.5), (7, "a", 107.5), (20, "a", 108)),
        *((21, "b", 90), (22, "b", 3)),
    ]
    told = tab.page.evaluate(
        """([patching, messages]) => {
            const show = new Function(patching)();
            return messages.map(([at, run, from]) => {
                performance.now = () => 1000 * at;
                show({data: `<b class="runs" data-run="${run}" data-from="${from}"></b>`, parentElement: document.body});
                return document.querySelector(".runs").textContent;
            });
        }""",
        [patching, messages],
    )
    # 4.5 s late, half a second early, 12.5 s late; another run; and a clock that is set by more than a minute
    assert told == ["1:40", "1:45", "1:47", "2:00", "1:30", "0:03"]


def test_a_television_shows_all_hosts_page_by_page(cast: PageServer, open_tab: OpenTab) -> None:
    tab = open_tab(f"{cast.url}/?kiosk=1", width=1920, height=1080)
    turning = tab.page.locator(".turning")
    seen: dict[str, list[str]] = {}
    for page, names in (("page 1 of 2", 10), ("page 2 of 2", 2)):
        expect(turning).to_contain_text(page)
        comes(tab, lambda: len(hosts(tab)), names)
        seen[page] = hosts(tab)
    assert len(set(seen["page 1 of 2"]) | set(seen["page 2 of 2"])) == 12
    expect(turning).to_contain_text("2 more · page 1 of 2")
    box = turning.bounding_box()
    assert box
    assert box["y"] + box["height"] <= 1080
