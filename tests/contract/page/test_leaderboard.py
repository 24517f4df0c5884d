"""The leaderboard page in Chromium over a blast that goes on: whom its cards name, who is red, and when rows move."""

import csv
import io
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.harness.blasts import Blast, begin, by_requests, recount
from contract.harness.browser import PATIENCE_MS, chromium, leaderboard, tab
from contract.harness.databases import is_sound
from contract.harness.programs import rows as json_rows
from contract.harness.programs import run, until
from playwright.sync_api import Browser, Page, expect

RUN = "aaaabbbbcccc"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def rows(page: Page) -> list[dict[str, str]]:
    """Each row's host, rank, place, ok and classes, from the top; read in one go, as rows may move."""
    found: list[dict[str, str]] = page.locator("#standings tr[data-host]").evaluate_all(
        "all => all.map(r => ({...r.dataset, classes: r.className, text: r.innerText,"
        " badges: [...r.querySelectorAll('.badge')].map(b => b.innerText.trim()).join(' '),"
        " colour: getComputedStyle(r.querySelector('.name')).color}))"
    )
    return found


def cards(page: Page) -> list[str]:
    told: list[str] = page.locator(".kpis li").evaluate_all(
        "all => all.map(li => [...li.children].map(part => part.innerText).join(' | '))"
    )
    return told


def is_red(colour: str) -> bool:
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return red > 1.5 * green and red > 1.5 * blue


def shows(page: Page, wanted: dict[str, int]) -> list[dict[str, str]]:
    """Wait until the rows hold these counts of good answers."""

    def seen() -> list[dict[str, str]] | None:
        page.wait_for_timeout(50)
        found = rows(page)
        return found if {one["host"]: int(one["ok"]) for one in found} == wanted else None

    told: list[dict[str, str]] = until(seen, patience_s=PATIENCE_MS / 1000)
    return told


def totals(blast: Blast, from_s: int, to_s: int) -> dict[str, int]:
    return {name: told.ok for name, told in recount(blast.file, RUN, from_s, to_s).items()}


def test_cards_name_hosts_with_enough_good_answers_and_who_fails_or_is_down_is_red(
    browser: Browser, tmp_path: Path
) -> None:
    began = int(time.time()) - 400
    names = ["zoe", "flaky", "few", "quick", "steady", "gone"]
    blast = begin(tmp_path / "blast.db", names, began)
    blast.write({began + second: {"zoe": {"errors": 1}} for second in range(5)})
    with leaderboard(blast.file, tmp_path) as url, tab(browser) as page:
        page.goto(url)
        # five errors and nobody else yet: nobody leads
        expect(page.locator("#board")).to_be_visible()
        until(lambda: page.wait_for_timeout(50) or cards(page))
        assert not any("zoe" in card for card in cards(page)), cards(page)
        assert "nobody has answered yet" in cards(page)[0]

        flaky: dict[str, Any] = {"ok": 30, "errors": 10, "ttft_ms": 5.0, "e2e_ms": 100.0}
        blast.write(
            {
                began + second: {
                    "flaky": flaky,
                    "quick": {"ok": 20, "ttft_ms": 40.0, "e2e_ms": 300.0},
                    "steady": {"ok": 16, "ttft_ms": 60.0, "e2e_ms": 400.0},
                    "gone": {"ok": 10, "ttft_ms": 50.0} if second < 260 else {"errors": 1},
                }
                | ({"few": {"ok": 1, "ttft_ms": 2.0, "e2e_ms": 20.0}} if second < 10 else {})
                for second in range(5, 300)
            }
        )
        for name in names:
            blast.canaries(name, began + 100)
        counted = totals(blast, began, began + 299)
        found = {one["host"]: one for one in shows(page, counted)}
        leader, _, ttft, latency, _ = cards(page)
        # flaky answers half as many again, and a quarter of its requests fail; few has 5 answers
        assert leader.split(" | ")[1] == "quick"
        assert "25.0 % ahead of steady" in leader
        assert "flaky, failing" in leader
        assert ttft.split(" | ")[1:] == [ttft.split(" | ")[1], "quick"]
        assert latency.split(" | ")[2] == "quick"
        badges = {name: one["badges"].split(" ")[0] for name, one in found.items()}
        assert {name: badges[name] for name in ("zoe", "flaky", "gone")} == {
            "zoe": "down",
            "flaky": "failing",
            "gone": "down",
        }
        assert {name for name, one in found.items() if is_red(one["colour"])} == {
            "zoe",
            "flaky",
            "gone",
        }
        assert not any("clean" in found[name]["text"] for name in ("zoe", "flaky", "gone"))
        # every row and the file that can be had of them are a recount
        places = by_requests(recount(blast.file, RUN, began, began + 299))
        ranks = {name: int(one["rank"]) for name, one in found.items()}
        assert ranks == {name: rank for name, (rank, _) in places.items()}
        page.locator(".st-key-more").get_by_role("button").first.click()
        with page.expect_download() as download:
            page.locator(".st-key-csv").get_by_role("button").click()
        written = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
        assert {line["name"]: int(line["ok"]) for line in written} == counted
        assert {line["name"]: int(line["rank"]) for line in written} == ranks


