"""The page, part by part: a toolbar outside all fragments, and each live part in a fragment of its own.

It lays out and refreshes; what is seen is made by scene.py, what is set is controls.py's.
"""

import argparse
import os
import random
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import streamlit as st

from leaderboard_page import controls
from leaderboard_page.address import Address
from leaderboard_page.branding import Branding, branding
from leaderboard_page.collector import keep_quiet
from leaderboard_page.hosts_view import hosts_view
from leaderboard_page.live import show, style
from leaderboard_page.presenter import presenter_keys
from leaderboard_page.scene import REST_S, Scene, scene_of
from leaderboard_page.source import DatabaseSource, error_sentence
from leaderboard_page.strip import title
from toolkit.board.standings import csv_of, usual_window_s
from toolkit.cli.places import DATABASE
from toolkit.errors import ToolkitError
from toolkit.report.html import tag

ICON = Path(__file__).parent / "icon.svg"
"""Drawn here: Streamlit fetches its own icons for a tab from the internet."""
FAST_S = 2.0
SLOW_S = 10.0
PLAY_S = 1.0
CSV_COLUMNS = (
    "rank name url score rps output_tokens_per_s ttft_p50_ms ttft_p95_ms p50_ms p95_ms error_rate ok errors"
    " hit_share tied rank_change verdicts window_s at"
).split()
"""The keys of `toolkit board --json`."""
JITTER = 0.1
"""Each viewer's intervals are up to this much longer, so that fifty who came at once do not stay in step."""


def options() -> argparse.Namespace:
    """What the server was started with: the database (else TOOLKIT_DB, else the usual one), a title and a logo."""
    words = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    words.add_argument("--db", type=Path, default=os.environ.get("TOOLKIT_DB") or DATABASE)
    words.add_argument("--title", default=Branding().title)
    words.add_argument("--logo")
    return words.parse_known_args(sys.argv[1:])[0]


@st.cache_resource(show_spinner=False)
def source_of(path: Path) -> DatabaseSource:
    """The one follower of a file, for all viewers of this server."""
    keep_quiet()
    return DatabaseSource(path)


def main() -> None:
    """One viewer's page."""
    given = options()
    brand = branding(given.title, given.logo)
    st.set_page_config(page_title=brand.title, page_icon=str(ICON), layout="wide")
    address = controls.current()
    style(address.theme)
    source = source_of(given.db)
    scene = scene_of(source, address, time.time())
    if isinstance(scene, Scene) and address.view is None:
        (kiosk if address.kiosk else page)(source, address, scene, brand)
    else:
        if brand.logo:
            st.html(brand.logo)
        every(FAST_S, hosts, source, address, brand.title)


def kiosk(source: DatabaseSource, address: Address, scene: Scene, brand: Branding) -> None:
    """One screen without controls."""
    st.html("<div class='kiosk-mark'></div>")
    if brand.logo:
        st.html(brand.logo)
    every(FAST_S, fast, source, address, drawn(scene), brand.title)


def page(source: DatabaseSource, address: Address, scene: Scene, brand: Branding) -> None:
    """The whole page, from the toolbar to the method."""
    first_s, last_s = scene.feed.start_s, scene.feed.end_s or scene.feed.start_s
    names = [host.name for host in scene.feed.hosts]
    with st.container(horizontal=True, vertical_alignment="center", key="toolbar"):
        if brand.logo:
            st.html(brand.logo, width="content")
        st.html(title(scene.run, brand.title), width="stretch")
        controls.ranking(address, usual_window_s(scene.run))
        controls.live(address, last_s)
        with st.popover("More", icon=":material/tune:", key="more"):
            controls.more(address, scene.read.runs, lambda: as_csv(source, address))
            controls.comparison(address, names)
    # Each part keeps its place on the page, shown or not: one that moved would be taken away and made anew.
    with st.container():
        controls.replay(address, first_s, last_s, scene.step_s)
    playing = st.session_state.get("playing") is not None
    every(PLAY_S if playing else FAST_S, fast, source, address, drawn(scene), brand.title)
    with st.container(key="beside"):
        if address.host in names or address.event is not None:
            every(SLOW_S, draw, source, address, "panel")
    every(SLOW_S, draw, source, address, "slow")
    with st.container():
        if address.compare:
            every(SLOW_S, draw, source, address, "compare")
    every(REST_S, draw, source, address, "rest")
    controls.remember(controls.current())


def drawn(scene: Scene) -> tuple[object, ...]:
    """What the page was laid out for: another run, or another host, needs it anew."""
    return (scene.run.id, *(host.name for host in scene.feed.hosts), len(scene.read.runs))


def every(seconds: float, part: Callable[..., None], *given: object) -> None:
    """Draw a part here, and again and again."""
    late = st.session_state.setdefault("jitter", random.uniform(0.0, JITTER))  # noqa: S311 (no secret)
    st.fragment(part, run_every=seconds * (1 + late))(*given)


def as_csv(source: DatabaseSource, address: Address) -> bytes:
    """The standings of this view as they are when the button is pressed; that is outside any run, where no widget is known."""
    scene = scene_of(source, address, time.time())
    text = csv_of(scene.board, CSV_COLUMNS) if isinstance(scene, Scene) else ""
    return text.encode("utf-8", "replace")


# --- the parts, each in a fragment ----------------------------------------------------------------


def hosts(source: DatabaseSource, address: Address, name: str) -> None:
    """What is known of the hosts; once there is a blast, its leaderboard instead, unless the link asks for this."""
    found = source.read(address.run)
    if found.feed is not None and address.view is None:
        st.rerun()
    viewers = source.present(st.session_state.setdefault("viewer", uuid.uuid4().hex))
    page_now = hosts_view(source, found, address, name, now=time.time(), viewers=viewers)
    show(page_now, key="hosts")


def fast(source: DatabaseSource, address: Address, laid_out: tuple[object, ...], name: str) -> None:
    """Strip, figures and leaderboard; for the presenter of a reveal the key that uncovers the next place."""
    scene = at_the_moment(source, address)
    if scene is None or drawn(scene) != laid_out:
        st.rerun()
        return
    viewer = st.session_state.setdefault("viewer", uuid.uuid4().hex)
    try:
        show(scene.fast(source.present(viewer), name), key="fast")
    except ToolkitError as error:
        show(tag("p", error_sentence(error), class_="trouble").to_bytes(), key="fast")
        return
    if "presenter" in st.session_state:  # what it asks of the scene has been read
        presenter_keys(scene, st.session_state["presenter"])


def draw(source: DatabaseSource, address: Address, part: str) -> None:
    """One part of scene.py; while the database is in trouble and it was never built, nothing."""
    scene = at_the_moment(source, address)
    try:
        show(b"" if scene is None else scene.part(part), key=part)
    except ToolkitError:
        show(b"", key=part)


def at_the_moment(source: DatabaseSource, address: Address) -> Scene | None:
    """The scene of now, or of where a replay has come to."""
    scene = scene_of(source, address, time.time())
    if not isinstance(scene, Scene):
        return None
    moment = controls.moment(address, scene.feed.end_s)
    return scene if moment is address else replace(scene, address=moment)
