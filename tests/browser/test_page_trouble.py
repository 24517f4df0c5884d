"""The page over a database that is missing, locked, old, damaged or replaced, and a page whose server is killed."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
import sqlite_utils
from playwright.sync_api import expect
from support import feeder
from support.board_page import board, comes, fact, hosts
from support.browser import OpenTab, Tab
from support.feeder import blast_on
from support.page_server import PageServer, page_over

from toolkit.records import Event
from toolkit.store import Store
from toolkit.store.database import MIGRATION_SET
from toolkit.store.migrations import STEPS

STARTED_S = 1_790_000_000
ALL = ["h7", "h6", "h8", "h5", "h4", "h3", "h2", "h1"]
"""The ranking after 300 s: h8 has 6.4/s, which is level with h6."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PageServer]:
    """A page whose database is missing; no fault of the database may end in a trace."""
    with page_over(tmp_path / "blast.db", tmp_path) as running:
        yield running
    said = running.log.read_text()
    assert "Traceback" not in said, said


def begin(database: Path, *, run: str = feeder.RUN) -> None:
    feeder.begin(database, run, started_s=STARTED_S, seconds=300)


def trouble(tab: Tab) -> str:
    return " ".join(tab.page.locator(".trouble").first.inner_text().split())


def is_well(tab: Tab) -> bool:
    return tab.page.locator(".trouble").count() == 0


def test_without_a_database_the_page_says_how_to_feed_it_and_begins_by_itself(
    server: PageServer, open_tab: OpenTab
) -> None:
    tab = open_tab(server.url)
    expect(tab.page.get_by_text("toolkit blast").first).to_be_visible()
    begin(server.database)
    expect(board(tab)).to_be_visible()
    comes(tab, lambda: hosts(tab), ALL)
    comes(tab, lambda: is_well(tab), True)


def test_a_database_without_a_blast_is_no_trouble(server: PageServer, open_tab: OpenTab) -> None:
    with Store.open(server.database):
        pass
    tab = open_tab(server.url)
    expect(tab.page.get_by_text("toolkit blast").first).to_be_visible()
    begin(server.database)
    comes(tab, lambda: hosts(tab), ALL)


def test_a_locked_database_is_told_and_shown_once_it_is_free(
    server: PageServer, open_tab: OpenTab
) -> None:
    begin(server.database)
    with closing(sqlite3.connect(server.database, isolation_level=None)) as writer:
        # it lets nobody in; plain write-ahead logging never keeps readers out
        writer.execute("PRAGMA locking_mode = EXCLUSIVE")
        writer.execute("BEGIN EXCLUSIVE")
        tab = open_tab(server.url)
        expect(tab.page.locator(".trouble").first).to_contain_text("locked by another process")
    comes(tab, lambda: hosts(tab), ALL)
    comes(tab, lambda: is_well(tab), True)


