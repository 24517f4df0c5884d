"""A frozen board: from the freeze on nobody sees a later second, in any view, until it is revealed place by place.

A blast of feeder.py's hosts; after FROZEN_S of its 200 s it was frozen. By then h8 had answered 8 a second for 40 s of 100,
which is 3.2/s; over the whole it is 8 x 140/200 = 5.6/s.
"""

import csv
import io
import time
from pathlib import Path

import pytest
from playwright.sync_api import expect
from support import feeder
from support.board_page import (
    chart,
    comes,
    control,
    fact,
    figure,
    hosts,
    until,
)
from support.browser import OpenTab, Tab
from support.page_server import page_over

from toolkit.board.reveal import Terms, hashed, new_secret
from toolkit.records import Event
from toolkit.store import Store

STARTED_S = 1_790_000_000
FROZEN_S = 100
LAST_S = STARTED_S + FROZEN_S - 1
AS_FROZEN = ["h7", "h6", "h5", "h4", "h3", "h8", "h2", "h1"]
AT_LAST = ["h7", "h6", "h8", "h5", "h4", "h3", "h2", "h1"]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "blast.db"
    feeder.begin(path, feeder.RUN, started_s=STARTED_S, seconds=200)
    say(path, "freeze", LAST_S + 0.7)
    return path


def say(database: Path, kind: str, at: float, text: str = "") -> None:
    with Store.open(database) as store:
        store.add_event(Event(run=feeder.RUN, at=at, kind=kind, text=text))  # type: ignore[arg-type]


def downloaded(tab: Tab) -> list[dict[str, str]]:
    control(tab, "more").get_by_role("button").first.click()
    with tab.page.expect_download() as download:
        control(tab, "csv").get_by_role("button").click()
    return list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))


def test_no_view_shows_a_second_after_the_freeze(
    database: Path, tmp_path: Path, open_tab: OpenTab
) -> None:
    with page_over(database, tmp_path) as server:
        # even a link to a moment after it
        tab = open_tab(f"{server.url}/?host=h3&cmp=h3,h8&t={STARTED_S + 190}")
        comes(tab, lambda: hosts(tab), AS_FROZEN)
        assert figure(tab, "h8", "rps") == "3.20"
        # a moment of the past, and the last one that may be seen
        assert fact(tab, "clock") == "1:40"
        expect(tab.page.locator(".strip .frozen")).to_contain_text("frozen")
        # one error and three answers in each of a hundred seconds
        expect(tab.page.locator(".facts-of-host")).to_contain_text("100 of 400")
        expect(chart(tab, "series-rps").locator("svg")).to_be_visible()
        last = time.strftime("%H:%M:%S", time.localtime(LAST_S))
        expect(chart(tab, "ranks")).to_contain_text(f"until {last}")
        slider = control(tab, "t").locator("input")
        assert int(str(slider.get_attribute("max"))) <= (LAST_S + 1) * 1_000_000
        rows = downloaded(tab)
        assert {row["at"] for row in rows} == {str(LAST_S)}
        assert {row["name"]: int(row["ok"]) for row in rows}["h8"] == 8 * 40


def test_a_frozen_board_stands_still_while_the_blast_goes_on(
    database: Path, tmp_path: Path, open_tab: OpenTab
) -> None:
    with page_over(database, tmp_path) as server:
        tab = open_tab(server.url)
        comes(tab, lambda: hosts(tab), AS_FROZEN)
        shown = tab.page.locator("#board").inner_html()
        with Store.open(database) as store:
            feeder.extend(store, feeder.RUN, STARTED_S + 200, STARTED_S + 260, started_s=STARTED_S)
        # a few ticks, of three messages each, come and go
        before = tab.frames
        until(tab, lambda: tab.frames - before, lambda told: told > 9)
        assert tab.page.locator("#board").inner_html() == shown
        # the event's clock alone goes on, to the last second that was measured
        comes(tab, lambda: fact(tab, "clock"), "4:20")


