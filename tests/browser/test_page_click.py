"""A click opens what it means: a row its host's panel, a column's head its ranking, a mark its story. Expected figures are conftest.py's."""

import pytest
from playwright.sync_api import Locator, expect
from support.board_page import (
    board,
    chart,
    comes,
    figure,
    frames_seen,
    hosts,
    query,
    ranking,
    row,
    until,
    watch_frames,
)
from support.browser import OpenTab, Tab
from support.page_server import PageServer

BY_RATE = ["h7", "h6", "h8", "h5", "h4", "h3", "h2", "h1"]
BY_NAME = [f"h{n}" for n in range(1, 9)]


def panel(tab: Tab) -> Locator:
    return tab.page.locator("aside.panel")


def focused(tab: Tab) -> str:
    """What has the keyboard's focus: its accessible name, or its text."""
    told: str = tab.page.evaluate(
        "document.activeElement.getAttribute('aria-label') || document.activeElement.innerText"
    )
    return told


def test_a_row_opens_its_hosts_panel_and_the_way_back_undoes_it_without_a_new_page(
    finished: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(finished.url)
    expect(chart(tab, "tradeoff").locator("svg")).to_be_visible()
    tab.page.evaluate("window.mine = 1")
    watch_frames(tab)
    # anywhere on the row
    row(tab, "h3").locator(".c-p95").click()
    expect(panel(tab)).to_have_attribute("aria-label", "h3")
    assert query(tab) == "host=h3"
    expect(panel(tab)).to_contain_text("300 of 1,200")
    expect(row(tab, "h3").locator("a")).to_have_attribute("aria-current", "true")
    row(tab, "h7").click()
    expect(panel(tab)).to_have_attribute("aria-label", "h7")
    tab.page.go_back()
    expect(panel(tab)).to_have_attribute("aria-label", "h3")
    tab.page.go_back()
    expect(panel(tab)).to_have_count(0)
    assert query(tab) == ""
    tab.page.go_forward()
    expect(panel(tab)).to_have_attribute("aria-label", "h3")
    # a second click closes it again, and so does its own link
    row(tab, "h3").click()
    expect(panel(tab)).to_have_count(0)
    row(tab, "h3").click()
    panel(tab).get_by_role("link", name="Close").click()
    expect(panel(tab)).to_have_count(0)
    assert query(tab) == ""
    seen = frames_seen(tab)
    assert (seen["gone"], seen["dimmed"], seen["short"]) == (0, 0, 0)
    assert tab.page.evaluate("window.mine") == 1


def test_keys_open_a_panel_which_gets_the_focus_and_gives_it_back(
    finished: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(finished.url)
    expect(board(tab)).to_be_visible()
    tab.page.get_by_role("link", name="h5", exact=True).focus()
    tab.page.keyboard.press("Enter")
    comes(tab, lambda: focused(tab), "h5")
    expect(tab.page.get_by_role("complementary", name="h5")).to_be_visible()
    tab.page.keyboard.press("Escape")
    expect(panel(tab)).to_have_count(0)
    assert focused(tab) == "h5"
    assert tab.page.evaluate("document.activeElement.tagName") == "A"


def test_a_columns_head_ranks_by_it_and_the_select_box_follows(
    finished: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(f"{finished.url}/?host=h3")
    comes(tab, lambda: hosts(tab), BY_RATE)
    head = board(tab).get_by_role("columnheader")
    head.get_by_role("link", name="p95", exact=True).click()
    comes(tab, lambda: hosts(tab), BY_NAME)
    assert query(tab) == "host=h3&rank=p95"
    expect(board(tab).locator("th[aria-sort]")).to_have_text("p95")
    expect(tab.page.locator(".st-key-rank input")).to_have_value("by latency p95")
    head.get_by_role("link", name="requests/s").click()
    comes(tab, lambda: hosts(tab), BY_RATE)
    assert query(tab) == "host=h3"
    tab.page.go_back()
    comes(tab, lambda: hosts(tab), BY_NAME)
    expect(tab.page.locator(".st-key-rank input")).to_have_value("by latency p95")


def test_a_mark_tells_its_story_beside_its_host(cast: PageServer, open_tab: OpenTab) -> None:
    tab = open_tab(cast.url)
    marks = chart(tab, "ranks").locator(".happened li", has_text="swapped to GPTQ")
    marks.get_by_role("link").click()
    expect(panel(tab)).to_have_attribute("aria-label", "restarter")
    told = panel(tab).locator(".story")
    expect(told).to_contain_text("swapped to GPTQ")
    # support/blasted.py: down for a sixth of 600 s
    expect(told).to_contain_text("1 min 40 s")
    # before it went down it answered as much as plain-05, the fourth
    expect(told).to_contain_text("Rank: 4 before it")
    # the mark on the chart is the same link, and a reader of keys has it once
    number = chart(tab, "ranks").locator(".plot .mark a").last
    assert number.get_attribute("tabindex") == "-1"
    tab.page.go_back()
    expect(panel(tab)).to_have_count(0)
    # the phase concerns all
    chart(tab, "ranks").locator(".happened li", has_text="full load").get_by_role("link").click()
    expect(panel(tab)).to_contain_text("First: memory before it")


def test_whatever_shows_a_host_opens_it_but_in_its_own_panel(
    finished: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(finished.url)
    chart(tab, "tradeoff").locator('.dot[data-host="h1"] .name').click()
    expect(panel(tab)).to_have_attribute("aria-label", "h1")
    tab.page.locator(".kpis .leader .name").click()
    expect(panel(tab)).to_have_attribute("aria-label", "h7")
    chart(tab, "ranks").locator(".end", has_text="h4").click()
    expect(panel(tab)).to_have_attribute("aria-label", "h4")
    panel(tab).locator("h2 .name").click()
    panel(tab).locator("figure .line .ink").first.dispatch_event("click")
    assert query(tab) == "host=h4"


def test_hosts_that_are_compared_from_their_panels_come_into_view(
    finished: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(finished.url, height=700)
    for name in ("h3", "h7"):
        row(tab, name).locator("a").focus()
        tab.page.keyboard.press("Enter")
        expect(panel(tab)).to_have_attribute("aria-label", name)
        panel(tab).get_by_role("link", name="Compare with others").click()
        expect(tab.page.locator("table.differences thead")).to_contain_text(name)
        expect(chart(tab, "densities")).to_be_in_viewport()
    assert query(tab) == "host=h7&cmp=h3%2Ch7"
    panel(tab).get_by_role("link", name="Compare no longer").click()
    comes(tab, lambda: query(tab), "host=h7&cmp=h3")


def test_seconds_in_which_the_load_generator_was_the_limit_are_left_out_by_a_switch(
    cast: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(cast.url)
    limited = tab.page.locator(".provenance .limited")
    # three of 600 s (support/blasted.py)
    expect(limited).to_contain_text("3 s of 10 min")
    expect(limited).to_contain_text("counted")
    before = figure(tab, "memory", "rps")
    switch = tab.page.get_by_role("switch", name="Leave them out")
    switch.focus()
    tab.page.keyboard.press("Space")
    expect(limited).to_contain_text("left out")
    assert query(tab) == "skip_limited=1"
    expect(switch).to_have_attribute("aria-checked", "true")
    switch.click()
    expect(limited).to_contain_text("counted")
    comes(tab, lambda: query(tab), "")
    assert figure(tab, "memory", "rps") == before


def test_no_select_box_stands_below_the_fold(cast: PageServer, open_tab: OpenTab) -> None:
    tab = open_tab(f"{cast.url}/?host=restarter&cmp=memory,plain-05", width=1280, height=720)
    expect(chart(tab, "densities").locator("svg")).to_be_visible()
    controls = tab.page.locator(".stMain input, .stMain select, .stMain [role=combobox]")
    assert controls.count() >= 2
    for one in range(controls.count()):
        box = controls.nth(one).bounding_box()
        assert box is None or box["y"] < 300


@pytest.mark.parametrize("width", [1920, 1280])
def test_the_panel_stands_beside_the_table_and_covers_nothing_of_it(
    cast: PageServer, open_tab: OpenTab, width: int
) -> None:
    tab = open_tab(f"{cast.url}/?host=memory", width=width, height=900)
    expect(panel(tab).locator("svg").first).to_be_visible()
    until(
        tab,
        lambda: [one.bounding_box() for one in (board(tab), tab.page.locator(".st-key-beside"))],
        lambda told: bool(
            told[0]
            and told[1]
            and told[0]["x"] + told[0]["width"] <= told[1]["x"]
            and told[1]["x"] + told[1]["width"] <= width
        ),
    )
    # it stays in view wherever the page is scrolled to
    tab.page.locator(".method").scroll_into_view_if_needed()
    expect(panel(tab).locator("h2")).to_be_in_viewport()
    overhang = "document.querySelector('[data-testid=stMain]').scrollWidth - innerWidth"
    assert tab.page.evaluate(overhang) <= 0


def test_on_a_phone_the_panel_takes_the_screen_until_it_is_closed(
    cast: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(f"{cast.url}/?host=memory", width=390, height=844)
    expect(panel(tab)).to_be_visible()
    box = tab.page.locator(".st-key-beside").bounding_box()
    assert box is not None
    assert (box["x"], box["width"]) == (0, 390)
    panel(tab).get_by_role("link", name="Close").click()
    expect(panel(tab)).to_have_count(0)
    assert len(ranking(tab)) == 12
