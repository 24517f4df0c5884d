"""The page on a television, a phone and a desk, by day and by night; and what it leaves out of Streamlit's own furniture."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from support import prepared
from support.board_page import board, chart, hosts, until
from support.browser import OpenTab, Tab
from support.far_ahead import blast_far_ahead
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


@pytest.mark.parametrize(("width", "height", "letters"), [(1920, 1080, 20), (1280, 720, 12)])
def test_a_kiosk_fits_ten_hosts_and_their_ranks_on_one_screen_without_a_control(
    cast: PageServer, open_tab: OpenTab, width: int, height: int, letters: int
) -> None:
    tab = open_tab(f"{cast.url}/?kiosk=1", width=width, height=height)
    expect(board(tab)).to_be_visible()
    expect(chart(tab, "ranks").locator("svg")).to_be_visible()
    # of twelve hosts: the other two come with the next page
    until(tab, lambda: len(hosts(tab)), lambda count: count == 10)
    until(tab, lambda: overhang(tab), lambda told: told == {"wide": 0, "high": 0})
    # in one look, as the page may turn at any moment: of ten rows the last one's right end and foot
    right, foot = until(
        tab,
        lambda: tab.page.locator("#standings tr[data-host]").evaluate_all(
            "rows => rows.length === 10 && (b => [b.right, b.bottom])(rows[9].getBoundingClientRect())"
        ),
        lambda found: found is not False,
    )
    assert (right <= width, foot <= height) == (True, True)
    controls = "input, select, textarea, [role=combobox], [role=switch], [role=slider]"
    assert tab.page.locator(controls).count() == 0
    # on a large one to be read from across the room
    sizes = tab.page.locator("#standings .name").evaluate_all(
        "all => all.map(node => parseFloat(getComputedStyle(node).fontSize))"
    )
    assert min(sizes) >= letters


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


# Which of these boxes overlap, as the texts of the pairs; half a pixel is rounding.
OVERLAPS = """selectors => {
    const seen = selectors.flatMap(each => [...document.querySelectorAll(each)]).filter(node => node.checkVisibility());
    const boxes = seen.map(node => [node.innerText || node.parentElement.innerText, node.getBoundingClientRect()]);
    return boxes.flatMap(([text, one], place) => boxes.slice(place + 1)
        .filter(([, other]) => one.left < other.right - .5 && other.left < one.right - .5
            && one.top < other.bottom - .5 && other.top < one.bottom - .5)
        .map(([other]) => `${text} / ${other}`));
}"""


def test_on_a_phone_the_first_row_stands_in_the_upper_third(
    far_ahead: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(far_ahead.url, width=390, height=844)
    expect(board(tab)).to_be_visible()
    first = tab.page.locator("#standings tr[data-host]").first.bounding_box()
    assert first is not None
    assert first["y"] + first["height"] <= 844 / 3
    # and what says how the blast stands above it
    phase = tab.page.locator(".strip .phase").bounding_box()
    assert phase is not None
    assert phase["y"] < first["y"]


@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_every_dot_of_twenty_hosts_is_named_and_no_word_of_a_chart_covers_another(
    far_ahead: PageServer, open_tab: OpenTab, width: int
) -> None:
    tab = open_tab(far_ahead.url, width=width, height=1080)
    expect(chart(tab, "tradeoff").locator("svg").first).to_be_visible()
    names = tab.page.locator('[data-chart="tradeoff"] .dot .name')
    # the dead one never answered: it has no dot, and is listed
    assert names.count() == 19
    assert all(names.nth(number).is_visible() for number in range(19))
    expect(chart(tab, "tradeoff").locator(".gone")).to_contain_text("dead (never answered)")
    expect(chart(tab, "tradeoff").locator(".front")).to_have_count(1)
    assert tab.page.evaluate(OVERLAPS, ['[data-chart="tradeoff"] .label']) == []
    for key in ("ranks", "tradeoff"):
        assert tab.page.evaluate(OVERLAPS, [f'[data-chart="{key}"] .tick.x']) == []
        assert tab.page.locator(f'[data-chart="{key}"] .tick.x:visible').count() >= 2
    assert tab.page.evaluate(OVERLAPS, ['[data-chart="ranks"] .end']) == []


@pytest.mark.parametrize(("plain", "dots"), [(92, 99), (0, 1)], ids=["hundred", "one"])
def test_names_of_a_hundred_hosts_cover_each_other_as_little_as_that_of_one(
    plain: int, dots: int, tmp_path: Path, open_tab: OpenTab
) -> None:
    blast = blast_far_ahead(tmp_path / "blast.db", plain)
    with page_over(blast.file, tmp_path) as server:
        tab = open_tab(f"{server.url}/?top=100", width=1280, height=900)
        expect(chart(tab, "tradeoff").locator("svg").first).to_be_visible()
        names = tab.page.locator('[data-chart="tradeoff"] .dot .name')
        assert names.count() == dots
        assert all(names.nth(number).is_visible() for number in range(min(dots, 20)))
        for words in ('[data-chart="tradeoff"] .label', '[data-chart="ranks"] .end'):
            assert tab.page.evaluate(OVERLAPS, [words]) == []


@pytest.mark.parametrize("view", ["", "kiosk=1&top=20"])
def test_a_cache_80_times_ahead_leaves_the_others_bars_that_can_be_compared(
    far_ahead: PageServer, open_tab: OpenTab, view: str
) -> None:
    tab = open_tab(f"{far_ahead.url}/?{view}", width=1920, height=1080)
    expect(board(tab)).to_be_visible()

    def length(host: str) -> float:
        box = tab.page.locator(f'#board tr[data-host="{host}"] .bar').bounding_box()
        assert box is not None
        return box["width"]

    # plain-00 answers 100 a second and plain-05 95 of them
    assert length("cache") / 2 < length("plain-00") < length("cache")
    assert length("plain-05") / length("plain-00") == pytest.approx(0.95, abs=0.02)
    head = tab.page.locator("#board thead .c-rps .axis")
    assert head.inner_text().split() == ["100", "8,000"]
    # the head's break stands where the bars have theirs
    at, cut = (
        tab.page.locator(each).evaluate("node => node.getBoundingClientRect().right")
        for each in ("#board .axis span:first-child", '#board tr[data-host="plain-00"] .bar')
    )
    assert abs(at - cut) < 16


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_figures_can_be_read_by_day_and_by_night(
    cast: PageServer, open_tab: OpenTab, scheme: str
) -> None:
    tab = open_tab(cast.url, scheme=scheme)
    expect(board(tab)).to_be_visible()
    expect(chart(tab, "tradeoff").locator("svg")).to_be_visible()
    # a response cache is honest, and marked as the leader of those who are
    expect(chart(tab, "tradeoff").locator(".dot:has(.star) .name")).to_have_text("memory")
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
