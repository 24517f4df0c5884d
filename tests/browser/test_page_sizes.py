"""The page on a television, a phone and a desk, by day and by night; and what it leaves out of Streamlit's own furniture."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from support import prepared
from support.board_page import board, chart, hosts, until
from support.browser import OpenTab, Tab
from support.page_server import PageServer, page_over

# How well each text can be told from what it stands on, by WCAG's rule: 1 is not at all, 21 is black on white. Colours are
# read back from a canvas, as they may be written in any notation.
CONTRAST = """selector => {
    const pen = Object.assign(document.createElement('canvas'), {width: 1, height: 1})
        .getContext('2d', {willReadFrequently: true});
    const rgba = colour => {
        pen.clearRect(0, 0, 1, 1);
        pen.fillStyle = colour;
        pen.fillRect(0, 0, 1, 1);
        return [...pen.getImageData(0, 0, 1, 1).data];
    };
    const light = colour => colour.slice(0, 3).map(part => part / 255)
        .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
    const ground = node => {
        for (; node; node = node.parentElement) {
            const colour = rgba(getComputedStyle(node).backgroundColor);
            if (colour[3] > 250) return colour;
        }
        return [255, 255, 255, 255];
    };
    return [...document.querySelectorAll(selector)].filter(node => node.innerText.trim()).map(node => {
        const [dim, bright] = [light(rgba(getComputedStyle(node).color)), light(ground(node))].sort((a, b) => a - b);
        return [Math.round(10 * (bright + 0.05) / (dim + 0.05)) / 10, node.className, node.innerText];
    });
}"""


def overhang(tab: Tab) -> dict[str, Any]:
    """By how many pixels the content is wider and higher than the window."""
    return tab.page.evaluate(
        """() => {
            const main = document.querySelector('[data-testid="stMain"]');
            return {wide: Math.max(main.scrollWidth, document.documentElement.scrollWidth) - innerWidth,
                    high: main.scrollHeight - innerHeight};
        }"""
    )


def test_a_kiosk_fits_ten_hosts_and_their_ranks_on_one_screen_without_a_control(
    cast: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(f"{cast.url}/?kiosk=1", width=1920, height=1080)
    expect(board(tab)).to_be_visible()
    expect(chart(tab, "ranks").locator("svg")).to_be_visible()
    until(tab, lambda: overhang(tab), lambda told: told == {"wide": 0, "high": 0})
    assert len(hosts(tab)) == 10
    last = tab.page.locator("#standings tr[data-host]").last.bounding_box()
    assert last is not None
    assert last["y"] + last["height"] <= 1080
    controls = "input, select, textarea, [role=combobox], [role=switch], [role=slider]"
    assert tab.page.locator(controls).count() == 0
    # to be read from across the room
    sizes = tab.page.locator("#standings .name").evaluate_all(
        "all => all.map(node => parseFloat(getComputedStyle(node).fontSize))"
    )
    assert min(sizes) >= 20


def test_a_phone_needs_no_sideways_scrolling(cast: PageServer, open_tab: OpenTab) -> None:
    tab = open_tab(f"{cast.url}/?host=restarter&cmp=memory,plain-05", width=390, height=844)
    expect(board(tab)).to_be_visible()
    expect(chart(tab, "heat").locator("svg")).to_be_visible()
    until(tab, lambda: overhang(tab)["wide"], lambda wide: wide == 0)
    rows = tab.page.locator("#standings tr[data-host]")
    assert rows.count() == 12
    for box in (rows.nth(place).bounding_box() for place in range(12)):
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_figures_can_be_read_by_day_and_by_night(
    cast: PageServer, open_tab: OpenTab, scheme: str
) -> None:
    tab = open_tab(cast.url, scheme=scheme)
    expect(board(tab)).to_be_visible()
    expect(chart(tab, "tradeoff").locator("svg")).to_be_visible()
    texts = "#board td, #board th, .badge, .note, .strip .value, .strip .what, .kpis .value, .kpis .below"
    seen = tab.page.evaluate(CONTRAST, texts)
    assert len(seen) > 100
    # WCAG's AA for plain text
    assert [told for told in seen if told[0] < 4.5] == []
    assert overhang(tab)["wide"] == 0


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_what_is_known_before_a_blast_can_be_read_on_a_phone_and_on_a_desk(
    tmp_path: Path, open_tab: OpenTab, scheme: str
) -> None:
    for fill in (prepared.scouted, prepared.benched, prepared.captured):
        fill(tmp_path / "toolkit.db")
    with page_over(tmp_path / "toolkit.db", tmp_path) as server:
        for width in (390, 1280):
            tab = open_tab(server.url, width=width, scheme=scheme)
            expect(tab.page.locator("table.settings tbody tr")).to_have_count(4)
            texts = "#before :is(td, th, .badge, .note, dd, dt, .because), .strip .value, .kpis :is(.value, .below)"
            seen = tab.page.evaluate(CONTRAST, texts)
            assert len(seen) > 80
            assert [told for told in seen if told[0] < 4.5] == []
            assert overhang(tab)["wide"] == 0


def test_streamlits_own_furniture_stays_away(cast: PageServer, open_tab: OpenTab) -> None:
    tab = open_tab(cast.url)
    expect(board(tab)).to_be_visible()
    assert tab.page.get_by_text("Deploy").count() == 0
    assert tab.page.title() == "Leaderboard"
    log = cast.log.read_text()
    assert "0.0.0.0" not in log
    assert "http://127.0.0.1:" in log
    assert "email" not in log.lower()
    assert "usage statistics" not in log.lower()
