"""Every control of the page, and the link that keeps what it set. Expected figures are conftest.py's."""

import csv
import io
import time
from pathlib import Path

import pytest
from playwright.sync_api import expect
from support import feeder
from support.board_page import (
    board,
    chart,
    choose,
    choose_until,
    comes,
    control,
    fact,
    figure,
    frames_seen,
    hosts,
    move,
    query,
    ranking,
    row,
    switch,
    until,
    watch_frames,
)
from support.browser import OpenTab, Tab
from support.page_server import PageServer, page_over

STARTED_S = 1_790_000_000
BY_NAME = [(str(n), f"h{n}") for n in range(1, 9)]
# h8's 1,920 answers are level with the 1,800 of h6, and not with h7's 2,100
BY_RATE = [
    (str(rank), f"h{n}")
    for rank, n in zip((1, 2, 2, 4, 5, 6, 7, 8), (7, 6, 8, 5, 4, 3, 2, 1), strict=True)
]
# (1/7 x 80/200 x 1 x 1)^(1/4) = 0.489 of h1, 0.473, 0.435, 0.411, 0.383, 0.346, then 3/4 of h3's 0.455 = 0.341, and 0.260
# of 300 and 600 answers the first two are known within 1.4 and 1 %: level within 3.3 %, and so are h4 and h5, h7 and h3
BY_SCORE = [
    (str(rank), f"h{n}")
    for rank, n in zip((1, 1, 3, 3, 5, 6, 6, 8), (1, 2, 4, 5, 6, 3, 7, 8), strict=True)
]
# 200 tokens a second of h4 and h5, 180 of h3 and h6, 140 of h2 and h7, 80 of h1, 64 of h8
BY_TOKENS = {"h4": 1, "h5": 1, "h3": 3, "h6": 3, "h2": 5, "h7": 5, "h1": 7, "h8": 8}


def ranks(tab: Tab) -> dict[str, int]:
    return {name: int(rank) for rank, name in ranking(tab)}


