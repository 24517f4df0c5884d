"""The page as files that any web server can show: `toolkit board --publish DIR`. Writes into that folder only.

    index.html       style, script and the newest figures in one file; once the run is over also its replay
    live.json        title, strip, cards and table as HTML: pages that are open ask for it every EVERY_S
    charts.json      what stands below; asked for when live.json names another version of it
    standings.json   the figures, with the keys of `toolkit board --json`
    replay.json      once the run is over: its standings at a few hundred moments

Each has a compressed twin (`index.html.gz`) for servers that send such a file as it is (`gzip_static` of nginx): a page of
100 hosts is compressed once instead of once a viewer. A file is replaced whole, so that nobody reads half of one.

What is seen is scene.py's, so a freeze holds here as on the live page; published.js keeps open pages up to date.
"""

import fcntl
import gzip
import hashlib
import json
import os
import re
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import quote

from leaderboard_page.address import MOST_ROWS, parsed
from leaderboard_page.branding import Branding
from leaderboard_page.hosts_view import hosts_view
from leaderboard_page.scene import Scene, scene_of
from leaderboard_page.source import DatabaseSource, error_sentence
from leaderboard_page.strip import title
from toolkit.board.standings import json_rows
from toolkit.errors import ToolkitError
from toolkit.report.html import Markup, tag
from toolkit.units import time_of_day

EVERY_S = 5.0
LATE_S, STALE_S = 15, 30
"""Ages from which figures are amber and red. A healthy page's are up to 13 s old: two waits of 5 s, one here and one in the browser, and the reading."""
CHARTS_S = 14.0
"""Charts change slowly and are the larger part: they are drawn anew at every third refresh."""
MOST_FRAMES = 150
"""Moments of a replay: a minute and a quarter to look at, half a minute of CPU to judge the canaries of each."""
MOST_FRAME_ROWS = 6_000
"""Hosts x moments: 2.5 MB, 0.2 MB compressed."""
FILES = ("index.html", "live.json", "charts.json", "standings.json", "replay.json")
SIGNATURE = '<meta name="generator" content="toolkit board --publish">'
"""In each index.html of ours: only a folder with one may hold files that are replaced."""

_HERE = Path(__file__).parent
# cells and facts: most are the same at many moments of a replay
_PIECES = re.compile(r"(?=<t[rdh]\b|<li\b)")
_SPARKLINE = re.compile(r'<svg class="spark".*?</svg>')
# they ask for other views of the live page, of which a file has none
_LINKS = re.compile(r'<a [^>]*role="switch".*?</a>| href="\?[^"]*"')


def publish(
    database: Path,
    folder: Path,
    query: Mapping[str, str],
    *,
    brand: Branding,
    stop: threading.Event,
    begun: Callable[[], object],
    say: Callable[[str], object],
    count: int | None = None,
) -> None:
    """Refresh the files until the run is over and its archive written, until `stop`, or `count` times. Raises ToolkitError.

    While the database is in trouble what was published stays as it is, and its age tells so.

    `query` says what is shown, in the words of the page's links. `begun` is called once the files are there; what `say` gets
    is for the person who started this.
    """
    source = DatabaseSource(database)
    # nobody can ask a file for more rows
    address = replace(parsed(query), top=MOST_ROWS)
    refreshes, is_kept_waiting = 0, False
    with published(folder) as write:
        write("replay.json", None)  # of an earlier run, or of this one before its board was frozen
        while True:
            due_s, now = time.monotonic() + EVERY_S, time.time()
            scene = scene_of(source, address, now)
            final = has_ended = False
            files: dict[str, str | None] = {}
            try:
                if isinstance(scene, Scene):
                    final, has_ended = is_final(scene), scene.board.ended
                else:  # before the first blast, as the live page is then
                    found = source.read(address.run)
                    scene = hosts_view(source, found, address, brand.title, now=now, viewers=0)
                files = files_of(scene, now, brand)
            except ToolkitError as error:
                final = has_ended = False
                if refreshes == 0:  # there is nothing yet that could stay
                    trouble = tag("p", error_sentence(error), class_="trouble")
                    files = files_of(trouble.to_bytes(), now, brand)
            for each in files.items():
                write(*each)
            refreshes += 1
            if refreshes == 1:
                begun()
            if final and isinstance(scene, Scene):
                # which is written above already: nobody waits for the replay to see it
                files = {}
                with suppress(ToolkitError):  # the next turn tries again
                    replay = replay_of(scene, stop, say)
                    if replay is not None:
                        files = files_of(scene, time.time(), brand, replay)
                if files:
                    for each in files.items():
                        write(*each)
                    say(f"`{folder}` holds the final standings and their replay")
                    return
            elif has_ended and not is_kept_waiting:
                is_kept_waiting = True
                say(
                    "The run is over; what a freeze hides is published after `toolkit board reveal`"
                )
            if refreshes == count or stop.wait(max(0.0, due_s - time.monotonic())):
                say(f"Stopped: `{folder}` keeps the standings of {time_of_day(now)}")
                return