def test_a_writer_that_takes_its_time_keeps_no_viewer_waiting(
    server: PageServer, open_tab: OpenTab
) -> None:
    begin(server.database)
    with closing(sqlite3.connect(server.database, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE runs SET started_at = started_at + 1")
        tab = open_tab(server.url)
        comes(tab, lambda: hosts(tab), ALL)
        assert is_well(tab)


def test_a_replaced_database_is_followed_without_a_reload(
    server: PageServer, open_tab: OpenTab, tmp_path: Path
) -> None:
    begin(server.database)
    tab = open_tab(server.url)
    comes(tab, lambda: hosts(tab), ALL)
    other = tmp_path / "another.db"
    feeder.begin(other, "ba9876543210", started_s=STARTED_S + 5000, seconds=60)
    for file in server.database.parent.glob("blast.db-*"):
        file.unlink()
    os.replace(other, server.database)  # noqa: PTH105 (over an existing file, at once)
    # h8 has not begun: it is last; 420 answers of h7 are level with 360
    comes(tab, lambda: hosts(tab), ["h6", "h7", "h5", "h4", "h3", "h2", "h1", "h8"])


def test_a_database_that_is_deleted_keeps_its_last_figures_on_screen(
    server: PageServer, open_tab: OpenTab
) -> None:
    begin(server.database)
    tab = open_tab(server.url)
    comes(tab, lambda: hosts(tab), ALL)
    server.database.unlink()
    expect(tab.page.locator(".trouble").first).to_contain_text("is not there")
    assert hosts(tab) == ALL


def test_an_older_database_is_told_from_a_newer_page(server: PageServer, open_tab: OpenTab) -> None:
    """One that was made before there were blasts."""
    migrations = sqlite_utils.Migrations(MIGRATION_SET)
    first, statements = next(iter(STEPS.items()))
    migrations(name=first)(lambda db: [db.execute(each) for each in statements.split(";\n")])
    with closing(sqlite3.connect(server.database)) as connection:
        migrations.apply(sqlite_utils.Database(connection, execute_plugins=False, strict=True))
        connection.commit()
    tab = open_tab(server.url)
    expect(tab.page.locator(".trouble").first).to_be_visible()
    assert "older" in trouble(tab)


def test_what_hosts_and_people_write_stays_text(server: PageServer, open_tab: OpenTab) -> None:
    begin(server.database)
    name = "<img src=x onerror=alert(1)>"
    mark = 'swapped</title><script>alert(2)</script> "to" GPTQ'
    with Store.open(server.database) as store:
        tally = feeder.tally_of(feeder.RUN, 7, STARTED_S + 299)
        store.add_second([replace(tally, name=name, ok=9000, url="javascript:alert(3)")])
        store.add_event(
            Event(run=feeder.RUN, name=name, url="javascript:alert(3)", at=STARTED_S + 150, kind="mark", text=mark)
        )  # fmt: skip
    tab = open_tab()
    dialogs: list[str] = []
    tab.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    tab.page.goto(f"{server.url}/?host={quote(name)}")
    # 9,000 answers in 300 s lead
    comes(tab, lambda: hosts(tab)[:1], [name])
    expect(tab.page.get_by_text(mark).first).to_be_visible()
    expect(tab.page.locator(".kpis .leader")).to_contain_text(name)
    expect(tab.page.locator("figure.chart[data-chart=heat] svg")).to_be_visible()
    assert tab.page.locator("img[src=x]").count() == 0
    assert dialogs == []


def test_a_file_that_is_no_database_is_told(server: PageServer, open_tab: OpenTab) -> None:
    server.database.write_text("These are not the tables you are looking for.\n" * 100)
    tab = open_tab(server.url)
    expect(tab.page.locator(".trouble").first).to_contain_text("not a SQLite database")


def test_a_killed_server_leaves_figures_that_age_and_the_tab_recovers_when_it_is_back(
    tmp_path: Path, open_tab: OpenTab
) -> None:
    with blast_on(tmp_path / "blast.db") as blast, page_over(blast.database, tmp_path) as server:
        tab = open_tab(f"{server.url}/?rank=p95")
        comes(tab, lambda: hosts(tab), [f"h{n}" for n in range(1, 9)])
        server.kill()
        age = tab.page.locator(".age")
        # nobody is there to say so: the age goes on in the browser itself
        expect(age).to_have_attribute("data-state", "late")
        assert hosts(tab) == [f"h{n}" for n in range(1, 9)]
        clock = fact(tab, "clock")
        server.start()
        expect(age).to_have_attribute("data-state", "fresh")
        comes(tab, lambda: fact(tab, "clock") != clock, True)
        # still the visitor's own view
        assert hosts(tab) == [f"h{n}" for n in range(1, 9)]
        # what a browser says while its server is gone, is of no interest; what it says from now on, is
        tab.complaints.clear()
        clock = fact(tab, "clock")
        comes(tab, lambda: fact(tab, "clock") != clock, True)
