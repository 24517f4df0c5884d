"""The presenter's key: uncovers the next place of a reveal, for all viewers. The one thing that the page writes.

Who may press it holds the secret that `toolkit board reveal --by-key` printed; the database holds only its hash.
"""

import time
from functools import cache
from pathlib import Path

import streamlit as st

from leaderboard_page.scene import Scene
from leaderboard_page.source import error_sentence
from toolkit.errors import ToolkitError
from toolkit.records import Event
from toolkit.store import Store


@cache
def _component() -> object:
    # without a shadow root: page.css reaches inside
    script = Path(__file__).with_name("presenter.js").read_text()
    return st.components.v2.component("toolkit_presenter", js=script, isolate_styles=False)


def presenter_keys(scene: Scene, secret: str) -> None:
    """Listen to the presenter's keys while places are covered; for anybody else nothing is there."""
    if not scene.covered or scene.reveal is None or not scene.reveal.is_presenter(secret):
        return

    def uncover() -> None:
        event = Event(run=scene.run.id, at=time.time(), kind="uncover")
        st.session_state.pop("presenter_trouble", None)
        try:
            with Store.open_existing(scene.source.path) as store:
                store.add_event(event)
        except ToolkitError as error:
            st.session_state["presenter_trouble"] = error_sentence(error)
        scene.source.forget()

    left = len(scene.covered)
    data = {"left": left, "trouble": st.session_state.get("presenter_trouble", "")}
    mount = _component()
    mount(data=data, key="presenter-keys", on_next_change=uncover, height="content")  # type: ignore[operator]