def is_final(scene: Scene) -> bool:
    """Whether a run is over and all of it may be seen: not while its board is frozen, nor before a reveal has come to its end."""
    return scene.board.ended and scene.board.frozen_at_s is None and not scene.covered


# --- what the files say ---------------------------------------------------------------------------

Write = Callable[[str, str | None], None]


def files_of(
    scene: Scene | bytes,
    now: float,
    brand: Branding,
    replay: Mapping[str, list[Any]] | None = None,
) -> dict[str, str | None]:
    """Each file as it should be now, in the order of writing; None: it should not be there. Raises ToolkitError."""
    top = {"title": "", "fast": ""}
    below = {"slow": "", "rest": ""}
    standings: list[dict[str, Any]] = []
    final = isinstance(scene, Scene) and is_final(scene)
    if isinstance(scene, Scene):
        top = {
            "title": title(scene.run, brand.title),
            "fast": _unlinked(scene.fast(viewers=0, name=brand.title)),
        }
        # lines of a hundred hosts can be told apart by nobody
        few = replace(scene, address=replace(scene.address, top=None))
        keep_s = 0.0 if final else CHARTS_S
        below = {name: _unlinked(few.part(name, keep_s=keep_s)) for name in below}
        standings = list(json_rows(scene.board))
    else:
        top["fast"] = _unlinked(scene)

    state = {
        "written_at": round(now, 3),
        "final": final,
        "frames": len(replay["frames"]) if replay else 0,
        "charts": hashlib.sha256("".join(below.values()).encode()).hexdigest()[:12],
    }
    frames = None if replay is None else json.dumps(replay, separators=(",", ":"))
    return {
        # first, as it bears the signature
        "index.html": document(top | below, state, frames, brand),
        "charts.json": json.dumps({"charts": state["charts"], "parts": below}),
        "standings.json": json.dumps(standings),
        "replay.json": frames,
        # last, as it names the others
        "live.json": json.dumps(state | {"parts": top}),
    }


