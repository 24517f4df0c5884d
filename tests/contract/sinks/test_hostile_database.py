"""A database whose every text is hostile is shown by all verbs and pages without acting on a terminal, a page, a spreadsheet."""

import os
import pty
import shutil
import sqlite3
import subprocess
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from contract.harness.browser import chromium, leaderboard, tab
from contract.harness.programs import TOOLKIT, environment, rows, run
from contract.sinks.hostile import (
    MARKUP,
    WORD,
    faults_of_csv,
    faults_of_text,
    rewrite,
    text_columns,
)
from playwright.sync_api import expect

OLD = Path(__file__).parents[1] / "fixtures" / "2026-11"
CHOOSES = {
    # by these a run, a row or a host is found; made hostile below, a few at a time
    ("runs", "id"),
    ("runs", "verb"),
    ("runs", "settings"),
    ("tallies", "kind"),
    ("shots", "kind"),
    ("events", "kind"),
    ("sightings", "status"),
    ("captures", "summary"),
}


def hostile_copy(folder: Path, columns: Iterable[tuple[str, ...]], **how: Any) -> Path:
    shutil.copytree(OLD, folder, dirs_exist_ok=True)
    file = folder / "data" / "toolkit.db"
    rewrite(file, sorted(columns), **how)
    return file


