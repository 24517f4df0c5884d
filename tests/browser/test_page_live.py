"""The page over a blast that is on: it paints, it follows, it does not flicker, and it says so when nothing comes."""

from pathlib import Path

from playwright.sync_api import expect
from support.board_page import board, comes, fact, figure, frames_seen, hosts, until, watch_frames
from support.browser import OpenTab
from support.feeder import Blast, blast_on
from support.page_server import PageServer, page_over

Live = tuple[PageServer, Blast]


def test_the_first_paint_has_every_host_in_its_place(live: Live, open_tab: OpenTab) -> None:
    server, _ = live
    tab = open_tab(server.url)
    expect(board(tab)).to_be_visible()
    # h8 came a minute late, to a blast of two minutes and more: 4/s and more, and the others are as fast as their names say
    assert [name for name in hosts(tab) if name != "h8"] == [
        "h7",
        "h6",
        "h5",
        "h4",
        "h3",
        "h2",
        "h1",
    ]
    assert [figure(tab, f"h{n}", "rps") for n in range(1, 8)] == [f"{n}.00" for n in range(1, 8)]
    comes(tab, lambda: tab.page.locator(".age").get_attribute("data-state"), "fresh")


def test_five_ticks_change_figures_and_leave_every_node_where_it_was(
    live: Live, open_tab: OpenTab
) -> None:
    server, _ = live
    tab = open_tab(server.url)
    expect(tab.page.locator("figure.chart svg").first).to_be_visible()
    assert watch_frames(tab) >= 10  # the table, eight rows, a chart
    clocks = [fact(tab, "clock")]
    rates = [figure(tab, "h8", "rps")]
    for _ in range(5):
        clocks.append(until(tab, lambda: fact(tab, "clock"), lambda told: told != clocks[-1]))
        rates.append(figure(tab, "h8", "rps"))
    seen = frames_seen(tab)
    assert (seen["gone"], seen["dimmed"], seen["short"]) == (0, 0, 0)
    assert seen["frames"] > 20
    # h8 catches up: of T seconds it answered 8 a second in all but the first 60
    numbers = [float(rate) for rate in rates]
    assert numbers == sorted(numbers)
    assert numbers[-1] > numbers[0]


def test_an_open_panel_follows_the_blast_and_leaves_every_node_where_it_was(
    live: Live, open_tab: OpenTab
) -> None:
    server, _ = live
    tab = open_tab(f"{server.url}/?host=h3")
    errors = tab.page.locator(".panel .kinds b")
    counts = [int(errors.inner_text().replace(",", ""))]
    watch_frames(tab)
    for _ in range(2):
        told = until(tab, errors.inner_text, lambda text: text != f"{counts[-1]:,}")
        counts.append(int(told.replace(",", "")))
    # one error a second
    assert counts == sorted(counts)
    seen = frames_seen(tab)
    assert (seen["gone"], seen["dimmed"], seen["short"]) == (0, 0, 0)


def test_figures_of_a_blast_whose_writer_died_turn_red_and_fresh_again_when_it_goes_on(
    tmp_path: Path, open_tab: OpenTab
) -> None:
    with blast_on(tmp_path / "blast.db") as blast, page_over(blast.database, tmp_path) as server:
        tab = open_tab(server.url)
        state = tab.page.locator(".age")
        expect(state).to_have_attribute("data-state", "fresh")
        blast.stop()
        states = ["fresh"]
        while states[-1] != "stale":
            states.append(
                until(
                    tab, lambda: str(state.get_attribute("data-state")), lambda s: s != states[-1]
                )
            )
        assert states == ["fresh", "late", "stale"]
        calm = tab.page.locator(".strip .clock .value").evaluate(
            "node => getComputedStyle(node).color"
        )
        assert state.evaluate("node => getComputedStyle(node).color") != calm
        blast.go_on()
        expect(state).to_have_attribute("data-state", "fresh")