def test_every_ranking_puts_each_host_where_it_belongs(
    finished: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(finished.url)
    comes(tab, lambda: ranking(tab), BY_RATE)
    for words in ("by TTFT p50", "by TTFT p95", "by latency p50", "by latency p95"):
        choose(tab, "rank", words)
        comes(tab, lambda: ranking(tab), BY_NAME)
        expect(board(tab).locator("th[aria-sort]")).to_have_text(
            words.removeprefix("by latency ")[-8:].removeprefix("by ")
        )
        choose(tab, "rank", "by requests/s")
        comes(tab, lambda: ranking(tab), BY_RATE)
    choose(tab, "rank", "by error rate")
    # seven without an error share the first place; h3 has one in four
    comes(tab, lambda: ranks(tab), {f"h{n}": 8 if n == 3 else 1 for n in range(1, 9)})
    assert hosts(tab)[-1] == "h3"
    assert figure(tab, "h3", "errors") == "25.0 %"
    choose(tab, "rank", "by output tokens/s")
    comes(tab, lambda: ranks(tab), BY_TOKENS)
    assert board(tab).locator(".tie").count() == 6
    choose(tab, "rank", "by score")
    comes(tab, lambda: ranking(tab), BY_SCORE)


def test_a_shorter_window_forgets_what_was_before_it(
    finished: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(finished.url)
    comes(tab, lambda: figure(tab, "h8", "rps"), "6.40")
    choose(tab, "window", "over 1 min")
    # 480 answers are level with 420, and 360 with 300
    comes(tab, lambda: ranking(tab)[:4], [("1", "h7"), ("1", "h8"), ("3", "h5"), ("3", "h6")])
    assert figure(tab, "h8", "rps") == "8.00"
    comes(tab, lambda: query(tab), "window=1m")


def test_an_honest_board_leaves_out_who_sends_one_token_and_says_why(
    cast: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(cast.url)
    # four times what plain-05 does, behind six times of a cache
    comes(tab, lambda: hosts(tab)[:2], ["memory", "one-token"])
    badge = board(tab).locator('tr[data-host="one-token"] .badge')
    expect(badge).to_have_text("truncated")
    assert "1 token" in str(badge.get_attribute("title"))
    switch(tab, "honest")
    comes(tab, lambda: "one-token" in hosts(tab), False)
    expect(tab.page.locator('#left-out tr[data-host="one-token"] .badge')).to_have_text("truncated")
    assert hosts(tab)[0] == "memory"
    comes(tab, lambda: query(tab), "honest=1")
    switch(tab, "honest")
    comes(tab, lambda: hosts(tab)[:2], ["memory", "one-token"])
    comes(tab, lambda: query(tab), "")


def test_hosts_that_fell_or_died_say_so(cast: PageServer, open_tab: OpenTab) -> None:
    tab = open_tab(cast.url)
    row = board(tab).locator('tr[data-host="restarter"]')
    expect(row).to_contain_text("restarted")
    expect(row).to_contain_text("still in the window")
    expect(board(tab).locator('tr[data-host="dead"]')).to_contain_text("no answer")
    assert hosts(tab)[-1] == "dead"


def test_only_as_many_hosts_as_wanted_are_shown(finished: PageServer, open_tab: OpenTab) -> None:
    tab = open_tab(finished.url)
    comes(tab, lambda: len(hosts(tab)), 8)
    control(tab, "more").get_by_role("button").first.click()
    choose(tab, "top", "up to 5 hosts")
    comes(tab, lambda: hosts(tab), ["h7", "h6", "h8", "h5", "h4"])
    expect(tab.page.get_by_text("and 3 more")).to_be_visible()
    comes(tab, lambda: query(tab), "top=5")


def test_the_csv_holds_the_board_as_it_is_shown(finished: PageServer, open_tab: OpenTab) -> None:
    tab = open_tab(f"{finished.url}/?rank=p95&window=1m")
    comes(tab, lambda: ranking(tab), BY_NAME)
    control(tab, "more").get_by_role("button").first.click()
    with tab.page.expect_download() as download:
        control(tab, "csv").get_by_role("button").click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
    assert [(row["rank"], row["name"]) for row in rows] == BY_NAME
    assert [row["window_s"] for row in rows] == ["60"] * 8
    # 60 s of N answers a second
    assert [int(row["ok"]) for row in rows] == [60 * n for n in range(1, 9)]


def test_two_hosts_side_by_side(finished: PageServer, open_tab: OpenTab) -> None:
    tab = open_tab(finished.url)
    expect(board(tab)).to_be_visible()
    control(tab, "more").get_by_role("button").first.click()
    for name, chosen in (("h1", "cmp=h1"), ("h8", "cmp=h1%2Ch8")):
        choose_until(tab, "cmp", name, lambda chosen=chosen: query(tab) == chosen)
    for name in ("densities", "series-rps", "series-p95_ms"):
        expect(chart(tab, name).locator("svg")).to_be_visible()
    table = tab.page.locator("table.differences")
    expect(table.locator("tr", has_text="requests/s")).to_contain_text("6.40")


def test_one_host_in_full(finished: PageServer, open_tab: OpenTab) -> None:
    tab = open_tab(finished.url)
    expect(board(tab)).to_be_visible()
    row(tab, "h3").click()
    for name in ("heat", "density"):
        expect(chart(tab, name).locator("svg")).to_be_visible()
    facts = tab.page.locator(".facts-of-host")
    # one a second for 300 s
    expect(facts).to_contain_text("http 503")
    expect(facts).to_contain_text("300 of 1,200")
    comes(tab, lambda: query(tab), "host=h3")


def test_a_replay_shows_the_board_as_it_was_plays_on_and_comes_back_to_the_end(
    finished: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(finished.url)
    comes(tab, lambda: ranking(tab), BY_RATE)
    switch(tab, "live")
    move(tab, 0.5)
    until(
        tab,
        lambda: query(tab),
        lambda told: told.startswith("t=") and told != f"t={STARTED_S + 299}",
    )
    lived = int(query(tab).removeprefix("t=")) + 1 - STARTED_S
    assert 130 < lived < 170
    # h8: 8 a second for all but the first minute
    comes(tab, lambda: figure(tab, "h8", "rps"), f"{8 * (lived - 60) / lived:.2f}")
    assert fact(tab, "phase") == "replay"
    control(tab, "play").get_by_role("button").click()
    # thirty times as fast as it was: the rest takes five seconds
    comes(tab, lambda: figure(tab, "h8", "rps"), "6.40")
    switch(tab, "live")
    comes(tab, lambda: query(tab), "")
    assert ranking(tab) == BY_RATE


# Of the page, a select box in the toolbar, one in the popover, and the popover itself: how bright is what they stand on?
GROUNDS = """() => ['.stApp', '.st-key-rank [role="group"]', '.st-key-top [role="group"]', '[data-testid="stPopoverBody"]']
    .map(selector => getComputedStyle(document.querySelector(selector)).backgroundColor)
    .map(colour => colour.match(/[0-9.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part) / 765, 0))"""


def test_a_theme_is_forced_on_everything_whatever_the_browser_prefers(
    finished: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(finished.url, scheme="dark")
    expect(board(tab)).to_be_visible()
    control(tab, "more").get_by_role("button").first.click()
    expect(control(tab, "theme")).to_be_visible()
    assert max(tab.page.evaluate(GROUNDS)) < 0.3
    choose(tab, "theme", "light")
    until(tab, lambda: tab.page.evaluate(GROUNDS), lambda bright: min(bright) > 0.9)
    comes(tab, lambda: query(tab), "theme=light")


@pytest.mark.parametrize(
    "link",
    [
        "rank=ttft_p95&window=5m&top=5&honest=1&cmp=plain-05%2Cmemory&host=restarter&t=1750000300",
        "window=2m&theme=light",
    ],
)
def test_a_link_shows_its_view_and_stays_what_it_was(
    cast: PageServer, open_tab: OpenTab, link: str
) -> None:
    tab = open_tab(f"{cast.url}/?{link}")
    expect(board(tab)).to_be_visible()
    if "host=" in link:
        assert len(hosts(tab)) == 5
        assert "one-token" not in hosts(tab)
        expect(chart(tab, "heat").locator("svg")).to_be_visible()
        expect(chart(tab, "densities").locator("svg")).to_be_visible()
        assert fact(tab, "phase") == "replay"
        assert fact(tab, "clock") == "5:01"
    comes(tab, lambda: sorted(query(tab).split("&")), sorted(link.split("&")))


def test_no_control_takes_the_board_off_the_screen(finished: PageServer, open_tab: OpenTab) -> None:
    tab = open_tab(finished.url)
    expect(chart(tab, "tradeoff").locator("svg")).to_be_visible()
    watch_frames(tab)
    choose(tab, "rank", "by latency p95")
    comes(tab, lambda: ranking(tab), BY_NAME)
    row(tab, "h3").click()
    expect(chart(tab, "heat").locator("svg")).to_be_visible()
    tab.page.get_by_role("link", name="Compare with others").click()
    expect(chart(tab, "densities").locator("svg")).to_be_visible()
    row(tab, "h3").click()
    expect(chart(tab, "heat")).to_have_count(0)
    switch(tab, "live")
    comes(tab, lambda: fact(tab, "phase"), "replay")
    switch(tab, "live")
    comes(tab, lambda: fact(tab, "phase"), "over")
    seen = frames_seen(tab)
    assert (seen["gone"], seen["short"]) == (0, 0)
    assert seen["frames"] > 20


def test_an_older_blast_is_chosen_by_its_day_and_time(tmp_path: Path, open_tab: OpenTab) -> None:
    database = tmp_path / "blasts.db"
    feeder.begin(database, feeder.RUN, started_s=STARTED_S, seconds=300)
    # a newer one in which h8 has not begun
    feeder.begin(database, "ba9876543210", started_s=STARTED_S + 5000, seconds=60)
    with page_over(database, tmp_path) as server:
        tab = open_tab(server.url)
        comes(tab, lambda: hosts(tab)[-1:], ["h8"])
        control(tab, "more").get_by_role("button").first.click()
        older = time.strftime("%H:%M:%S", time.localtime(STARTED_S))
        day = time.strftime("%d %B %Y", time.localtime(STARTED_S)).lstrip("0")
        choose(tab, "run", f"{day}, {older}")
        comes(tab, lambda: ranking(tab), BY_RATE)
        comes(tab, lambda: query(tab), f"run={feeder.RUN}")


def test_a_link_of_nonsense_shows_the_usual_board(finished: PageServer, open_tab: OpenTab) -> None:
    tab = open_tab(
        f"{finished.url}/?rank=beauty&window=-1&top=x&t=yesterday&host=nobody&cmp=a,,b&run=none"
    )
    comes(tab, lambda: ranking(tab), BY_RATE)