def document(
    parts: Mapping[str, str], state: Mapping[str, Any], frames: str | None, brand: Branding
) -> str:
    """The one file that is a page by itself."""
    # the module that Streamlit loads is here a function that the script calls
    patching = (_HERE / "live.js").read_text().replace("export default function", "return function")
    script = f"\nconst show = (() => {{\n{patching}}})();\n{(_HERE / 'published.js').read_text()}"
    style = f"{(_HERE / 'page.css').read_text()}\n{(_HERE / 'published.css').read_text()}"
    # whatever a host's name holds, no script but this one runs, and nobody is asked but the server of this page
    allowed = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}';"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = (
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(SIGNATURE),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup(
            f'<link rel="icon" href="data:image/svg+xml,{quote((_HERE / "icon.svg").read_text())}">'
        ),
        tag("title", brand.title),
        Markup(f"<style>\n{style}</style>"),
        # without a script an age would not grow, nor would names of dots find room
        tag("noscript", Markup("<style>.facts .data, .dot > .label { display: none; }</style>")),
    )

    def part(name: str) -> Markup:
        return tag("div", tag("div", Markup(parts[name]), class_="live"), data_part=name)

    when = time_of_day(state["written_at"])
    scriptless = (
        f"The standings of {when}. With JavaScript this page follows the run, or replays it."
    )
    silent = f"No new figures for more than {STALE_S} s: the publisher or the network has stopped."
    bar = (
        tag("button", "Play", id="play", type="button"),
        Markup('<input id="moment" type="range" min="0" aria-label="Moment of the run">'),
        tag("output", id="when", for_="moment"),
        tag("button", "Final standings", id="end", type="button"),
    )
    main = tag(
        "main",
        tag("noscript", tag("p", scriptless, class_="scriptless")),
        # not in live.json, which every viewer asks for again and again
        brand.logo,
        part("title"),
        tag("p", silent, id="silent", role="status", hidden=True),
        tag("div", bar, id="replay", role="group", aria_label="Replay", hidden=True),
        part("fast"),
        part("slow"),
        part("rest"),
        data_state=json.dumps(state),
        data_every_s=EVERY_S,
        data_late_s=LATE_S,
        data_stale_s=STALE_S,
    )
    embedded = None
    if frames is not None:  # so that one file, sent to anybody, is the whole archive
        inside = Markup(frames.replace("<", "\\u003c"))
        embedded = tag("script", inside, type="application/json", id="frames")
    body = (main, embedded, Markup(f"<script>{script}</script>"))
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def replay_of(
    scene: Scene, stop: threading.Event, say: Callable[[str], object]
) -> dict[str, list[Any]] | None:
    """Strip, cards and table at even moments of the whole run; None: stopped before it was whole.

    Each moment is the page's own HTML, cut into pieces of which each is kept once: `frames` are numbers of `pieces`.
    """
    start_s, end_s = scene.feed.start_s, scene.feed.end_s
    moments = range(0)
    if end_s is not None:
        most = max(2, min(MOST_FRAMES, MOST_FRAME_ROWS // max(1, len(scene.feed.hosts))))
        # from the end backwards, so that the last one is the end
        moments = range(end_s, start_s - 1, -ceil((end_s - start_s + 1) / most))[::-1]
    say(f"The run is over; its replay of {len(moments)} moments is being made ...")
    said_s = time.monotonic()
    pieces: dict[str, int] = {}
    frames: list[list[int]] = []
    for at_s in moments:
        if stop.is_set():
            return None
        if time.monotonic() > said_s + 10:
            said_s = time.monotonic()
            say(f"{len(frames)} of {len(moments)} moments")
        then = replace(scene, address=replace(scene.address, t=at_s))
        html = _SPARKLINE.sub("", _unlinked(then.fast(viewers=0, name="")))
        frames.append([pieces.setdefault(piece, len(pieces)) for piece in _PIECES.split(html)])
    return {
        "at": list(moments),
        "times": [time_of_day(at_s + 1) for at_s in moments],
        "pieces": list(pieces),
        "frames": frames,
    }


def _unlinked(html: bytes) -> str:
    return _LINKS.sub("", html.decode())


# --- the folder -----------------------------------------------------------------------------------


@contextmanager
def published(folder: Path) -> Iterator[Write]:
    """Have a folder for this publisher alone; what it yields replaces one of its FILES, or takes it away. Raises ToolkitError.

    Other people's files stay as they are, and a file of theirs that bears one of our names is refused.
    """
    try:
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(0o755)  # a web server runs as somebody else
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _refusal(folder, error) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ToolkitError(
                f"another `toolkit board --publish` writes into `{folder}`",
                "Stop that one, or name another folder",
            ) from error
        except OSError:
            pass  # NFS locks no folders
        twins = [twin for name in FILES for twin in (name, f"{name}.gz")]
        names = [name for name in twins if os.path.lexists(folder / name)]
        is_ours = False
        with suppress(OSError, ValueError):
            is_ours = SIGNATURE in (folder / "index.html").read_text()
        if names and not is_ours:
            raise ToolkitError(
                f"`{folder / names[0]}` was not written by `toolkit board --publish`, and is left alone",
                "Name a folder of its own; it is made if it is not there",
            )
        for name in twins:  # what a kill left
            (folder / f".{name}.part").unlink(missing_ok=True)
        written: dict[str, str | None] = {}

        def write(name: str, text: str | None) -> None:
            if name in written and written[name] == text:
                return  # as it was: browsers are told so (304), and keep theirs
            data = None if text is None else text.encode("utf-8", "replace")
            packed = None if data is None else gzip.compress(data, 6, mtime=0)
            try:
                _replace(folder / name, data)
                _replace(folder / f"{name}.gz", packed)
            except OSError as error:
                raise _refusal(folder / name, error) from error
            written[name] = text

        yield write
    finally:
        os.close(lock)  # and with it the lock


def _replace(path: Path, data: bytes | None) -> None:
    """Put a new file in the old one's place, or take the old one away."""
    if data is None:
        path.unlink(missing_ok=True)
        return
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_bytes(data)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _refusal(path: Path, error: OSError) -> ToolkitError:
    return ToolkitError(
        f"cannot write `{path}`: {error.strerror}",
        "Make room or name a folder that you may write to; what was published before stays as it is",
    )