def runs_of(file: Path) -> dict[int, str]:
    with closing(sqlite3.connect(file)) as database:
        return dict(database.execute("SELECT number, id FROM runs"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    """A folder with it, and its runs' ids by number: 1 bench, 2 blast, 3 capture, 7 sweep, 8 and 9 blasts of it."""
    folder = tmp_path_factory.mktemp("hostile")
    shutil.copytree(OLD, folder, dirs_exist_ok=True)
    columns = set(text_columns(folder / "data" / "toolkit.db"))
    assert len(columns) > 40
    assert columns > CHOOSES
    file = hostile_copy(folder, columns - CHOOSES)
    return folder, runs_of(file)


def test_no_verb_shows_a_control_character(hostile: tuple[Path, dict[int, str]]) -> None:
    folder, ids = hostile
    name = f"{WORD}alice"
    commands: list[tuple[str, ...]] = [
        ("runs",),
        ("board", "--run", ids[2]),
        ("report", ids[2]),
        ("report", ids[1]),
        ("compare", ids[8], ids[9]),
        ("diagnose", ids[2]),
        ("workload", "--run", ids[3]),
        ("impact", "--run", ids[2], "--host", f"{WORD}erin"),
        ("impact", "--run", ids[2], "--host", "nobody"),
        ("scout", "--history", name),
        ("scout", "--history", "nobody"),
        ("sweep", "--show", ids[7]),
        ("mark", "nobody", "text"),
    ]
    found = {}
    for words in commands:
        ended = run(*words, cwd=folder)
        faults = faults_of_text(ended.stdout) + faults_of_text(ended.stderr)
        if faults or ended.returncode not in (0, 1):
            found[words] = (ended.returncode, faults)
    assert found == {}


def test_json_gives_values_as_they_are(hostile: tuple[Path, dict[int, str]]) -> None:
    """Every character of them, and none that a terminal would act upon in the text of the JSON itself."""
    folder, ids = hostile
    commands = [
        ("board", "--run", ids[2], "--json"),
        ("scout", "--history", f"{WORD}alice", "--json"),
        ("runs", "export", ids[1], "--jsonl", "--shots"),
    ]
    board, history, shots = (run(*words, cwd=folder) for words in commands)
    for ended in (board, history, shots):
        assert ended.returncode == 0, ended.stderr
        assert faults_of_text(ended.stdout) == []
    assert {row["name"] for row in rows(board.stdout)} == {
        WORD + name for name in ("alice", "bob", "carol", "dora", "erin")
    }
    assert rows(history.stdout)[0]["engine"] == f"{WORD}vllm"
    assert rows(history.stdout)[0]["models"] == [f"{WORD}Qwen3.5-35B-A3B"]
    assert {row["model"] for row in rows(shots.stdout)} >= {f"{WORD}Qwen3.5-35B-A3B"}


def test_no_cell_of_a_csv_is_a_formula(hostile: tuple[Path, dict[int, str]]) -> None:
    folder, ids = hostile
    commands = [
        ("board", "--run", ids[2], "--csv"),
        ("runs", "export", ids[2], "--csv"),
        ("runs", "export", ids[1], "--csv", "--shots"),
        ("runs", "export", ids[3], "--csv"),
    ]
    for words in commands:
        ended = run(*words, cwd=folder)
        assert ended.returncode == 0, ended.stderr
        assert "'=HYPERLINK(1)" in ended.stdout
        assert faults_of_csv(ended.stdout) == []


def test_a_terminal_gets_no_escape_but_our_own_colours(
    hostile: tuple[Path, dict[int, str]],
) -> None:
    """On a screen of its own, where colours and a moving line are drawn."""
    folder, ids = hostile
    for words in (("board", "--run", ids[2]), ("scout", "--history", f"{WORD}alice")):
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [TOOLKIT, *words],
            cwd=folder,
            env=environment(folder, {"TERM": "xterm-256color"}),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        ) as process:
            os.close(theirs)
            shown = b""
            while True:
                try:
                    shown += os.read(ours, 65536)
                except OSError:
                    break
            os.close(ours)
            assert process.wait() == 0, shown
        text = shown.decode()
        assert "\x1b[" in text, "no colours: this was no terminal"
        # a title, a cleared screen, a bell, C1, another direction
        assert [
            each
            for each in ("\x1b]", "\x1b[2J", "\a", "\x9b", "\x7f", "\b", "\u202e")
            if each in text
        ] == []


LEADS_TO = """all => all.map(each => {
    const address = each.getAttribute("href") ?? each.getAttribute("src")
    return URL.canParse(address, document.baseURI) ? new URL(address, document.baseURI).hostname : ""
})"""
"""To which machine each link and each picture of a page leads."""


def test_no_page_has_live_markup(hostile: tuple[Path, dict[int, str]]) -> None:
    folder, ids = hostile
    for words in (
        ("report", ids[2], "--html", "report.html"),
        ("workload", "--run", ids[3], "--html", "workload.html"),
        ("sweep", "--show", ids[7], "--html", "sweep.html"),
    ):
        assert run(*words, cwd=folder).returncode in (0, 1)
    with (
        leaderboard(folder / "data" / "toolkit.db", folder) as url,
        chromium() as browser,
        tab(browser) as page,
    ):
        dialogs: list[str] = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        pages = [f"file://{folder / name}.html" for name in ("report", "workload", "sweep")]
        for address in (*pages, f"{url}/?run={ids[2]}"):
            page.goto(address)
            # the text itself is there to be read
            if not address.endswith("sweep.html"):
                expect(page.locator("body")).to_contain_text("HYPERLINK(1)")
            page.wait_for_timeout(500)
            assert page.evaluate("window.owned") is None, address
            assert page.query_selector("#owned") is None, address
            # a link to a host's own panel bears its name, as a word of the page's own address
            leads = page.eval_on_selector_all("[href], [src]", LEADS_TO)
            assert [each for each in leads if each.endswith("owned.invalid")] == []
        assert [each for each in asked if "owned.invalid" in each] == []
        assert dialogs == []
    assert "<script>window.owned" in MARKUP


SPOILT = {
    # columns that hold nothing but the hostile word, and who reads them; a number stands for that run
    "tallies.kind shots.kind events.kind sightings.status": (
        "runs|board --run 2|report 1|scout --history alice"
    ),
    "runs.settings captures.summary series.labels": (
        "report 1|diagnose 1|workload --run 3|sweep --show 7"
    ),
    "sightings.models bodies.options ledgers.models_before": (
        "board --run 2|report 1|scout --history alice|workload --run 3|runs export 3 --csv"
    ),
    "sightings.findings tallies.error_kinds ledgers.models_after": (
        "board --run 2|diagnose 1|scout --history alice|runs export 2 --csv"
    ),
    "runs.verb": "runs|board --run 2|report 1|workload --run 3|sweep --show 7",
    "runs.id": "runs|board|report 1|diagnose 1",
}


def test_what_no_toolkit_wrote_is_a_clear_error_or_a_row(tmp_path: Path) -> None:
    """Where a list, a table or one of a few words stood, there is nothing but the hostile word."""
    for number, (columns, commands) in enumerate(SPOILT.items()):
        folder = tmp_path / str(number)
        file = hostile_copy(
            folder, {tuple(each.split(".")) for each in columns.split()}, whole=True
        )
        ids = runs_of(file)
        for command in commands.split("|"):
            words = [ids[int(each)] if each.isdecimal() else each for each in command.split()]
            ended = run(*words, cwd=folder)
            said = (words, ended.returncode, ended.stderr[:600])
            assert ended.returncode in (0, 1), said
            assert faults_of_text(ended.stdout) + faults_of_text(ended.stderr) == [], said
            assert ended.returncode == 0 or ended.stderr.startswith("Error: ") or ended.stdout, said
