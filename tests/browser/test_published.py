"""The published page in a browser, from a plain web server below a sub path, and from a file."""

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect
from support import feeder
from support.board_page import comes, fact, figure, frames_seen, hosts, until, watch_frames
from support.browser import OpenTab, files_opened, overflow
from support.feeder import RUN, blast_on

from toolkit.store import Store

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
STARTED_S, LENGTH_S = 1_790_000_000, 300
AT_100_S = ["h7", "h6", "h5", "h4", "h3", "h8", "h2", "h1"]
AT_THE_END = ["h7", "h6", "h8", "h5", "h4", "h3", "h2", "h1"]
"""h8 has answered 8 a second in 240 of 300 s: 6.40/s, and its 1,920 answers are level with the 1,800 of h6."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """Python's own, which knows nothing of us; its URL."""
    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def publishing(database: Path, folder: Path, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    words = (TOOLKIT, "board", "--publish", str(folder), "--db", str(database), *words)
    with subprocess.Popen(words) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is left of a blast of 300 s."""
    folder = tmp_path_factory.mktemp("archive")
    feeder.begin(folder / "blast.db", RUN, started_s=STARTED_S, seconds=LENGTH_S)
    with Store.open(folder / "blast.db") as store:
        store.end_run(RUN, ended_at=STARTED_S + LENGTH_S, client_ok=True)
    with publishing(folder / "blast.db", folder / "page") as publisher:
        assert publisher.wait() == 0
    return folder / "page"


def test_an_open_page_follows_the_run_without_a_reload_and_becomes_the_archive(
    tmp_path: Path, open_tab: OpenTab
) -> None:
    page = tmp_path / "www" / "contest" / "page"
    with (
        blast_on(tmp_path / "blast.db") as blast,
        publishing(blast.database, page) as publisher,
        web_server(tmp_path / "www") as url,
    ):
        tab = open_tab()
        until(tab, (page / "live.json").exists, bool)
        tab.page.goto(f"{url}/contest/page/")
        assert sorted(hosts(tab)) == [f"h{n}" for n in range(1, 9)]
        assert figure(tab, "h5", "rps") == "5.00"
        assert watch_frames(tab) >= 10  # the table, eight rows, a chart
        clocks = [fact(tab, "clock")]
        for _ in range(3):
            clocks.append(until(tab, lambda: fact(tab, "clock"), lambda told: told != clocks[-1]))
        seen = frames_seen(tab)
        assert (seen["gone"], seen["dimmed"], seen["short"]) == (0, 0, 0)
        assert fact(tab, "data").endswith("s")
        expect(tab.page.locator("#replay")).to_be_hidden()

        last_s = blast.stop()
        assert last_s is not None
        with Store.open(blast.database) as store:
            store.end_run(RUN, ended_at=last_s + 1, client_ok=True)
        expect(tab.page.locator("#replay")).to_be_visible()
        assert fact(tab, "phase") == "over"
        tab.page.locator("#moment").fill("0")
        comes(tab, lambda: fact(tab, "phase"), "replay")
        assert publisher.wait() == 0
        # nothing was asked for twice but what may change, and the page only once
        assert len([each for each in tab.requests if each.endswith("/contest/page/")]) == 1


def test_an_archive_replays_from_a_file_and_looks_right_wide_and_narrow(
    archive: Path, browser: Browser
) -> None:
    with files_opened(browser) as open_file:
        tab = open_file(archive / "index.html")
        assert hosts(tab) == AT_THE_END
        assert figure(tab, "h8", "rps") == "6.40"
        # the live page's links ask for views that a file does not have
        expect(tab.page.locator('a[href^="?"], [role="switch"]')).to_have_count(0)
        tab.page.locator('#standings tr[data-host="h8"]').click()
        # every 2 s of the run: the fiftieth moment is the end of its hundredth second
        tab.page.locator("#moment").fill("49")
        comes(tab, lambda: hosts(tab), AT_100_S)
        assert figure(tab, "h8", "rps") == "3.20"
        assert fact(tab, "clock") == "1:40"
        expect(tab.page.locator('[data-chart="ranks"] .cursor')).to_be_visible()
        tab.page.get_by_role("button", name="Final standings").click()
        comes(tab, lambda: hosts(tab), AT_THE_END)
        expect(tab.page.locator(".cursor")).to_have_count(0)
        # from the end it plays anew
        tab.page.get_by_role("button", name="Play").click()
        clocks = {until(tab, lambda: fact(tab, "clock"), lambda told: told != "5:00")}
        for _ in range(2):
            clocks.add(until(tab, lambda: fact(tab, "clock"), lambda told: told not in clocks))
        tab.page.get_by_role("button", name="Pause").click()
        for width, scheme in ((1280, "light"), (390, "dark")):
            narrow = open_file(archive / "index.html", width=width, scheme=scheme)
            expect(narrow.page.locator("#board")).to_be_visible()
            assert overflow(narrow.page) == []


def test_a_replay_that_stalls_is_given_up_and_asked_for_anew_once_for_all_moments(
    archive: Path, open_tab: OpenTab
) -> None:
    with web_server(archive) as url:
        tab = open_tab()
        # a minute is over when the test says so
        tab.page.add_init_script(
            """AbortSignal.timeout = (ms) => {
                const wait = new AbortController();
                if (ms === 60_000) window.minute = wait;
                return wait.signal;
            };"""
        )
        asked: list[Route] = []

        def stall_the_first(route: Route) -> None:
            asked.append(route)
            if len(asked) > 1:
                route.continue_()

        tab.page.route("**/replay.json", stall_the_first)
        tab.page.goto(f"{url}/")
        # as on a page that was open before the run was over
        tab.page.evaluate("document.getElementById('frames').remove()")
        play = tab.page.locator("#play")
        play.click()
        expect(play).to_have_text("Pause")
        until(tab, lambda: len(asked), lambda count: count == 1)
        tab.page.evaluate("window.minute.abort()")
        expect(play).to_have_text("Play")
        assert (len(asked), hosts(tab)) == (1, AT_THE_END)
        tab.page.evaluate(
            """for (const at of [9, 19, 29, 39, 49]) {
                document.getElementById("moment").value = at;
                document.getElementById("moment").dispatchEvent(new Event("input"));
            }"""
        )
        comes(tab, lambda: hosts(tab), AT_100_S)
        assert (len(asked), fact(tab, "clock")) == (2, "1:40")


def test_without_a_script_the_last_standings_stand(archive: Path, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((archive / "index.html").as_uri())
    rows = page.locator("#standings tr[data-host]")
    assert [row.get_attribute("data-host") for row in rows.all()] == AT_THE_END
    expect(page.locator(".scriptless")).to_be_visible()
    context.close()


def test_figures_of_a_dead_publisher_turn_red(tmp_path: Path, browser: Browser) -> None:
    with (
        blast_on(tmp_path / "blast.db") as blast,
        publishing(blast.database, tmp_path / "page", "--count", "1") as publisher,
    ):
        assert publisher.wait() == 0
    context = browser.new_context()
    page = context.new_page()
    # a minute later, by the viewer's clock: from a file there is no other
    page.add_init_script("const now = Date.now; Date.now = () => now() + 60000;")
    page.goto((tmp_path / "page" / "index.html").as_uri())
    expect(page.locator("#silent")).to_be_visible()
    expect(page.locator(".age")).to_have_attribute("data-state", "stale")
    context.close()