def test_a_rank_changes_at_once_and_its_row_moves_when_the_change_has_lasted(
    browser: Browser, tmp_path: Path
) -> None:
    now_s = began = int(time.time()) - 400
    blast = begin(tmp_path / "blast.db", ["alfa", "bravo", "carla"], began)
    with tab(browser) as page, leaderboard(blast.file, tmp_path) as url:

        def goes_on(seconds: int, bravo: int) -> list[tuple[str, str]]:
            """Write so many seconds, wait for them, and check each row's rank by a recount of the window of 5 s."""
            nonlocal now_s
            for second in range(now_s, now_s + seconds):
                # no two windows hold the same of carla: the page has come to this one
                carla = 10 + (second - began) // 2
                told = {"alfa": {"ok": 60}, "bravo": {"ok": bravo}, "carla": {"ok": carla}}
                blast.write({second: told})
            now_s += seconds
            found = shows(page, totals(blast, now_s - 5, now_s - 1))
            ranks = by_requests(recount(blast.file, RUN, now_s - 5, now_s - 1))
            assert {one["host"]: int(one["rank"]) for one in found} == {
                name: rank for name, (rank, _) in ranks.items()
            }
            return [(one["host"], one["rank"]) for one in found]

        page.goto(f"{url}/?window=5s")
        steady = [("alfa", "1"), ("bravo", "2"), ("carla", "3")]
        assert goes_on(10, 40) == steady
        # one second of 240 lifts bravo to 400 of 5 s against 300, until the second has left the window
        lifted = [("alfa", "2"), ("bravo", "1"), ("carla", "3")]
        assert goes_on(1, 240) == lifted
        assert goes_on(5, 40) == steady
        # from here on it is 90 for good: its rank says so at once, its row after 10 s
        assert goes_on(5, 90) == lifted
        for seconds in (4, 4, 5):
            goes_on(seconds, 90)
        until(
            lambda: (
                page.wait_for_timeout(50)
                or [one["host"] for one in rows(page)] == ["bravo", "alfa", "carla"]
            )
        )
        # who comes now sees the board as all others do, and the end has no order but the ranks'
        assert goes_on(6, 2) == [("bravo", "3"), ("alfa", "1"), ("carla", "2")]
        blast.end(now_s)
        until(
            lambda: (
                page.wait_for_timeout(50)
                or [one["host"] for one in rows(page)] == ["alfa", "carla", "bravo"]
            )
        )
        shown = {one["host"]: int(one["ok"]) for one in rows(page)}
    # the server has been killed (that is how `leaderboard` ends it): the file is sound and the next one shows the same
    assert is_sound(blast.file)
    again = run("board", "--json", "--window", "5s", "--db", blast.file, cwd=tmp_path)
    assert {one["name"]: one["ok"] for one in json_rows(again.stdout)} == shown


def test_a_click_opens_what_it_means_its_link_works_and_the_way_back_undoes_it(
    browser: Browser, tmp_path: Path
) -> None:
    began = int(time.time()) - 400
    blast = begin(tmp_path / "blast.db", ["alfa", "bravo"], began)
    # bravo answers less, and sooner
    both = {"alfa": {"ok": 9, "e2e_ms": 900.0}, "bravo": {"ok": 3, "e2e_ms": 300.0, "errors": 1}}
    blast.write({began + second: both for second in range(300)})
    with sqlite3.connect(blast.file, timeout=30) as connection:
        # as the load generator marks a run whose hosts are on its machine
        connection.execute(
            "INSERT INTO events (run_number, at, kind, text) VALUES (1, ?, 'mark', ?)",
            (float(began), "not valid for ranking: `alfa` (127.0.0.1) is on this machine"),
        )
    connection.close()
    moment = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(began + 150))
    note = ("bravo", "larger batches", "--at", moment, "--db", blast.file)
    marked = run("mark", *note, cwd=tmp_path)
    assert marked.returncode == 0, marked.stderr
    blast.end(began + 300)
    with leaderboard(blast.file, tmp_path) as url, tab(browser) as page:
        page.goto(url)
        panel = page.get_by_role("complementary")
        expect(page.locator(".banner")).to_contain_text("Not valid for ranking")
        expect(page.locator(".banner")).to_contain_text("same machine as the hosts: alfa")
        expect(page.locator(".provenance")).to_contain_text(RUN)
        page.locator('tr[data-host="bravo"] .c-p95').click()
        expect(panel).to_contain_text("http 500")
        # one error beside three answers in each of 300 s
        expect(panel).to_contain_text("300 of 1,200")
        assert page.url == f"{url}/?host=bravo"

        page.get_by_role("columnheader").get_by_role("link", name="p95", exact=True).click()
        expect(page.locator("#board")).to_have_attribute("data-rank-by", "p95")
        assert [one["host"] for one in rows(page)] == ["bravo", "alfa"]
        page.locator('[data-chart="ranks"]').get_by_role("link", name="larger batches").click()
        expect(panel).to_contain_text("3.00 requests/s in the minute before")

        with tab(browser) as other:
            other.goto(page.url)
            expect(other.get_by_role("complementary")).to_contain_text("larger batches")
            assert [one["host"] for one in rows(other)] == ["bravo", "alfa"]
        page.go_back()
        page.go_back()
        expect(page.locator("#board")).to_have_attribute("data-rank-by", "rps")
        expect(panel).to_contain_text("300 of 1,200")
        page.go_back()
        expect(panel).to_have_count(0)
        assert [one["host"] for one in rows(page)] == ["alfa", "bravo"]
