"""The page before the first blast in Chromium: it fills while scout, bench and capture write, and turns into the leaderboard by itself."""

from pathlib import Path

from playwright.sync_api import expect
from support import feeder, prepared
from support.board_page import board, comes
from support.browser import OpenTab
from support.page_server import page_over

from toolkit.store import Store


def test_a_page_that_was_empty_fills_and_becomes_the_leaderboard_and_the_hosts_stay_a_link_away(
    tmp_path: Path, open_tab: OpenTab
) -> None:
    with page_over(tmp_path / "toolkit.db", tmp_path) as server:
        tab = open_tab(server.url)
        expect(tab.page.get_by_text("Nothing measured yet")).to_be_visible()
        prepared.scouted(server.database)
        rows = tab.page.locator("table.settings tbody tr")
        expect(rows).to_have_count(4)
        held = rows.first.element_handle()
        with Store.open(server.database) as store:
            store.add_sightings([prepared.host("alice", 1, prepared.AT + 2, running=42.0)])
        expect(rows.first).to_contain_text("42 / 1")
        # the same node, changed in place
        assert held.evaluate("node => node.isConnected")
        prepared.benched(server.database)
        expect(tab.page.locator("table.bench-ranking tbody tr").first).to_contain_text("truncated")
        prepared.captured(server.database)
        expect(tab.page.locator(".kpis .captured")).to_contain_text("245")

        feeder.begin(server.database, feeder.RUN, started_s=feeder.BEGAN, seconds=10)
        expect(board(tab)).to_be_visible()
        comes(tab, rows.count, 0)
        tab.page.get_by_role("link", name="hosts, bench, workload").click()
        expect(rows).to_have_count(4)
        expect(board(tab)).to_have_count(0)
        tab.page.get_by_role("link", name="Leaderboard").click()
        expect(board(tab)).to_be_visible()
        tab.page.go_back()
        expect(rows).to_have_count(4)
