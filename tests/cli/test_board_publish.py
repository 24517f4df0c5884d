"""`toolkit board --publish DIR`: what is written, what is refused, what a freeze hides, and how it ends.

The blast is support/feeder.py's: hN answers N requests a second, but h8, which answers 8 only after the first minute.
"""

import gzip
import json
import resource
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support import feeder
from support.feeder import BEGAN, RUN, blast_on

from toolkit.board.feed import Feed
from toolkit.board.standings import Board
from toolkit.cli import main
from toolkit.cli.leaderboard import page_module
from toolkit.errors import ToolkitError
from toolkit.records import Event
from toolkit.store import Store

TOOLKIT = str(Path(sys.executable).with_name("toolkit"))
WAIT_S = 60
ARCHIVE = {"index.html", "live.json", "charts.json", "standings.json", "replay.json"}
"""Each with a compressed twin."""
FROZEN_S = 100
SECONDS = 300


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A blast of 300 s that goes on, as far as anybody has said."""
    path = tmp_path / "blast.db"
    feeder.begin(path, RUN, started_s=BEGAN, seconds=SECONDS)
    return path


def end(database: Path) -> None:
    with Store.open(database) as store:
        store.end_run(RUN, ended_at=BEGAN + SECONDS, client_ok=True)


def note(database: Path, kind: str, at: float) -> None:
    with Store.open(database) as store:
        store.add_event(Event(run=RUN, at=at, kind=kind))  # type: ignore[arg-type]


def board(database: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["board", "--db", str(database), *words])


def published(database: Path, folder: Path, *words: str) -> Result:
    result = board(database, "--publish", str(folder), *words)
    assert result.exit_code == 0, result.output
    return result


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def standings(folder: Path) -> dict[str, dict[str, object]]:
    rows = json.loads((folder / "standings.json").read_text())
    return {row["name"]: row for row in rows}


def test_a_run_that_is_over_is_an_archive_whose_figures_are_the_boards(
    database: Path, tmp_path: Path
) -> None:
    end(database)
    folder = tmp_path / "deep" / "page"
    result = published(database, folder)
    assert result.stdout == f"{folder / 'index.html'}\n"
    assert names(folder) == ARCHIVE | {f"{name}.gz" for name in ARCHIVE}
    for name in ARCHIVE:
        assert gzip.decompress((folder / f"{name}.gz").read_bytes()) == (folder / name).read_bytes()
    told = [json.loads(line) for line in board(database, "--json").stdout.splitlines()]
    assert json.loads((folder / "standings.json").read_text()) == told
    # 150 moments at most: every 2 s of 300 s, and the last is the end
    replay = json.loads((folder / "replay.json").read_text())
    assert replay["at"] == list(range(BEGAN + 1, BEGAN + SECONDS, 2))
    shown = ["".join(replay["pieces"][piece] for piece in frame) for frame in replay["frames"]]
    # after 100 s h8 has answered 8 a second for 40 s: 3.20/s, and at the end for 240 of 300 s: 6.40/s
    places = [
        html.index(f'<tr data-host="h{n}"') for html in (shown[49], shown[-1]) for n in (3, 8, 2)
    ]
    assert places == [*sorted(places[:3]), *places[3:]]
    assert "<b>3.20</b>" in shown[49]
    assert "<b>6.40</b>" in shown[-1]
    # and it can be done again into the same folder
    published(database, folder)


@pytest.mark.parametrize("theirs", ["index.html", "live.json", "replay.json.gz"])
def test_other_peoples_files_are_never_touched(theirs: str, database: Path, tmp_path: Path) -> None:
    folder = tmp_path / "www"
    folder.mkdir()
    (folder / "photo.jpg").write_bytes(b"theirs")
    (folder / theirs).write_text("<html>theirs</html>")
    result = board(database, "--publish", str(folder))
    assert (result.exit_code, names(folder)) == (1, {"photo.jpg", theirs})
    assert (folder / theirs).read_text() == "<html>theirs</html>"
    assert f"Error: `{folder / theirs}` was not written by `toolkit board --publish`" in (
        result.stderr
    )
    # beside files that are in nobody's way it publishes
    (folder / theirs).unlink()
    published(database, folder, "--count", "1")
    assert (folder / "photo.jpg").read_bytes() == b"theirs"


def test_a_folder_that_cannot_be_is_one_error_with_the_way_out(
    database: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    result = board(database, "--publish", str(tmp_path / "file" / "page"))
    assert result.exit_code == 1
    assert f"Error: cannot write `{tmp_path / 'file' / 'page'}`: Not a directory" in result.stderr
    assert "Hint: Make room or name a folder that you may write to" in result.stderr


def test_a_full_disk_is_one_error_and_leaves_what_was_published_whole(
    database: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "page"
    published(database, folder, "--count", "1")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    words = [TOOLKIT, "board", "--publish", str(folder), "--db", str(database)]
    # no file may grow over 40 kB, as if there was no room for more
    result = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)),
    )
    assert result.returncode == 1
    assert f"Error: cannot write `{folder / 'index.html'}`: File too large" in result.stderr
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_database_in_trouble_for_a_moment_ends_nothing_and_what_was_published_stays(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(database)
    live = tmp_path / "page" / "live.json"
    board_of, asked_with = Feed.board, list[str]()

    def fails_twice_after_the_first_turn(feed: Feed, **view: Any) -> Board:
        if live.exists():
            asked_with.append(live.read_text())
            if len(asked_with) <= 2:  # in the replay of the first turn, and where the second begins
                raise ToolkitError(f"`{database}` is locked by another process", "Wait")
        return board_of(feed, **view)

    monkeypatch.setattr(Feed, "board", fails_twice_after_the_first_turn)
    monkeypatch.setattr(page_module("publish"), "EVERY_S", 0.1)
    published(database, live.parent)
    assert asked_with[0] == asked_with[1] == asked_with[2]
    assert standings(live.parent)["h8"]["ok"] == 8 * 240
    assert (live.parent / "replay.json").exists()


def test_a_database_in_trouble_from_the_beginning_is_a_sentence_on_the_page(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ToolkitError(f"`{database}` is locked by another process", "Wait")

    monkeypatch.setattr(Feed, "board", fail)
    published(database, tmp_path / "page", "--count", "1")
    assert "is locked by another process. Wait." in (tmp_path / "page" / "live.json").read_text()


@pytest.mark.parametrize("word", ["--watch", "--json", "--csv", "--all", "--serve"])
def test_what_files_cannot_do_is_a_wrong_command_line(word: str, tmp_path: Path) -> None:
    result = board(tmp_path / "no.db", "--publish", str(tmp_path / "page"), word)
    assert result.exit_code == 2
    assert f"leave {word} out" in result.stderr


def test_a_frozen_board_publishes_nothing_later_in_any_file_until_it_is_revealed(
    database: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "page"
    end(database)
    published(database, folder)
    assert "6.40" in (folder / "charts.json").read_text() + (folder / "index.html").read_text()
    # frozen after it was published whole
    note(database, "freeze", BEGAN + FROZEN_S - 0.3)
    result = published(database, folder, "--count", "1")
    assert "what a freeze hides is published after `toolkit board reveal`" in result.stderr
    assert names(folder) == {
        f"{name}{twin}" for name in ARCHIVE - {"replay.json"} for twin in ("", ".gz")
    }
    assert {row["at"] for row in standings(folder).values()} == {BEGAN + FROZEN_S - 1}
    assert standings(folder)["h8"]["ok"] == 8 * 40
    texts = [file.read_text() for file in folder.glob("*[ln]")]
    assert len(texts) == 4
    assert not [text for text in texts if "6.40" in text]
    assert "frozen" in (folder / "live.json").read_text()
    # a reveal of long ago has come to its end
    note(database, "reveal", time.time() - 3600)
    published(database, folder)
    assert standings(folder)["h8"]["ok"] == 8 * 240
    assert (folder / "replay.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_follows_a_blast_and_a_signal_ends_it_in_order(
    number: signal.Signals, tmp_path: Path
) -> None:
    folder = tmp_path / "page"
    words = [TOOLKIT, "board", "--publish", str(folder), "--db", str(tmp_path / "blast.db")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

    def until(what: str) -> None:
        give_up = time.monotonic() + WAIT_S
        live = folder / "live.json"
        while not (live.exists() and what in live.read_text()):
            assert time.monotonic() < give_up
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)

    with subprocess.Popen(words, **pipes, text=True) as process, ExitStack() as ends:
        ends.callback(process.kill)
        # before there is a blast it says so, and goes on by itself
        until("feeding")
        with blast_on(tmp_path / "blast.db"):
            until('data-host=\\"h8\\"')
        # one folder has one publisher
        other = board(tmp_path / "blast.db", "--publish", str(folder))
        assert other.exit_code == 1
        assert "another `toolkit board --publish` writes into" in other.stderr
        process.send_signal(number)
        told, said = process.communicate(timeout=WAIT_S)
    assert (process.returncode, told) == (0, f"{folder / 'index.html'}\n")
    assert "Stopped: " in said
    assert names(folder) == {
        f"{name}{twin}" for name in ARCHIVE - {"replay.json"} for twin in ("", ".gz")
    }
    assert len(standings(folder)) == 8


def test_the_title_and_the_logo_are_the_organizers_and_no_viewer_asks_twice_for_a_logo(
    database: Path, tmp_path: Path
) -> None:
    (tmp_path / "logo.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    folder = tmp_path / "page"
    logo = str(tmp_path / "logo.svg")
    published(database, folder, "--count", "1", "--title", "GPU Day <b>", "--logo", logo)
    index = (folder / "index.html").read_text()
    assert "<title>GPU Day &lt;b&gt;</title>" in index
    assert index.count('src="data:image/svg+xml;base64,') == 1
    live = json.loads((folder / "live.json").read_text())["parts"]
    assert ">GPU Day &lt;b&gt;<" in live["title"]
    assert "data:image" not in json.dumps(live)