def test_a_reveal_uncovers_the_last_places_first_and_the_winner_at_the_end(
    database: Path, tmp_path: Path, open_tab: OpenTab
) -> None:
    with page_over(database, tmp_path) as server:
        tab = open_tab(server.url)
        comes(tab, lambda: hosts(tab), AS_FROZEN)
        # a place every 4 s: 16 s after the reveal five of eight are told
        say(database, "reveal", time.time() - 16)
        covered = tab.page.locator("#standings tr.covered")
        told = [until(tab, covered.count, lambda count: count > 0)]
        shown = [hosts(tab)]
        while told[-1]:
            told.append(until(tab, covered.count, lambda count: count != told[-1]))
            shown.append(hosts(tab))
        assert told == sorted(told, reverse=True)
        assert all(AT_LAST[-len(names) :] == names for names in shown)
        assert shown[-1] == AT_LAST
        comes(tab, lambda: fact(tab, "clock"), "3:20")
        expect(tab.page.locator(".kpis .leader")).to_contain_text("h7")


def covered(tab: Tab) -> int:
    return tab.page.locator("#standings tr.covered").count()


def test_the_presenters_key_moves_all_viewers_and_nobody_elses_does(
    database: Path, tmp_path: Path, open_tab: OpenTab
) -> None:
    secret = new_secret()
    terms = Terms(every_s=None, presenter=hashed(secret))
    with page_over(database, tmp_path) as server:
        say(database, "reveal", time.time(), terms.written())
        viewer = open_tab(server.url)
        # what another reveal's secret, or the hash that the database holds, may do
        guesser = open_tab(f"{server.url}/?kiosk=1&presenter={hashed(secret)}")
        presenter = open_tab(f"{server.url}/?kiosk=1&presenter={secret}")
        everybody = (viewer, guesser, presenter)
        for tab in everybody:
            comes(tab, lambda tab=tab: covered(tab), 8)
        # the hall may read the address bar
        until(presenter, lambda: presenter.page.url, lambda url: "presenter" not in url)
        expect(presenter.page.locator(".presenter")).to_contain_text("8 left")
        for number, key in enumerate((" ", "ArrowRight", "PageDown"), 1):
            for tab in (viewer, guesser):
                tab.page.keyboard.press(key)
            presenter.page.keyboard.press(key)
            for tab in everybody:
                comes(tab, lambda tab=tab: covered(tab), 8 - number)
                assert hosts(tab) == AT_LAST[-number:]
        assert guesser.page.locator(".presenter").count() == 0
        # who loads the page anew is who they were
        for tab, keys in ((viewer, 0), (guesser, 0), (presenter, 1)):
            tab.page.reload()
            comes(tab, lambda tab=tab: covered(tab), 5)
            expect(tab.page.locator(".presenter")).to_have_count(keys)
            until(tab, lambda tab=tab: tab.page.url, lambda url: "presenter" not in url)
        # a finger on a phone; and the page that is opened late is in step
        presenter.page.locator(".presenter").click()
        comes(viewer, lambda: covered(viewer), 4)
        comes(late := open_tab(server.url), lambda: covered(late), 4)
        with Store.open_readonly(database) as store:
            kinds = [event.kind for _, event in store.events(feeder.RUN)]
        assert kinds.count("uncover") == 4
        for left in range(3, -1, -1):
            presenter.page.keyboard.press("Enter")
            comes(presenter, lambda: covered(presenter), left)
        expect(presenter.page.locator(".podium .leader .name")).to_have_text("h7")
        expect(presenter.page.locator(".presenter")).to_have_count(0)
        # nor is it a step back in the browser's history
        presenter.page.go_back()
        assert "presenter" not in presenter.page.url
        assert secret not in server.log.read_text()
    stored = b"".join(part.read_bytes() for part in tmp_path.glob(f"{database.name}*"))
    assert hashed(secret).encode() in stored
    assert secret.encode() not in stored
